#!/usr/bin/env bash
# Submit the training of a recipe to its Ray; the words are those of `ray job submit`. With --dry_run among them nothing is
# submitted: the command after -- runs here, and needs neither a Ray nor a GPU. It then plans for the hosts that the recipe
# is for, DRY_RUN_NODES of 8 GPUs with 80 GB each, unless flags name other hosts (--dry_run_nodes) or RAY_ADDRESS a cluster.
set -euo pipefail

# Ray makes one line of the command's words, and the shell of the cluster reads it again. Ray puts quotation marks around
# words with blanks and a backslash before quotation marks in words, but leaves $, *, <, | and others to that shell.
quoted_for_the_cluster() { # WORD
  local special='[^A-Za-z0-9_@%+=:,./"-]'
  [[ "$1" != *[[:blank:]]* ]] || special='[$`\\]'
  printf %s "$1" | LC_ALL=C sed "s|$special|\\\\&|g"
}

if [[ " $* " != *" --dry_run "* ]]; then
  options=()
  while [[ "$1" != -- ]]; do
    options+=("$1")
    shift
  done
  shift
  command=()
  for word in "$@"; do
    command+=("$(quoted_for_the_cluster "$word")")
  done
  ray job submit "${options[@]}" -- "${command[@]}"
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
