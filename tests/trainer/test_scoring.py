"""Batches for scoring, and what each sample gets of the answers of the models."""

import pytest
import torch
from openrlhf.utils.seqlen_balancing import get_seqlen_balanced_partitions
from played_models import PlayedGroup, entropies_of, log_probs_of, rewards_of, scores_by, values_of
from scored_samples import flags, sample

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.model_groups import ModelGroups
from openrlhf_cov.trainer.records import Rollout
from openrlhf_cov.trainer.rollout.generation import EngineGroup
from openrlhf_cov.trainer.scoring import ScoredAhead, ScoringBatch, padded_batches, score, scoring_batches

pytestmark = pytest.mark.usefixtures("played_ray")

PAD = 99


def test_dynamic_batches_have_nearly_equally_many_tokens():
    # 26 tokens of at most 10 per batch make 3 batches, of which two ranks get as many as each other: 2.
    args = flags(train__dynamic_batch_enable=True, rollout__max_tokens_per_gpu=10)
    lengths = [5, 3, 9, 2, 7]
    assert scoring_batches(lengths, args, ranks=2) == [[1, 2, 3], [0, 4]]  # 14 and 12 tokens
    three = scoring_batches(lengths, args, ranks=1)
    assert sorted(three) == sorted(get_seqlen_balanced_partitions(lengths, 3, False))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_rank_gets_equally_many_dynamic_batches(ranks):
    args = flags(train__dynamic_batch_enable=True, rollout__max_tokens_per_gpu=10)
    assert len(scoring_batches([4] * 12, args, ranks)) % ranks == 0
    # Few tokens: one batch per rank.
    args.rollout.max_tokens_per_gpu = 1000
    assert len(scoring_batches([4] * 12, args, ranks)) == ranks


def test_a_batch_is_padded_on_the_right():
    samples = [sample(0, response=3), sample(1, response=1, prompt=2), sample(2, response=1)]
    batch = ScoringBatch.of(samples, [0, 2], PAD)
    assert batch.places == [0, 2]
    assert batch.tokens.tolist() == [[10, 11, 12, 13], [30, 31, PAD, PAD]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch.action_mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.image_inputs == []


def models(args, copies=1, ranks=1, **left_out):
    made = {name: PlayedGroup(name, ranks, copies) for name in ("policy", "reference", "critic", "reward")}
    return ModelGroups(args, **made | left_out)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("ranks", "copies"), [(1, 1), (2, 1), (2, 2)])
def test_a_sample_gets_what_the_models_say_of_its_own_tokens(dynamic, ranks, copies):
    args = flags(train__dynamic_batch_enable=dynamic, ds__ring_attn_size=copies)
    samples = [sample(i, None, 1 + i % 4, prompt=1 + i % 3) for i in range(7)]
    found = scores_by(samples, models(args, copies, ranks), PAD)
    assert len(found) == 7
    for each, scored in zip(samples, found, strict=True):
        tokens, mask = each.tokens[None], each.action_mask[None]
        torch.testing.assert_close(scored.log_probs, log_probs_of(tokens, mask)[0])
        torch.testing.assert_close(scored.entropy, entropies_of(tokens, mask)[0])
        torch.testing.assert_close(scored.base_log_probs, log_probs_of(tokens, mask, 0.21)[0])
        torch.testing.assert_close(scored.values, values_of(tokens, mask)[0])
        assert scored.reward == pytest.approx(float(rewards_of(tokens, torch.ones_like(tokens))[0]))
        assert scored.proxy is None
        assert scored.log_probs.dtype == torch.float32


def test_models_that_a_run_does_not_have_say_nothing():
    samples = [sample(0), sample(1)]
    for each in scores_by(samples, models(flags(), reference=None, critic=None, reward=None), PAD):
        assert (each.base_log_probs, each.values, each.reward) == (None, None, None)


