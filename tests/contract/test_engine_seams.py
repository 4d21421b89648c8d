"""What we pass to vLLM's engines and requests is what they take, and what we leave alone changes no sample."""

import ast

import pytest


def annotated(node):
    """Return {name: default} of the annotated fields in the body of a class."""
    fields = [child for child in node.body if isinstance(child, ast.AnnAssign)]
    return {child.target.id: child.value and ast.unparse(child.value) for child in fields}


def test_engines_are_started_with_arguments_that_vllm_or_an_actor_takes(vllm, upstream, ours):
    module = ours.tree("trainer/ray/engines.py")
    names = {"start_evaluation_engines", "training_arguments", "_place"}
    functions = [node for node in module.body if getattr(node, "name", None) in names]
    nodes = [node for function in functions for node in ast.walk(function)]
    given = {key.value for node in nodes if isinstance(node, ast.Dict) for key in node.keys if key is not None}
    entries = [node for node in nodes if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "arguments"]
    given |= {node.slice.value for node in entries}
    given -= {"image", "backend"}  # values of two arguments
    fields = set()
    for name in ("EngineArgs", "AsyncEngineArgs"):
        fields |= annotated(vllm.find("engine/arg_utils.py", name)).keys()
    actor = upstream.find("trainer/ray/vllm_engine.py", "RolloutRayActor.__init__")
    taken = {arg.arg for arg in actor.args.kwonlyargs}
    pops = upstream.calls("trainer/ray/vllm_engine.py", "RolloutRayActor.__init__", "kwargs.pop")
    taken |= {call.args[0].value for call in pops}
    own = set(ours.parameters("trainer/ray/rollout_actor.py", "CovRolloutActor.__init__"))
    assert {"model", "bundle_indices", "num_gpus", "log_probs", "seed"} <= given
    assert given <= fields | taken | own


@pytest.mark.parametrize(
    "where",
    [
        ("trainer/ray/completions.py", "sampling_params"),
        ("trainer/rollout/requests.py", "RolloutRequests._sampling_params"),
    ],
)
def test_vllm_draws_a_sample_by_the_parameters_we_set(vllm, ours, where):
    (call,) = ours.calls(*where, "SamplingParams")
    fields = annotated(vllm.find("sampling_params.py", "SamplingParams"))
    assert {keyword.arg for keyword in call.keywords} <= fields.keys()
    # what we leave alone changes nothing
    neutral = {"n": "1", "top_k": "0", "min_p": "0.0", "repetition_penalty": "1.0"}
    assert {name: fields[name] for name in neutral} == neutral
