#!/usr/bin/env bash
# Checks what is deployed, without Docker or a cluster: the compose file, the Dockerfile, the manifests, the chart, the
# alerts and the dashboard, the placement of tables in Citus, and nginx.conf, which is also run in front of a stand-in
# broker to see that requests pass through it unchanged.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:/usr/sbin

fail() { echo "check-deploy: $*" >&2; exit 1; }

# A Python that can read YAML: Debian's own may differ from the first in PATH.
python=
for candidate in python3 /usr/bin/python3; do
  "$candidate" -c 'import yaml' 2>/dev/null && python=$candidate && break
done
[ -n "$python" ] || fail "no Python with the yaml module (Debian: python3-yaml)"
command -v nginx >/dev/null || fail "no nginx"

if docker compose version >/dev/null 2>&1; then
  docker compose config --quiet
fi
"$python" scripts/check_compose.py docker-compose.yml deploy/nginx.conf

# What git knows and what is about to be added, templates of the chart left out: they are no YAML before they are rendered.
mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.yaml' '*.yml' ':!deploy/helm/queenmq/templates')
[ ${#files[@]} -gt 15 ] || fail "found only ${#files[@]} YAML files"
"$python" scripts/check_yaml.py "${files[@]}"

# Alerts and dashboard against the series that brokers export; the placement of tables against the migrations.
go test -timeout 5m ./deploy/...

# Chart and kustomization, rendered and read with the types of Kubernetes; alerts, evaluated. A module of its own. Its tests
# read files outside of it, which the cache of results does not see, hence -count=1.
GOWORK=off go -C deploy/check test -count=1 -timeout 5m ./...

# The same once more by the tools themselves, where they are installed.
if command -v helm >/dev/null; then
  helm lint --strict deploy/helm/queenmq >/dev/null
  helm template queenmq deploy/helm/queenmq --kube-version 1.30.0 >/dev/null
fi
if command -v promtool >/dev/null; then
  promtool check rules deploy/monitoring/alerts.yaml >/dev/null
  promtool test rules deploy/monitoring/alerts_test.yaml >/dev/null
fi

go_mod=$(awk '$1 == "go" { split($2, v, "."); print v[1] "." v[2]; exit }' go.mod)
grep -q "^FROM golang:$go_mod" Dockerfile || fail "the Dockerfile does not build with Go $go_mod, go.mod's version"
grep -Eq 'CGO_ENABLED=0' Dockerfile || fail "the image needs a static binary"
grep -q '^USER nonroot' Dockerfile || fail "the image must not run as root"

work=$(mktemp -d)
backend='' proxy=''
cleanup() {
  [ -z "$proxy" ] || kill "$proxy" 2>/dev/null || true
  [ -z "$backend" ] || kill "$backend" 2>/dev/null || true
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

free_port() {
  local port
  while port=$((10000 + RANDOM % 10000)); (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
  echo "$port"
}
backend_port=$(free_port)
while proxy_port=$(free_port); [ "$proxy_port" = "$backend_port" ]; do :; done

# The same configuration with addresses and paths of this machine.
sed -E \
  -e "s/server broker-[0-9]+:6632/server 127.0.0.1:$backend_port/" \
  -e "s/listen 6632;/listen 127.0.0.1:$proxy_port;/" \
  -e "s#/tmp/nginx#$work/nginx#" \
  -e "s#^http \{#http { fastcgi_temp_path $work/f; uwsgi_temp_path $work/u; scgi_temp_path $work/s;#" \
  -e "s/worker_processes auto;/worker_processes 1; daemon off;/" \
  -e "s/worker_connections 32768;/worker_connections 512;/" \
  -e "/worker_rlimit_nofile/d" \
  deploy/nginx.conf >"$work/nginx.conf"
nginx -t -q -p "$work" -c "$work/nginx.conf"

# The stand-in answers each request with the request line it saw.
"$python" - "$backend_port" <<'PY' &
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        left = int(self.headers.get("Content-Length") or 0)
        size = 0
        while size < left:
            size += len(self.rfile.read(min(65536, left - size)))
        if self.path == "/empty":
            self.send_response(204)
            self.end_headers()
            return
        body = f"{self.command} {self.path} {size}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_DELETE = answer

    def log_message(self, *args):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Echo).serve_forever()
PY
backend=$!
nginx -p "$work" -c "$work/nginx.conf" 2>"$work/nginx.log" &
proxy=$!

url=http://127.0.0.1:$proxy_port
for _ in $(seq 100); do
  [ "$(curl -s -o /dev/null -w '%{http_code}' "$url/up" || true)" = 200 ] && up=1 && break
  sleep 0.1
done
[ "${up:-}" = 1 ] || { cat "$work/nginx.log" >&2; fail "nginx did not pass a request on"; }

expect() { # expect WANT CURL-ARGS...: compare the answer's body
  local want=$1 got
  shift
  got=$(curl -sS --path-as-is "$@")
  [ "$got" = "$want" ] || fail "got '$got', want '$want'"
}
path='/api/v1/pop/queue/a%2Fb//c%20%C3%BC%25/partition/%2F..%2f?batch=1&x=%2B'
expect "GET $path 0" "$url$path"
expect "DELETE /api/v1/resources/queues/%2F 0" -X DELETE "$url/api/v1/resources/queues/%2F"
expect "GET /api/v1/ephemeral/pop?queue=a%2Fb 0" "$url/api/v1/ephemeral/pop?queue=a%2Fb"

head -c 3000000 /dev/zero >"$work/body"
expect "POST /api/v1/push 3000000" --data-binary "@$work/body" "$url/api/v1/push"

truncate -s 67108865 "$work/body"
code=$(curl -sS -o "$work/answer" -w '%{http_code} %{content_type}' --data-binary "@$work/body" "$url/api/v1/push" || true)
[ "$code" = "413 application/json" ] || fail "a body over the limit got $code"
grep -q '"code":"payload_too_large"' "$work/answer" || fail "the 413 has no code"

[ "$(curl -sS -o /dev/null -w '%{http_code}' "$url/empty")" = 204 ] || fail "204 did not pass"

kill "$backend"
wait "$backend" 2>/dev/null || true
backend=
code=$(curl -sS -D "$work/headers" -o "$work/answer" -w '%{http_code}' --data x "$url/api/v1/push")
[ "$code" = 503 ] || fail "without a broker nginx answered $code"
grep -qi '^retry-after: 1' "$work/headers" || fail "the 503 has no Retry-After"
grep -q '"code":"timeout"' "$work/answer" || fail "the 503 has no code"

echo "deployment files: ok"
