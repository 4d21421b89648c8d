"""What we rely on inside of the functions of upstream that we call, beyond their parameters."""

import ast
import re

import pytest
from upstream_uses import methods_of

ACTOR = "trainer/ray/ppo_actor.py"
STRATEGY = "utils/deepspeed/deepspeed.py"


def arguments(call):
    """Return (positional arguments, keyword names) as written; ``**x`` is the keyword None."""
    return [ast.unparse(arg) for arg in call.args], [keyword.arg for keyword in call.keywords]


def test_a_model_for_training_is_prepared_with_every_setting_that_upstream_reads(upstream, ours):
    code = ast.unparse(upstream.find(STRATEGY, "DeepspeedStrategy._ds_init_train_model"))
    read = set(re.findall(r"cfg\['(\w+)'\]", code)) | set(re.findall(r"cfg\.get\('(\w+)'", code))
    settings = ours.find("trainer/model/model_loading.py", "_optimizer_settings")
    (written,) = (node.value for node in ast.walk(settings) if isinstance(node, ast.Return))
    assert {key.value for key in written.keys} == read
    prepared = ast.unparse(upstream.find(STRATEGY, "DeepspeedStrategy.prepare"))
    assert "model, cfg = arg" in prepared
    assert prepared.endswith("return ret[0] if len(ret) == 1 else ret")
    # A model that is never trained says itself whether its weights wait on the host.
    scored = ast.unparse(upstream.find(STRATEGY, "DeepspeedStrategy._ds_init_eval_model"))
    assert "getattr(model, '_offload', False)" in scored


def test_the_policy_is_called_with_what_upstreams_update_passes(upstream, ours):
    (theirs,) = upstream.calls(ACTOR, "ActorPPOTrainer.training_step", "self.actor")
    for method in ("Policy.forward", "Policy.score"):
        (call,) = ours.calls("trainer/model/policy.py", method, "self.actor")
        assert len(arguments(call)[0]) == len(arguments(theirs)[0]) == 2
        assert set(arguments(call)[1]) <= set(arguments(theirs)[1])


def test_penalties_need_no_more_of_a_batch_than_we_give(upstream, ours):
    read = {
        node.attr
        for node in ast.walk(upstream.tree("trainer/ppo_utils/length_penalty.py"))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "experience"
    }
    (given,) = ours.calls("trainer/advantages.py", "penalised_rewards", "SimpleNamespace")
    assert read <= set(arguments(given)[1])


def test_upstreams_sender_needs_what_it_is_made_with_and_the_flags(upstream):
    code = ast.unparse(upstream.find(ACTOR, "ActorPPOTrainer.broadcast_to_vllm"))
    used = set(re.findall(r"self\.(\w+)", code))
    assert used == {"strategy", "vllm_engines", "actor", "_model_update_group", "use_cuda_ipc"}


def test_upstreams_sender_calls_methods_that_our_engine_actor_inherits(upstream):
    called = set(re.findall(r"engine\.(\w+)\.remote", ast.unparse(upstream.find(ACTOR, "ActorPPOTrainer"))))
    assert called == {"init_process_group", "reset_prefix_cache", "update_weight", "update_weight_cuda_ipc"}
    assert called <= methods_of(upstream.find("trainer/ray/vllm_engine.py", "RolloutRayActor")).keys()


# What cpu_host replaces; what does nothing or returns False without an accelerator; what CUDA IPC alone calls.
REPLACED = {"current_device", "set_device", "synchronize", "current_stream"}
HARMLESS = {"empty_cache", "is_available"}
GPU_ONLY = {"trainer/ray/utils.py": {"get_device_properties"}}


@pytest.mark.slow
def test_a_cpu_host_supplies_every_cuda_function_upstream_calls(upstream):
    for path in upstream.paths():
        attributes = [node for node in ast.walk(upstream.tree(path)) if isinstance(node, ast.Attribute)]
        used = {node.attr for node in attributes if ast.unparse(node.value) == "torch.cuda"}
        assert used <= REPLACED | HARMLESS | GPU_ONLY.get(path, set()), path


def test_what_upstream_trusts_goes_through_transformers_or_the_engine(upstream):
    trusting = {
        (path, ast.unparse(node.func))
        for path in upstream.paths()
        for node in ast.walk(upstream.tree(path))
        if isinstance(node, ast.Call) and any(keyword.arg == "trust_remote_code" for keyword in node.keywords)
    }
    assert {call for _, call in trusting} <= {
        *("AutoConfig.from_pretrained", "AutoTokenizer.from_pretrained", "AutoProcessor.from_pretrained"),
        *("model_class.from_pretrained", "cls_class.from_pretrained"),
        "load_dataset",  # which has dropped it: datasets 4 runs no code of a dataset
    }
