"""Where optimizer steps end and which samples they have: for our windows and for DeepSpeed alike."""

from dataclasses import replace
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.utils.loss_utils import iter_grad_accum_global_norm
from rank_models import SEED, Engine, Strategy, accumulation_of, flags, make_samples
from simulated_ranks import Simulated
from torch import nn

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.window import ALONE
from openrlhf_cov.trainer.batches.windows import BatchLayout, loss_normalizers, start_micro_batch, windows_of_epoch

# What a static layout has of an update; a dynamic one has the rest.
LAYOUT = BatchLayout(
    dynamic=False, seed=SEED, micro_batch_size=2, micro_batches=2, update_size=4, most_updates=9, max_tokens=16,
    ring_attn_size=1, tensor_parallel_size=1, samples_per_prompt=1, groups_prompts=False,
    shuffles_groups=False, batch_size=4, warns=True,
)  # fmt: skip
DYNAMIC = replace(LAYOUT, dynamic=True)


def windows_in(samples, layout, ranks=ALONE, step=3, epoch=0):
    return list(windows_of_epoch(samples, layout, ranks, step=step, epoch=epoch, device="cpu"))


def ids(found):
    """Numbers of the samples of every micro-batch of every window."""
    return [[[sample.sample_id for sample in each] for each in window.micro_batches] for window in found]


def flat(found):
    """Numbers of the samples of every window, sorted."""
    return [sorted(chain.from_iterable(window)) for window in ids(found)]


def test_the_layout_follows_from_the_flags():
    args = flags("out", batch_size=8, micro_batch_size=2, rollout__batch_size=12, n_samples_per_prompt=4)
    args.train.batch_size = 16
    ranks = replace(ALONE, size=2)
    layout = BatchLayout.of(Strategy(args, accumulation_of(args, ranks=2)), ranks)
    # 16 samples of an update on 2 ranks are 8 on each: 4 micro-batches of 2. A rollout of 48 has 3 updates.
    assert (layout.micro_batches, layout.update_size, layout.most_updates) == (4, 8, 3)
    assert layout.shuffles
    assert layout.warns
    assert not BatchLayout.of(Strategy(args, 0, data_rank=1), ranks).warns
    assert BatchLayout.of(Strategy(args, 0), ranks).micro_batches == 1  # as upstream has it
    for name in ("ring_attn_size", "tensor_parallel_size"):
        args = flags("out", **{name: 2})
        assert not BatchLayout.of(Strategy(args, 1), ALONE).shuffles


@given(
    micro_batch=st.integers(1, 4), accumulation=st.integers(1, 5), rollouts=st.lists(st.integers(1, 60), max_size=4)
)
def test_static_steps_agree_with_deepspeed_or_the_run_stops(micro_batch, accumulation, rollouts):
    """The first rollout that is no whole number of updates ends the run before any of it is trained on."""
    engine = Engine(nn.Parameter(torch.zeros(1)), accumulation, dynamic=False)
    layout = replace(LAYOUT, micro_batch_size=micro_batch, micro_batches=accumulation)
    for count in rollouts:
        samples = make_samples(count, longest=3)
        if count % (micro_batch * accumulation):
            with pytest.raises(RunStopped, match=rf"{count} samples, .* multiple of {micro_batch * accumulation}"):
                windows_in(samples, layout)
            return
        found = windows_in(samples, layout)
        assert sorted(chain.from_iterable(flat(found))) == list(range(count))
        for window in found:
            assert [len(each) for each in window.micro_batches] == [micro_batch] * accumulation
            for number in range(accumulation):
                start_micro_batch(engine, layout, ends_update=number + 1 == accumulation)
                engine.micro_steps += 1


