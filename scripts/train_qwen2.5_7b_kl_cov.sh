#!/usr/bin/env bash
# Train Qwen2.5-7B on DAPO-MATH with KL-Cov: short for scripts/train_qwen2.5.sh 7b kl_cov.
exec "$(dirname "$0")/train_qwen2.5.sh" 7b kl_cov "$@"
