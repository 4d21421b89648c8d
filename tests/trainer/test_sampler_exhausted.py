"""What trains, and what stops the run, where the rounds of a step or the data run out."""

import pytest

from openrlhf_cov.errors import RunStopped

SAMPLES = 2  # of each prompt, as make_sampler has it


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_data_that_never_passes_stops_the_run_with_the_counts(make_sampler, step, value):
    sampler, engines = make_sampler(score=lambda p: [value] * SAMPLES, sampling_max_rounds=3)
    with pytest.raises(RunStopped, match=r"--sampling_max_rounds 3 .* 0 groups kept, .*too easy or too hard"):
        step(sampler)
    # 4, then twice the ceiling of 2 x 4
    assert len(engines[0].requests) == 4 + 8 + 8


def test_stop_ends_the_run_instead(make_sampler, step):
    sampler, _ = make_sampler(
        score=lambda p: [1.0, float(p != 5)], sampling_max_rounds=2, sampling_on_exhausted="stop"
    )
    with pytest.raises(RunStopped, match=r"1 of 4 groups \(12 prompts tried in 2 rounds, 1 groups kept, 11 all right"):
        step(sampler)


@pytest.mark.parametrize(("ranks", "train_batch"), [(2, 4), (1, 4), (2, 2)])
def test_fallback_makes_whole_updates_on_every_rank(make_sampler, step, ranks, train_batch):
    # 3 groups of 2 samples are kept; an update has 4 samples, or 2 ranks score chunks of 2: 4 samples train
    sampler, _ = make_sampler(
        score=lambda p: [1.0, float(p > 2)], sampling_max_rounds=1, ranks=ranks, train_batch=train_batch
    )
    assert step(sampler)[0] == [0, 1]
    assert len(sampler.buffer) == 1  # the third waits


def test_what_was_kept_at_the_end_of_the_data_trains_in_the_next_episode(make_sampler, step):
    sampler, _ = make_sampler(prompts=6, episodes=2)
    taken, metrics = step(sampler)
    assert taken == [1, 3, 5, 1]  # 1, 3, 5 of the first episode
    assert sampler.order.episode == 1
    assert metrics["sampling/staleness_mean"] == 0.0


def test_a_batch_that_spans_two_passes_is_bounded_and_described_as_one(make_sampler, step):
    # one of 10 prompts passes, the batch is 2: the first pass keeps prompt 9 in rounds of 2, 4 and 4, the second has
    # none that passes anew; at most 4 rounds in all: 2 missing at first, and 1 round of 2 is left for the second pass
    sampler, _ = make_sampler(
        score=lambda p: [1.0, float(p != 9)], prompts=10, batch=2, episodes=2, sampling_max_rounds=4, train_batch=2
    )
    taken, metrics = step(sampler)
    assert taken == [9]
    assert sampler.order.drawn == 10 + 2
    assert metrics["sampling/rounds"] == 4.0
    assert metrics["sampling/oversample"] == 12 / 2


def test_data_without_one_good_group_says_so(make_sampler, step):
    sampler, _ = make_sampler(prompts=6, score=lambda p: [1.0, 1.0])
    with pytest.raises(RunStopped, match="the data ended with 0 of 4 groups"):
        step(sampler)
