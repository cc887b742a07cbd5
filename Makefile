# ronde: the commands of a working copy. `make help` lists them.
#
# All but `clean` and `help` create .venv at first use. To use a ready interpreter instead (a CUDA machine
# without a network, say), name it: `make gpu PYTHON=python3`. Then no environment is created.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# `make test TORCH=2.14.1` runs the tests with another torch, in an environment of its own on top of .venv.
TORCH ?=
# The oldest and the newest release that ronde is tried with; .venv has the one between, of constraints.txt.
TORCHES := 2.11.0 2.14.1
# Tests of what stands on torch's private names; with each of these releases they take less than a minute.
TORCH_TESTS := tests/patching tests/batches tests/rng tests/comm/test_process_group.py tests/rowwise/test_sequence.py \
  tests/rowwise/test_still_held.py tests/rowwise/test_undo.py tests/modules/test_torchscript_ranks.py \
  tests/planner/test_traced.py tests/verify/test_files_clause.py
VENV := .venv
# The interpreter that creates the environment: `make env BASE_PYTHON=python3.12`.
BASE_PYTHON ?= python3

ifneq ($(TORCH),)
  override PYTHON := $(CURDIR)/.venv-$(TORCH)/bin/python
  READY := .venv-$(TORCH)/.ready
  export PYTHONPATH := $(CURDIR)/src$(if $(PYTHONPATH),:$(PYTHONPATH))
else ifeq ($(PYTHON),)
  override PYTHON := $(CURDIR)/$(VENV)/bin/python
  READY := $(VENV)/.ready
  DOCS_READY := $(VENV)/.docs-ready
else
  READY :=
  DOCS_READY :=
  export PYTHONPATH := $(CURDIR)/src$(if $(PYTHONPATH),:$(PYTHONPATH))
endif

# Interpreters keep what they have compiled: tests start hundreds of them, and rewrite their own asserts.
export PYTHONDONTWRITEBYTECODE :=

RONDE := $(PYTHON) -m ronde
IMPORT_LINTER := $(PYTHON) -c 'from importlinter.cli import lint_imports_command as run; run()' --no-logo
# `make test ARGS="-k reducer -x"` hands words on to pytest; other verbs take ARGS alike. Two processes share the
# tests, which mostly wait for one core; `make test ARGS="-n 0 --pdb"` has one, with a terminal.
ARGS ?=

# Debian's package dataset-fashion-mnist holds 60,000 images, scikit-learn's digits 1,797: fewer epochs do.
EPOCHS ?= $(if $(wildcard /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz),2,12)

# All that the demo writes is in demo-out, the logs of its ranks too (ronde leaves files under the state
# directory to each rank, so it is a folder of its own).
DEMO_STATE := XDG_STATE_HOME=$(CURDIR)/demo-out/state
DEMO := $(DEMO_STATE) $(RONDE)

.PHONY: help env demo demo-recsys test test-torches lint format soak test-cluster ends tools trainers meshes shares rules alarms gpu bench dist docs clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

env: $(READY) ## the environment in .venv (the other commands see to it themselves)

demo: $(READY) ## train on real data on 2 ranks, then prove that one device gives the same
	@echo '$$ ronde run --ranks 2 examples/digits.py --epochs $(EPOCHS)'
	@$(DEMO) run --ranks 2 examples/digits.py --epochs $(EPOCHS) $(ARGS)
	@echo
	@echo '$$ ronde verify --ranks 2 --steps 20 examples/digits.py'
	@$(DEMO) verify --ranks 2 --steps 20 examples/digits.py $(ARGS)

demo-recsys: $(READY) ## two recommenders, from raw data to AUC, on one device, on 2 ranks, with a killed server, and served (3 to 5 minutes)
	@$(DEMO_STATE) $(PYTHON) examples/recommender/compare.py $(ARGS)

test: $(if $(TORCH),$(READY),lint) ## lint, types, import contract, tests (TORCH=2.14.1: the tests, with that torch)
	$(PYTHON) -m pytest -n 2 --dist worksteal -m 'not soak and not gpu and not cluster' $(ARGS)

test-torches: $(READY) ## tests of what stands on torch's private names, with the oldest and the newest torch
	@for torch in $(TORCHES); do \
	  echo "torch $$torch"; $(MAKE) --no-print-directory test TORCH=$$torch ARGS="-q $(TORCH_TESTS) $(ARGS)"; done

