.DEFAULT_GOAL := help
.PHONY: quickstart test setup configure build bench gpu-check format lint clean help

PRESET ?= release
JOBS ?= $(shell nproc)

ifdef DBA_PYTHON
override DBA_PYTHON := $(or $(shell command -v $(DBA_PYTHON)),$(DBA_PYTHON))
export DBA_PYTHON
endif
export PATH := $(CURDIR)/.venv/bin:$(if $(DBA_PYTHON),$(dir $(DBA_PYTHON)):)$(PATH)

BUILD := cmake --build --preset $(PRESET) --parallel $(JOBS)
TIMED := @scripts/timed.sh

quickstart: configure ## make data, train, evaluate, predict: the whole program in three minutes
	$(TIMED) build $(BUILD) --target dba_program
	$(TIMED) quickstart scripts/quickstart.sh build/$(PRESET)/bin/dba

test: build ## build everything and run all tests
	$(TIMED) tests ctest --preset $(PRESET) --parallel $(JOBS)

setup: ## install what is missing: Debian packages, and Python packages into .venv
	$(TIMED) setup scripts/setup.sh

configure: setup
	$(TIMED) configure cmake --preset $(PRESET)

build: configure ## build the library, the program, the examples and the tests
	$(TIMED) build $(BUILD)

bench: configure ## build and run the benchmarks: the standard set for this machine, in under five minutes
	$(TIMED) build $(BUILD) --target bench
	$(TIMED) bench bench/standard.sh build/$(PRESET)

gpu-check: build ## on a machine with a GPU: GPU tests and compute-sanitizer's tools; GPU_CHECK holds options
	$(TIMED) gpu-check scripts/check_gpu.sh --build build/$(PRESET) $(GPU_CHECK)

format: setup ## format the C++ and CUDA files
	@scripts/format.sh

lint: setup ## check the format, and what cppcheck and shellcheck say where they are installed
	@scripts/lint.sh

clean: ## remove what was built; .venv stays
	rm -rf build

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Variables: PRESET=release|debug|asan, JOBS=$(JOBS), DBA_PYTHON=a Python that has torch 2.11 or newer"
