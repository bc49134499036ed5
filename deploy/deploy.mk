# Container images, and what runs on them.

##@ Deploy

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
