import sys
from types import SimpleNamespace

import pytest

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.trainer import weight_transfer
from openrlhf_cov.trainer.ray import seams


def args(param_dtype, sync_backend):
    return SimpleNamespace(
        **vars(RewardConfig()),
        trust_remote_code=False,
        ds=SimpleNamespace(param_dtype=param_dtype),
        vllm=SimpleNamespace(sync_backend=sync_backend),
    )


@pytest.mark.parametrize(("flag", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")])
def test_the_engine_generates_in_the_dtype_of_the_flag(flag, dtype):
    assert seams.engine_settings(args(flag, "nccl")) == {
        "dtype": dtype,
        "trust_remote_code": False,
        "reward_config": RewardConfig(),
    }


def test_gloo_gives_the_engine_our_weight_transfer():
    settings = seams.engine_settings(args("fp32", "gloo"))
    module, name = settings.pop("worker_extension_cls").rsplit(".", 1)
    assert getattr(sys.modules[module], name) is weight_transfer.GlooWorkerExtension
    assert settings == {
        "dtype": "float32",
        "trust_remote_code": False,
        "reward_config": RewardConfig(),
        "weight_transfer_config": {"backend": weight_transfer.BACKEND},
    }


def test_the_gloo_engine_is_registered_with_vllm():
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    registered = WeightTransferEngineFactory._registry[weight_transfer.BACKEND]()
    assert registered is weight_transfer.GlooWeightTransferEngine


def test_our_engine_settings_win_over_upstreams():
    calls = []
    options = lambda **given: SimpleNamespace(remote=lambda **kwargs: calls.append((given, kwargs)))  # noqa: E731
    actor = seams._with_engine_settings(SimpleNamespace(options=options), {"dtype": "float32"})
    actor.options(num_gpus=1).remote(model="m", dtype="bfloat16")
    assert calls == [({"num_gpus": 1}, {"model": "m", "dtype": "float32"})]


def test_install_rebinds_what_upstream_looks_up(monkeypatch):
    import openrlhf.cli.train_ppo_ray as upstream_cli
    import openrlhf.trainer.ppo_trainer as sync_trainer
    import openrlhf.trainer.ppo_trainer_async as async_trainer
    import openrlhf.trainer.ray.vllm_engine as vllm_engine

    places = [
        (upstream_cli, "PolicyModelActor"),
        (upstream_cli, "CriticModelActor"),
        (upstream_cli, "ReferenceModelActor"),
        (upstream_cli, "RewardModelActor"),
        (sync_trainer, "PPOTrainer"),
        (async_trainer, "TrainingActor"),
        (async_trainer, "GenerateSamplesActor"),
        (vllm_engine, "RolloutRayActor"),
    ]
    originals = [getattr(module, name) for module, name in places]
    for (module, name), original in zip(places, originals, strict=True):
        monkeypatch.setattr(module, name, original)  # remembers it for the end of the test
    seams.install(args("fp32", "nccl"))
    for (module, name), original in zip(places[:-1], originals[:-1], strict=True):
        ours = getattr(module, name)
        underneath = original.__ray_metadata__.modified_class.__ray_actor_class__
        assert issubclass(ours.__ray_metadata__.modified_class.__ray_actor_class__, underneath)
        assert ours._default_options == original._default_options
    assert vars(vllm_engine.RolloutRayActor).keys() == {"options"}


def test_the_policy_actor_builds_our_trainer():
    import openrlhf.trainer.ray.ppo_actor as upstream

    import openrlhf_cov.trainer.ray.ppo_actor  # noqa: F401  its import rebinds
    from openrlhf_cov.trainer.actor_trainer import CovActorTrainer, StepLoader

    assert (upstream.ActorPPOTrainer, upstream.DataLoader) == (CovActorTrainer, StepLoader)
