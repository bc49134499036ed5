##@ Measure

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
