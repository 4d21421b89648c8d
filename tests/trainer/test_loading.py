"""Models are loaded with the flags as upstream's actors load them; those actors are the oracle."""

from types import SimpleNamespace

import pytest
from openrlhf.trainer.ray import launcher, ppo_actor, ppo_critic
from run_flags import run_flags

from openrlhf_cov.cluster.workers import plain_class
from openrlhf_cov.trainer import model_loading

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


class Recorder:
    """Stands in for models, the tokenizer and the strategy; notes every call with its arguments."""

    def __init__(self, changes):
        self.args = run_flags({"actor.model_name_or_path": "model"} | FLAGS | changes)
        self.calls = []
        self.models = 0

    def model(self, *arguments, **options):
        self.calls.append(("model", arguments, options))
        self.models += 1
        made = SimpleNamespace(number=self.models, mean=0.0, std=1.0, model=f"inner {self.models}")
        made.gradient_checkpointing_enable = lambda **settings: self.calls.append(
            ("checkpointing", made.number, settings)
        )
        made.eval = lambda: self.calls.append(("eval", made.number))
        return made

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
}


def both(monkeypatch, role, changes):
    """Return (calls of upstream's actor, our calls, what ours returned)."""
    module, name, their_arguments, load, arguments = ROLES[role]
    theirs, ours = Recorder(changes), Recorder(changes)
    for where, recorder in ((module, theirs), (model_loading, ours)):
        for replaced, stand_in in (
            ("Actor", recorder.model),
            ("CovActor", recorder.model),
            ("get_llm_for_sequence_regression", recorder.model),
            ("get_tokenizer", recorder.tokenizer),
        ):
            if hasattr(where, replaced):
                monkeypatch.setattr(where, replaced, stand_in)
    monkeypatch.setattr(ppo_actor, "ActorPPOTrainer", lambda *args, **options: None)
    monkeypatch.setattr(ppo_critic, "CriticPPOTrainer", lambda *args, **options: None)
    actor = object.__new__(plain_class(getattr(module, name)))
    actor._setup_distributed = lambda strategy: setattr(actor, "strategy", strategy)
    actor.init_model_from_pretrained(theirs, *their_arguments)
    return theirs.calls, ours.calls, load(ours, *arguments)


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
@pytest.mark.parametrize("role", ROLES)
def test_a_model_is_loaded_as_upstream_loads_it(monkeypatch, role, changes):
    theirs, ours, _ = both(monkeypatch, role, changes)
    assert ours[0][0] == "model"
    assert ours == theirs


def test_a_loaded_policy_has_its_optimizer_and_its_moving_average(monkeypatch):
    *_, policy = both(monkeypatch, "policy", {"train.enable_ema": True})
    assert (policy.actor.number, policy.ema_model.number) == (1, 2)
    assert (policy.optimizer, policy.scheduler, policy.tokenizer) == ("optimizer", "scheduler", "tokenizer")
    *_, policy = both(monkeypatch, "policy", {})
    assert policy.ema_model is None


def test_a_process_reward_model_is_loaded_as_the_policy_with_an_optimizer_of_its_own(monkeypatch):
    settings = {"method": "prime", "prime_beta": 0.1, "prime_lr": 3e-6, "prime_max_norm": 2.0, "prime_model": ""}
    *_, policy_calls, _ = both(monkeypatch, "policy", {})
    recorder = Recorder(settings)
    monkeypatch.setattr(model_loading, "CovActor", recorder.model)
    loaded = model_loading.load_process_reward(recorder, "model", 100)
    assert (loaded.actor.number, loaded.scheduler) == (1, "scheduler")
    assert recorder.calls[0] == policy_calls[0]  # the same model
    name, *_, [optimizer] = recorder.calls[-1]
    assert name == "prepare"
    actor = recorder.args.actor
    assert optimizer["adam"] == vars(actor.adam) | {"lr": 3e-6, "weight_decay": 0.0}
    chosen = {key: optimizer[key] for key in ("optim", "lr_scheduler", "lr_warmup_ratio", "max_norm")}
    assert chosen == {"optim": "adam", "lr_scheduler": "constant", "lr_warmup_ratio": 0.0, "max_norm": 2.0}


@pytest.mark.parametrize("exported", [False, True])
def test_a_loaded_critic_has_a_tokenizer_where_it_is_exported(monkeypatch, exported):
    *_, critic = both(monkeypatch, "critic", {"critic.save_value_network": exported})
    assert (critic.engine.number, critic.scheduler) == (1, "scheduler")
    assert critic.tokenizer == ("tokenizer" if exported else None)
