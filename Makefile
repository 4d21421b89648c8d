# make demo   train the embedded task with KL-Cov on this machine (COV_TYPE=clip_cov or none for the others)
# make test   the whole test suite
# make check  format, lint and the unit tests only

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
COV_TYPE ?= kl_cov
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check lock
.DELETE_ON_ERROR:

demo: $(READY)
	$(BIN)/python -m openrlhf_cov.cli.demo --cov_type $(COV_TYPE) $(DEMO_ARGS)

test: $(READY)
	BIN=$(BIN) scripts/check.sh
	$(BIN)/python -m pytest -m e2e

check: $(READY)
	BIN=$(BIN) scripts/check.sh

$(READY): requirements-cpu.txt setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo "make: needs Python 3.11, $(PYTHON) is another version; name one with PYTHON=..." >&2; exit 2; }
	@command -v g++ >/dev/null || { echo "make: needs g++ (DeepSpeed compiles its CPU optimizer)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --no-deps -r requirements-cpu.txt
	$(BIN)/pip install --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
