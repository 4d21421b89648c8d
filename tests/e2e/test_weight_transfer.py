"""The weights inside vLLM are the trainer's after a sync, and only after it."""

import sys

import pytest
import torch

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]

# Nats; both sides compute in fp32, in different kernels.
TOLERANCE = 1e-3


@pytest.fixture
def actors(task, tmp_path, monkeypatch, forking_python):
    """(policy group, engine, tokenizer) as ``openrlhf_cov.trainer.build.train`` makes them, on our own Ray."""
    import ray

    from openrlhf_cov.cli import train_ppo_ray
    from openrlhf_cov.cluster import cpu_host

    flags = [*task.flags(tmp_path / "run"), "--actor.adam.lr", "1e-2", "--algo.kl.init_coef", "0"]
    monkeypatch.setattr(
        sys, "argv", ["train_ppo_ray", *flags, "--train.batch_size", "8", "--train.micro_batch_size", "8"]
    )
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setattr(sys, "executable", forking_python)
    args = train_ppo_ray.parse_args()
    cpu_host.install()
    from openrlhf.utils import get_tokenizer

    from openrlhf_cov.cluster import connection
    from openrlhf_cov.trainer.build import make_groups
    from openrlhf_cov.trainer.model.strategy import make_strategy
    from openrlhf_cov.trainer.ray.engines import start_engines

    connection.connect(connection.needs_of_training(args))
    try:
        engines = start_engines(args, None)
        policy = make_groups(args, None).policy
        model = str(task.model)
        ray.get(policy.async_run_method("load", make_strategy(args), model, 10, engines))
        yield policy, engines[0], get_tokenizer(model, None), args
    finally:
        ray.shutdown()


def test_vllm_scores_text_as_the_trainer_does_after_a_sync(actors):
    import ray

    policy, engine, tokenizer, args = actors
    text = torch.tensor([tokenizer.encode("34+57=4+7=11;3+5=8;91")])
    assert difference(policy, engine, text) < TOLERANCE

    from openrlhf_cov.models.cov_config import CovConfig
    from openrlhf_cov.trainer.records import StepSettings

    order = StepSettings(step=0, config=CovConfig.from_args(args).at(0), kl_coef=0.0)
    ray.get(policy.async_run_method("update", order, equal_samples(text[0])))
    # one step at lr 1e-2 moves the log-probs by far more than the tolerance: without a sync this test cannot pass
    assert difference(policy, engine, text) > 100 * TOLERANCE

    ray.get(policy.async_run_method("send_weights"))
    assert difference(policy, engine, text) < TOLERANCE


def difference(policy, engine, text: torch.Tensor) -> float:
    """Largest difference, in nats, between the two log-probs of the tokens of one text (1, T)."""
    import ray
    from vllm import SamplingParams

    ones = torch.ones_like(text)
    (scores,) = ray.get(policy.async_run_method("score", text, ones[:, 1:], ones))
    trainer = scores[0]
    ids = text[0].tolist()
    settings = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    output = ray.get(engine.generate.remote(ids, settings))
    vllm = [scores[token].logprob for token, scores in zip(ids[1:], output.prompt_logprobs[1:], strict=True)]
    return (trainer[0] - torch.tensor(vllm)).abs().max().item()


def equal_samples(tokens: torch.Tensor):
    """Return the share of a rank with 8 equal samples (T,), each token of which is to become more probable."""
    from openrlhf_cov.trainer.records import RankSamples, TrainSample

    zeros = torch.zeros(len(tokens) - 1)
    samples = [
        TrainSample(
            sample_id=number,
            score=1.0,
            abstained=False,
            tokens=tokens,
            action_mask=torch.ones(len(tokens) - 1, dtype=torch.bool),
            log_probs=zeros - 1.0,
            entropy=zeros + 1.0,
            advantages=zeros + 1.0,
            returns=zeros + 1.0,
        )
        for number in range(8)
    ]
    return RankSamples.of(samples)
