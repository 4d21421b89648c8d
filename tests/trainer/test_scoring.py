"""Batches for scoring, and what each sample gets of the answers of the models."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openrlhf.utils.seqlen_balancing import get_seqlen_balanced_partitions
from played_models import PlayedGroup, entropies_of, log_probs_of, rewards_of, scores_by, values_of
from scored_samples import flags, sample

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.model_groups import ModelGroups
from openrlhf_cov.trainer.records import Group, Rollout
from openrlhf_cov.trainer.rollout.generation import EngineGroup
from openrlhf_cov.trainer.scoring import ScoredAhead, ScoringBatch, padded_batches, score, scoring_batches

pytestmark = pytest.mark.usefixtures("played_ray")

PAD = 99


def test_dynamic_batches_have_nearly_equally_many_tokens():
    # 26 tokens of at most 10 per batch make 3 batches. Two ranks get as many as each other: 2.
    args = flags(train__dynamic_batch_enable=True, rollout__max_tokens_per_gpu=10)
    lengths = [5, 3, 9, 2, 7]
    batches = scoring_batches(lengths, args, ranks=2)
    assert sorted(sum(lengths[place] for place in batch) for batch in batches) == [5, 5, 7, 9]
    # Three ranks with five samples cannot have two each.
    assert len(scoring_batches(lengths, args, ranks=3)) == 3
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


def test_a_reward_model_that_gives_no_number_ends_the_run():
    class Overflowing(PlayedGroup):
        def scored(self, method, tokens, mask):
            return super().scored(method, tokens, mask) * torch.nan

    with pytest.raises(RunStopped, match="the reward model gives a reward of nan"):
        scores_by([sample(0, None)], models(flags(), reward=Overflowing("reward")), PAD)


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
    """A source of one rollout, of version 7, whose groups come one after another.

    Args:
        groups: The samples of each group that the engines generate.
        calls: When a group comes, its number is noted here.
        taken: Which of the groups are in the rollout; by default all.
    """

    engines = EngineGroup([])

    def __init__(self, groups, calls, taken=slice(None)):
        self.groups, self.calls, self.taken = groups, calls, taken
        self.restored = None

    def next_batch(self, version, watch=None):
        if version != 7:
            return None
        made = [Group(samples, (), 0, version) for samples in self.groups]
        for number in range(len(made)):
            self.calls.append(("engines", "group", number))
            if watch is not None:
                watch(made[: number + 1])
        samples = [each for group in made[self.taken] for each in group.samples]
        return Rollout(samples, {}, 0.0, None, {}, version)

    def restore(self, state):
        self.restored = state


def groups_of(count, size=4):
    """The samples of some groups, of different lengths."""
    samples = [sample(i, None, 1 + i % 4, prompt=1 + i % 3) for i in range(count * size)]
    return [samples[first : first + size] for first in range(0, len(samples), size)]


def scored_ahead(groups, made, calls, taken=slice(None)):
    """Return the rollout that is scored ahead, and what the calls did by then: g for a group, p and r for a model."""
    rollout = ScoredAhead(OneRollout(made, calls, taken), groups, PAD).next_batch(7)
    assert rollout is not None
    return rollout, "".join({"engines": "g"}.get(model, model[0]) for model, *_ in calls)


@pytest.mark.parametrize(
    ("chosen", "order"),
    [
        # 3 groups of 4 samples: a batch of 4 is complete with each group.
        ({"rollout__micro_batch_size": 4}, "gprgprgpr"),
        # Batches of 5: the first is complete with the second group, the third has what is left at the end.
        ({"rollout__micro_batch_size": 5}, "ggprgprpr"),
        # Parts of 2, 4 ... samples with more than one dynamic batch. The groups have 17, 18 and 19 tokens.
        ({"train__dynamic_batch_enable": True, "rollout__max_tokens_per_gpu": 10}, "gprgprgpr"),
        # The first 4 samples make one batch of 17 tokens, the first 6 have 25. Of the last 6 with 29, 4 have 17.
        ({"train__dynamic_batch_enable": True, "rollout__max_tokens_per_gpu": 20}, "ggprgpr"),
        ({"train__dynamic_batch_enable": True, "rollout__max_tokens_per_gpu": 100}, "gggpr"),
        # The policy trains meanwhile.
        ({"train__async_enable": True, "rollout__micro_batch_size": 4}, "grgrgr"),
        # The reference shares the GPUs of the policy, and both are not to need memory at the same time.
        ({"train__colocate_actor_ref": True, "rollout__micro_batch_size": 4}, "gpgpgp"),
        ({"train__colocate_actor_ref": True, "train__async_enable": True}, "ggg"),
        # The engines need the GPUs.
        ({"train__colocate_all": True, "rollout__micro_batch_size": 4}, "ggg"),
    ],
)
def test_models_that_are_free_score_a_rollout_while_it_is_generated_with_the_same_numbers(gpu_host, chosen, order):
    args = flags(rollout__batch_size=3, **chosen)
    made = groups_of(3)
    samples = [each for group in made for each in group]
    calls = []
    groups = models(args, reference=PlayedGroup("reference", calls=calls), policy=PlayedGroup("policy", calls=calls))
    rollout, happened = scored_ahead(groups, made, calls)
    assert happened == order

    ahead = score(samples, padded_batches(samples, groups, PAD), groups, rollout.pending)
    asked_later = {model for model, method, _ in calls[len(order) :] if method == "score"}
    assert asked_later == {"policy", "reference"} - {{"p": "policy", "r": "reference"}.get(each) for each in order}
    for one, other in zip(ahead, scores_by(samples, groups, PAD), strict=True):
        assert torch.equal(one.log_probs, other.log_probs)
        assert torch.equal(one.entropy, other.entropy)
        assert one.base_log_probs is not None
        assert torch.equal(one.base_log_probs, other.base_log_probs)


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize(
    ("made", "taken", "order"),
    [
        # Two ranks get a batch of 2 each with every group of 4.
        (3, slice(None), "gpgpgp"),
        # The last group is left out of the rollout, so what was scored of it is left out as well.
        (3, slice(2), "gpgpgp"),
        # A rollout that begins otherwise than it was shown is scored anew.
        (3, slice(1, None), "gpgpgpp"),
        (1, slice(None), "gp"),
    ],
)
def test_every_rank_gets_as_many_batches_of_a_rollout_that_is_generated(made, taken, order, copies):
    args = flags(rollout__batch_size=3, rollout__micro_batch_size=2, ds__ring_attn_size=copies)
    groups_made = groups_of(made)
    calls = []
    policy = PlayedGroup("policy", 2, copies, calls=calls)
    groups = models(args, copies, 2, policy=policy, reference=None)
    rollout, happened = scored_ahead(groups, groups_made, calls, taken)
    assert happened == order
    samples = rollout.samples
    assert samples == [each for group in groups_made[taken] for each in group]
    ahead = score(samples, padded_batches(samples, groups, PAD), groups, rollout.pending)
    for one, other in zip(ahead, scores_by(samples, groups, PAD), strict=True):
        assert torch.equal(one.log_probs, other.log_probs)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=24),
    st.sampled_from([1, 2, 3]),
    st.booleans(),
    st.integers(1, 5),
    st.integers(9, 40),
)
def test_batches_hold_every_sample_once_and_early_ones_do_not_depend_on_later_samples(
    responses, ranks, dynamic, size, limit
):
    args = flags(
        rollout__batch_size=6, train__dynamic_batch_enable=dynamic, rollout__micro_batch_size=size,
        rollout__max_tokens_per_gpu=limit,
    )  # fmt: skip
    samples = [sample(number, 1.0, length) for number, length in enumerate(responses)]
    lengths = [len(each.tokens) for each in samples]
    batches = scoring_batches(lengths, args, ranks)
    if len(lengths) >= ranks * (1 if dynamic else size):
        assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
        assert len(batches) % ranks == 0 or not dynamic
    policy = PlayedGroup("policy", ranks)
    groups = models(args, 1, ranks, policy=policy, reference=None)
    groups_made = [samples[first : first + 4] for first in range(0, len(samples), 4)]
    rollout, _ = scored_ahead(groups, groups_made, policy.calls)
    ahead = score(samples, padded_batches(samples, groups, PAD), groups, rollout.pending)
    for one, other in zip(ahead, scores_by(samples, groups, PAD), strict=True):
        assert torch.equal(one.log_probs, other.log_probs)


def test_what_is_too_little_for_all_ranks_is_scored_with_the_batches_before_it():
    # 10 samples in batches of 2 on two ranks: 4 are scored with the first group and 4 with the second. One batch is
    # left, which is none for the second rank, so the last three batches are scored together.
    args = flags(rollout__batch_size=3, rollout__micro_batch_size=2)
    calls = []
    groups = models(args, 1, 2, policy=PlayedGroup("policy", 2, calls=calls), reference=None)
    made = [*groups_of(2), groups_of(3)[2][:2]]
    rollout, happened = scored_ahead(groups, made, calls)
    assert happened == "gpgpgp"
    assert [len(batches["tokens"]) for model, _, batches in calls if model == "policy"] == [2, 2, 3]
    ahead = score(rollout.samples, padded_batches(rollout.samples, groups, PAD), groups, rollout.pending)
    for one, other in zip(ahead, scores_by(rollout.samples, groups, PAD), strict=True):
        assert torch.equal(one.log_probs, other.log_probs)


@pytest.mark.parametrize(("ranks", "order"), [(1, "gprgprgpr"), (2, "gprgprgpr"), (3, "gpgpgp")])
def test_a_reference_whose_ranks_do_not_divide_those_of_the_policy_waits_for_its_turn(ranks, order):
    args = flags(rollout__batch_size=3, rollout__micro_batch_size=2)
    calls = []
    reference = PlayedGroup("reference", ranks, calls=calls)
    groups = models(args, 1, 2, policy=PlayedGroup("policy", 2, calls=calls), reference=reference)
    _, happened = scored_ahead(groups, groups_of(3), calls)
    assert happened == order


def test_many_small_batches_are_scored_in_few_calls():
    args = flags(rollout__batch_size=40, rollout__micro_batch_size=1)
    calls = []
    groups = models(args, policy=PlayedGroup("policy", calls=calls), reference=None)
    _, happened = scored_ahead(groups, groups_of(40), calls)
    assert happened.count("p") == 8  # of 160 batches


def test_a_source_that_is_scored_ahead_ends_and_resumes_as_before():
    source = OneRollout([[sample(0)]], calls=[])
    ahead = ScoredAhead(source, models(flags()), PAD)
    assert ahead.next_batch(8) is None
    ahead.restore({"step": 3})
    assert source.restored == {"step": 3}
    assert ahead.engines is source.engines
