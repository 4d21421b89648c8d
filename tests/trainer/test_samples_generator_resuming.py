"""A run that is resumed goes on as if nothing had happened; what a checkpoint says about its end."""

import random

import pytest

from openrlhf_cov.trainer.checkpoints import CheckpointedLoader


@pytest.mark.slow
@pytest.mark.parametrize("episodes", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_a_run_resumed_after_any_step_goes_on_as_if_nothing_had_happened(check_resuming, seed, episodes):
    chance = random.Random(seed)
    passing = [chance.random() < 0.6 for _ in range(40)]
    run = {"prompts": 40, "score": lambda p: [1.0, float(not passing[p])], "delays": seed, "episodes": episodes}
    run["rollout_seeded"] = True
    check_resuming(run)


def test_a_restored_generator_continues_where_the_other_stopped(make_generator, step):
    straight, _ = make_generator(rollout_seeded=True)
    expected = [step(straight)[:2] for _ in range(6)]
    first, _ = make_generator(rollout_seeded=True)
    for _ in range(3):
        step(first)
    state = CheckpointedLoader(first.prompts_dataloader, first).state_dict()
    second, _ = make_generator(rollout_seeded=True)
    CheckpointedLoader(second.prompts_dataloader, second).load_state_dict(state)
    assert [step(second)[:2] for _ in range(3)] == expected[3:]


@pytest.mark.parametrize("filtering", [False, True])
@pytest.mark.parametrize("stop_after", [2, 3])
def test_a_run_resumed_at_the_end_of_an_episode_does_not_repeat_it(make_generator, step, stop_after, filtering):
    # 10 prompts, batches of 4, all pass: 4, 4, 2 and the next episode; a full iterator starts the next one
    settings = dict(prompts=10, episodes=2, filtering=filtering, score=lambda p: [1.0, 0.0])

    def rest_of_run(generator, episode):
        batches = []
        while episode < 2:
            taken, _, exhausted = step(generator)
            batches += [taken] if taken else []
            episode += exhausted
        return batches

    straight, _ = make_generator(**settings)
    expected = rest_of_run(straight, 0)
    first, _ = make_generator(**settings)
    steps = [step(first) for _ in range(stop_after)]
    done, ends = sum(bool(taken) for taken, _, _ in steps), [exhausted for _, _, exhausted in steps]
    state = CheckpointedLoader(first.prompts_dataloader, first).state_dict()
    second, _ = make_generator(**settings)
    CheckpointedLoader(second.prompts_dataloader, second).load_state_dict(state)
    if second.prompts_dataloader.place == 10:
        second.prompts_dataloader.resumed = False  # as torchdata's loader: an ended epoch is followed by the next
    # upstream saves the episode before it counts the end of the data
    assert rest_of_run(second, sum(ends[:-1])) == expected[done:]


def over(generator) -> bool:
    """What a checkpoint says, and the controller reads."""
    return CheckpointedLoader(generator.prompts_dataloader, generator).state_dict()["generator"]["is_over"]


@pytest.mark.parametrize(("prompts", "episodes"), [(8, 1), (10, 1), (4, 2), (5, 2)])
@pytest.mark.parametrize("filtering", [False, True])
def test_a_run_is_over_after_its_last_step_and_not_before(make_generator, step, filtering, prompts, episodes):
    # batches of 4 of which all pass; the end of the data is noticed with the last batch or one call later
    settings = dict(prompts=prompts, episodes=episodes, filtering=filtering, score=lambda p: [1.0, 0.0])
    generator, _ = make_generator(**settings)
    seen, ends = [], 0
    while ends < episodes:
        taken, _, exhausted = step(generator)
        ends += exhausted
        if taken:
            seen.append(over(generator))
    assert seen == [False] * (len(seen) - 1) + [True]


def test_samples_that_upstream_generated_ahead_keep_a_run_open(make_generator, step):
    generator, _ = make_generator(prompts=8, filtering=False, generated=8)  # both batches at once
    assert [(step(generator)[0], over(generator)) for _ in range(2)] == [([0, 1, 2, 3], False), ([4, 5, 6, 7], True)]


def test_groups_that_will_train_keep_a_run_open(make_generator, step):
    generator, _ = make_generator(prompts=7, score=lambda p: [1.0, 0.0])
    generator.pass_rate.add(1, 2)  # it asks for 8 at once and gets all 7: 4 train, 3 wait
    step(generator)
    assert over(generator) is False
    step(generator)
    assert over(generator) is True


@pytest.mark.parametrize("pass_rate", [None, (1, 2)])
@pytest.mark.parametrize(("prompts", "expected"), [(5, True), (6, False)])
def test_what_can_make_no_update_does_not(make_generator, step, prompts, expected, pass_rate):
    # 2 groups of 2 make an update; what is beyond the first 4 is not drawn yet, or waits if 8 were asked for at once
    generator, _ = make_generator(prompts=prompts, score=lambda p: [1.0, 0.0], train_batch=4)
    if pass_rate:
        generator.pass_rate.add(*pass_rate)
    assert step(generator)[0] == [0, 1, 2, 3]
    assert len(generator.buffer) == (prompts - 4 if pass_rate else 0)
    assert over(generator) is expected
