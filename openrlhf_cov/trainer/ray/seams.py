"""The one place that rebinds upstream's names, and reads its main program.

``docs/seams.md`` lists them and ``tests/contract`` fails when upstream changes one.
"""

import ast
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import ray

from openrlhf_cov.trainer.ray.adapters import VLLM_DTYPES


def upstream_main() -> CodeType:
    """The body of ``if __name__ == "__main__":`` in upstream's train_ppo_ray, compiled but not run.

    It declares upstream's flags, parses, checks and calls ``train(args)``. Run it in a namespace that supplies
    ``argparse``, ``datetime`` and ``train``. Upstream's module itself, with vLLM and DeepSpeed, is not imported.
    """
    path = Path(find_spec("openrlhf.cli").origin).with_name("train_ppo_ray.py")
    module = ast.parse(path.read_text(encoding="utf-8"))
    (main,) = [node for node in module.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)]
    return compile(ast.Module(body=main.body, type_ignores=[]), str(path), "exec")


def install(args: SimpleNamespace) -> None:
    """Rebind, in the driver, the classes that upstream's ``train(args)`` looks up; ours call upstream's."""
    import openrlhf.cli.train_ppo_ray as upstream_cli
    import openrlhf.trainer.ppo_trainer as sync_trainer
    import openrlhf.trainer.ppo_trainer_async as async_trainer

    from openrlhf_cov.trainer.ppo_trainer import CovGenerateSamplesActor, CovPPOTrainer, CovTrainingActor
    from openrlhf_cov.trainer.ray.critic_actor import CovCriticActor
    from openrlhf_cov.trainer.ray.model_actors import CovReferenceActor, CovRewardActor
    from openrlhf_cov.trainer.ray.ppo_actor import CovPolicyActor

    upstream_cli.PolicyModelActor = ray.remote(num_gpus=1)(CovPolicyActor)
    upstream_cli.CriticModelActor = ray.remote(num_gpus=1)(CovCriticActor)
    upstream_cli.ReferenceModelActor = ray.remote(num_gpus=1)(CovReferenceActor)
    upstream_cli.RewardModelActor = ray.remote(num_gpus=1)(CovRewardActor)
    sync_trainer.PPOTrainer = ray.remote(CovPPOTrainer)
    async_trainer.TrainingActor = ray.remote(CovTrainingActor)
    async_trainer.GenerateSamplesActor = ray.remote(CovGenerateSamplesActor)
    install_engines(engine_settings(args))


def install_engines(settings: dict[str, Any]) -> None:
    """Rebind the engine actor that upstream's ``create_vllm_engines`` makes, with these arguments beside its own."""
    import openrlhf.trainer.ray.vllm_engine as vllm_engine

    from openrlhf_cov.trainer import cpu_host
    from openrlhf_cov.trainer.ray.rollout_actor import CovRolloutActor

    settings = settings | cpu_host.engine_settings()
    vllm_engine.RolloutRayActor = _with_engine_settings(ray.remote(CovRolloutActor), settings)


def engine_settings(args: SimpleNamespace) -> dict[str, Any]:
    """Arguments of the engine actor that upstream fixes and we set from the flags."""
    from openrlhf_cov.config import RewardConfig

    settings: dict[str, Any] = {"dtype": VLLM_DTYPES[args.ds.param_dtype]}
    settings["trust_remote_code"] = args.trust_remote_code
    settings["reward_config"] = RewardConfig.from_args(args)
    if args.vllm.sync_backend == "gloo":
        from openrlhf_cov.trainer import weight_transfer

        settings["worker_extension_cls"] = f"{weight_transfer.__name__}.GlooWorkerExtension"
        settings["weight_transfer_config"] = {"backend": weight_transfer.BACKEND}
    return settings


def _with_engine_settings(actor_class: Any, settings: dict[str, Any]) -> SimpleNamespace:
    """What upstream's ``create_vllm_engines`` uses of ``RolloutRayActor``: ``.options(...).remote(**kwargs)``."""

    def options(**actor_options) -> SimpleNamespace:
        bound = actor_class.options(**actor_options)
        return SimpleNamespace(remote=lambda **kwargs: bound.remote(**(kwargs | settings)))

    return SimpleNamespace(options=options)
