# One command a chore. `make` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

JOBS ?= $(shell nproc)
BUILD := build/release
SHOAL := $(BUILD)/bin/shoal
INSTALLED = $(abspath $(or $(PREFIX),$(HOME)/.local))
JOB ?= examples/03_gpt_on_headers/job.toml
# What CMake finds goes to stdout and is of use only when something is wrong; that goes to stderr.
CONFIGURE := cmake --preset release >/dev/null
NINJA := cmake --build --preset release --parallel $(JOBS)

.PHONY: help setup build all train test check layout layers tidy headers warnings format docs site bench sanitize fuzz fuzzers soak install clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

setup: ## what the build stands on: Debian packages and LibTorch 2.11 (the other targets do it by themselves)
	@tools/setup.sh

build: setup ## build/release/bin/shoal
	@$(CONFIGURE)
	@$(NINJA) --target shoal

all: setup
	@$(CONFIGURE)
	@$(NINJA)

train: build ## train a GPT on two ranks; FRESH=1 starts anew, JOB=FILE trains another job, ARGS="--set section.key=value"
	@$(SHOAL) train $(JOB) $(if $(filter-out 0,$(FRESH)),--fresh) $(ARGS)

fuzzers: all
	@$(NINJA) --target fuzz

test: fuzzers ## build everything and run every test
	@JOBS=$(JOBS) tools/test.sh

# `make --keep-going check` runs all of them, whichever fail.
check: TIDY := --changed
check: layout layers headers docs warnings tidy ## format, layers, header budget, documentation, clang-tidy, warnings as errors

layout:
	@tools/check_format.sh

layers:
	@tools/check_layers.py

headers: setup
	@tools/check_headers.py

warnings: setup
	@$(CONFIGURE) -DSHOAL_WERROR=ON
	@$(NINJA)

# In `check` only what the last commit or the working tree changed: all of it takes ten minutes.
tidy: setup ## clang-tidy over every source; `make check` looks at what changed
	@$(CONFIGURE)
	@tools/check_tidy.py $(TIDY)

format: ## rewrite the C++ sources in the project's format
	@tools/check_format.sh --fix

docs: ## check the links and commands of the documentation
	@tools/check_docs.py

site: ## build all pages as a web site with search, into build/site/html
	@tools/build_site.py

bench: all ## measure, beside peers, into docs/benchmarks.md; CASES="..." chooses
	@python3 bench/run.py $(CASES) && code=0 || code=$$?; python3 bench/page.py; exit $$code

sanitize: setup ## everything that can run under AddressSanitizer, UBSan and ThreadSanitizer
	@tools/sanitize.sh asan tsan-rooms

fuzz: fuzzers ## every parser of bytes from outside under libFuzzer, SECONDS=30 each; TARGETS="..." chooses
	@SECONDS_EACH=$(or $(SECONDS),30) tools/fuzz.sh $(TARGETS)

soak: setup ## kill, stop, cut off, part and add members of an elastic job for SECONDS=600, and replay what they did; SEED=N repeats one; KEEPER=etcd: one keeps decisions
	@$(CONFIGURE)
	@$(NINJA) --target $(if $(filter etcd,$(KEEPER)),churn_with_etcd_test,churn_test)
	@SHOAL_TEST_SECONDS=0 SHOAL_CHURN_SECONDS=$(or $(SECONDS),600) SHOAL_CHURN_SEED=$(or $(SEED),$$(date +%s)) $(BUILD)/bin/$(if $(filter etcd,$(KEEPER)),churn_with_etcd_test,churn_test) --gtest_filter='Churn*'

install: build ## put the program shoal on your PATH, and headers and libraries beside it: into PREFIX (default ~/.local)
	@cmake --install $(BUILD) --prefix $(INSTALLED) >/dev/null
	@case ":$$PATH:" in \
	  *:$(INSTALLED)/bin:*) echo "shoal is in $(INSTALLED)/bin" ;; \
	  *) echo "shoal is in $(INSTALLED)/bin. Add it to your PATH, here and in ~/.profile:"; \
	     echo "  export PATH=\"$(INSTALLED)/bin:\$$PATH\"" ;; \
	esac

clean: ## forget everything that was built (not .venv, not runs/)
	@rm -rf build
