#!/usr/bin/env bash
# Evaluate a checkpoint of Qwen2.5-32B on the paper's seven benchmarks: avg@32 on AIME24/25 and AMC, greedy on the rest.
# Needs 8 GPUs of 80 GB: two engines of four GPUs each. Started again, it continues where it stopped.
set -euo pipefail
ray job submit --address "${RAY_DASHBOARD:-http://127.0.0.1:8265}" \
  --runtime-env-json '{"env_vars": {"VLLM_LOGGING_LEVEL": "ERROR"}}' \
  -- python -m openrlhf_cov.cli.evaluate \
  --model "${MODEL:-Qwen/Qwen2.5-32B}" --benchmarks "${BENCHMARKS:-paper}" --protocol paper --template qwen-boxed \
  --data_dir "${DATA_DIR:-/data/eval}" --output "${OUTPUT:-/results/qwen2.5_32b}" \
  --num_engines 2 --tensor_parallel_size 4
