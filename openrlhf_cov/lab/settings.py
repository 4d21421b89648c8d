"""What a run in the laboratory does; read without PyTorch."""

from dataclasses import dataclass

from openrlhf_cov.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class LabSettings(Settings):
    """What a run in the laboratory does; the defaults are those on which the tasks were made."""

    steps: int = setting(200, "global steps: a rollout and its updates")
    prompts: int = setting(64, "prompts of a rollout")
    group: int = setting(8, "responses to a prompt")
    updates: int = setting(8, "optimizer steps of a rollout")
    learning_rate: float = setting(1e-4, "of AdamW")
    clip_low: float = setting(0.2, "lower range of the PPO clip, unless a method brings its own")
    clip_high: float = setting(0.2, "upper range of the PPO clip, unless a method brings its own")
    entropy_coef: float = setting(0.0, "weight of the mean entropy, which is added to the objective")
    kl_coef: float = setting(0.0, "weight of the KL divergence (k3) to the base policy in the loss")
    seed: int = setting(0, "of prompts, responses and the order of samples; the base policy has a seed of its own")
    eval_every: int = setting(25, "global steps between two evaluations on problems held out")
    eval_samples: int = setting(8, "responses to a problem at temperature 1 in an evaluation, for pass@k")

    def check(self) -> None:
        """Called when the settings are made."""
        for name in ("steps", "prompts", "updates", "eval_every", "eval_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} is at least 1, got {getattr(self, name)}")
        if self.group < 2:
            raise ValueError(f"--group is at least 2, got {self.group}: advantages are about the mean of a group")
        if self.prompts * self.group % self.updates:
            samples = self.prompts * self.group
            raise ValueError(f"--updates divides the {samples} samples of a rollout, got {self.updates}")
