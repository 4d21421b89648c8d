#!/usr/bin/env bash
# Format check, lint, layers, types, unit tests, upstream's own tests. With --quick only what `pytest --quick` runs of
# the unit tests, and none of upstream's. BIN names the folder of python and ruff.
set -euo pipefail
cd "$(dirname "$0")/.."
bin="${BIN:-.venv/bin}"
unset PYTHONDONTWRITEBYTECODE # pytest rewrites the files of tests, once
# On one core, beside all others. Node's small space for new objects would cost a tenth of its time in collections.
NODE_OPTIONS=--max-semi-space-size=128 "$bin/basedpyright" --pythonpath "$bin/python" &
types=$!
trap 'kill "$types" 2>/dev/null || true' EXIT
"$bin/ruff" format --check .
"$bin/ruff" check .
"$bin/lint-imports" --no-cache --no-logo
"$bin/python" -m pytest -m "not e2e and not gpu" --numprocesses 2 --dist worksteal "$@"
wait "$types"
[[ "${1:-}" == --quick ]] || "$bin/python" scripts/run_upstream_tests.py
