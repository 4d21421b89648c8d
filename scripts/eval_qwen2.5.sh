#!/usr/bin/env bash
# Evaluate a checkpoint of Qwen2.5 on the paper's seven benchmarks, avg@32 on AIME24/25 and AMC, greedy on the rest:
#
#   scripts/eval_qwen2.5.sh SIZE [flags of openrlhf-cov evaluate]
#
# SIZE is 7b or 32b. Both need 8 GPUs of 80 GB. Started again, the evaluation continues where it stopped.
set -euo pipefail

fail() { # MESSAGE
  echo "eval_qwen2.5.sh: $1" >&2
  exit 2
}

[ $# -ge 1 ] || fail "SIZE is required; use scripts/eval_qwen2.5.sh 7b|32b [flags]"
size=$1
shift

case $size in
  #    checkpoint on the hub    engines   GPUs of each engine
  7b)  hub=Qwen/Qwen2.5-7B      engines=8 gpus=1 ;;
  32b) hub=Qwen/Qwen2.5-32B     engines=2 gpus=4 ;;
  *) fail "SIZE $size: no such model; use 7b or 32b" ;;
esac

"$(dirname "$0")/submit.sh" --address "${RAY_DASHBOARD:-http://127.0.0.1:8265}" \
  --runtime-env-json '{"env_vars": {"VLLM_LOGGING_LEVEL": "ERROR"}}' \
  -- python -m openrlhf_cov.cli.evaluate \
  --model "${MODEL:-$hub}" --benchmarks "${BENCHMARKS:-paper}" --protocol paper --template qwen-boxed \
  --data_dir "${DATA_DIR:-/data/eval}" --output "${OUTPUT:-/results/qwen2.5_$size}" \
  --num_engines "$engines" --tensor_parallel_size "$gpus" "$@"
