from openrlhf_cov.cluster.sizing.budget import Budget, Need
from openrlhf_cov.cluster.sizing.memory import GIB
from openrlhf_cov.cluster.sizing.placement import GpuLayout, place
from openrlhf_cov.cluster.sizing.prose import (
    budget_lines,
    placement_lines,
)


def squeezed(lines):
    return [" ".join(line.split()) for line in lines]


def test_placement_in_stretches():
    plan = place(GpuLayout(actor=2, engines=3).groups(), [4, 4])
    assert squeezed(placement_lines(plan, ["a", "b"])) == ["a GPU 0-2 engine 0-2", "b GPU 0-1 actor 0-1"]


def test_a_budget_is_a_table_in_gib():
    rows = Need("weights", (GIB, GIB, 2 * GIB, 0)), Need("engine", (64 * GIB, 0, 0, 0))
    assert squeezed(budget_lines("1 x actor", Budget(rows), 80 * GIB)) == [
        "1 x actor generate score train send",
        "weights 1.0 1.0 2.0 -",
        "engine 64.0 - - -",
        "sum, of 80 65.0 1.0 2.0 -",
    ]
    assert squeezed(budget_lines("1 x actor", Budget(rows), None))[-1] == "sum 65.0 1.0 2.0 -"
