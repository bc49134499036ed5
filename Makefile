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

# Tests that run at once. A test binary that links Kubernetes takes a core and
# about 1 GB while it is linked.
PARALLEL ?= 2
# verify runs vet over everything, so tests do not run it once more.
GOTEST = $(GO) test -vet=off -p $(PARALLEL) $(TESTFLAGS)

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

# $(call compiled,<target>) compiles the suite that tests of tests/deploy run within their
# time limit.
compiled = $(call step,$(1)-compile,$(GO) test -vet=off -c -o /dev/null ./tests/e2e)

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

# What `make images` calls the images, the image they are based on (with the default
# it needs no network), and further flags of `docker build`.
IMAGES      ?= triune
IMAGE_TAG   ?= dev
IMAGE_BASE  ?= scratch
BUILD_FLAGS ?=

# The images of a commit are the same, whoever builds them and when.
.PHONY: images
images: build ## container images of the programs in bin/, without network
	$(call step,images,for p in $(PROGRAMS); do \
		built=$$(tar -cf - deploy/docker/Dockerfile bin/$$p | docker build --quiet --target prebuilt -f deploy/docker/Dockerfile $(BUILD_FLAGS) \
			--build-arg BASE=$(IMAGE_BASE) --build-arg SERVICE=$$p --build-arg VERSION=$(IMAGE_TAG) --build-arg COMMIT=$(COMMIT) -) && \
		$(GO) run ./tests/deploy/cmd/retime -image=$$built -time=$(COMMITTED) -tag=$(IMAGES)/$$p:$(IMAGE_TAG) || exit 1; done)

.PHONY: compose-up
compose-up: images ## start docker-compose.yml with the images of bin/
	docker compose up --detach --wait --no-build || docker-compose up --detach --no-build

# How long `make load` sends, to the server that KUBECONFIG names.
FOR ?= 2m

.PHONY: load
load: ## traffic that the dashboards show, for FOR (2m), to the server of KUBECONFIG
	$(GO) run ./tests/cmd/load -for=$(FOR)

.PHONY: kubectl
kubectl: ## build kubectl into .tools/
	@$(GO) run ./tests/tools/cmd/tools kubectl >/dev/null

##@ Check

.PHONY: test
test: test-unit test-api ## the fast suite: package tests, then kubectl against triune

# Only what needs no binaries: tests/e2e and its like are the business of test-api.
.PHONY: test-unit
test-unit: ## the tests of every package
	$(call tools,test-unit,h2spec)
	$(call step,test-unit,$(GOTEST) -short $(filter-out ./tests/...,$(PACKAGES)) ./tests/bench/... ./tests/conformance ./tests/deploy/image ./tests/faults/configmaps ./tests/faults/witness ./tests/pins ./tests/tools/...)

# The tests of package faults that make runs.
FAULTS = Watchers|Informers|EtcdWatches|Linearizability

# The tests of package e2e that make runs with all that production clusters turn on.
PRODUCTION = TestProduction|TestQuietStart|TestStolenKeysOfTiers|TestKubectlDiscovery|TestKubectlAuth|TestKubectlApply|TestTiersDecideAlike|TestContradiction|TestAnonymousIsCores

# The go command caches results of the end-to-end suites, too, which hold as long as no file
# of the checkout changes. Continuous integration asks for fresh ones.
FRESH = $(if $(CI),-count=1)
E2ETEST = TRIUNE_TREE=$$({ git rev-parse 'HEAD^{tree}'; git diff HEAD; git ls-files -oz --exclude-standard | xargs -0 cat; } | cksum) \
	$(GOTEST) $(FRESH) -short -timeout 20m

.PHONY: test-api
test-api: build ## the fast half of the end-to-end and parity suites
	$(call tools,test-api,etcd kubectl kube-apiserver nats-server)
	$(call step,test-api,$(E2ETEST) -p 1 ./tests/cluster ./tests/e2e ./tests/identity ./tests/parity ./tests/parity/twins)
	$(call step,test-production,for target in triune tiers; do \
		TRIUNE_TARGET=$$target TRIUNE_REPLICAS=1 TRIUNE_FLAGS=production $(E2ETEST) ./tests/e2e -run '$(PRODUCTION)' || exit 1; done)
	$(call step,test-faults,$(E2ETEST) ./tests/faults -run '$(FAULTS)')

# Both servers of README.md are started, used with its commands, and ended. From a fresh
# clone nothing is built yet, so its time limit is that of a cold build.
.PHONY: test-readme
test-readme: ## `make run` and `make run-tiers`, used as README.md says
	$(call step,test-readme,$(GOTEST) -count=1 -timeout 60m ./tests/readme)

