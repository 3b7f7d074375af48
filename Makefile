SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format bench doctor clean distclean

BIN := .venv/bin
DEMO := build/demo
DEMO_CONFIG := --config conf/local.yaml --set lake.root=$(DEMO)/lake --set corpus.root=$(DEMO)/corpus
BENCHMARKS := $(wildcard benchmarks/*.py)
# Extra arguments for pytest: make test ARGS="-k dedup"
ARGS ?=

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv and .jars ready; quick when nothing changed
	@PYTHON="$(PYTHON)" scripts/setup.sh

demo: setup ## make mixed sources, run sources → verified corpus, show the result
	@$(BIN)/python -m demo.sources $(DEMO)/sources
	@$(BIN)/imagelake run --sources $(DEMO)/sources/sources.yaml $(DEMO_CONFIG)
	@$(BIN)/imagelake report $(DEMO)/report.html $(DEMO_CONFIG)
	@printf '\n%-9s %s\n' sources $(DEMO)/sources lake $(DEMO)/lake corpus $(DEMO)/corpus report $(DEMO)/report.html

test: setup ## run every test
	@$(BIN)/python -m pytest $(ARGS)

lint: setup ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup ## let ruff write what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: setup ## run every benchmark; the last line of each is JSON
	@for benchmark in $(BENCHMARKS); do echo "== $$benchmark"; $(BIN)/python $$benchmark; done

doctor: setup ## say what works on this machine and what doesn't
	@$(BIN)/imagelake doctor

clean: ## remove what demo, tests and benchmarks left
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log

distclean: clean ## remove .venv and .jars too
	rm -rf .venv .jars *.egg-info
