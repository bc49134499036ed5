# Triune. `make` alone lists the targets. Only Go 1.26, make, git and a POSIX
# shell are assumed; every other program is built from pinned Go modules.

SHELL := /bin/sh
.DEFAULT_GOAL := help

GO ?= go
export GO
# Static binaries that run anywhere, a scratch image included.
export CGO_ENABLED := 0
# The same flag for every go command, so that build, vet, test and the tools
# share one build cache; -trimpath also keeps this machine's paths out of binaries,
# and the commit is ours to stamp (LDFLAGS), not to be linked into every program.
export GOFLAGS := $(strip $(GOFLAGS) -trimpath -buildvcs=false)
export GOWORK := $(CURDIR)/go.work

# The four programs; `make build PROGRAMS=triune` builds one of them.
PROGRAMS ?= aggregator core extensions triune
MAIN_aggregator := ./services/aggregator/cmd/aggregator
MAIN_core       := ./services/core/cmd/core
MAIN_extensions := ./services/extensions/cmd/extensions
MAIN_triune     := ./services/standalone/cmd/triune

# The directories of the workspace's modules, and all packages in them.
MODULES  := shared services/aggregator services/core services/extensions services/standalone tests
PACKAGES := $(MODULES:%=./%/...)

# What /version and --version say is the Kubernetes release that is implemented:
# clients decide by it. Our own version stands beside it in package release.
KUBERNETES := $(shell sed -n 's,^[[:space:]]*k8s.io/kubernetes \(v[0-9.]*\)$$,\1,p' shared/go.mod)
COMMIT     := $(shell git log -1 --format=%H -- shared services go.work 2>/dev/null)
COMMITTED  := $(or $(shell git log -1 --format=%ct -- shared services go.work 2>/dev/null),0)
COMPONENT  := k8s.io/component-base/version
LDFLAGS    := -s -w \
	-X $(COMPONENT).gitVersion=$(KUBERNETES) \
	-X $(COMPONENT).gitMajor=$(word 1,$(subst ., ,$(KUBERNETES:v%=%))) \
	-X $(COMPONENT).gitMinor=$(word 2,$(subst ., ,$(KUBERNETES))) \
	-X $(COMPONENT).gitTreeState=clean \
	-X triune.dev/shared/process/release.Commit=$(COMMIT)

# How many processes of each service run-tiers starts.
REPLICAS ?= 1

# $(call step,<name>,<command>) runs a command, says how long it took, and
# collects that in $(STEPS) for .ci/run.
STEPS ?= /dev/null
define timed
begin=$$(date +%s); echo "== $(1)"; \
	{ $(2); }; status=$$?; \
	echo "$(1) $$(( $$(date +%s) - begin ))" >> $(STEPS); \
	echo "== $(1): $$(( $$(date +%s) - begin )) s"; exit $$status
endef
step = @$(call timed,$(1),$(2))

# $(call tools,<target>,<programs>) builds programs that the tests use into .tools/.
# It comes before whatever has a time limit: the first build takes minutes.
tools = $(call step,$(1)-tools,$(GO) run ./tests/tools/cmd/tools $(2) >/dev/null)

##@ Use

.PHONY: help
help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-zA-Z0-9_-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the programs into bin/
	@for p in $(PROGRAMS); do [ -e bin/$$p ] || { echo "the first build compiles most of Kubernetes: some minutes"; break; }; done
	$(call step,build,$(GO) build -ldflags '$(LDFLAGS)' -o bin/ $(foreach p,$(PROGRAMS),$(MAIN_$(p))))

# Where `make run` serves, and where it keeps its data.
SECURE_PORT ?= 6443
DATA_DIR    ?= $(CURDIR)/.triune

.PHONY: run
run: PROGRAMS = triune
run: build kubectl ## start triune on 127.0.0.1:6443 (SECURE_PORT), with its data and log in .triune/ (DATA_DIR)
	@$(GO) build -o .run/run ./tests/cmd/run
	@exec .run/run -log='$(DATA_DIR)/log' -kubeconfig='$(DATA_DIR)/admin.kubeconfig' -url=https://127.0.0.1:$(SECURE_PORT)/readyz -ca-file='$(DATA_DIR)/pki/ca.crt' -- \
		bin/triune --bind-address=127.0.0.1 --secure-port=$(SECURE_PORT) --data-dir='$(DATA_DIR)' --controllers=all-generic

.PHONY: run-tiers
run-tiers: build ## start etcd, NATS and REPLICAS (1) of each service as processes
	$(call tools,run-tiers,etcd kubectl nats-server)
	@$(GO) build -o .run/run-tiers ./tests/cmd/run-tiers && exec .run/run-tiers -replicas=$(REPLICAS)

.PHONY: run-node
run-node: build node-tools ## start triune, controllers and a node that runs Pods (as root, on Debian)
	@$(GO) build -o .run/run-node ./tests/cmd/run-node && exec .run/run-node

.PHONY: kubectl
kubectl: ## build kubectl into .tools/
	@$(GO) run ./tests/tools/cmd/tools kubectl >/dev/null

.PHONY: tools
tools: ## build every program that the tests use into .tools/
	$(GO) run ./tests/tools/cmd/tools

##@ Check

.PHONY: test
test: test-unit test-api ## the fast suite: package tests, then kubectl against triune

.PHONY: verify
verify: verify-format verify-house verify-vet verify-lint verify-allocations ## format, house rules, vet, lint, allocations

##@ Change

.PHONY: fix
fix: generate ## format, generate, and repair what the linter can
	"$$($(GO) env GOROOT)/bin/gofmt" -w -s $(MODULES)
	@$(GO) run ./tests/tools/cmd/tools golangci-lint >/dev/null
	-.tools/golangci-lint run --concurrency $(PARALLEL) --fix $(PACKAGES)

.PHONY: generate
generate: pins ## rewrite everything that is generated
	$(GO) generate $(PACKAGES)
	$(GO) test -vet=off -count=1 ./tests/verify -run TestPackageListIsUpToDate -rewrite

.PHONY: pins
pins: ## write the pinned Kubernetes version into every go.mod
	$(GO) run ./tests/cmd/pins -write

.PHONY: clean
clean: ## remove what was built and what `make run` stored
	rm -rf bin .tools .run .triune

include deploy/deploy.mk tests/tests.mk tests/verify/verify.mk tests/bench/bench.mk
