# `make serve` talks to a model, `make test` proves it. Both set up what they need first.

BIN := .venv/bin
PINS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup serve test check format bench bench-gateway bench-peers bench-quality clean

help:
	@echo "make serve   start the engine and the gateway; pulls the model when it is missing"
	@echo "             ARGS='--port 9000' passes options on to 'fewer serve'"
	@echo "make test    every test, with the real model, real sockets and a real browser"
	@echo "             ARGS='-k kv' passes options on to pytest"
	@echo "make check   format, lint, types, import rules, file sizes"
	@echo "make bench   measure a stack of its own; ARGS='--url URL' measures one that runs"
	@echo "make bench-gateway  what the gateway adds to time and CPU, against less and LiteLLM"
	@echo "make bench-peers  the same work on other engines, in environments of their own"
	@echo "make bench-quality  perplexity and right answers, cpu against reference"
	@echo "make setup   only make .venv and install everything into it"
	@echo "make format  put every file into the house format"
	@echo "make clean   remove .venv and what tools leave behind"

serve: .venv/runtime.stamp
	@$(BIN)/fewer serve $(ARGS)

test: .venv/dev.stamp
	@scripts/test $(ARGS)

check: .venv/dev.stamp
	@scripts/check

format: .venv/dev.stamp
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

bench: .venv/runtime.stamp
	@$(BIN)/python -m benchmarks.engine $(ARGS)

bench-gateway: .venv/dev.stamp
	@$(BIN)/python -m benchmarks.gateway $(ARGS)

bench-peers: .venv/dev.stamp
	@$(BIN)/python -m benchmarks.peers $(ARGS)

bench-quality: .venv/runtime.stamp
	@$(BIN)/python -m benchmarks.quality $(ARGS)

setup: .venv/dev.stamp

.venv/runtime.stamp: $(PINS)
	@scripts/setup runtime

.venv/dev.stamp: $(PINS) tests/e2e/openai-2.txt
	@scripts/setup dev

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf .coverage* htmlcov build dist *.egg-info
