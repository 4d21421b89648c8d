"""The same tokens are selected wherever they lie: one list of all tokens, micro-batches, ranks, real processes."""

import math
import random
import struct
from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as st
from planned import select_step
from simulated_ranks import Simulated

from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.models.ranking import token_keys


def single(value):
    """Rounded to float32."""
    return struct.unpack("f", struct.pack("f", value))[0]


def brute_force(samples, config, eps):
    """{(sample id, position)} of the selected tokens: all tokens of the step ranked in one list, in plain Python.

    A sample is (id, [(log_prob, log_ratio, advantage, keep, key), ...]).
    """
    tokens = [(number, t, *token) for number, row in samples for t, token in enumerate(row) if token[3]]
    if not tokens:
        return set()
    means = [
        float(sum(round(Fraction(token[i]) * 2**24) for token in tokens)) / 2**24 / len(tokens) for i in (2, 4)
    ]  # fmt: skip
    ranked = []
    for number, t, log_prob, log_ratio, advantage, _, key in tokens:
        cov = single(single(log_prob - single(means[0])) * single(advantage - single(means[1])))
        if config.cov_type == "kl_cov":
            ranked.append((cov, key, number, t))
        else:
            clipped = log_ratio > math.log1p(eps) if advantage > 0 else log_ratio < math.log1p(-eps)
            if config.clip_cov_lb < cov < config.clip_cov_ub and not (clipped and advantage):
                ranked.append((key, key, number, t))
    ratio = config.kl_cov_ratio if config.cov_type == "kl_cov" else config.clip_cov_ratio
    ranked.sort(reverse=True)
    return {(number, t) for _, _, number, t in ranked[: max(1, int(len(tokens) * ratio))]}


@st.composite
def steps(draw):
    """Samples as ``brute_force`` takes them (many ties, holes in masks, whole samples masked), dealt to ranks.

    The deal is a list, by rank, of micro-batches; a micro-batch is a list of indices into the samples.
    """
    count, longest = draw(st.integers(1, 7)), draw(st.integers(1, 6))
    ids = draw(st.lists(st.integers(0, 10**6), min_size=count, max_size=count, unique=True))
    log_probs, log_ratios = st.integers(-6, 0).map(lambda n: n / 2), st.sampled_from([0.0, 0.5, -0.5, 0.125])
    samples = []
    for number in ids:
        length, dead = draw(st.integers(1, longest)), draw(st.integers(0, 4)) == 0
        keys = token_keys(1, 2, torch.tensor([number]), length)[0].tolist()
        advantage = st.just(draw(st.integers(-2, 3)) / 2) if draw(st.booleans()) else st.sampled_from([-1.0, 0.0, 2.0])
        row = [
            (draw(log_probs), draw(log_ratios), draw(advantage), not dead and draw(st.integers(0, 4)) > 0, key)
            for key in keys
        ]
        samples.append((number, row))
    world = draw(st.integers(1, min(3, count)))
    rng = random.Random(draw(st.integers(0, 2**16)))
    order = rng.sample(range(count), count)
    hands = [order[rank::world] for rank in range(world)]
    deal = []
    for hand in hands:
        size = rng.randint(1, len(hand))
        deal.append([hand[i : i + size] for i in range(0, len(hand), size)])
    return samples, deal, rng.randint(0, 2)


def micro_batch(samples, extra):
    """(TokenBatch, keys) of these samples, padded with garbage to the longest and ``extra`` columns more."""
    columns = max(len(row) for _, row in samples) + extra
    padding = (77.0, 0.0, -55.0, False, 0)
    log_probs, log_ratios, advantages, mask = (
        torch.tensor([[token[i] for token in row + [padding] * (columns - len(row))] for _, row in samples])
        for i in range(4)
    )
    keys = token_keys(1, 2, torch.tensor([number for number, _ in samples]), columns)
    return TokenBatch(log_probs, log_probs - log_ratios, advantages, mask), keys


SETTINGS = st.one_of(
    st.tuples(st.just("kl_cov"), st.sampled_from([1e-4, 0.05, 0.2, 0.5, 0.9, 1.0])),
    st.tuples(
        st.just("clip_cov"), st.sampled_from([1e-4, 0.2, 0.6, 1.0]), st.sampled_from([-9.0, -0.5]), st.just(9.0)
    ),
    st.tuples(st.just("clip_cov"), st.sampled_from([0.2, 1.0]), st.just(0.25), st.sampled_from([0.5, 1.0, 2.0])),
)


@given(step=steps(), settings=SETTINGS, eps=st.sampled_from([0.2, 0.9]))
def test_any_placement_selects_what_one_list_of_all_tokens_does(cov_config, step, settings, eps):
    config, (samples, deal, extra) = cov_config(*settings), step

    def on_rank(hand, ranks):
        parts = [micro_batch([samples[i] for i in indices], extra) for indices in hand]
        masks = select_step(*zip(*parts, strict=True), config, (eps, eps), ranks)
        return {
            (samples[i][0], t)
            for indices, mask in zip(hand, masks, strict=True)
            for i, row in zip(indices, mask.tolist(), strict=True)
            for t, chosen in enumerate(row)
            if chosen
        }

    selected = set().union(*Simulated(len(deal)).run(on_rank, deal))
    assert selected == brute_force(samples, config, eps)
