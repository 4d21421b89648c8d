"""The one place that rebinds names of upstream and of the libraries below it.

``docs/seams.md`` lists every name and ``tests/contract`` fails when upstream changes one, or when another module of
ours rebinds one. (What a GPU host has and a CPU host lacks is supplied by ``trainer/cpu_host.py``.)
"""

import importlib
import os
import sys
from functools import cache, wraps
from types import SimpleNamespace
from typing import Any

import ray

from openrlhf_cov.trainer import cpu_host
from openrlhf_cov.trainer.ray import warm_engines
from openrlhf_cov.utils import garbage_collection
from openrlhf_cov.utils.engine_limits import engine_arguments
from openrlhf_cov.utils.terminal import clean_logs

TRUST_VARIABLE = "OPENRLHF_COV_TRUST_REMOTE_CODE"
"""Set in every process of a run with --trust_remote_code."""

VLLM_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""--ds.param_dtype -> dtype of the vLLM engine. Upstream always generates in bfloat16."""

REMOTE = {
    "cli.train_ppo_ray": {
        "PolicyModelActor": "ray.ppo_actor.CovPolicyActor",
        "CriticModelActor": "ray.critic_actor.CovCriticActor",
        "ReferenceModelActor": "ray.model_actors.CovReferenceActor",
        "RewardModelActor": "ray.model_actors.CovRewardActor",
    },
    "trainer.ppo_trainer": {"PPOTrainer": "ppo_trainer.CovPPOTrainer"},
    "trainer.ppo_trainer_async": {
        "TrainingActor": "ppo_trainer.CovTrainingActor",
        "GenerateSamplesActor": "ppo_trainer.CovGenerateSamplesActor",
    },
}
"""The Ray actors that upstream's ``train(args)`` makes: module of upstream -> name -> class in our ``trainer``."""

DRIVER = {"utils.deepspeed": {"DeepspeedStrategy": "strategy.CovStrategy"}}
"""What else it makes: module of upstream -> name -> what stands in for it in our ``trainer``."""

ACTOR = {
    "trainer.ray.launcher": {"Actor": "actor_model.CovActor"},
    "trainer.ray.ppo_actor": {
        "Actor": "actor_model.CovActor",
        "ActorPPOTrainer": "actor_trainer.CovActorTrainer",
        "DataLoader": "actor_trainer.StepLoader",
    },
    "trainer.ray.ppo_critic": {"CriticPPOTrainer": "ray.critic_actor.CovCriticTrainer"},
    "trainer.ppo_trainer": {
        "RemoteExperienceMaker": "experience_maker.CovExperienceMaker",
        "WandbLogger": "ppo_trainer.CovWandbLogger",
        "TensorboardLogger": "ppo_trainer.CovTensorboardLogger",
        "PromptDataset": "prompt_dataset.CovPromptDataset",
        "SamplesGenerator": "samples_generator.CovSamplesGenerator",
        "balance_experiences": "rank_batches.balanced_in_parts",
        "prepare_datasets": "ppo_trainer.prepare_datasets",
        "compute_eval_metrics": "ppo_trainer.compute_eval_metrics",
    },
    "trainer.ppo_trainer_async": {
        "SamplesGenerator": "samples_generator.CovSamplesGenerator",
        "prepare_datasets": "ppo_trainer.prepare_datasets",
        "compute_eval_metrics": "ppo_trainer.compute_eval_metrics",
    },
    "trainer.ppo_utils.experience_maker": {"get_seqlen_balanced_partitions": "micro_batches.balanced_partitions"},
    "utils.utils": {"convert_to_torch_dtype": "strategy.convert_to_torch_dtype"},
}
"""The same for what those actors look up."""


def install_driver(args: SimpleNamespace) -> None:
    """Put our classes where upstream's ``train(args)`` looks its own up; ours call upstream's.

    What its actors look up is put in place here, too: Ray ships methods of upstream's decorated classes as copies,
    with the globals that they have in this process. Changes nothing the second time, but for the settings of engines.
    """
    for table, make in ((REMOTE, _remote), (DRIVER, _ours)):
        for path, names in table.items():
            module = importlib.import_module(f"openrlhf.{path}")
            for name, target in names.items():
                setattr(module, name, make(target))
    install_actor()
    install_engines(engine_settings(args), warm_engines.are_kept(args))


def install_actor() -> None:
    """Put our classes and functions where those of upstream's modules look them up that this process has imported.

    The controllers and the actors of models call it before upstream's part of them begins (``InstalledActor``);
    engines, which look none of these up, do not.
    """
    for path, names in ACTOR.items():
        if module := sys.modules.get(f"openrlhf.{path}"):
            for name, target in names.items():
                setattr(module, name, _ours(target))


