#!/usr/bin/env bash
# Train SmolLM2-135M-Instruct on GSM8K on a host without GPU, to see every part at work with a real language model:
#
#   scripts/train_smollm2_135m.sh METHOD [flags of the trainer]       METHOD: grpo or kl_cov
#
# A step takes minutes on a laptop. The settings are not tuned, and a model of this size solves few of these problems, so
# most groups have no advantage. Add --dry_run to check the run without starting anything. Before the first run:
#   make smollm && source .venv/bin/activate
#   openrlhf-cov prepare --dataset gsm8k --template chat --output runs/gsm8k
#   ray start --head --num-gpus 2 --num-cpus 8     (on a CPU host the GPUs are only numbers to Ray)
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { # MESSAGE
  echo "train_smollm2_135m.sh: $1" >&2
  exit 2
}

[ $# -ge 1 ] || fail "METHOD is required; use scripts/train_smollm2_135m.sh grpo|kl_cov [flags]"
method=$1
shift

case $method in
  grpo)   loss="--cov_type none" ;;
  kl_cov) loss="--cov_type kl_cov --kl_cov_ratio 2e-3 --ppo_kl_coef 1" ;;
  *) fail "METHOD $method: no such method; use grpo or kl_cov" ;;
esac
output="${OUTPUT:-$PWD/runs/smollm2_$method}"

# $loss holds several words and is left unquoted on purpose.
scripts/submit.sh --address "${RAY_DASHBOARD:-http://127.0.0.1:8265}" \
  --runtime-env-json '{"env_vars": {"PYTHONWARNINGS": "ignore"}}' \
  -- "${PYTHON:-python}" -m openrlhf_cov.cli.train_ppo_ray \
  $loss \
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
  --ckpt.output_dir "$output" --ckpt.path "$output/state" \
  --ckpt.save_steps 10 --ckpt.max_num 2 --ckpt.load_enable --cov_dump_every 5 --rollout_seeded "$@"