lint: $(READY) ## format check, lint of code and prose, types, import contract
	$(PYTHON) -m ruff format --check --quiet
	$(PYTHON) -m ruff check --quiet
	$(PYTHON) lint/prose.py
	$(PYTHON) -m basedpyright --warnings --pythonpath "$$(command -v $(PYTHON))"
	$(IMPORT_LINTER)

format: $(READY) ## format and mend what can be mended
	$(PYTHON) -m ruff check --fix
	$(PYTHON) -m ruff format

soak: $(READY) ## the long tests
	$(PYTHON) -m pytest -m soak --timeout 3600 $(ARGS)

CLUSTER_PACKAGES := openssh-server openssh-client iproute2 util-linux slurm-wlm munge openmpi-bin mpich

test-cluster: $(READY) ## launchers on real ssh servers, Slurm, MPI and Ray, which it installs (Debian, as root)
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(CLUSTER_PACKAGES)
	$(PYTHON) -m pip install -qq impi-rt ray
	$(PYTHON) -m pytest -m cluster --timeout 300 $(ARGS)

ends: $(READY) ## the table of how every script of the tests ends on 2 ranks (tests/ends), and what differs
	PYTHONPATH=$(CURDIR)/tests$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m ends $(ARGS)

alarms: $(READY) ## 200 proofs of right runs by ronde verify, and how many of them are false alarms (an hour)
	PYTHONPATH=$(CURDIR)/tests$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m alarms $(ARGS)

tools: $(READY) ## the table of tools by plans (tests/tools), and its page
	PYTHONPATH=$(CURDIR)/tests$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m tools $(ARGS)

trainers: $(READY) ## other people's trainers beside plain Python (tests/trainers), and their page (ARGS=hf_classification: one row)
	PYTHONPATH=$(CURDIR)/tests$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m trainers $(ARGS)

meshes: $(READY) ## the table of meshes by the other axes, in docs/reference/plan.md (ARGS="tensor=2 precision=bf16": tries one cell)
	PYTHONPATH=$(CURDIR)/tests$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m meshes $(ARGS)

shares: $(READY) ## the table of what each mesh divides of known models, in docs/concepts/meshes.md (15 minutes)
	PYTHONPATH=$(CURDIR)/tests$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m cut_shares $(ARGS)

rules: $(READY) ## what a rule adds to an operation on a cut value, in microseconds (on a quiet machine)
	PYTHONPATH=$(CURDIR)/tests$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m rule_cost

gpu: $(READY) ## the tests that need a CUDA device
	$(PYTHON) -m pytest tests/gpu -m gpu $(ARGS)

bench: $(READY) ## data-parallel steps against hand-written DDP
	$(RONDE) bench dp $(ARGS)

dist: $(READY) ## wheel and source distribution, into dist/
	rm -rf dist
	$(PYTHON) -m hatchling build
	@ls -l dist

docs: $(READY) $(DOCS_READY) ## the documentation, into docs/_build; warnings are errors
	$(PYTHON) -m sphinx -E -W --keep-going -n -q -b html docs docs/_build $(ARGS)
	@echo "docs/_build/index.html"

clean: ## remove the environment, the demo's output and caches
	rm -rf $(VENV) .venv-* demo-out dist build docs/_build .pytest_cache .ruff_cache .import_linter_cache
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.ready: pyproject.toml constraints.txt
	@command -v $(BASE_PYTHON) >/dev/null || { \
	  echo 'ronde: $(BASE_PYTHON) is not there. Install Python >= 3.10, or name it: make env BASE_PYTHON=PATH' >&2; exit 1; }
	@$(BASE_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "ronde: $$($(BASE_PYTHON) -V) is too old. Name one >= 3.10: make env BASE_PYTHON=python3.11" >&2; exit 1; }
	@$(BASE_PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo 'ronde: $(BASE_PYTHON) lacks venv. On Debian and Ubuntu: apt-get install python3-venv' >&2; exit 1; }
	@echo 'Creating $(VENV) (once, a minute or more: PyTorch is large) ...'
	@[ -x $(VENV)/bin/python ] || $(BASE_PYTHON) -m venv --clear $(VENV)
	@PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
	  $(VENV)/bin/python -m pip install -qq -c constraints.txt -e '.[test,demo]'
	@touch $@

$(VENV)/.docs-ready: $(VENV)/.ready
	@PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
	  $(VENV)/bin/python -m pip install -qq -c constraints.txt -e '.[docs]'
	@touch $@

.venv-%/.ready: .venv/.ready tests/torch_environment.py
	@echo 'Creating .venv-$* (once: a gigabyte or more) ...'
	@.venv/bin/python tests/torch_environment.py $* .venv-$*
	@touch $@