def test_a_sample_without_a_reward_ends_a_run_without_a_reward_model():
    with pytest.raises(RunStopped, match="a response came without a reward"):
        scores_by([sample(0, None)], models(flags(), reward=None), PAD)


@pytest.mark.parametrize("field", ["proxy", "discriminator_mean"])
def test_what_the_policy_gives_for_methods_is_handed_on(field):
    class WithMore(PlayedGroup):
        def scored(self, method, tokens, mask):
            log_probs, entropies, _ = super().scored(method, tokens, mask)
            more = (2 * log_probs,) if field == "proxy" else (None, 2 * log_probs)
            return log_probs, entropies, *more

    groups = models(flags(), policy=WithMore("policy"), reward=None)
    for each in scores_by([sample(0, response=3), sample(1, response=1)], groups, PAD):
        assert torch.equal(getattr(each, field), 2 * each.log_probs)


def test_scores_of_half_precision_become_single():
    class Half(PlayedGroup):
        def scored(self, method, tokens, mask):
            log_probs, entropies, proxy = super().scored(method, tokens, mask)
            return log_probs.bfloat16(), entropies.bfloat16(), proxy

    (each,) = scores_by([sample(0)], models(flags(), policy=Half("policy"), reference=None, critic=None), PAD)
    assert each.log_probs.dtype == each.entropy.dtype == torch.float32


class OneRollout:
    """A source of one rollout, which notes in ``calls`` when it is generated."""

    engines = EngineGroup([])

    def __init__(self, samples, calls):
        self.samples, self.calls = samples, calls
        self.restored = None

    def next_batch(self, version):
        self.calls.append(("engines", "generate", version))
        return Rollout(self.samples, {}, 0.0, None, {}, version) if version == 7 else None

    def restore(self, state):
        self.restored = state


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_reference_scores_a_rollout_ahead_of_its_step_with_the_same_numbers(gpu_host, dynamic):
    args = flags(train__dynamic_batch_enable=dynamic, rollout__max_tokens_per_gpu=10)
    samples = [sample(i, None, 1 + i % 4, prompt=1 + i % 3) for i in range(7)]
    calls = []
    groups = models(args, reference=PlayedGroup("reference", calls=calls), policy=PlayedGroup("policy", calls=calls))
    rollout = ScoredAhead(OneRollout(samples, calls), groups, PAD).next_batch(7)
    assert rollout is not None
    assert [call[:2] for call in calls] == [("engines", "generate"), ("reference", "score")]

    batches = padded_batches(samples, groups, PAD)
    ahead = score(samples, batches, groups, rollout.reference_answers)
    assert [call[:2] for call in calls[2:]] == [("policy", "score")]  # the reference is not asked again
    for one, other in zip(ahead, score(samples, batches, groups), strict=True):
        assert one.base_log_probs is not None
        assert torch.equal(one.base_log_probs, other.base_log_probs)


@pytest.mark.parametrize("shared", ["train__colocate_all", "train__colocate_actor_ref"])
def test_a_reference_on_the_gpus_of_the_policy_waits_for_its_turn(gpu_host, shared):
    # Scoring needs memory of the GPU on which the policy trains.
    calls = []
    groups = models(flags(**{shared: True}), reference=PlayedGroup("reference", calls=calls))
    rollout = ScoredAhead(OneRollout([sample(0), sample(1)], calls), groups, PAD).next_batch(7)
    assert rollout is not None
    assert rollout.reference_answers is None
    assert calls == [("engines", "generate", 7)]


def test_a_source_that_is_scored_ahead_ends_and_resumes_as_before():
    source = OneRollout([sample(0)], calls=[])
    ahead = ScoredAhead(source, models(flags()), PAD)
    assert ahead.next_batch(8) is None
    ahead.restore({"step": 3})
    assert source.restored == {"step": 3}
    assert ahead.engines is source.engines
    # Without a reference there is nothing to score ahead.
    without = ScoredAhead(source, models(flags(), reference=None), PAD).next_batch(7)
    assert without is not None
    assert without.reference_answers is None
