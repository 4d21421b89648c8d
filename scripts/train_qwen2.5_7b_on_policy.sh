#!/usr/bin/env bash
# Qwen2.5-7B on DAPO-MATH with GRPO, strictly on-policy: one update with the whole rollout, 256 prompts x 8 responses, so that
# no ratio differs from 1 and Theorem 1 is about what happens (arXiv 2505.22617, section 3.3, Fig. 8). Groups that dynamic
# sampling keeps beyond a batch are dropped (--sampling_max_staleness 0): a step later they would be of an older policy.
# Otherwise train_qwen2.5_7b_grpo.sh, whose variables it takes.
set -euo pipefail
export OUTPUT="${OUTPUT:-/checkpoints/qwen2.5_7b_on_policy}"
exec "$(dirname "$0")/train_qwen2.5_7b_grpo.sh" --train.batch_size 2048 --sampling_max_staleness 0 "$@"
