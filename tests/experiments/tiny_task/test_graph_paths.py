import random

import pytest

from openrlhf_cov.experiments.tiny_task.graph_paths import (
    MAX_NODES,
    Graph,
    PathQuestion,
    PathTask,
    make_graph,
    path_task,
    read_path,
    write_path,
)


@pytest.fixture
def diamond():
    """A task on the graph 0 -> 1 -> 3, 0 -> 2 -> 3, 3 -> 4."""
    successors = ({1, 2}, {3}, {3}, {4}, set())
    reachable = ({1, 2, 3, 4}, {3, 4}, {3, 4}, {4}, set())
    graph = Graph(tuple(map(frozenset, successors)), tuple(map(frozenset, reachable)))
    return PathTask(graph, train=(), paths={}, validation=(), test=())


@pytest.mark.parametrize(
    ("response", "correct"),
    [
        ("n00n01n03n04<eos>", True),
        ("n00n02n03n04<eos>", True),  # another path
        ("n00n01n03n04", False),  # no end
        ("n00n03n04<eos>", False),  # 0 -> 3 is not an edge
        ("n00n01n03<eos>", False),  # another target
        ("n01n03n04<eos>", False),  # another source
        ("n00n01n03n04n", False),
        ("<eos>", False),
        ("", False),
    ],
)
def test_the_reward_is_1_for_a_valid_path(diamond, response, correct):
    assert diamond.is_correct(response, PathQuestion(0, 4).label) is correct


def test_sampled_paths_are_valid_and_different(diamond):
    found = {diamond.graph.sample_path(0, 4, random.Random(seed)) for seed in range(20)}
    assert found == {(0, 1, 3, 4), (0, 2, 3, 4)}
    assert write_path((0, 1, 3, 4)) == "n00n01n03n04"
    assert read_path("n00n01<eos>") == [0, 1]
    assert diamond.graph.pairs() == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)]


def test_a_random_graph_has_no_cycle_and_the_density_that_was_asked_for():
    graph = make_graph(0, nodes=100, edge_probability=0.1)
    # 4,950 possible edges: 495 with a standard deviation of sqrt(4950 * 0.1 * 0.9) = 21
    assert sum(map(len, graph.successors)) == pytest.approx(495, abs=64)
    assert all(node not in reached for node, reached in enumerate(graph.reachable))
    assert make_graph(0) == make_graph(0)
    assert make_graph(0) != make_graph(1)


@pytest.mark.slow
def test_half_of_the_pairs_are_supervised_and_the_unseen_ones_are_apart():
    task = path_task()
    train, validation, test = ({pair.prompt for pair in split} for split in (task.train, task.validation, task.test))
    assert len(validation) == len(test) == 256
    assert not train & validation
    assert not train & test
    assert not validation & test
    pairs = task.graph.pairs()
    assert 0.45 * len(pairs) < len(train) <= 0.5 * len(pairs)
    edges = {(source, target) for source, target in pairs if target in task.graph.successors[source]}
    assert edges <= {(pair.source, pair.target) for pair in task.train}
    assert tuple(task.paths) == task.train
    for pair, paths in task.paths.items():
        assert 1 <= len(paths) == len(set(paths)) <= 20
        # The optimum is 1: each pair has a path that fits into a response.
        assert all(len(path) <= MAX_NODES for path in paths)
        assert all(task.is_correct(write_path(path) + "<eos>", pair.label) for path in paths)


@pytest.mark.slow
def test_the_base_policy_practises_supervised_pairs():
    task = path_task()
    train = {pair.prompt for pair in task.train}
    rng = random.Random(0)
    for _ in range(200):
        prompt, response, learns_first_token = task.practice(rng)
        assert prompt in train
        assert task.is_correct(response + "<eos>", prompt)
        assert learns_first_token