@pytest.mark.parametrize(("ends", "word"), [(True, "does not end"), (False, "ends")])
def test_a_deepspeed_that_ends_elsewhere_stops_the_run(ends, word):
    engine = Engine(nn.Parameter(torch.zeros(1)), 2, dynamic=False)
    engine.micro_steps = 0 if ends else 1  # somebody trained on one micro-batch
    with pytest.raises(RunStopped, match=rf"DeepSpeed {word} an update .* --train\.batch_size 4"):
        start_micro_batch(engine, LAYOUT, ends_update=ends)


def test_static_samples_come_in_an_order_of_the_random_state():
    samples, found = make_samples(), []
    for seed in (0, 1, 0):
        torch.manual_seed(seed)
        found.append([flat(windows_in(samples, LAYOUT)) for _ in range(2)])
    assert found[0] == found[2] != found[1]
    assert found[0][0] != found[0][1]  # the next epoch has another order
    for layout in (replace(LAYOUT, ring_attn_size=2), replace(LAYOUT, tensor_parallel_size=2)):
        # ranks that share tokens must hold the same samples
        assert ids(windows_in(samples, layout)) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_whole_groups_are_shuffled(monkeypatch):
    monkeypatch.setattr(torch, "randperm", lambda count: torch.tensor([2, 0, 3, 1][:count]))
    layout = replace(LAYOUT, samples_per_prompt=2, shuffles_groups=True)
    # groups of two: 2 (4 and 5), 0 (0 and 1), 3 (6 and 7), 1 (2 and 3)
    assert ids(windows_in(make_samples(), layout)) == [[[4, 5], [0, 1]], [[6, 7], [2, 3]]]
    # a group that is larger than an update lies in updates that follow each other
    layout = replace(layout, micro_batches=1, samples_per_prompt=4)
    monkeypatch.setattr(torch, "randperm", lambda count: torch.tensor([1, 0]))
    assert ids(windows_in(make_samples(), layout)) == [[[4, 5]], [[6, 7]], [[0, 1]], [[2, 3]]]


def test_dynamic_updates_keep_whole_groups_in_every_epoch():
    layout = replace(DYNAMIC, update_size=2, shuffles_groups=True, samples_per_prompt=2)
    epochs = [flat(windows_in(make_samples(), layout, epoch=epoch)) for epoch in range(4)]
    assert all(sorted(updates) == [[0, 1], [2, 3], [4, 5], [6, 7]] for updates in epochs)
    assert epochs[0] == sorted(epochs[0])  # they come shuffled
    assert len({str(updates) for updates in epochs}) > 2


@pytest.mark.parametrize(("batch_size", "count"), [(2, 4), (4, 2), (3, 2)])
def test_every_epoch_has_its_own_dynamic_updates(batch_size, count):
    # as static batches; 3: two samples of 8 make no update
    layout, samples = replace(DYNAMIC, update_size=batch_size), make_samples()
    epochs = [flat(windows_in(samples, layout, epoch=epoch)) for epoch in range(3)]
    trained = list(range(batch_size * count))  # the controller has shuffled; the first epoch keeps its order
    assert list(chain.from_iterable(epochs[0])) == trained
    for epoch in epochs:
        assert sorted(chain.from_iterable(epoch)) == trained  # each sample once, and the same ones
        assert [len(update) for update in epoch] == [batch_size] * count
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert [flat(windows_in(samples, layout, epoch=epoch)) for epoch in range(3)] == epochs
    others = replace(layout, seed=43)
    assert flat(windows_in(samples, others)) == epochs[0]
    assert flat(windows_in(samples, others, epoch=1)) != epochs[1]
    assert flat(windows_in(samples, layout, step=4, epoch=1)) != epochs[1]


