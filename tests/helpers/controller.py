"""Our controller over a stand-in for upstream's, without Ray."""

import pickle
from types import SimpleNamespace

from openrlhf.trainer.ppo_trainer import BasePPOTrainer

from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.dynamics import RunningLaw
from openrlhf_cov.trainer.ppo_trainer import StepLogging


class Upstream:
    """The methods of upstream's ``BasePPOTrainer`` that we extend; each notes its call and what was on disk then."""

    def __init__(self, folder, restored_step=0, status=None):
        ckpt = SimpleNamespace(output_dir=str(folder), path=str(folder / "ckpt"), save_steps=float("inf"))
        ckpt.load_enable = False
        critic = SimpleNamespace(model_name_or_path=None)
        self.args = SimpleNamespace(ckpt=ckpt, critic=critic, reward_max_error_frac=0.05, **vars(CovConfig()))
        self.experience_maker = SimpleNamespace()
        self.args.on_signal, self.args.on_nan = "checkpoint", "stop"
        self.args.placement_timeout, self.args.allow_openrlhf_version = 20.0, False
        self.args.allow_changed, self.args.check_weight_update = "", "off"
        self.kl_ctl = SimpleNamespace(value=0.5)
        self.best_eval_metric_key, self.best_eval_metric_value = "none", float("-inf")
        self.wandb_logger = self.tensorboard_logger = None
        self.actor_model_group = SimpleNamespace(async_run_method=self.run_on_actors)
        self.critic_model_group = None
        self.restored_step, self.status, self.calls = restored_step, status or {}, []

    def lines_on_disk(self):
        return sum(len(file.read_text().splitlines()) for file in self.folder.glob("*.jsonl"))

    @property
    def folder(self):
        return self.metrics_log.path.parent

    def run_on_actors(self, method_name, **kwargs):
        self.calls.append((method_name, kwargs))

    def init_checkpoint_states(self):
        return states(self.restored_step)

    def train_step(self, rollout_samples, global_step):
        self.calls.append(("train_step", [sample.info for sample in rollout_samples], global_step))
        return self.ppo_train(global_step), global_step + 1

    def ppo_train(self, global_steps):
        self.calls.append(("ppo_train", global_steps))
        return self.status

    def save_logs_and_checkpoints(self, global_step, logs_dict=None, client_states=None):
        self.calls.append(("save_logs_and_checkpoints", global_step, logs_dict, client_states, self.lines_on_disk()))

    _detect_eval_metric_key = BasePPOTrainer._detect_eval_metric_key
    restore_best_checkpoint_state = BasePPOTrainer.restore_best_checkpoint_state


def states(step=0, is_over=False):
    """Upstream's client states after a step, as our data loader fills them."""
    data = {"loader": {}, "generator": {"is_over": is_over}}
    return {"episode": 0, "global_step": step, "total_consumed_prompts": 0, "data_loader_state_dict": data}


OWN_STATES = {"kl_coef": 0.5, "law": RunningLaw().state_dict()}
"""What we add to upstream's client states before the first step."""


class Trainer(StepLogging, Upstream):
    pass


def started(folder, **kwargs):
    trainer = Trainer(folder, **kwargs)
    assert trainer.init_checkpoint_states() == states(kwargs.get("restored_step", 0))
    return trainer


class Store:
    """Ray's store, and the bytes that went into it."""

    def __init__(self):
        self.put_bytes = 0

    def put(self, value):
        self.put_bytes += len(pickle.dumps(value))
        return "reference"

    def get(self, value):
        return value
