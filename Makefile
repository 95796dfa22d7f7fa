# `make help` lists the targets: the text after ## is their description.

# Tools are built once, at the version named here, into .bin/. Bumping a version rebuilds that tool.
SQLC_VERSION         := v1.31.1
GOLANGCI_VERSION     := v2.15.0
GOFUMPT_VERSION      := v0.9.2

BIN      := $(CURDIR)/.bin
SQLC     ?= $(BIN)/sqlc-$(SQLC_VERSION)
GOLANGCI ?= $(BIN)/golangci-lint-$(GOLANGCI_VERSION)
GOFUMPT  ?= $(BIN)/gofumpt-$(GOFUMPT_VERSION)

GO ?= go

# One package at a time: most of them keep a PostgreSQL busy, and some measure how fast things are.
TEST_FLAGS   ?= -race
TEST_PROCS   ?= 1
# Most tests wait more than they work.
TEST_PARALLEL ?= 4
TEST_TIMEOUT ?= 12m
PACKAGES     ?= ./...

BENCH       ?= .
BENCH_TIME  ?= 1x
LOAD_FLAGS  ?=

# How long to break things, and for how many seconds with one seed. SOAK_SEED repeats a run.
SOAK_TIME    ?= 2h
SOAK_SECONDS ?= 60
SOAK_SEED    ?=

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: dev
dev: ## run a broker with its own PostgreSQL on http://localhost:6632
	$(GO) run ./cmd/queen dev

.PHONY: test
test: ## run every test with the race detector, against a real PostgreSQL
	scripts/ensure-services.sh cc postgresql redis nginx pgbouncer
	$(GO) test $(TEST_FLAGS) -timeout $(TEST_TIMEOUT) -p $(TEST_PROCS) -parallel $(TEST_PARALLEL) $(PACKAGES)

.PHONY: test-short
test-short: ## run the tests without the slow ones and without the race detector
	scripts/ensure-services.sh postgresql redis
	$(GO) test -short -timeout 5m -p $(TEST_PROCS) $(PACKAGES)

.PHONY: test-readme
test-readme: ## run the snippets of README.md against a broker built from this tree
	scripts/ensure-services.sh postgresql psql curl jq
	scripts/with-broker.sh scripts/test-readme.sh

.PHONY: test-deploy
test-deploy: ## check what is deployed: compose, image, nginx, manifests, chart, alerts, Citus
	scripts/ensure-services.sh nginx yaml postgresql
	scripts/check-deploy.sh

.PHONY: lint
lint: $(GOLANGCI) ## check style, common mistakes and the import rules
	$(GOLANGCI) run

.PHONY: fmt
fmt: $(GOLANGCI) ## format the Go code and order its imports
	$(GOLANGCI) fmt

.PHONY: generate
generate: $(SQLC) ## rebuild internal/pgstore/db from migrations/ and queries/
	$(SQLC) generate

.PHONY: verify
verify: $(SQLC) $(GOFUMPT) ## fail if generated code, go.mod or formatting is out of date
	$(SQLC) diff
	$(GO) mod tidy -diff
	@bad=$$(git ls-files -z '*.go' ':!internal/pgstore/db' | xargs -0 -r $(GOFUMPT) -l); \
	if [ -n "$$bad" ]; then echo "not formatted, run make fmt:"; echo "$$bad"; exit 1; fi

.PHONY: bench
bench: ## run the benchmarks once each (BENCH=regexp BENCH_TIME=2s to measure)
	scripts/ensure-services.sh postgresql redis
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCH_TIME) -benchmem -p 1 -timeout 30m $(PACKAGES)

.PHONY: loadtest
loadtest: ## measure this machine (LOAD_FLAGS='-h' shows the choices)
	scripts/ensure-services.sh postgresql
	$(GO) run ./loadtest $(LOAD_FLAGS)

.PHONY: soak
soak: ## break a whole installation for hours under verified load (SOAK_TIME=8h SOAK_SEED=n)
	scripts/ensure-services.sh cc postgresql redis nginx pgbouncer
	CLUSTER_RACE=1 CLUSTER_FOR=$(SOAK_TIME) CLUSTER_SECONDS=$(SOAK_SECONDS) CLUSTER_SEED=$(SOAK_SEED) \
		$(GO) test -count=1 -timeout 0 -v -run '^TestChaos$$' ./internal/e2e/cluster

.PHONY: clean
clean: ## remove the pinned tools and build results
	rm -rf $(BIN) dist

# $(call install,target,module@version,binary): build into a folder of its own, then move the finished file, so that
# an interrupted build leaves nothing that looks installed.
define install
	@mkdir -p $(BIN)/build
	GOFLAGS= GOWORK=off GOBIN=$(BIN)/build $(GO) install $(2)
	@mv $(BIN)/build/$(3) $(1)
endef

$(BIN)/sqlc-$(SQLC_VERSION):
	$(call install,$@,github.com/sqlc-dev/sqlc/cmd/sqlc@$(SQLC_VERSION),sqlc)

$(BIN)/golangci-lint-$(GOLANGCI_VERSION):
	$(call install,$@,github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION),golangci-lint)

$(BIN)/gofumpt-$(GOFUMPT_VERSION):
	$(call install,$@,mvdan.cc/gofumpt@$(GOFUMPT_VERSION),gofumpt)
