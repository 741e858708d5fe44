# The default goal lists the targets.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --warn-undefined-variables

BIN := bin
KUBE_VERSION = $(shell go list -m -f '{{.Version}}' k8s.io/kubernetes)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo v0.0.0)
# What k8s.io/kubernetes and kubectl call themselves; the API server refuses to start without a version.
KUBE_LDFLAGS = -s -w -X k8s.io/component-base/version.gitVersion=$(KUBE_VERSION) -X k8s.io/component-base/version.gitMajor=1 \
  -X k8s.io/component-base/version.gitMinor=$(word 2,$(subst ., ,$(KUBE_VERSION))) -X k8s.io/client-go/pkg/version.gitVersion=$(KUBE_VERSION)
PREVIOUS_VERSION = $(shell go -C hack/previous list -m -f '{{.Version}}' k8s.io/kubernetes)
PREVIOUS_LDFLAGS = -X k8s.io/component-base/version.gitVersion=$(PREVIOUS_VERSION) -X k8s.io/component-base/version.gitMajor=1 \
  -X k8s.io/component-base/version.gitMinor=$(word 2,$(subst ., ,$(PREVIOUS_VERSION)))
TOOL := go tool -modfile=hack/tools/go.mod
FUZZTIME ?= 30s
SEED ?=
EVENTS ?=
CHAOS_SEEDS ?= 1 2 3
URL ?=
CONFORMANCE_FLAGS ?=
DOCKER_FLAGS ?=
LEDGER_FLAGS ?=
ADMISSION_FLAGS ?=
SCHEDULER_FLAGS ?=
MEMORY_FLAGS ?=
RELEASE_FLAGS ?=

##@ Try it

.PHONY: demo
demo: build ## Start a development cluster, play the main job on it, show what happens, stop everything
	@$(BIN)/demo

.PHONY: cluster
cluster: build ## Run a development cluster in the foreground until Ctrl-C
	@$(BIN)/cluster

.PHONY: node
node: build-node ## Run a development cluster with one real node (kubelet, containerd, Multus; Linux, root) until Ctrl-C
	@$(BIN)/node

.PHONY: node-clean
node-clean: ## Remove what a killed make node or make node-e2e left
	@go run ./internal/devnode/node -clean
	@go run ./internal/devnode/node -clean -dir .node-e2e

##@ Build

.PHONY: build
build: ## Build all programs into bin/, what is shipped as static ones (the first time takes about ten minutes: it compiles Kubernetes)
	@echo "building tenant-webhook, tenant-scheduler, the mock and the development cluster"
	@mkdir -p $(BIN)
	CGO_ENABLED=0 go build -ldflags "-s -w -X main.version=$(VERSION)" -o $(BIN)/tenant-webhook ./cmd/webhook
	CGO_ENABLED=0 go build -o $(BIN)/tenant-controller-mock ./mock
	go build -o $(BIN)/cluster ./internal/devcluster/cluster
	go build -o $(BIN)/demo ./test/demo
	go build -o $(BIN)/chaos ./test/chaos
	CGO_ENABLED=0 go build -ldflags "$(KUBE_LDFLAGS) -X main.version=$(VERSION)" -o $(BIN)/tenant-scheduler ./cmd/scheduler
	go build -ldflags "$(KUBE_LDFLAGS)" -o $(BIN)/controlplane ./internal/devcluster/controlplane

.PHONY: build-node
build-node: build ## Build what a real node needs besides: its first process, its image's program, the device plugin, Multus
	@hack/node-install.sh
	go build -o $(BIN)/node ./internal/devnode/node
	go build -o $(BIN)/node-e2e ./test/node
	go build -o $(BIN)/node-init ./internal/devnode/init
	CGO_ENABLED=0 go build -ldflags "-s -w" -o $(BIN)/workload ./internal/devnode/workload
	go build -o $(BIN)/deviceplugin ./mock/deviceplugin
	CGO_ENABLED=0 go build -modfile=hack/multus/go.mod -ldflags "-s -w" -o $(BIN)/multus gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus

.PHONY: run
run: build ## Run tenant-webhook against the cluster of KUBECONFIG (certificates from CERT_DIR)
	$(BIN)/tenant-webhook --kubeconfig "$${KUBECONFIG:?must name a kubeconfig}" --cert-dir "$${CERT_DIR:?must name a directory with tls.crt and tls.key}" --leader-elect=false

.PHONY: docker
docker: ## Build the images with docker, podman or buildah, whichever works here (DOCKER_FLAGS=--prebuilt: without a builder image)
	hack/docker-build.sh $(VERSION) $(DOCKER_FLAGS)

.PHONY: docker-test
docker-test: build ## Build the images with buildah onto an empty base, and run each program from its image
	hack/image-test.sh

.PHONY: clean
clean: ## Remove what was built
	rm -rf $(BIN) .devcluster .devnode .node-e2e

