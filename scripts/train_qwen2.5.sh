#!/usr/bin/env bash
# Train Qwen2.5 on DAPO-MATH with the settings of the paper (arXiv 2505.22617, section 4.3) and of the authors' scripts:
#
#   scripts/train_qwen2.5.sh MODEL METHOD [flags of the trainer]
#
# MODEL is 7b (8 GPUs of 80 GB in one node) or 32b (32 GPUs of 80 GB, 8 in each of 4 nodes); METHOD is a row of the
# table below. Add --dry_run to check flags, data, placement and memory without starting anything.
# The environment variables, layouts, and differences from the authors' scripts are described in docs/recipes.md.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { # MESSAGE
  echo "train_qwen2.5.sh: $1" >&2
  exit 2
}

[ $# -ge 2 ] || fail "MODEL and METHOD are required; use scripts/train_qwen2.5.sh 7b|32b METHOD [flags]"
size=$1
method=$2
shift 2

case $size in
  #    checkpoint on the hub   training nodes   learning rate        tokens that KL-Cov selects
  7b)  hub=Qwen/Qwen2.5-7B     nodes=1          learning_rate=5e-7   kl_cov_ratio=2e-3 ;;
  32b) hub=Qwen/Qwen2.5-32B    nodes=4          learning_rate=1e-6   kl_cov_ratio=2e-4 ;;
  *) fail "MODEL $size: no such model; use 7b or 32b" ;;
esac

# Flags of the loss. Overrides come after the common settings and replace them.
overrides=""
case $size-$method in
  *-grpo)        loss="--cov_type none --actor.eps_clip_low_high 0.2 0.2 --actor.dual_clip 10" ;;
  *-clip_higher) loss="--cov_type none --actor.eps_clip_low_high 0.2 0.28 --actor.dual_clip 10" ;;
  *-clip_cov)    loss="--cov_type clip_cov --clip_cov_ratio 2e-4 --clip_cov_lb 1 --clip_cov_ub 5 --actor.eps_clip_low_high 1 1" ;;
  *-kl_cov)      loss="--cov_type kl_cov --kl_cov_ratio $kl_cov_ratio --ppo_kl_coef 1" ;;
  7b-on_policy)
    # Plain GRPO with one update of all 256 x 8 responses per rollout, so that no ratio differs from 1 (Theorem 1,
    # Figure 8). Groups that dynamic sampling keeps beyond a batch are dropped: a step later their policy is an older one.
    loss="--cov_type none --actor.eps_clip_low_high 0.2 0.2 --actor.dual_clip 10"
    overrides="--train.batch_size 2048 --sampling_max_staleness 0"
    ;;
  32b-on_policy) fail "METHOD on_policy: only with MODEL 7b; use grpo, clip_higher, clip_cov or kl_cov" ;;
  *) fail "METHOD $method: no such method; use grpo, clip_higher, clip_cov, kl_cov or, with 7b, on_policy" ;;
esac

layout="scripts/layouts/qwen2.5_${size}_${LAYOUT:-colocated}.flags"
[ -f "$layout" ] || fail "LAYOUT ${LAYOUT:-}: no such layout; use colocated or split"
output="${OUTPUT:-/checkpoints/qwen2.5_${size}_$method}"
# A dry run plans for as many nodes as train. With split layouts the engines need more: give --dry_run_nodes.
[ "${LAYOUT:-colocated}" = split ] || nodes=${NODES:-$nodes}

# $loss, $overrides and the layout hold several words each and are left unquoted on purpose.
DRY_RUN_NODES=$nodes scripts/submit.sh --address "${RAY_DASHBOARD:-http://127.0.0.1:8265}" --working-dir . \
  --runtime-env-json '{"excludes": [".git", ".venv", "runs"], "env_vars": {"NCCL_DEBUG": "WARN"}}' \
  -- python -m openrlhf_cov.cli.train_ppo_ray \
  $loss \
  --actor.model_name_or_path "${MODEL:-$hub}" \
  --data.prompt_dataset "${DATA:-/data/dapo/train.jsonl}" --data.input_key prompt --data.label_key answer \
  --reward.remote_url openrlhf_cov/rewards/reward_func.py --reward_format boxed --reward_source row \
  --algo.advantage.estimator group_norm --algo.kl.init_coef 0 --actor.loss_agg_mode token-mean \
  --algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0 1 --sampling_max_rounds 10 --sampling_oversample_max 6 \
  --rollout.batch_size 256 --rollout.n_samples_per_prompt 8 --rollout.temperature 1 --rollout.top_p 1 \
  --train.batch_size 256 --train.max_epochs 1 --train.num_episodes "${EPISODES:-10}" \
  --data.max_len 10240 --rollout.max_new_tokens 8192 \
  --actor.adam.lr "$learning_rate" --actor.adam.betas 0.9 0.999 --actor.adam.weight_decay 0 --actor.lr_scheduler constant --actor.max_norm 1 \
  --ds.zero_stage 3 --ds.grad_accum_dtype fp32 --actor.gradient_checkpointing_enable --ds.packing_samples --train.dynamic_batch_enable \
  $(< "$layout") \
  ${NODES:+--actor.num_nodes "$NODES"} ${ENGINES:+--vllm.num_engines "$ENGINES"} \
  --eval.dataset "bench:${BENCHMARKS:-aime24,math500}" --eval.data_dir "${EVAL_DATA:-/data/eval}" --eval.template qwen-boxed --eval.steps 20 --eval.at_start \
  --ckpt.output_dir "$output" --ckpt.path "$output/state" \
  --ckpt.save_steps 10 --ckpt.max_num 2 --ckpt.load_enable --logger.tensorboard_dir "$output/tensorboard" \
  --cov_dump_every 32 $overrides "$@"
