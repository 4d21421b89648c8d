"""Flags of OpenRLHF that no other test of a whole run uses: each run combines those that do not change each other.

``tests/contract/test_upstream_flags_page.py`` says which flag is tested here.
"""

import math

import pytest
from safetensors.torch import load_file

pytestmark = [pytest.mark.e2e, pytest.mark.long]

MUON = """
    --actor.optim muon --actor.muon.lr 1e-3 --actor.muon.momentum 0.9 --actor.adam.betas 0.9 0.99 --actor.adam.eps 1e-7
    --actor.max_norm 0 --actor.adam.weight_decay 0.01 --actor.lr_warmup_ratio 0.5 --actor.min_lr_ratio 0.5
    --actor.lr_scheduler cosine_with_min_lr
"""
DATA = "--data.prompt_probs 0.5,0.5 --data.dataloader_num_workers 1 --data.disable_fast_tokenizer"
REWARDS = """
    --reward.overlong_buffer_len 4 --reward.overlong_penalty_factor 0.5 --reward.stop_properly_penalty_coef 0.5
    --reward.clip_range -2 2
"""
DEEPSPEED = "--ds.grad_accum_dtype fp32 --ds.overlap_comm --train.full_determinism_enable"
MEMORY = "--actor.gradient_checkpointing_enable --actor.gradient_checkpointing_reentrant"
OTHERS = "--train.max_epochs 2 --algo.kl.target 0.1 --algo.kl.horizon 100 --ckpt.save_hf --ckpt.save_steps 2"

AGENT = """
import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor


class AgentInstance(AgentInstanceBase):
    def __init__(self, *args, **kwargs):
        self.turns = 0

    async def step(self, states, **kwargs):
        self.turns += 1
        reward = torch.tensor(float(len(states["action_text"]) % 2))
        done = self.turns == 2
        return {"rewards": reward, "scores": reward, "environment_feedback": "" if done else "1+2=", "done": done}


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(AgentInstance)
"""


def assert_finite_steps(run, steps=3):
    assert [line["step"] for line in run.metrics] == list(range(1, steps + 1))
    for line in run.metrics:
        assert all(math.isfinite(line[name]) for name in ("policy_loss", "reward", "entropy/mean", "actor_grad_norm"))
        assert line["actor_grad_norm"] > 0


def assert_trained(run, task):
    before, after = load_file(task.model / "model.safetensors"), load_file(run.folder / "model.safetensors")
    assert any(not before[name].equal(after[name]) for name in before)


def test_muon_two_data_sets_and_shaped_rewards(run_trainer, task, tmp_path, ray):
    folder = tmp_path / "run"
    flags = [*task.flags(folder), "--data.prompt_dataset", f"{task.train},{task.train}"]
    flags += f"{MUON} {DATA} {REWARDS} {DEEPSPEED} {MEMORY} {OTHERS}".split()
    run = run_trainer([*flags, "--logger.tensorboard_dir", str(tmp_path / "board")], folder, ray)
    assert_finite_steps(run, len(run.metrics))
    assert_trained(run, task)
    assert (folder / "checkpoints" / "global_step2_hf" / "model.safetensors").is_file()
    assert list((tmp_path / "board").rglob("events.out.tfevents*"))


def test_partial_rollouts_with_a_critic_and_a_reward_model(run_trainer, task, tmp_path, ray):
    folder = tmp_path / "run"
    flags = task.flags(folder)
    at = flags.index("--reward.remote_url")
    del flags[at : at + 2]
    flags += f"""
        --reward.model_name_or_path {task.model} --reward.num_gpus_per_node 1 --train.colocate_critic_reward
        --train.async_enable --train.partial_rollout_enable --train.async_queue_size 2
        --algo.advantage.estimator gae --algo.advantage.lambd 0.95 --algo.advantage.gamma 0.99
        --critic.model_name_or_path {task.model} --critic.num_gpus_per_node 1 --critic.save_value_network
        --critic.adam.lr 1e-4 --critic.value_clip 0.2 --critic.max_norm 0.5
        --critic.lr_scheduler constant
    """.split()
    run = run_trainer(flags, folder, ray)
    assert_finite_steps(run)
    assert_trained(run, task)
    assert all(math.isfinite(line["critic_loss"]) for line in run.metrics)


def test_an_agent_of_two_turns(run_trainer, task, tmp_path, ray):
    folder, agent = tmp_path / "run", tmp_path / "agent.py"
    agent.write_text(AGENT)
    flags = task.flags(folder)
    at = flags.index("--reward.remote_url")
    del flags[at : at + 2]
    run = run_trainer([*flags, "--train.agent_func_path", str(agent)], folder, ray)
    assert_finite_steps(run)
    assert_trained(run, task)


def test_gspo_with_a_corrected_mismatch_and_an_evaluation_on_a_file(run_trainer, task, tmp_path, ray):
    folder = tmp_path / "run"
    flags = [*task.flags(folder), "--data.input_template", "{}"]
    flags += f"""
        --actor.policy_loss_type gspo --actor.eps_clip_low_high 3e-4 4e-4 --actor.dual_clip 3
        --algo.kl.unbiased_gradient --algo.advantage.is_correction_level token --rollout.temperature 0.9 --train.seed 7
        --data.prompt_split train --logger.logging_steps 2 --vllm.enable_prefix_caching --vllm.enforce_eager
        --ds.attn_implementation eager --vllm.sync_backend gloo --ckpt.best_metric_key none
        --eval.dataset {task.train} --eval.split train --eval.temperature 0.6 --eval.n_samples_per_prompt 1
        --eval.steps 2
    """.split()
    run = run_trainer(flags, folder, ray)
    assert_finite_steps(run)
    assert_trained(run, task)


def test_a_critic_that_muon_trains_under_another_name_of_its_head(run_trainer, task, tmp_path, ray):
    folder = tmp_path / "run"
    flags = task.flags(folder)
    flags += """
        --algo.advantage.estimator gae --critic.num_gpus_per_node 1 --ds.value_head_prefix value
        --critic.optim muon --critic.muon.lr 1e-3 --critic.muon.momentum 0.9 --critic.max_norm 0
        --critic.adam.lr 1e-4 --critic.adam.betas 0.9 0.99 --critic.adam.eps 1e-7 --critic.adam.weight_decay 0.01
        --critic.lr_warmup_ratio 0.5 --critic.min_lr_ratio 0.5 --critic.num_nodes 1 --actor.num_nodes 1
        --ref.num_nodes 1 --reward.num_nodes 1 --actor.eps_clip 0.1 --vllm.tensor_parallel_size 1
        --algo.advantage.no_std_norm --algo.advantage.is_correction_level token
        --algo.advantage.is_correction_mode clip --algo.advantage.is_correction_gating ratio
        --algo.advantage.is_correction_threshold 0.5 2
    """.split()
    run = run_trainer(flags, folder, ray)
    assert_finite_steps(run)
    assert_trained(run, task)
    assert all(math.isfinite(line["critic_loss"]) for line in run.metrics)