# Commas would part the arguments of step.
COMPOSE_TESTS = TestComposeKeys|TestComposeIsConfined|TestComposePassesTheSuite|TestComposeLosesNothing|TestComposeNATS|TestNATS|TestDashboards
NO_ENGINE = no container engine answers: images and running containers are not tested

.PHONY: test-compose
test-compose: build ## docker-compose.yml: the fast end-to-end suite, containers killed and cut off
	$(call tools,test-compose,etcd kubectl nats-server prometheus promtool)
	$(call compiled,test-compose)
	$(call step,test-compose,docker version >/dev/null 2>&1 || echo "$(NO_ENGINE)"; \
		$(GOTEST) -count=1 -timeout 10m ./tests/deploy/... -run '$(COMPOSE_TESTS)')

# What kubelet and its containers need. An engine may have brought a containerd of its own.
NODE_PACKAGES = runc containernetworking-plugins iptables conntrack busybox-static iproute2 procps
# The servers that get a node, as arguments of the test. With -short a machine may lack what
# a node needs.
NODES ?= '-target=kube-apiserver' '-target=triune' '-target=tiers -replicas=2'

.PHONY: test-node
test-node: build ## a node with kubelet and Pods, beside triune, the tiers and kube-apiserver (as root, on Debian)
	$(call step,test-node-packages,[ -x /usr/lib/cni/bridge ] && [ -x /bin/busybox ] && command -v conntrack containerd >/dev/null || { \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends $(NODE_PACKAGES) $$(command -v containerd >/dev/null || echo containerd); } >/dev/null || echo "Debian's packages cannot be installed")
	$(call tools,test-node,etcd kubectl kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubelet $(if $(filter -short,$(NODES)),,metrics-server) nats-server)
	$(call step,test-node,for on in $(NODES); do \
		$(GOTEST) -count=1 -timeout 20m ./tests/node $$on || exit 1; done)

# The packages where goroutines share most. The race detector needs a C compiler.
RACED = ./shared/storage/bytecache ./shared/storage/etcdembed ./shared/storage/eventlog ./shared/transport/loopback ./shared/server/reads ./services/standalone/internal/nats

.PHONY: test-race
test-race: ## the event log, the cache, the reads and what is embedded, under the race detector
	@command -v $${CC:-cc} >/dev/null || { echo "the race detector needs a C compiler: apt-get install gcc libc6-dev"; exit 1; }
	$(call step,test-race,CGO_ENABLED=1 $(GOTEST) -race -short -timeout 40m $(RACED))

# How long each target of `make fuzz` runs.
FUZZTIME ?= 60s

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (60s), from the seeds that `make test` tries
	$(call step,fuzz,grep -rl --include='*_test.go' '^func Fuzz' shared services | while read -r file; do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$$file"); do \
			$(GO) test -vet=off -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) "./$$(dirname "$$file")" || exit 1; done; done)

.PHONY: test-full
test-full: e2e test-node test-readme test-race fuzz ## test without -short, and e2e
	$(call step,test-full,$(GOTEST) -timeout 40m $(filter-out ./tests/...,$(PACKAGES)) ./tests/bench/... ./tests/conformance ./tests/pins ./tests/tools/...)

# A suite of `make e2e` a line: its name, and what is given to `go test`.
define E2E
parity-triune     ./tests/cluster ./tests/parity ./tests/parity/twins
parity-tiers      ./tests/parity -target=tiers -replicas=2
twins-tiers       ./tests/parity/twins -target=tiers
launchers         ./tests/launchers
identity-triune   ./tests/identity
identity-tiers    ./tests/identity -target=tiers -replicas=2
e2e-triune        ./tests/e2e -target=triune
e2e-tiers         ./tests/e2e -target=tiers -replicas=2 -disrupt
production-triune ./tests/e2e -target=triune -flags=production
production-etcd   ./tests/e2e -target=triune -external-etcd -flags=production-max-in-flight
production-tiers  ./tests/e2e -target=tiers -replicas=2 -flags=production
production-go     -short ./tests/e2e -target=tiers -replicas=2 -flags=production-max-in-flight
faults-triune     ./tests/faults -run $(FAULTS) -target=triune
faults-tiers      ./tests/faults -run $(FAULTS) -target=tiers -replicas=3
deploy            ./tests/deploy/...
endef
export E2E

# All suites are run even if one fails, so that one run tells everything.
.PHONY: e2e
e2e: build tools ## the whole end-to-end suite: triune, then the tiers, two replicas each
	@printf '%s\n' "$$E2E" | { failed=; while read -r name arguments; do \
		( $(call timed,$$name,$(GOTEST) -count=1 -timeout 60m $$arguments </dev/null) ) || failed="$$failed $$name"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }; }

