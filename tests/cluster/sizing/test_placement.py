from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.cluster.sizing.placement import GpuGroup, GpuLayout, Tenant, pack, place


@pytest.mark.parametrize(
    ("slots", "free", "chosen"),
    [
        (8, [8, 8], [0] * 8),
        (12, [8, 8], [0] * 8 + [1] * 4),
        (6, [2, 4, 3], [1, 1, 1, 1, 2, 2]),  # most room first
        (4, [4, 8], [1, 1, 1, 1]),
        (0, [], []),
        (9, [8], None),
    ],
)
def test_pack_fills_the_node_with_most_room_first(slots, free, chosen):
    assert pack(slots, free) == chosen


@given(st.integers(0, 40), st.lists(st.integers(0, 8), max_size=6))
def test_pack_places_all_or_nothing_within_what_is_free(slots, free):
    chosen = pack(slots, free)
    if chosen is None:
        assert slots > sum(free)
        return
    assert len(chosen) == slots
    counts = Counter(chosen)
    assert all(counts[node] <= free[node] for node in counts)
    # as few nodes as can be: all but the last one used are filled
    assert sum(counts[node] < free[node] for node in counts) <= 1


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (GpuLayout(actor=8, engines=8, colocate_all=True), "lower --actor.num_gpus_per_node"),
        (
            GpuLayout(actor=8, engines=1),
            "lower --actor.num_gpus_per_node, colocate (--train.colocate_all)",
        ),
        (
            GpuLayout(actor=8, engines=4, ref=8),
            "lower --actor.num_gpus_per_node, --ref.num_gpus_per_node or --vllm.num_engines, colocate "
            "(--train.colocate_all, --train.colocate_actor_ref)",
        ),
        (
            GpuLayout(actor=8, engines=4, ref=8, critic=4, colocate_actor_ref=True),
            "lower --actor.num_gpus_per_node, --ref.num_gpus_per_node, --critic.num_gpus_per_node or "
            "--vllm.num_engines, colocate (--train.colocate_all)",
        ),
        # The engines of asynchronous training never share GPUs.
        (
            GpuLayout(actor=8, engines=4, colocate_all=True, asynchronous=True),
            "lower --actor.num_gpus_per_node or --vllm.num_engines",
        ),
    ],
)
def test_a_way_out_names_only_flags_of_the_run(layout, said):
    assert layout.way_out == said


LAYOUTS = {
    "colocated": (GpuLayout(actor=8, engines=8, colocate_all=True), [["actor", "engine"]]),
    "colocated, all models": (
        GpuLayout(actor=4, engines=2, tensor_parallel=2, ref=4, critic=4, reward=4, colocate_all=True),
        [["actor", "engine", "ref", "critic", "reward"]],
    ),
    "split": (GpuLayout(actor=4, engines=4), [["engine"], ["actor"]]),
    "split with all models": (
        GpuLayout(actor=4, engines=4, ref=2, critic=2, reward=1),
        [["engine"], ["actor"], ["ref"], ["critic"], ["reward"]],
    ),
    "actor and reference share": (
        GpuLayout(actor=4, engines=4, ref=4, colocate_actor_ref=True),
        [["actor", "ref"], ["engine"]],
    ),
    "process reward model on GPUs of its own": (
        GpuLayout(actor=4, engines=4, ref=4, prm=4),
        [["engine"], ["actor"], ["ref"], ["prm"]],
    ),
    "process reward model with the policy": (
        GpuLayout(actor=4, engines=4, ref=4, prm=4, colocate_actor_ref=True),
        [["actor", "ref", "prm"], ["engine"]],
    ),
    "critic and reward share": (
        GpuLayout(actor=4, engines=4, critic=2, reward=2, colocate_critic_reward=True),
        [["engine"], ["actor"], ["critic", "reward"]],
    ),
    # upstream makes a group of their own even where all is colocated
    "critic and reward apart from all": (
        GpuLayout(actor=4, engines=4, critic=2, reward=2, colocate_all=True, colocate_critic_reward=True),
        [["actor", "engine"], ["critic", "reward"]],
    ),
    "asynchronous: engines apart": (
        GpuLayout(actor=4, engines=4, ref=4, colocate_all=True, asynchronous=True),
        [["actor", "ref"], ["engine"]],
    ),
}


@pytest.mark.parametrize(("layout", "names"), LAYOUTS.values(), ids=LAYOUTS)
def test_groups_are_those_that_upstream_asks_for_in_its_order(layout, names):
    assert [[tenant.name for tenant in group.tenants] for group in layout.groups()] == names


def test_a_group_without_room_is_left_out_and_the_next_one_tried():
    groups = [GpuGroup(3, (Tenant("engine", 3),)), GpuGroup(2, (Tenant("actor", 2),))]
    plan = place(groups, [2])
    assert plan.unplaced == (groups[0],)
    assert [gpu.processes for gpu in plan.gpus] == [("actor 0",), ("actor 1",)]


def test_an_engine_larger_than_a_node_spans_nodes():
    assert place(GpuLayout(actor=4, engines=1, tensor_parallel=4).groups(), [2, 2, 4]).spanning_engines() == []
    assert place(GpuLayout(actor=2, engines=1, tensor_parallel=4).groups(), [2, 2, 2]).spanning_engines() == [0]
    # two engines of 3 on nodes of 4: the second has one GPU on the first node
    assert place(GpuLayout(actor=2, engines=2, tensor_parallel=3).groups(), [4, 4]).spanning_engines() == [1]


def test_an_engine_takes_slots_of_one_node_first():
    # 3 slots on node 1, the last one on node 0: engine 0 gets those of node 1
    plan = place(GpuLayout(actor=4, engines=2, tensor_parallel=2, colocate_all=True).groups(), [1, 3])
    assert [gpu.processes for gpu in plan.gpus] == [
        ("actor 3", "engine 1.1"),
        ("actor 0", "engine 0.0"),
        ("actor 1", "engine 0.1"),
        ("actor 2", "engine 1.0"),
    ]
    assert plan.spanning_engines() == [1]


TENANTS = st.tuples(st.integers(1, 12), st.integers(1, 4))


@given(st.lists(TENANTS, max_size=4), st.lists(st.integers(0, 8), max_size=5))
def test_no_gpu_is_used_twice_and_every_process_has_one_or_its_group_has_none(sizes, nodes):
    groups = [
        GpuGroup(slots * shards, (Tenant("actor", slots * shards), Tenant("engine", slots * shards, shards)))
        for slots, shards in sizes
    ]
    plan = place(groups, nodes)
    places = [(gpu.node, gpu.index) for gpu in plan.gpus]
    assert len(set(places)) == len(places)
    assert all(index < nodes[node] for node, index in places)
    placed = [group for group in groups if not any(group is other for other in plan.unplaced)]
    assert len(plan.gpus) == sum(group.slots for group in placed)
    assert Counter(kind for gpu in plan.gpus for kind in gpu.kinds) == Counter(
        {name: sum(group.slots for group in placed) for name in ("actor", "engine") if placed}
    )
