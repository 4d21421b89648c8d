#!/usr/bin/env bash
# GRPO without any intervention on entropy: the runs behind the law R = -a exp(H) + b (arXiv 2505.22617, section 2.2).
# MODEL, TEMPLATE (of the evaluation: qwen-boxed, plain for base models without ChatML, chat for instruct models; for programs
# qwen-code and plain-code) and DATA, prepared with the same template, name one of the paper's runs; `openrlhf-cov reproduce --figure 3` has all of them.
# 512 prompts x 8 responses, updates of 256 prompts, i.e. 2,048 samples, lr 5e-7, no reference KL, R on the benchmarks of the
# group law every 4 steps. 1,200 rollouts of two updates are the paper's 2,400, on any data: EPISODES (300) is more than they
# take where a third of GSM8K's prompts is neither all right nor all wrong. Ours, not the paper's: 4,096 tokens for prompt and response, what the smallest context has.
# The other estimators of the paper's Fig. 6 are flags after these: --algo.advantage.estimator rloo, reinforce or reinforce_baseline, and PRIME is
# --method prime --algo.advantage.estimator rloo --ref.num_nodes 1 --ref.num_gpus_per_node 8 (docs/methods/prime.md).
# Needs 8 GPUs of 80 GB up to 14B, 32 with SIZE=32b (scripts/layouts, LAYOUT as in the other recipes); paths are absolute.
# Add --dry_run to see whether it would run.
set -euo pipefail
cd "$(dirname "$0")/.."
TEMPLATE="${TEMPLATE:-qwen-boxed}"
OUTPUT="${OUTPUT:-/checkpoints/law}"
DRY_RUN_NODES="$([ "${SIZE:-7b}" = 32b ] && echo 4 || echo 1)" scripts/submit.sh --address "${RAY_DASHBOARD:-http://127.0.0.1:8265}" --working-dir . \
  --runtime-env-json '{"excludes": [".git", ".venv", "runs"], "env_vars": {"NCCL_DEBUG": "WARN"}}' \
  -- python -m openrlhf_cov.cli.train_ppo_ray \
  --cov_type none --actor.eps_clip_low_high 0.2 0.2 \
  --actor.model_name_or_path "${MODEL:-Qwen/Qwen2.5-7B}" \
  --data.prompt_dataset "${DATA:-/data/eurus-$TEMPLATE/train.jsonl}" --data.input_key prompt --data.label_key answer \
  $([ "$TEMPLATE" = chat ] && echo --data.apply_chat_template) \
  --reward.remote_url openrlhf_cov/rewards/reward_func.py --reward_format boxed --reward_source row \
  --algo.advantage.estimator group_norm --algo.kl.init_coef 0 --actor.loss_agg_mode token-mean \
  --algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0 1 --sampling_max_rounds 10 --sampling_oversample_max 6 \
  --rollout.batch_size 512 --rollout.n_samples_per_prompt 8 --rollout.temperature 1 --rollout.top_p 1 \
  --train.batch_size 2048 --train.max_epochs 1 --train.num_episodes "${EPISODES:-300}" --rollout_limit 1200 \
  --data.max_len 4096 --rollout.max_new_tokens 3072 \
  --actor.adam.lr 5e-7 --actor.adam.betas 0.9 0.999 --actor.adam.weight_decay 0 --actor.lr_scheduler constant --actor.max_norm 1 \
  --ds.zero_stage 3 --ds.grad_accum_dtype fp32 --actor.gradient_checkpointing_enable --ds.packing_samples --train.dynamic_batch_enable \
  $(< "scripts/layouts/qwen2.5_${SIZE:-7b}_${LAYOUT:-colocated}.flags") \
  ${NODES:+--actor.num_nodes "$NODES"} ${ENGINES:+--vllm.num_engines "$ENGINES"} \
  --eval.dataset "bench:${BENCHMARKS:-law}" --eval.template "$TEMPLATE" --eval.data_dir "${EVAL_DATA:-/data/eval}" --eval.steps "${EVAL_STEPS:-4}" --eval.at_start \
  --ckpt.output_dir "$OUTPUT" --ckpt.path "$OUTPUT/state" --ckpt.save_steps 10 --ckpt.max_num 2 --ckpt.load_enable \
  --logger.tensorboard_dir "$OUTPUT/tensorboard" "$@"
