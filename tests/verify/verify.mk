# The parts of `make verify`.

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
COUNTED = shared/storage/bytecache shared/server/filters shared/storage/render shared/storage/eventlog shared/transport/h2 shared/server/reads \
	services/extensions/internal/customresource
.PHONY: verify-allocations
verify-allocations: ## what hot functions allocate
	$(call step,verify-allocations,$(GOTEST) -run Alloc $(COUNTED:%=./%))
