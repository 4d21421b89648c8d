import pytest

from openrlhf_cov.cluster import cpu_host


@pytest.fixture(scope="module")
def benchmark_of_the_controller(load_benchmark):
    return load_benchmark("controller")


@pytest.mark.parametrize(
    ("intervals", "share"),
    [
        ([], 1.0),
        ([(10.0, 20.0)], 0.0),
        ([(11.0, 13.0), (12.0, 15.0), (12.0, 12.5)], 0.6),  # 11 to 15 of ten seconds
        ([(17.0, 19.0), (8.0, 12.0), (19.5, 30.0)], 0.55),  # 2 + 2 + 0.5
    ],
)
def test_idle_is_when_nothing_is_under_way(benchmark_of_the_controller, intervals, share):
    assert benchmark_of_the_controller.idle_share(intervals, 10.0, 20.0) == pytest.approx(share)


def test_responses_are_of_all_lengths_and_groups_pass_as_often_as_asked(benchmark_of_the_controller):
    drawn = [benchmark_of_the_controller.draw(str(prompt), 0.25) for prompt in range(2000)]
    lengths = sorted(length for group, _ in drawn for length in group)
    assert (len(lengths), lengths[-1]) == (16_000, 8192)
    assert 0.03 < lengths.count(8192) / len(lengths) < 0.06
    assert 1600 < lengths[8000] < 2000
    assert sum(0 < sum(scores) < 8 for _, scores in drawn) / 2000 == pytest.approx(0.25, abs=0.03)
    assert benchmark_of_the_controller.draw("7", 0.25) == benchmark_of_the_controller.draw("7", 0.25)


@pytest.mark.slow
def test_every_function_whose_time_is_counted_is_there(benchmark_of_the_controller):
    names = [name for _, functions in benchmark_of_the_controller.PHASES.values() for name in functions]
    assert len(names) > 10
    with cpu_host.flash_attention_stand_in():
        for name in names:
            owner, function = benchmark_of_the_controller.owner_of(name)
            assert callable(getattr(owner, function)), name
