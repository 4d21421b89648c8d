"""The weight check finds engines that kept old weights, and no others, whatever the rounding."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from texts import missing, refusal_of

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.records import Sample
from openrlhf_cov.trainer.weights.weight_check import TEXT_TOKENS, TEXTS, WeightCheck, texts_of

TOKENS = 100
# Numbers of the weights of a ``Model``, of which each token's log-prob depends on all.
SIZE = 24


class Model:
    """Log-probs of tokens that are linear in its weights, rounded as one program rounds them.

    Equal weights give equal bits. Other weights have other rounding errors, of ``rounding`` nats.
    """

    def __init__(self, program: int, rounding: float) -> None:
        self.program, self.rounding = program, rounding
        self.weights = torch.zeros(SIZE, dtype=torch.float64)

    def __call__(self, texts) -> torch.Tensor:
        ids = torch.tensor([token for text in texts for token in text[1:]])
        features = torch.randn(1000, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        seed = hash((self.program, *self.weights.tolist())) % 2**31
        errors = torch.randn(len(ids), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return -2.0 + features[ids] @ self.weights / math.sqrt(SIZE) + self.rounding * errors


def sample(first: int, length: int = TOKENS, **more) -> Sample:
    """A response with its prompt."""
    tokens = torch.arange(first, first + length)
    return Sample(tokens=tokens, action_mask=torch.ones(length - 1, dtype=torch.bool), prompt="", **more)


SAMPLES = [sample(first) for first in (1, 201, 401, 601)]


class Run:
    """A policy, two engines, and steps in which some of the engines get the new weights.

    Engines with ``noise`` do not repeat their bits: as with asynchronous training, where other requests change the
    rounding of an engine.
    """

    def __init__(self, mode: str = "first", rounding: float = 1e-6, engines: int = 2, noise: float = 0.0) -> None:
        self.noise, self.draws = noise, torch.Generator().manual_seed(0)
        self.policy = Model(0, rounding)
        self.engines = [Model(1, rounding) for _ in range(engines)]
        self.scored = 0
        self.check = WeightCheck(mode, self.policy, self.score_engines)
        self.number = 0

    def score_engines(self, texts):
        self.scored += 1
        scores = [engine(texts) for engine in self.engines]
        return [each + self.noise * torch.randn(len(each), generator=self.draws) for each in scores]

    def step(self, change: float = 0.1, stale: tuple[int, ...] = (), part: slice = slice(None)) -> None:
        """Train by ``change`` nats; engines get the weights of ``part``, those of ``stale`` none."""
        self.number += 1
        self.check.start_step(SAMPLES, max_len=512, step=self.number)
        generator = torch.Generator().manual_seed(self.number)
        self.policy.weights = self.policy.weights + change * torch.randn(SIZE, generator=generator)
        self.check.before_transfer()
        for place, engine in enumerate(self.engines):
            if place not in stale:
                engine.weights = engine.weights.clone()
                engine.weights[part] = self.policy.weights[part]
        self.check.after_transfer()

    def steps(self, count: int, **settings) -> None:
        for _ in range(count):
            self.step(**settings)


def test_engines_with_the_new_weights_pass_once_and_are_not_asked_again(log):
    run = Run()
    run.steps(3)
    assert run.check.is_over
    assert run.scored == 2  # before and after the first transfer
    (message,) = log.messages
    tokens = f"{4 * (TOKENS - 1)} tokens"  # all but the first one of each text
    assert missing(message, "--train.check_weight_update first", "2 vLLM engine", "global step 1", tokens) == []


def test_always_checks_every_transfer_and_says_so_once(log):
    run = Run("always")
    run.steps(3)
    assert run.scored == 6
    assert len(log.messages) == 1
    with pytest.raises(RunStopped, match="vLLM engine 1 did not receive the new weights of global step 4"):
        run.step(stale=(1,))


@pytest.mark.parametrize(("stale", "named"), [((0,), "0"), ((1,), "1"), ((0, 1), "0, 1")])
def test_an_engine_that_keeps_the_initial_weights_ends_the_run_at_the_first_update(stale, named):
    run = Run()
    message = refusal_of(run.step, stale=stale)
    assert message.startswith(f"--train.check_weight_update first: vLLM engine {named} did not receive")
    assert "under the policy and by 0 under the engine" in message


def test_an_engine_that_gets_a_part_of_the_weights_ends_the_run():
    # Names of a third of the weights are unknown to the engine, which ignores them. Its log-probs lack the square
    # root of 1/3 of the change, 0.58.
    with pytest.raises(RunStopped, match="engine 0, 1 did not receive"):
        Run().step(part=slice(0, 16))


def test_a_few_tokens_with_large_rounding_are_no_fault():
    # Of a mixture of experts: 4 of 396 tokens go to other experts after the transfer, where rounding is 1 nat. Their
    # root mean square of 0.1 nats is as large as the change; on average they differ by 0.01 nats.
    run = Run()

    def score(texts):
        scores = run.score_engines(texts)
        if run.scored > 1:
            scores[0][[3, 50, 200, 300]] += 1.0
        return scores

    run.check.score_engines = score
    run.step(change=0.1)
    assert run.check.is_over


def test_a_policy_that_did_not_change_is_checked_at_the_next_transfer(log):
    run = Run()
    run.step(change=0.0, stale=(0,))  # as with --critic.freezing_steps
    assert not log.messages
    assert not run.check.is_over
    assert run.scored == 1  # only before: nothing is to be seen after
    with pytest.raises(RunStopped, match="engine 0 did not receive the new weights of global step 2"):
        run.step(stale=(0,))


def test_changes_below_the_rounding_add_up_until_they_can_be_judged(log):
    # Rounding of 0.01 nats in each program is 0.014 between them. Steps of 0.01 nats add up as a random walk:
    # 4 x 0.014 = 0.057 nats take some 32 steps.
    run = Run(rounding=0.01)
    run.step(change=0.01)
    assert not run.check.is_over
    assert "too little beside the rounding" in log.messages[0]
    while not run.check.is_over:
        run.step(change=0.01)
        assert run.number < 100
    assert run.number > 5
    assert len(log.messages) == 2


def test_equal_bits_of_an_engine_show_old_weights_below_the_rounding():
    with pytest.raises(RunStopped, match="engine 1 did not receive the new weights of global step 1"):
        Run(rounding=0.01).step(change=1e-4, stale=(1,))


def test_an_engine_that_does_not_repeat_itself_is_found_when_the_change_has_added_up():
    run = Run(rounding=0.01, noise=0.01)
    with pytest.raises(RunStopped, match="engine 0 did not receive"):
        run.steps(100, change=0.01, stale=(0,))
    assert run.number > 5


@given(
    rounding=st.floats(0.0, 0.05),
    changes=st.lists(st.floats(0.0, 0.2), min_size=1, max_size=8),
    stale=st.sets(st.integers(0, 2)),
)
def test_engines_that_get_every_update_never_end_a_run_and_stale_ones_never_pass(rounding, changes, stale):
    run = Run("first", rounding, engines=3)
    try:
        for change in changes:
            run.step(change, stale=tuple(stale))
    except RunStopped as stopped:
        named = {int(place) for place in str(stopped).split("vLLM engine ")[1].split(" did")[0].split(", ")}
        assert named <= stale
        assert named
    else:
        assert not (stale and run.check.is_over)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_log_probs_that_are_no_numbers_end_the_run(value):
    run = Run()
    run.engines[1].weights = torch.full((SIZE,), value, dtype=torch.float64)
    with pytest.raises(RunStopped, match=r"396 of 396 log-probs of vLLM engine 1 are NaN or infinite before the"):
        run.step(stale=(1,))

    run = Run()

    def broken_after(texts):
        scores = run.score_engines(texts)
        scores[0][7] = value if run.scored > 1 else scores[0][7]
        return scores

    run.check.score_engines = broken_after
    with pytest.raises(RunStopped, match=r"1 of 396 log-probs of vLLM engine 0 are NaN or infinite after the update"):
        run.step()

    run = Run()
    run.step(change=1e-9)
    with pytest.raises(RunStopped, match="log-probs of the policy are NaN or infinite after the update of global st"):
        run.step(change=math.nan)


def test_an_engine_with_another_model_ends_the_run_before_anything_is_sent():
    run = Run()
    run.engines[1].weights = torch.ones(SIZE, dtype=torch.float64)  # by 0.8 nats: the mean of |N(0, 1)|
    with pytest.raises(RunStopped, match=r"vLLM engine 1 does not have the policy's weights: before global step 1 .*"):
        run.step()


def test_the_difference_of_a_stale_engine_is_not_taken_for_rounding():
    # As before, and engines do not repeat their bits: only the size of the change shows the old weights.
    run = Run(noise=1e-6)
    run.policy.weights = torch.full((SIZE,), 0.1, dtype=torch.float64)
    run.engines[0].weights = run.policy.weights.clone()
    with pytest.raises(RunStopped, match="engine 1 did not receive the new weights of global step 1"):
        run.step(stale=(1,))


def test_texts_are_spread_over_the_rollout_and_fit_into_an_engine():
    samples = [sample(first=10 * place, length=600) for place in range(17)]
    texts = texts_of(samples, max_len=1000)
    assert [text[0] for text in texts] == [0, 40, 80, 120]
    assert {len(text) for text in texts} == {TEXT_TOKENS}
    # an engine of 48 tokens generates one
    assert {len(text) for text in texts_of(samples, max_len=48)} == {47}
    assert len(texts_of(samples[:2], max_len=48)) == 2
    assert TEXTS == 4


def test_samples_with_images_are_left_out(log):
    with_image = sample(1, images=["a.png"])
    assert texts_of([with_image, sample(300)], max_len=512) == [list(range(300, 300 + TOKENS))]
    run = Run()
    run.check.start_step([with_image], max_len=512, step=1)
    run.check.before_transfer()
    assert run.scored == 0
    assert "all responses have images" in log.text