##@ Check

.PHONY: test
test: build ## Run all tests: unit (with the race detector), integration and end to end
	go test -race ./pkg/... ./mock/...
	go test ./cmd/... ./internal/... ./test/... -timeout 30m
	for seed in $(CHAOS_SEEDS); do SEED=$$seed EVENTS=150 $(BIN)/chaos; done

.PHONY: test-unit
test-unit: ## Run the unit tests only
	go test -race ./pkg/... ./mock/...

.PHONY: verify
verify: verify-format verify-tidy lint ## Everything that is checked without running it

.PHONY: verify-format
verify-format: ## Check formatting and vet
	@unformatted="$$(gofmt -l $$(git ls-files '*.go'))"; if [ -n "$$unformatted" ]; then echo "not gofmt'ed (run make fmt):"; echo "$$unformatted"; exit 1; fi
	go vet ./...

.PHONY: verify-tidy
verify-tidy: ## Check that go.mod and go.sum say exactly what is needed
	go mod tidy -diff

.PHONY: lint
lint: ## Run golangci-lint with the layer rules
	$(TOOL) golangci-lint run

.PHONY: fmt
fmt: ## Format the code and tidy go.mod
	$(TOOL) golangci-lint fmt
	go mod tidy

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (30s)
	@for package in $$(go list ./pkg/...); do \
	  for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
	    echo "$$package $$target"; go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
	  done; \
	done

.PHONY: chaos
chaos: build ## Break everything for EVENTS events (300) and check that networks are handed out exactly once; SEED replays a run
	@SEED=$(SEED) EVENTS=$(EVENTS) $(BIN)/chaos

.PHONY: node-e2e
node-e2e: build-node ## Put webhook, scheduler and release through the real node's kubelet, runtime and Multus (Linux, root)
	@$(BIN)/node-e2e

.PHONY: skew
skew: build ## Run the end-to-end tests against the API server of the Kubernetes release before (compiles that one)
	go -C hack/previous build -ldflags "-s -w $(PREVIOUS_LDFLAGS)" -o $(abspath $(BIN))/kube-apiserver-previous .
	go test ./test/e2e -count=1 -timeout 30m -args -api-server $(abspath $(BIN))/kube-apiserver-previous

.PHONY: conformance
conformance: ## Put the tenant-controller at URL through the contract's suite (CONFORMANCE_FLAGS=-help lists more)
	@go run ./test/conformance/run -url "$(URL)" $(CONFORMANCE_FLAGS)

##@ Measure

.PHONY: bench-ledger
bench-ledger: ## Measure the accounting of pools beside a scan (LEDGER_FLAGS=-help lists sizes)
	@go run ./test/perf/ledger $(LEDGER_FLAGS)

.PHONY: bench-admission
bench-admission: ## Measure a review beside an empty webhook, a scan and an API read (ADMISSION_FLAGS=-help lists sizes)
	@mkdir -p $(BIN)
	go build -ldflags "$(KUBE_LDFLAGS)" -o $(BIN)/controlplane ./internal/devcluster/controlplane
	@go run ./test/perf/admission -bin $(BIN) $(ADMISSION_FLAGS)

.PHONY: bench-scheduler
bench-scheduler: ## Measure the scheduler with and without the plugin, in pairs (SCHEDULER_FLAGS=-help lists cases and sizes)
	@mkdir -p $(BIN)
	go build -ldflags "$(KUBE_LDFLAGS)" -o $(BIN)/controlplane ./internal/devcluster/controlplane
	go test -c -o $(BIN)/bench-scheduler.test ./test/perf/scheduler
	@go run ./test/perf/scheduler/pairs -binary $(BIN)/bench-scheduler.test -controlplane $(BIN)/controlplane $(SCHEDULER_FLAGS)

.PHONY: bench-memory
bench-memory: ## Measure what the webhook keeps of a large cluster, and its start (MEMORY_FLAGS=-help lists sizes)
	@go run ./test/perf/memory $(MEMORY_FLAGS)

.PHONY: bench-release
bench-release: build ## Measure how fast 2,000 pods deleted at once give their networks back (RELEASE_FLAGS=-help lists sizes)
	@go run ./test/perf/release -bin $(BIN) $(RELEASE_FLAGS)

.PHONY: bench-small
bench-small: build ## Small pairs of the scheduler and a small release, which fail on a ratio or a count; the tests have the others
	$(MAKE) bench-scheduler SCHEDULER_FLAGS="-cases nearly-full-5000 -divide 2 -pairs 3 -at-least 1.5"
	$(MAKE) bench-scheduler SCHEDULER_FLAGS="-cases free-500 -divide 5 -pairs 3 -at-least 0.5"
	@go run ./test/perf/release -bin $(BIN) -pods 120 -small 10 -check

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-zA-Z_-]+:.*?##/ {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
