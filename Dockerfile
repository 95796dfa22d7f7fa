# One static binary, no shell, not root.
FROM golang:1.26-bookworm AS build
WORKDIR /src
ENV CGO_ENABLED=0 GOWORK=off
# Modules first: this layer is rebuilt only when a dependency changes.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN go build -trimpath -ldflags "-s -w" -o /out/queen ./cmd/queen

# "static" carries CA certificates, time zones and /etc/passwd, and nothing that can be run.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/queen /usr/local/bin/queen
COPY LICENSE /usr/share/doc/queen/LICENSE
USER nonroot
EXPOSE 6632
# The probe asks the broker on $PORT whether it is ready; the image has no curl.
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 CMD ["/usr/local/bin/queen", "check", "--ready"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/queen"]
CMD ["serve"]
