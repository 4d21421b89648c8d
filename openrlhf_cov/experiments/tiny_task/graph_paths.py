"""Paths in a directed acyclic graph: a planning task with many correct answers (pure).

A prompt is two nodes of a random graph, such as ``n07n55``. A response is a path from the first to the second, such as
``n07n21n55``. The reward is 1 for a valid path. The base policy has seen up to 20 paths for half of the connected
pairs. The other half shows whether the policy plans or remembers, and the number of different valid paths among the
samples of a pair shows how much of its diversity is left.

Reference: arXiv 2509.22613 (Erdős–Rényi graph of 100 nodes, supervised paths of a part of the pairs, reward for a
valid path).
Every pair that has an edge is in the supervised half, because a policy cannot know an edge that it never saw.
Supervised paths have at most ``MAX_NODES`` nodes here, which bounds the length of a response.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from openrlhf_cov.rewards.addition import EOS_TOKEN

NODES = 100
EDGE_PROBABILITY = 0.1
MAX_NODES = 10
PATHS_OF_A_PAIR = 20
# Nodes of a path and its end.
RESPONSE_TOKENS = MAX_NODES + 1
GRAPH_SEED = 0
# Pairs of the unseen half that are used for curves and for the final test.
HELD_OUT = 256
WORDS = tuple(f"n{node:02d}" for node in range(NODES))
_WORD_LENGTH = len(WORDS[0])
# Samples that are tried for each supervised path before a pair has fewer of them.
_TRIES = 5

Path = tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """A directed acyclic graph.

    Attributes:
        successors: The nodes that an edge leads to, for each node.
        reachable: All nodes that a path leads to, for each node.
    """

    successors: tuple[frozenset[int], ...]
    reachable: tuple[frozenset[int], ...]

    def pairs(self) -> list[tuple[int, int]]:
        """Return all (source, target) with a path between them, in the order of their numbers."""
        return [(source, target) for source, found in enumerate(self.reachable) for target in sorted(found)]

    def is_path(self, nodes: Sequence[int]) -> bool:
        """Return True for at least two nodes of which each is a successor of the one before it."""
        edges = itertools.pairwise(nodes)
        return len(nodes) >= 2 and all(after in self.successors[before] for before, after in edges)

    def sample_path(self, source: int, target: int, rng: random.Random) -> Path:
        """Return a random path. Each step is uniform over the successors from which the target can be reached.

        Args:
            source: The first node.
            target: The last node, which must be reachable from the source.
            rng: Source of the steps.
        """
        path = [source]
        while path[-1] != target:
            after = self.successors[path[-1]]
            # Sorted, because the order of a set is not part of what the seed determines.
            path.append(rng.choice(sorted(node for node in after if node == target or target in self.reachable[node])))
        return tuple(path)


@dataclass(frozen=True)
class PathQuestion:
    """A pair of connected nodes."""

    source: int
    target: int

    @property
    def prompt(self) -> str:
        """The text that the policy continues."""
        return WORDS[self.source] + WORDS[self.target]

    @property
    def label(self) -> str:
        """The prompt, from which the reward knows both ends of the path."""
        return self.prompt


@dataclass(frozen=True)
class PathTask:
    """One graph, its supervised paths and its unseen pairs.

    Attributes:
        graph: The graph.
        train: The supervised pairs, on which reinforcement learning trains, too.
        paths: Each of these pairs -> its supervised paths.
        validation: Unseen pairs for curves.
        test: Other unseen pairs.
    """

    graph: Graph
    train: tuple[PathQuestion, ...]
    paths: Mapping[PathQuestion, tuple[Path, ...]]
    validation: tuple[PathQuestion, ...]
    test: tuple[PathQuestion, ...]

    def practice(self, rng: random.Random) -> tuple[str, str, bool]:
        """Return (prompt, response, True) of one row of the base policy's training."""
        pair = rng.choice(self.train)
        return pair.prompt, write_path(rng.choice(self.paths[pair])), True

    def is_correct(self, response: str, label: str) -> bool:
        """Return True for a valid path from the first to the second node of the label, followed by the end.

        Args:
            response: The text of a response with its end, ``<eos>``; a response that was cut off has none.
            label: The words of the two nodes, as in the prompt.
        """
        nodes = read_path(response)
        ends = read_path(label + EOS_TOKEN)
        if not nodes or not ends:
            return False
        return [nodes[0], nodes[-1]] == ends and self.graph.is_path(nodes)


