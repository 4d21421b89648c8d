#!/usr/bin/env bash
# SmolLM2-135M-Instruct on GSM8K with plain GRPO, on a host without GPU: a real language model, to see every part at work.
# The settings fit the patience of a laptop (minutes per step), they are not tuned, and a model of this size solves few of
# these problems: most groups have no advantage. Before:
#   make smollm && source .venv/bin/activate
#   python -m openrlhf_cov.cli.prepare_data --dataset gsm8k --template chat --output runs/gsm8k
#   ray start --head --num-gpus 2 --num-cpus 8     (on a CPU host the GPUs are only numbers to Ray)
# Dry run: add --dry_run.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/submit.sh --address "${RAY_DASHBOARD:-http://127.0.0.1:8265}" \
  --runtime-env-json '{"env_vars": {"PYTHONWARNINGS": "ignore"}}' \
  -- "${PYTHON:-python}" -m openrlhf_cov.cli.train_ppo_ray \
  --cov_type none \
  --actor.model_name_or_path "${MODEL:-$PWD/runs/smollm2}" \
  --data.prompt_dataset "${DATA:-$PWD/runs/gsm8k/train.jsonl}" --data.input_key prompt --data.label_key answer \
  --data.apply_chat_template --data.max_samples "${PROMPTS:-160}" \
  --reward.remote_url "$PWD/openrlhf_cov/rewards/reward_func.py" --reward_format any --reward_source row \
  --reward_format_bonus 0.1 \
  --actor.num_nodes 1 --actor.num_gpus_per_node 1 --vllm.num_engines 1 --vllm.gpu_memory_utilization 0.2 \
  --algo.advantage.estimator group_norm --algo.kl.init_coef 0 \
  --rollout.batch_size 8 --rollout.n_samples_per_prompt 8 --rollout.micro_batch_size 4 \
  --train.batch_size 16 --train.micro_batch_size 4 \
  --data.max_len 512 --rollout.max_new_tokens 192 \
  --actor.adam.lr 2e-6 --actor.lr_scheduler constant --ds.zero_stage 2 --actor.gradient_checkpointing_enable \
  --ckpt.output_dir "${OUTPUT:-$PWD/runs/smollm2_grpo}" --ckpt.path "${OUTPUT:-$PWD/runs/smollm2_grpo}/state" \
  --ckpt.save_steps 10 --ckpt.max_num 2 --ckpt.load_enable --cov_dump_every 5 --rollout_seeded "$@"
