"""Models are loaded with the flags as upstream's actors load them; those actors are the oracle."""

import pytest
from openrlhf.trainer.ray import launcher, ppo_actor, ppo_critic
from run_flags import run_flags

from openrlhf_cov.cluster.workers import plain_class
from openrlhf_cov.trainer.model import model_loading

# Every flag has a value of its own, so that none can stand in for another one.
FLAGS = {
    "ds.attn_implementation": "eager", "ds.experts_implementation": "grouped_mm", "ds.param_dtype": "fp16",
    "ds.load_in_4bit": "in 4 bit", "ds.packing_samples": "packed", "ds.use_liger_kernel": "liger",
    "ds.lora.rank": 8, "ds.lora.target_modules": ["q_proj"], "ds.lora.dropout": 0.1, "ds.value_head_prefix": "head",
    "rollout.temperature": 0.7, "actor.freeze_visual_encoder": "frozen", "actor.optim": "muon",
    "actor.lr_scheduler": "constant", "actor.lr_warmup_ratio": 0.1, "actor.min_lr_ratio": 0.2, "actor.max_norm": 0.5,
    "actor.gradient_checkpointing_enable": True, "actor.gradient_checkpointing_reentrant": "reentrant",
    "critic.model_name_or_path": "model", "critic.save_value_network": True, "critic.muon.lr": 0.03,
    "critic.lr_scheduler": "linear", "critic.lr_warmup_ratio": 0.3, "critic.min_lr_ratio": 0.4, "critic.max_norm": 0.6,
    "reward.normalize_enable": "normalized", "ckpt.disable_ds": True,
}  # fmt: skip


class Loaded:
    """A model that was loaded; ``calls`` notes what is done to it."""

    mean = 0.0
    std = 1.0

    def __init__(self, number, calls):
        self.number, self.calls = number, calls
        self.model = f"inner {number}"

    def gradient_checkpointing_enable(self, **settings):
        self.calls.append(("checkpointing", self.number, settings))

    def eval(self):
        self.calls.append(("eval", self.number))


class Recorder:
    """Stands in for models, the tokenizer and the strategy, which need minutes and gigabytes; notes every call."""

    def __init__(self, changes):
        self.args = run_flags({"actor.model_name_or_path": "model"} | FLAGS | changes)
        self.calls = []
        self.models = 0

    def model(self, *arguments, **options):
        self.calls.append(("model", arguments, options))
        self.models += 1
        return Loaded(self.models, self.calls)

    def tokenizer(self, name, model, *others, **options):
        number = getattr(model, "number", model)
        self.calls.append(("tokenizer", name, number, [each is self or each for each in others], options))
        return "tokenizer"

    # of the strategy
    def get_ds_train_config(self):
        return "configuration for training"

    def get_ds_eval_config(self, offload):
        return f"configuration for scoring, offload {offload}"

    def prepare(self, prepared):
        model, *settings = prepared if isinstance(prepared, tuple) else (prepared,)
        self.calls.append(("prepare", model.number, getattr(model, "_offload", False), settings))
        return (model, "optimizer", "scheduler") if settings else model

    def print(self, *message):
        """Print nothing."""


ROLES = {
    "policy": (ppo_actor, "PolicyModelActor", ("model", 100, None), model_loading.load_policy, ("model", 100)),
    "critic": (ppo_critic, "CriticModelActor", ("model", 100), model_loading.load_critic, ("model", 100)),
    "reference": (launcher, "ReferenceModelActor", ("model",), model_loading.load_reference, ("model",)),
    "reward": (launcher, "RewardModelActor", ("rewards",), model_loading.load_reward_model, ("rewards",)),
    # upstream has no such model: its policy is loaded beside it
    "process reward": (
        ppo_actor, "PolicyModelActor", ("model", 100, None), model_loading.load_process_reward, ("model", 100)
    ),
}  # fmt: skip
MODELS = ("Actor", "CovActor", "get_llm_for_sequence_regression")


@pytest.fixture
def both(monkeypatch):
    """Function (role, changes) -> (calls of upstream's actor, our calls, what ours returned)."""
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # as before after the test: upstream's actor sets them
    for module, trainer in ((ppo_actor, "ActorPPOTrainer"), (ppo_critic, "CriticPPOTrainer")):
        monkeypatch.setattr(module, trainer, lambda *args, **options: None)

    def load_by_both(role, changes):
        module, name, their_arguments, load, arguments = ROLES[role]
        theirs, ours = Recorder(changes), Recorder(changes)
        for where, recorder in ((module, theirs), (model_loading, ours)):
            monkeypatch.setattr(where, "get_tokenizer", recorder.tokenizer, raising=False)
            for model in MODELS:
                monkeypatch.setattr(where, model, recorder.model, raising=False)
        actor = plain_class(getattr(module, name))(1, 0, "localhost", 29500)
        actor._setup_distributed = lambda strategy: setattr(actor, "strategy", strategy)
        actor.init_model_from_pretrained(theirs, *their_arguments)
        return theirs.calls, ours.calls, load(ours, *arguments)

    return load_by_both


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train.enable_ema": True, "ref.offload": True},
        {"reward.offload": True},
        {
            "actor.gradient_checkpointing_enable": False,
            "data.disable_fast_tokenizer": True,
            "critic.model_name_or_path": "another",
            "critic.save_value_network": False,
        },
    ],
)
@pytest.mark.parametrize("role", ["policy", "critic", "reference", "reward"])
def test_a_model_is_loaded_as_upstream_loads_it(both, role, changes):
    theirs, ours, _ = both(role, changes)
    assert ours[0][0] == "model"
    assert ours == theirs


def test_a_loaded_policy_has_its_optimizer_and_its_moving_average(both):
    *_, policy = both("policy", {"train.enable_ema": True})
    assert (policy.actor.number, policy.ema_model.number) == (1, 2)
    assert (policy.optimizer, policy.scheduler, policy.tokenizer) == ("optimizer", "scheduler", "tokenizer")
    *_, policy = both("policy", {})
    assert policy.ema_model is None


def test_a_process_reward_model_is_loaded_as_the_policy_with_an_optimizer_of_its_own(both):
    settings = {"method": "prime", "prime_beta": 0.1, "prime_lr": 3e-6, "prime_max_norm": 2.0, "prime_model": ""}
    *_, policy_calls, _ = both("policy", {})
    *_, calls, loaded = both("process reward", settings)
    assert (loaded.actor.number, loaded.scheduler) == (1, "scheduler")
    assert calls[0] == policy_calls[0]  # the same model
    name, *_, [optimizer] = calls[-1]
    assert name == "prepare"
    assert optimizer["adam"] == vars(run_flags().actor.adam) | {"lr": 3e-6, "weight_decay": 0.0}
    chosen = {key: optimizer[key] for key in ("optim", "lr_scheduler", "lr_warmup_ratio", "max_norm")}
    assert chosen == {"optim": "adam", "lr_scheduler": "constant", "lr_warmup_ratio": 0.0, "max_norm": 2.0}


@pytest.mark.parametrize("exported", [False, True])
def test_a_loaded_critic_has_a_tokenizer_where_it_is_exported(both, exported):
    *_, critic = both("critic", {"critic.save_value_network": exported})
    assert (critic.engine.number, critic.scheduler) == (1, "scheduler")
    assert critic.tokenizer == ("tokenizer" if exported else None)
