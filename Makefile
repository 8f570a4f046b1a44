# prefixring: make help lists the targets.
GO      ?= go
BIN     := bin/prefixring
LINT    := $(GO) tool -modfile=lint/go.mod

.PHONY: help build demo test lint bench fuzz e2e e2e-vllm e2e-k8s chaos compare soak clean fmt

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/prefixring, one static binary
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN) ./cmd/prefixring

demo: build ## a sale on 8 simulated engines: round robin beside prefixring
	$(BIN) demo

test: ## vet, import laws, unit and integration tests with the race detector
	$(GO) vet ./...
	$(GO) test -race -timeout 10m ./...
	cd e2e && $(GO) vet ./... && $(GO) test -timeout 5m ./...

lint: ## formatting, vet and staticcheck at pinned versions
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "run make fmt"; exit 1; }
	$(LINT) staticcheck ./...

fmt: ## format the Go files
	gofmt -w $$(git ls-files '*.go')

bench: ## the budgets of the hot path, each beside its reference
	$(GO) test -run xxx -bench 'Scan|Pick|Parse|Tap|Store|Settle|Route|Poll100|Run100' -benchmem -benchtime 1s ./internal/fingerprint ./ring ./health ./internal/dialect ./internal/session ./internal/cost ./internal/ledger ./internal/route

FUZZTIME ?= 60s
fuzz: ## every fuzzer for FUZZTIME each (default 60s)
	@set -e; for f in $$(git ls-files '*_test.go' | xargs grep -l '^func Fuzz'); do \
	  d=$$(dirname $$f); for name in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' $$f); do \
	    echo "== $$d $$name"; $(GO) test -run xxx -fuzz "^$$name$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s ./$$d; done; done

e2e: build ## the official Python clients against serve and simulated engines
	scripts/e2e.sh

e2e-vllm: build ## two real vLLM CPU engines behind serve (several minutes, about 7 GiB)
	scripts/e2e-vllm.sh

e2e-k8s: ## Kubernetes discovery against a real kube-apiserver and etcd (first run: compiles them, 10 minutes)
	scripts/e2e-k8s.sh

compare: build ## CPU per proxied request beside nginx and HAProxy (and PEERS=folder of other routers)
	scripts/compare.sh

soak: ## mixed faults, 2,000 connections, 10 minutes (PREFIXRING_SOAK=60s for less)
	$(GO) test -tags soak -run TestSoak -timeout 20m ./internal/proxy

chaos: ## engines killed, frozen, added and removed at random under load, 3 minutes (PREFIXRING_CHAOS_SEED=2 for others)
	PREFIXRING_CHAOS=$${PREFIXRING_CHAOS:-3m} $(GO) test -run '^TestChaos$$' -count=1 -v -timeout 15m ./cmd/prefixring

clean: ## remove what make built
	rm -rf bin
