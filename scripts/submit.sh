#!/usr/bin/env bash
# Submit the training of a recipe to its Ray; the words are those of `ray job submit`. With --dry_run among them nothing is
# submitted: the command after -- runs here, and needs neither a Ray nor a GPU. It then plans for the hosts that the recipe
# is for, DRY_RUN_NODES of 8 GPUs with 80 GB each, unless flags name other hosts (--dry_run_nodes) or RAY_ADDRESS a cluster.
set -euo pipefail
if [[ " $* " != *" --dry_run "* ]]; then
  ray job submit "$@"
  exit
fi
hosts=()
if [[ " $* " != *" --dry_run_nodes "* && -z "${RAY_ADDRESS:-}" && -n "${DRY_RUN_NODES:-}" ]]; then
  hosts=(--dry_run_nodes "$DRY_RUN_NODES" --dry_run_gpus 8 --dry_run_gpu_memory 80)
fi
while [[ "$1" != -- ]]; do shift; done
shift 2 # -- and the name of Python on the cluster
python="${PYTHON:-python}"
[[ -n "${PYTHON:-}" || ! -x .venv/bin/python ]] || python=.venv/bin/python
exec "$python" "$@" ${hosts[@]+"${hosts[@]}"}
