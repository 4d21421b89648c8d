import pytest

from openrlhf_cov.cluster.sizing.budget import Budget, Need
from openrlhf_cov.cluster.sizing.flag_sizes import Step
from openrlhf_cov.cluster.sizing.memory import GIB, Engine
from openrlhf_cov.cluster.sizing.model_shape import KNOWN
from openrlhf_cov.cluster.sizing.placement import GpuLayout, PlacedGpu, Placement, place
from openrlhf_cov.cluster.sizing.prose import (
    budget_lines,
    counted,
    engine_line,
    host_line,
    node_lines,
    placement_lines,
    step_lines,
)


def squeezed(lines):
    return [" ".join(line.split()) for line in lines]


def test_placement_in_stretches():
    plan = place(GpuLayout(actor=2, engines=3).groups(), [4, 4])
    assert squeezed(placement_lines(plan, ["a", "b"])) == ["a GPU 0-2 engine 0-2", "b GPU 0-1 actor 0-1"]


def test_placement_of_engines_of_several_gpus():
    plan = place(GpuLayout(actor=4, engines=2, tensor_parallel=2, colocate_all=True).groups(), [4])
    assert squeezed(placement_lines(plan, ["node 0"])) == ["node 0 GPU 0-3 actor 0-3, engine 0.0-1.1"]


def test_numbers_that_do_not_follow_each_other():
    gpus = [PlacedGpu(0, i, (f"actor {number}",)) for i, number in enumerate([3, 0, 1])]
    assert squeezed(placement_lines(Placement(tuple(gpus), ()), ["n"])) == ["n GPU 0-2 actor 3, 0-1"]


def test_a_budget_is_a_table_in_gib():
    rows = Need("weights", (GIB, GIB, 2 * GIB, 0)), Need("engine", (64 * GIB, 0, 0, 0))
    assert squeezed(budget_lines("1 x actor", Budget(rows), 80 * GIB)) == [
        "1 x actor generate score train send",
        "weights 1.0 1.0 2.0 -",
        "engine 64.0 - - -",
        "sum, of 80 65.0 1.0 2.0 -",
    ]
    assert squeezed(budget_lines("1 x actor", Budget(rows), None))[-1] == "sum 65.0 1.0 2.0 -"


def test_the_lines_of_engine_host_and_step():
    engine = Engine(tensor_parallel=4, utilization=0.8, gpu_bytes=80 * GIB)
    assert engine_line(engine, KNOWN["Qwen/Qwen2.5-32B"], 10_240) == (
        "  64.0 GiB of every GPU: weights 15.3, KV cache 45.3 = 742,079 tokens per engine, room for 72 sequences of "
        "10,240 at once"
    )
    assert host_line({"states": 2.0 * GIB, "weights": 0.0}) == "  2.0 GiB = 2.0 states"
    assert host_line({}) == "  0.0 GiB"
    step = Step(prompts=4, samples_per_prompt=2, updates=1, longest=3000, longest_response=1000, prompt_tokens=50.4)
    assert step_lines(step) == [
        "  4 prompts x 2 = 8 samples, updates: 1",
        "  24,000 tokens if all are as long as they may be (3,000, of which 1,000 response)",
        "  4,403 tokens with prompts of 50 tokens, the mean of the data, and responses half as long as they may be",
    ]


@pytest.mark.parametrize(("number", "text"), [(0, "0 GPUs"), (1, "1 GPU"), (2, "2 GPUs"), (1234, "1,234 GPUs")])
def test_one_is_singular(number, text):
    assert counted(number, "GPU") == text
    assert counted(number, "process") == text.replace("GPUs", "processes").replace("GPU", "process")


def test_what_nodes_need_of_what_they_have():
    needs = {"node 0": 9.0 * GIB, "node 1": 2.5 * GIB}
    assert squeezed(node_lines(needs, {})) == ["node 0 9.0 GiB", "node 1 2.5 GiB"]
    assert squeezed(node_lines(needs, {"node 0": 24.0 * GIB, "node 1": GIB})) == [
        "node 0 9.0 GiB of 24.0",
        "node 1 2.5 GiB of 1.0",
    ]
