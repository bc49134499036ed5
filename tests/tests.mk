# The suites. CONTRIBUTING.md says what each is for.

##@ Check a part

# Tests that run at once. A test binary that links Kubernetes takes a core and
# about 1 GB while it is linked.
PARALLEL ?= 2
# verify runs vet over everything, so tests do not run it once more.
GOTEST = $(GO) test -vet=off -p $(PARALLEL) $(TESTFLAGS)

# $(call compiled,<target>) compiles the suite that tests of tests/deploy run within their
# time limit.
compiled = $(call step,$(1)-compile,$(GO) test -vet=off -c -o /dev/null ./tests/e2e)

# Only what needs no binaries: tests/e2e and its like are the business of test-api.
.PHONY: test-unit
test-unit: ## the tests of every package
	$(call tools,test-unit,h2spec)
	$(call step,test-unit,$(GOTEST) -short $(filter-out ./tests/...,$(PACKAGES)) ./tests/bench/... ./tests/conformance ./tests/deploy/image ./tests/faults/configmaps ./tests/faults/witness ./tests/pins ./tests/tools/...)

# The tests of package faults that make runs, and those that need more tools.
FAULTS = Watchers|Informers|EtcdWatches|Linearizability
ALL_FAULTS = $(FAULTS)|Nodes

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
	$(call step,test-readme,$(GOTEST) -count=1 -timeout 60m ./tests/readme -run 'TestRun|TestPrints')

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

.PHONY: node-tools
node-tools:
	$(call step,node-packages,[ -x /usr/lib/cni/bridge ] && [ -x /bin/busybox ] && command -v conntrack containerd >/dev/null || { \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends $(NODE_PACKAGES) $$(command -v containerd >/dev/null || echo containerd); } >/dev/null || echo "Debian's packages cannot be installed")
	$(call tools,node,etcd kubectl kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubelet nats-server)

.PHONY: test-node
test-node: build node-tools ## a node with kubelet and Pods, beside triune, the tiers and kube-apiserver (as root, on Debian)
	$(if $(filter -short,$(NODES)),,$(call tools,test-node,cert-manager coredns helm metrics-server proxy-agent proxy-server))
	$(call step,test-node,for on in $(NODES); do \
		$(GOTEST) -count=1 -timeout 20m ./tests/node $$on || exit 1; done)
	$(call step,test-tutorial,$(GOTEST) -count=1 -timeout 20m ./tests/readme -run TestTutorial $(filter -short,$(NODES)))

# Kubernetes' conformance tests, which take 35 minutes for each of the servers.
.PHONY: test-conformance
test-conformance: build node-tools ## Kubernetes' conformance tests with a node, for docs/conformance.md (as root, on Debian)
	$(call step,conformance-packages,command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -qq -y --no-install-recommends debootstrap; } >/dev/null)
	$(call tools,test-conformance,agnhost coredns e2e.test ginkgo nnp sample-apiserver)
	$(call step,test-conformance,for on in $(NODES); do \
		$(GOTEST) -count=1 -timeout 4h ./tests/conformance -run TestSpecs -record $$on || exit 1; done)

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
test-full: e2e test-node test-conformance test-readme test-race fuzz ## test without -short, and e2e
	$(call step,test-full,$(GOTEST) -timeout 40m -skip TestSpecs $(filter-out ./tests/...,$(PACKAGES)) ./tests/bench/... ./tests/conformance ./tests/pins ./tests/tools/...)

# A suite of `make e2e` a line: its name, and what is given to `go test`.
define E2E
parity-triune     ./tests/cluster ./tests/parity ./tests/parity/twins
parity-tiers      ./tests/parity -target=tiers -replicas=2
twins-tiers       ./tests/parity/twins -target=tiers
launchers         ./tests/launchers
operator-triune   ./tests/operator
operator-tiers    ./tests/operator -target=tiers -replicas=2
identity-triune   ./tests/identity
identity-tiers    ./tests/identity -target=tiers -replicas=2
e2e-triune        ./tests/e2e -target=triune
e2e-tiers         ./tests/e2e -target=tiers -replicas=2 -disrupt
production-triune ./tests/e2e -target=triune -flags=production
production-etcd   ./tests/e2e -target=triune -external-etcd -flags=production-max-in-flight
production-tiers  ./tests/e2e -target=tiers -replicas=2 -flags=production
production-go     -short ./tests/e2e -target=tiers -replicas=2 -flags=production-max-in-flight
faults-triune     ./tests/faults -run $(ALL_FAULTS) -target=triune
faults-tiers      ./tests/faults -run $(ALL_FAULTS) -target=tiers -replicas=3
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
