"""Upstream has what we import, call and override, and takes what we pass.

Upstream's source is read as syntax trees, and so is ours: what we use is found in our code, not listed here. Only
methods that we call on objects, whose class the code does not name, are in a table.
"""

import ast

import pytest
from upstream_uses import LOGGING, bound, imported_names, is_open, methods_of, signature

# Module of upstream -> method that we call on an object -> the parameters that we pass, in upstream's order.
METHODS = {
    "models/actor.py": {
        "Actor.forward": "self sequences action_mask attention_mask return_output allgather_logits return_logprobs "
        "ring_attn_group packed_seq_lens return_entropy **mm_inputs",
        "Actor.gradient_checkpointing_enable": "self gradient_checkpointing_kwargs",
    },
    "models/loss.py": {
        "PolicyLoss.forward": "self log_probs old_log_probs advantages action_mask rollout_log_probs dp_size "
        "batch_num_tokens global_batch_size",
        "ValueLoss.forward": "self values old_values returns action_mask dp_size batch_num_tokens global_batch_size",
    },
    "trainer/ppo_utils/kl_controller.py": {
        "AdaptiveKLController.update": "self current n_steps",
        "FixedKLController.update": "self current n_steps",
    },
    "trainer/ray/launcher.py": {
        "BaseModelActor._setup_distributed": "self strategy",
        "BaseModelActor.execute_batch": "self method_name all_data start_idx end_idx",
        "RayActorGroup.async_run_method": "self method_name *args **kwargs",
        "RayActorGroup.async_run_method_batch": "self method_name **kwargs",
    },
    "trainer/ray/ppo_actor.py": {"ActorPPOTrainer.broadcast_to_vllm": "self"},
    "trainer/ray/vllm_engine.py": {
        "RolloutRayActor.generate": "self prompt_token_ids sampling_params",
        "RolloutRayActor.get_num_unfinished_requests": "self",
        "RolloutRayActor.sleep": "self level",
        "RolloutRayActor.wake_up": "self tags",
    },
    "utils/agent.py": {
        "SingleTurnAgentExecutor._fetch_rewards_via_http": "self queries_list prompts_list labels_list",
    },
    "utils/logging_utils.py": {
        f"{logger}.{method}": f"self{parameters}"
        for logger in ("TensorboardLogger", "WandbLogger")
        for method, parameters in (
            ("log_train", " global_step logs_dict"),
            ("log_eval", " global_step logs_dict"),
            ("close", ""),
        )
    },
}
STRATEGY = "utils/deepspeed/deepspeed.py"


@pytest.fixture(scope="module")
def subclasses(upstream, ours) -> dict[str, tuple[str, str, str]]:
    """Return our class -> (its module, the module of upstream's class that it derives from, upstream's class)."""
    found = {}
    for path in ours.paths():
        names = imported_names(ours.nodes(path), upstream)
        for node in (each for each in ours.nodes(path) if isinstance(each, ast.ClassDef)):
            for base in node.bases:
                known = [each.id for each in ast.walk(base) if isinstance(each, ast.Name) and each.id in names]
                if known:
                    found[node.name] = (path, *names[known[0]])
    assert {"CovActor", "CovRolloutActor", "CovStrategy", "ModelRole"} <= found.keys()
    return found


def test_every_name_that_we_import_is_there(upstream, ours):
    names = {each for path in ours.paths() for each in imported_names(ours.nodes(path), upstream).values()}
    assert len(names) > 30
    for path, name in names:
        if name not in LOGGING:
            upstream.find(path, name)


@pytest.mark.parametrize(
    ("path", "qualname", "needed"), [(path, *row) for path, names in METHODS.items() for row in names.items()]
)
def test_upstream_still_has_the_methods_that_we_call_on_objects(upstream, path, qualname, needed):
    upstream.check(path, qualname, needed)


def test_our_calls_of_upstreams_functions_fit_their_signatures(upstream, ours, subclasses):
    # A subclass without a constructor of its own takes what upstream's class takes.
    inherited = {
        ours_is: (their_path, theirs)
        for ours_is, (path, their_path, theirs) in subclasses.items()
        if "__init__" not in methods_of(ours.find(path, ours_is))
    }
    assert inherited.keys() == {"CovActor", "CovStrategy"}
    problems = {}
    for path in ours.paths():
        names = inherited | imported_names(ours.nodes(path), upstream)
        for call in (node for node in ours.nodes(path) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id in names:
                module, name = names[call.func.id]
                of = signature(upstream, module, name, upstream.find(module, name))
                problem = None if of.function is None else bound(call, of.function, of.skip)[1]
                if problem:
                    problems[f"{path}:{call.lineno}"] = f"{name}: {problem}"
    assert problems == {}


def test_our_calls_of_the_strategy_fit_upstreams_methods(upstream, ours):
    """A variable or attribute with the name ``strategy`` is the ``CovStrategy`` of a run."""
    methods = methods_of(upstream.find(STRATEGY, "DeepspeedStrategy"))
    problems = {}
    called = set()
    for module in ours.paths():
        if not module.startswith(("trainer/", "trainer/preflight/check_data.py")):
            continue
        for node in ours.nodes(module):
            call = node if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
            if call and call.func.attr in methods and ast.unparse(call.func.value).split(".")[-1] == "strategy":
                called.add(call.func.attr)
                problem = bound(call, methods[call.func.attr], skip=1)[1]
                if problem:
                    problems[f"{module}:{call.lineno}"] = f"{call.func.attr}: {problem}"
    assert problems == {}
    assert {"backward", "optimizer_step", "prepare", "save_ckpt"} <= called


def test_overridden_methods_take_what_upstream_passes(upstream, ours, subclasses):
    for ours_is, (path, their_path, theirs) in subclasses.items():
        own = methods_of(ours.find(path, ours_is))
        inherited = methods_of(upstream.find(their_path, theirs))
        for name in own.keys() & inherited.keys():
            taken, needed = [[arg.arg for arg in function.args.args] for function in (own[name], inherited[name])]
            if is_open(own[name]):  # the rest is passed on
                assert taken == [each for each in needed if each in taken], (ours_is, name)
            else:
                assert taken == needed, (ours_is, name)


def test_roles_have_every_method_that_a_group_is_told_to_run(ours, upstream):
    told = {}
    for path in ("trainer/build.py", "trainer/model_groups.py"):
        for call in (node for node in ours.nodes(path) if isinstance(node, ast.Call)):
            if ast.unparse(call.func).endswith((".async_run_method", ".async_run_method_batch")):
                words = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "method_name")]
                assert len(words) == 1
                told[words[0].value] = path
    classes = [node for node in ours.tree("trainer/ray/roles.py").body if isinstance(node, ast.ClassDef)]
    classes.append(upstream.find("trainer/ray/launcher.py", "BaseModelActor"))
    assert {"load", "score", "send_weights", "empty_cache"} <= told.keys()
    assert told.keys() <= {name for each in classes for name in methods_of(each)}


def test_batch_calls_name_methods_of_the_engine_actor(ours, upstream):
    named = {
        call.args[1].value
        for path in ours.paths()
        for call in ours.nodes(path)
        if isinstance(call, ast.Call) and getattr(call.func, "id", None) == "batch_vllm_engine_call"
    }
    methods = methods_of(upstream.find("trainer/ray/vllm_engine.py", "RolloutRayActor"))
    assert named == {"pause_generation", "resume_generation", "sleep", "wake_up"}
    assert named <= methods.keys()