def make_graph(seed: int, nodes: int = NODES, edge_probability: float = EDGE_PROBABILITY) -> Graph:
    """Return a random graph: along a random order of the nodes, each forward edge exists independently.

    Args:
        seed: Determines the graph.
        nodes: Number of nodes.
        edge_probability: Probability of each forward edge.
    """
    rng = random.Random(f"graph:{seed}")
    order = list(range(nodes))
    rng.shuffle(order)
    successors: list[set[int]] = [set() for _ in range(nodes)]
    for place, before in enumerate(order):
        for after in order[place + 1 :]:
            if rng.random() < edge_probability:
                successors[before].add(after)
    # The last node of the order reaches nothing; earlier nodes reach what their successors reach.
    reachable: list[frozenset[int]] = [frozenset()] * nodes
    for node in reversed(order):
        reachable[node] = frozenset(successors[node]).union(*(reachable[after] for after in successors[node]))
    return Graph(tuple(map(frozenset, successors)), tuple(reachable))


# Sampling the paths of 3,000 pairs takes seconds, and every caller uses the same graph.
@lru_cache(maxsize=1)
def path_task(seed: int = GRAPH_SEED) -> PathTask:
    """Return the task of one graph: half of the pairs with up to ``PATHS_OF_A_PAIR`` paths each, the rest unseen."""
    graph = make_graph(seed)
    rng = random.Random(f"paths:{seed}")
    paths = {pair: _short_paths(graph, pair, rng) for pair in graph.pairs()}
    usable = [pair for pair, found in paths.items() if found]
    # A policy cannot know an edge that it never saw, so all pairs with an edge are supervised, and others fill up the
    # half.
    edges = [pair for pair in usable if pair[1] in graph.successors[pair[0]]]
    others = [pair for pair in usable if pair[1] not in graph.successors[pair[0]]]
    rng.shuffle(others)
    seen = sorted([*edges, *others[: max(0, len(usable) // 2 - len(edges))]])
    unseen = others[max(0, len(usable) // 2 - len(edges)) :]
    return PathTask(
        graph=graph,
        train=tuple(PathQuestion(*pair) for pair in seen),
        paths={PathQuestion(*pair): paths[pair] for pair in seen},
        validation=tuple(PathQuestion(*pair) for pair in unseen[:HELD_OUT]),
        test=tuple(PathQuestion(*pair) for pair in unseen[HELD_OUT : 2 * HELD_OUT]),
    )


def write_path(path: Sequence[int]) -> str:
    """Return a path as a response without its end."""
    return "".join(WORDS[node] for node in path)


def read_path(response: str) -> list[int] | None:
    """Return the nodes of a response; None if it has no end or anything but nodes before it."""
    text = response.removesuffix(EOS_TOKEN)
    words = [text[start : start + _WORD_LENGTH] for start in range(0, len(text), _WORD_LENGTH)]
    if text == response or any(word not in _NODE_OF for word in words):
        return None
    return [_NODE_OF[word] for word in words]


def _short_paths(graph: Graph, pair: tuple[int, int], rng: random.Random) -> tuple[Path, ...]:
    """Return up to ``PATHS_OF_A_PAIR`` different random paths of at most ``MAX_NODES`` nodes."""
    # A dict keeps the order in which the paths were found, and each of them once.
    found: dict[Path, None] = {}
    for _ in range(_TRIES * PATHS_OF_A_PAIR):
        path = graph.sample_path(*pair, rng)
        if len(path) <= MAX_NODES:
            found[path] = None
        if len(found) == PATHS_OF_A_PAIR:
            break
    return tuple(found)


_NODE_OF = {word: node for node, word in enumerate(WORDS)}
