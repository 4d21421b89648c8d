#!/usr/bin/env bash
# Qwen2.5-7B on DAPO-MATH with plain GRPO, the baseline.
# Settings of the paper (section 4.3) and of the authors' scripts.
# Needs 8 GPUs of 80 GB in one node. LAYOUT=colocated: training and vLLM take turns on the same GPUs; LAYOUT=split:
# each has its own (scripts/layouts; memory in docs/sizing.md). NODES, ENGINES: training nodes and vLLM engines, if not the layout's. Data and variables: docs/recipes.md; paths are absolute.
# Differs from the authors' scripts: groups that dynamic sampling keeps beyond a batch train in the next step instead of
# being dropped; covariance is ranked over the whole update (--cov_scope micro_batch: over each micro-batch, as there);
# micro-batches hold 40,960 tokens or less (scripts/layouts), theirs 10,240 to 30,720. Add --dry_run to see whether it would run.
set -euo pipefail
cd "$(dirname "$0")/.."
DRY_RUN_NODES=1 scripts/submit.sh --address "${RAY_DASHBOARD:-http://127.0.0.1:8265}" --working-dir . \
  --runtime-env-json '{"excludes": [".git", ".venv", "runs"], "env_vars": {"NCCL_DEBUG": "WARN"}}' \
  -- python -m openrlhf_cov.cli.train_ppo_ray \
  --cov_type none --actor.eps_clip_low_high 0.2 0.2 --actor.dual_clip 10 \
  --actor.model_name_or_path "${MODEL:-Qwen/Qwen2.5-7B}" \
  --data.prompt_dataset "${DATA:-/data/dapo/train.jsonl}" --data.input_key prompt --data.label_key answer \
  --reward.remote_url openrlhf_cov/rewards/reward_func.py --reward_format boxed --reward_source row \
  --algo.advantage.estimator group_norm --algo.kl.init_coef 0 --actor.loss_agg_mode token-mean \
  --algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0 1 --sampling_max_rounds 10 --sampling_oversample_max 6 \
  --rollout.batch_size 256 --rollout.n_samples_per_prompt 8 --rollout.temperature 1 --rollout.top_p 1 \
  --train.batch_size 256 --train.max_epochs 1 --train.num_episodes "${EPISODES:-10}" \
  --data.max_len 10240 --rollout.max_new_tokens 8192 \
  --actor.adam.lr 5e-7 --actor.adam.betas 0.9 0.999 --actor.adam.weight_decay 0 --actor.lr_scheduler constant --actor.max_norm 1 \
  --ds.zero_stage 3 --ds.grad_accum_dtype fp32 --actor.gradient_checkpointing_enable --ds.packing_samples --train.dynamic_batch_enable \
  $(< "scripts/layouts/qwen2.5_7b_${LAYOUT:-colocated}.flags") \
  ${NODES:+--actor.num_nodes "$NODES"} ${ENGINES:+--vllm.num_engines "$ENGINES"} \
  --eval.dataset "bench:${BENCHMARKS:-aime24,math500}" --eval.data_dir "${EVAL_DATA:-/data/eval}" --eval.template qwen-boxed --eval.steps 20 --eval.at_start \
  --ckpt.output_dir "${OUTPUT:-/checkpoints/qwen2.5_7b_grpo}" --ckpt.path "${OUTPUT:-/checkpoints/qwen2.5_7b_grpo}/state" \
  --ckpt.save_steps 10 --ckpt.max_num 2 --ckpt.load_enable --logger.tensorboard_dir "${OUTPUT:-/checkpoints/qwen2.5_7b_grpo}/tensorboard" \
  --cov_dump_every 32 "$@"
