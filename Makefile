# sglang-rtxpro. `make` alone lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
PY := .venv/bin/python

.PHONY: help setup system demo demo-compare demo-clean lint parsers unit molecule test test-full collection bench docs locks

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: .venv/.ok ## make the project's own environment in .venv

# uv makes the environment from uv.lock; pip's own venv brings uv.
.venv/.ok: pyproject.toml uv.lock
	@tools/setup

system: ## install what test hosts need on this machine (Debian, root)
	@tools/setup --system

demo: setup system ## boot a test host, deploy to it, ask it, measure it
	@$(PY) tools/demo up

demo-compare: setup system ## the demo's model on another release of SGLang, measured, and what differs
	@$(PY) tools/demo compare

demo-clean: setup ## remove the demo's host and everything it left
	@$(PY) tools/demo clean

lint: setup ## ruff, mypy, yamllint, ansible-lint, syntax, documentation
	@$(PY) tools/check lint

parsers: setup ## every profile before its release's own parser, held against what is on record
	@$(PY) tools/check parsers

unit: setup ## unit tests
	@$(PY) tools/check unit

molecule: setup system ## one scenario on real hosts: make molecule SCENARIO=default
	@$(PY) tools/check molecule --scenario $(or $(SCENARIO),default)

test: setup system ## everything that a change must pass, within 25 minutes on 2 cores
	@$(PY) tools/check lint parsers unit molecule

test-full: setup system ## test, and the long scenarios
	@$(PY) tools/check lint parsers sanity unit molecule --full

collection: setup ## the tree as a collection: build/rtxpro-sglang-VERSION.tar.gz
	@$(PY) tools/collection

bench: setup system ## what deployments, restarts and measurements cost here (docs/performance.md): make bench ROWS="deploy weights"
	@$(PY) tests/bench/performance.py $(foreach row,$(ROWS),--only $(row))

docs: setup ## remake what is generated of docs/, and the site in site/
	@$(PY) tools/troubleshooting
	$(PY) tools/references
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build

locks: setup ## remake the stacks' locks, and what their releases say of themselves
	@$(PY) tools/locks
	@$(PY) tools/parsers