class InstalledActor:
    """Mixin over upstream's Ray actors: what they make and call is ours."""

    def __init__(self, *args, **kwargs) -> None:
        install_actor()
        garbage_collection.resume()
        super().__init__(*args, **kwargs)


@cache
def _ours(target: str) -> Any:
    module, name = target.rsplit(".", 1)
    return getattr(importlib.import_module(f"openrlhf_cov.trainer.{module}"), name)


@cache
def _remote(target: str) -> Any:
    """A class of ours as a Ray actor, with the GPUs that upstream asks for."""
    return ray.remote(num_gpus=1)(_ours(target)) if target.startswith("ray.") else ray.remote(_ours(target))


def install_engines(settings: dict[str, Any], warm: bool = False) -> None:
    """Rebind the engine actor that upstream's ``create_vllm_engines`` makes, with these arguments beside its own.

    ``warm``: it may be one that the last run of a study has left.
    """
    import openrlhf.trainer.ray.vllm_engine as vllm_engine

    from openrlhf_cov.trainer.ray.rollout_actor import CovRolloutActor

    vllm_engine.RolloutRayActor = _with_engine_settings(ray.remote(CovRolloutActor), settings, warm)


def engine_settings(args: SimpleNamespace) -> dict[str, Any]:
    """Arguments of the engine actor that upstream fixes and we set from the flags."""
    from openrlhf_cov.config import RewardConfig

    settings: dict[str, Any] = {"dtype": VLLM_DTYPES[args.ds.param_dtype]}
    # Upstream asks for log-probs for its rollout correction alone. vllm_kl compares them in every run.
    settings |= {"log_probs": True, "logprobs_mode": "processed_logprobs", "max_logprobs": 1}
    settings |= engine_arguments(
        args.vllm_max_num_seqs,
        args.vllm_max_num_batched_tokens,
        on_gpus=not cpu_host.is_cpu_host(),
        max_model_len=args.data.max_len,
    )
    settings["trust_remote_code"] = args.trust_remote_code
    settings["reward_config"] = RewardConfig.from_args(args)
    if args.vllm.sync_backend == "gloo":
        from openrlhf_cov.trainer import weight_transfer

        settings["worker_extension_cls"] = f"{weight_transfer.__name__}.GlooWorkerExtension"
        settings["weight_transfer_config"] = {"backend": weight_transfer.BACKEND}
    return settings


def _with_engine_settings(actor_class: Any, settings: dict[str, Any], warm: bool) -> SimpleNamespace:
    """What upstream's ``create_vllm_engines`` uses of ``RolloutRayActor``: ``.options(...).remote(**kwargs)``."""

    def options(**actor_options) -> SimpleNamespace:
        def remote(**kwargs) -> Any:
            arguments = cpu_host.engine_arguments(kwargs | settings)
            if warm:
                return warm_engines.engine(actor_class, arguments)
            return actor_class.options(**actor_options).remote(**arguments)

        return SimpleNamespace(remote=remote)

    return SimpleNamespace(options=options)


def plain_class(actor_class: Any) -> type:
    """The class underneath an ``@ray.remote`` actor; Ray refuses to subclass the decorated one.

    It also gets a name of its own in its module. The decorated class hides it there, so pickle would ship a copy, and
    ``super()`` in upstream's methods would then refuse our instances.
    """
    plain = actor_class.__ray_metadata__.modified_class.__ray_actor_class__
    plain.__qualname__ = f"Plain{plain.__name__}"
    setattr(sys.modules[plain.__module__], plain.__qualname__, plain)
    return plain


def trust_remote_code(trusted: bool) -> None:
    """Say for this process and its workers whether code that comes with a model may run; without, transformers takes
    its own code or refuses the model, also where upstream asks it to trust."""
    os.environ.pop(TRUST_VARIABLE, None)
    if trusted:
        os.environ[TRUST_VARIABLE] = "1"
        return
    from transformers import dynamic_module_utils

    upstream = dynamic_module_utils.resolve_trust_remote_code
    if getattr(upstream, "trusts_nobody", False):
        return

    @wraps(upstream)
    def resolve_trust_remote_code(trust_remote_code: bool | None, *args: Any, **kwargs: Any) -> bool:
        return upstream(False if os.environ.get(TRUST_VARIABLE) != "1" else trust_remote_code, *args, **kwargs)

    resolve_trust_remote_code.trusts_nobody = True
    for module in list(sys.modules.values()):  # those that have imported it by name
        if vars(module).get("resolve_trust_remote_code") is upstream:
            module.resolve_trust_remote_code = resolve_trust_remote_code


def prepare_worker() -> None:
    """Ray runs this first in every worker of a run (``worker_process_setup_hook``)."""
    garbage_collection.pause()
    clean_logs()
    trust_remote_code(os.environ.get(TRUST_VARIABLE) == "1")
    cpu_host.install()