@given(
    count=st.integers(0, 20), update=st.integers(1, 6), most=st.integers(0, 5), tokens=st.integers(1, 40),
    longest=st.integers(3, 12),
)  # fmt: skip
def test_dynamic_micro_batches_hold_every_sample_of_an_update_once(count, update, most, tokens, longest):
    layout = replace(DYNAMIC, update_size=update, most_updates=most, max_tokens=tokens, warns=False)
    found = windows_in(make_samples(count, longest=longest), layout)
    assert len(found) == min(most, count // update)
    assert flat(found) == [list(range(n * update, (n + 1) * update)) for n in range(len(found))]
    for window in found:
        assert all(window.micro_batches)


def test_ranks_make_the_same_number_of_micro_batches():
    """A rank whose samples would fit into fewer waits for nobody; one with fewer samples decides the updates."""
    short, long = make_samples(8, longest=3), make_samples(12, longest=30)

    def work(samples, ranks):
        return windows_in(samples, DYNAMIC, replace(ranks, size=2))

    first, second = Simulated(2).run(work, [short, long])
    assert len(first) == len(second) == 2
    for one, other in zip(first, second, strict=True):
        assert len(one.micro_batches) == len(other.micro_batches) > 1
        assert (float(one.tokens), float(one.samples)) == (float(other.tokens), float(other.samples))
        samples = list(chain.from_iterable([*one.micro_batches, *other.micro_batches]))
        assert float(one.tokens) == sum(sample.action_tokens for sample in samples)
        assert float(one.samples) == 8


def test_samples_without_action_tokens_do_not_count():
    samples = make_samples(4)
    samples[1] = replace(samples[1], action_mask=torch.zeros_like(samples[1].action_mask))
    mask = samples[3].action_mask.clone()
    mask[:3] = False
    samples[3] = replace(samples[3], action_mask=mask)
    (window,) = windows_in(samples, replace(LAYOUT, tensor_parallel_size=2))
    # 3, 5, 7 and 9 tokens have 2, 0, 6 and 8 - 3 action tokens
    assert (float(window.tokens), float(window.samples)) == (13.0, 3.0)


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_the_normalizers_are_upstreams(micro_batches):
    layout = replace(LAYOUT, micro_batches=micro_batches, tensor_parallel_size=2)
    found = windows_in(make_samples(), layout)
    masks = [
        nn.utils.rnn.pad_sequence([sample.action_mask for sample in each], batch_first=True)
        for window in found
        for each in window.micro_batches
    ]
    strategy = Strategy(flags("out"), micro_batches)
    expected = [info for _, info in iter_grad_accum_global_norm(masks, strategy, micro_batches, lambda mask: mask)]
    ours = [loss_normalizers(window, layout, ALONE) for window in found for _ in window.micro_batches]
    assert ours == expected


def test_dynamic_losses_are_not_divided_by_deepspeed():
    (window, _) = windows_in(make_samples(), DYNAMIC)
    tokens = float(window.tokens)
    assert loss_normalizers(window, DYNAMIC, replace(ALONE, size=4)) == {
        "dp_size": 4, "batch_num_tokens": tokens, "global_batch_size": 4.0,
    }  # fmt: skip
    assert loss_normalizers(window, LAYOUT, ALONE)["batch_num_tokens"] == tokens / 2


def test_micro_batches_of_a_step_are_dealt_by_prompt(monkeypatch):
    order = [5, 0, 3, 6, 1, 2, 4, 7]
    monkeypatch.setattr(torch, "randperm", lambda count: torch.tensor(order))
    layout = replace(LAYOUT, micro_batches=4, samples_per_prompt=4, groups_prompts=True)
    # prompts: 0 of samples 0 to 3, 1 of 4 to 7; in a prompt the samples keep their order
    assert ids(windows_in(make_samples(), layout)) == [[[0, 3], [1, 2], [5, 6], [4, 7]]]
    half = replace(layout, micro_batches=2)  # each window keeps its samples
    assert ids(windows_in(make_samples(), half)) == [[[0, 3], [5, 6]], [[1, 2], [4, 7]]]
    apart = replace(layout, groups_prompts=False)
    assert ids(windows_in(make_samples(), apart)) == [[[5, 0], [3, 6], [1, 2], [4, 7]]]
