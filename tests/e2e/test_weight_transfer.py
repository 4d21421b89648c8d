"""The weights inside vLLM are the trainer's after a sync, and only after it."""

import sys

import pytest
import torch

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]

TOLERANCE = 1e-3
"""Nats; both sides compute in fp32, in different kernels."""


@pytest.fixture
def actors(task, tmp_path, monkeypatch):
    """(policy group, engine, tokenizer) as upstream's ``train`` builds them, on a Ray of this process."""
    import ray

    from openrlhf_cov.cli import train_ppo_ray
    from openrlhf_cov.trainer import cpu_host

    flags = [*task.flags(tmp_path / "run"), "--actor.adam.lr", "1e-2", "--algo.kl.init_coef", "0"]
    monkeypatch.setattr(
        sys, "argv", ["train_ppo_ray", *flags, "--train.batch_size", "8", "--train.micro_batch_size", "8"]
    )
    monkeypatch.setenv("RAY_ADDRESS", "local")
    args = train_ppo_ray.parse_args()
    cpu_host.install()
    from openrlhf.trainer.ray.launcher import RayActorGroup
    from openrlhf.utils import get_strategy, get_tokenizer

    from openrlhf_cov.trainer.ray import cluster, seams

    cluster.connect(cluster.needs_of_training(args))
    try:
        seams.install_driver(args)
        import openrlhf.cli.train_ppo_ray as upstream

        model = str(task.model)
        engines = upstream.create_vllm_engines(1, 1, model, 0, False, True, True, 48, None, 0.2)
        policy = RayActorGroup(1, 1, upstream.PolicyModelActor)
        ray.get(policy.async_init_model_from_pretrained(get_strategy(args), model, 10, engines))
        yield policy, engines[0], get_tokenizer(model, None)
    finally:
        ray.shutdown()


def test_vllm_scores_text_as_the_trainer_does_after_a_sync(actors):
    import ray

    policy, engine, tokenizer = actors
    text = torch.tensor([tokenizer.encode("34+57=4+7=11;3+5=8;91")])
    assert difference(policy, engine, text) < TOLERANCE

    ray.get(policy.async_run_method("append", experience=experience(text.expand(8, -1))))
    ray.get(policy.async_run_method("start_step", global_step=0))
    ray.get(policy.async_run_method("fit", kl_ctl=0.0))
    # one step at lr 1e-2 moves the log-probs by far more than the tolerance: without a sync this test cannot pass
    assert difference(policy, engine, text) > 100 * TOLERANCE

    ray.get(policy.async_run_method("broadcast_to_vllm"))
    assert difference(policy, engine, text) < TOLERANCE


def difference(policy, engine, text: torch.Tensor) -> float:
    """Largest difference, in nats, between the two log-probs of the tokens of one text (1, T)."""
    import ray
    from vllm import SamplingParams

    ones = torch.ones_like(text)
    (trainer,) = ray.get(
        policy.async_run_method("forward", sequences=text, action_mask=ones[:, 1:], attention_mask=ones)
    )
    ids = text[0].tolist()
    settings = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    output = ray.get(engine.generate.remote(ids, settings))
    vllm = [scores[token].logprob for token, scores in zip(ids[1:], output.prompt_logprobs[1:], strict=True)]
    return (trainer[0] - torch.tensor(vllm)).abs().max().item()


def experience(sequences: torch.Tensor):
    """A rollout of 8 equal samples (8, T) whose every token is to become more probable."""
    from openrlhf.trainer.ppo_utils.experience import Experience

    batch, length = sequences.shape
    zeros = torch.zeros(batch, length - 1)
    return Experience(
        sequences=sequences,
        attention_mask=torch.ones_like(sequences),
        action_mask=torch.ones(batch, length - 1, dtype=torch.long),
        action_log_probs=zeros - 1.0,
        advantages=zeros + 1.0,
        returns=zeros + 1.0,
        rewards=torch.ones(batch),
        response_length=torch.full((batch,), length - 1),
        truncated=torch.zeros(batch),
        total_length=torch.full((batch,), length),
        info={
            "reward": torch.ones(batch),
            "sample_id": torch.arange(batch),
            "entropy": [torch.ones(length - 1) for _ in range(batch)],
        },
    )