DEPLOY_TOOLS = docker-compose etcd helm kube-controller-manager kube-scheduler kubectl kwok nats-server prometheus promtool

.PHONY: chart-test
chart-test: build ## the tests of compose, chart, rules and dashboards alone
	$(call tools,chart-test,$(DEPLOY_TOOLS))
	$(call compiled,chart-test)
	$(call step,deploy,$(GOTEST) -count=1 -timeout 60m ./tests/deploy/...)

# What is measured is in docs/performance.md.
BENCH_TOOLS = etcd nats-server kube-apiserver
# A part of the workloads, as a regular expression, or of the servers, separated by
# commas; the results go to .run/bench.
WORKLOAD ?=
SERVERS  ?=

# How often every server runs every workload, but for the slow ones, which run once.
ROUNDS ?= 3

.PHONY: bench
bench: build ## measure everything beside kube-apiserver, into docs/benchmarks (WORKLOAD=…, ROUNDS=…)
	$(call tools,bench,$(BENCH_TOOLS))
	$(GO) run ./tests/cmd/bench -rounds=$(ROUNDS) -profiles=.run/bench/profiles $(if $(WORKLOAD)$(SERVERS),$(if $(WORKLOAD),-workload='$(WORKLOAD)') $(if $(SERVERS),-servers='$(SERVERS)'),-out=docs/benchmarks -profiles-page=docs/benchmarks/profiles.md -scaling=docs/scaling.md)

# The published rows that cross the hop or hold watches, with either HTTP/2 server.
.PHONY: bench-http2
bench-http2: build ## what --http2-server=go costs, into docs/benchmarks
	$(call tools,bench-http2,$(BENCH_TOOLS))
	$(GO) run ./tests/cmd/bench -rounds=$(ROUNDS) -servers=kube-apiserver,triune,triune/go,tiers,tiers/go,floor \
		-workload='^(get-pod|list-pods-json|watch-500|open-watch|watch-500-burst|create-configmap|idle-watcher)$$' -out=docs/benchmarks -name=http2

# What else a server does while it is attacked.
.PHONY: bench-attacks
bench-attacks: build ## what users notice of attacks, beside kube-apiserver, into docs/benchmarks and docs/security.md
	$(call tools,bench-attacks,$(BENCH_TOOLS))
	$(GO) run ./tests/cmd/bench -rounds=1 -servers=kube-apiserver,triune,tiers -workload='^attack-' -out=docs/benchmarks -name=attacks -security=docs/security.md

.PHONY: bench-quick
bench-quick: build ## the same in minutes, without what is large
	$(call tools,bench-quick,$(BENCH_TOOLS))
	$(GO) run ./tests/cmd/bench -quick -rounds=1 -servers=kube-apiserver,triune,floor $(if $(WORKLOAD),-workload='$(WORKLOAD)',-out=docs/benchmarks -name=quick)

.PHONY: verify
verify: verify-format verify-house verify-vet verify-lint verify-allocations ## format, house rules, vet, lint, allocations

.PHONY: verify-format
verify-format: ## gofmt
	$(call step,verify-format,out=$$("$$($(GO) env GOROOT)/bin/gofmt" -l -s $(MODULES)) && [ -z "$$out" ] || { echo "not formatted; run make fix:"; echo "$$out"; false; })

.PHONY: verify-house
verify-house: ## pins, imports, package docs, links, generated files, lengths
	$(call step,verify-house,$(GO) test -vet=off -count=1 ./tests/verify)

.PHONY: verify-pins
verify-pins: ## module versions alone
	$(GO) run ./tests/cmd/pins

.PHONY: verify-vet
verify-vet: ## go vet
	$(call step,verify-vet,$(GO) vet -p $(PARALLEL) $(PACKAGES))

.PHONY: verify-lint
verify-lint: ## golangci-lint
	$(call tools,verify-lint,golangci-lint)
	$(call step,verify-lint,GOMEMLIMIT=4GiB .tools/golangci-lint run --concurrency $(PARALLEL) $(PACKAGES))

# The packages whose tests bound what a request, a list or an event may allocate; tests/verify
# looks after the list.
COUNTED = shared/server/authz shared/storage/bytecache shared/server/filters shared/storage/render shared/storage/eventlog shared/transport/h2 shared/server/reads \
	services/extensions/internal/customresource
.PHONY: verify-allocations
verify-allocations: ## what hot functions allocate
	$(call step,verify-allocations,$(GOTEST) -run Alloc $(COUNTED:%=./%))

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

.PHONY: tools
tools: ## build every program that the tests use into .tools/
	$(GO) run ./tests/tools/cmd/tools

.PHONY: clean
clean: ## remove what was built and what `make run` stored
	rm -rf bin .tools .run .triune
