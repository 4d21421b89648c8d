"""What the evaluation uses of upstream's engines, of vLLM's requests and results, and of its server."""

import ast

import pytest

from openrlhf_cov.evaluation.endpoint import VLLM

ENGINES = "trainer/ray/vllm_engine.py"
SERVER = "entrypoints/openai"


def annotated(node):
    """{name: default} of the annotated fields in the body of a class."""
    fields = [child for child in node.body if isinstance(child, ast.AnnAssign)]
    return {child.target.id: child.value and ast.unparse(child.value) for child in fields}


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
    assert annotated(vllm.find("sampling_params.py", "SamplingParams"))["n"] == "1"
    # what we leave alone changes nothing
    assert [fields[name] for name in ("top_k", "min_p", "repetition_penalty")] == ["0", "0.0", "1.0"]
    kinds = ast.unparse(vllm.find("sampling_params.py", "RequestOutputKind"))
    assert "FINAL_ONLY" in kinds


def test_an_engine_gives_responses_to_the_arguments_we_send(upstream, ours):
    (call,) = ours.calls("trainer/rollout/requests.py", "RolloutRequests._send", "engine.generate_responses.remote")
    sent = {keyword.arg for keyword in call.keywords}
    # our engine actor takes the seeds
    assert sent == set(upstream.parameters(ENGINES, "RolloutRayActor.generate_responses")) - {"self"} | {"seeds"}
    assert "seeds" in ours.parameters("trainer/ray/rollout_actor.py", "CovRolloutActor.generate_responses")


@pytest.mark.parametrize(
    ("path", "name", "needed"),
    [
        ("outputs.py", "CompletionOutput", {"text", "token_ids", "logprobs", "finish_reason"}),
        ("logprobs.py", "Logprob", {"logprob"}),
        (f"{SERVER}/completion/protocol.py", "CompletionRequest", VLLM.keys()),
        (f"{SERVER}/chat_completion/protocol.py", "ChatCompletionRequest", VLLM.keys()),
        ("entrypoints/serve/engine/protocol.py", "ModelCard", {"owned_by", "max_model_len"}),
    ],
)
def test_vllm_still_has_the_fields_we_read_and_send(vllm, path, name, needed):
    assert needed <= annotated(vllm.find(path, name)).keys()


def test_a_result_has_the_tokens_of_its_prompt(vllm):
    assert {"prompt_token_ids", "outputs"} <= set(vllm.parameters("outputs.py", "RequestOutput.__init__"))
