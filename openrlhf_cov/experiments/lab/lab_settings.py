"""The settings of a run in the lab; imported without PyTorch."""

import math
from dataclasses import dataclass, fields

from openrlhf_cov.settings import Settings, setting

# Lower and upper range, where neither the flags nor a method say another.
PPO_CLIP = (0.2, 0.2)


@dataclass(frozen=True, kw_only=True)
class LabSettings(Settings):
    """The settings of a run in the lab; flags that the trainer also has have the same names."""

    steps: int = setting(200, "global steps; each is one rollout and its updates")
    prompts: int = setting(64, "prompts per rollout", flag="rollout.batch_size")
    group: int = setting(8, "responses per prompt", flag="rollout.n_samples_per_prompt")
    updates: int = setting(8, "optimizer steps per rollout")
    micro_batch: int = setting(
        0,
        "samples per micro-batch, which matter for --cov_scope micro_batch; 0: the whole optimizer step",
        flag="train.micro_batch_size",
    )
    learning_rate: float = setting(1e-4, "learning rate of AdamW", flag="actor.adam.lr")
    clip: tuple[float, float] = setting(
        (0.0, 0.0),
        "lower and upper width of the PPO clip; 0 0: the method's, or 0.2 0.2",
        flag="actor.eps_clip_low_high",
    )
    entropy_coef: float = setting(0.0, "coefficient of the entropy bonus", flag="actor.entropy_coef")
    kl_coef: float = setting(
        0.0, "coefficient of the KL penalty (k3) toward the base policy, in the loss", flag="algo.kl.init_coef"
    )
    seed: int = setting(
        0, "seed of prompts, responses and order of samples; --base_seed is that of the base policy", flag="train.seed"
    )
    shortcut_share: float = setting(
        0.3,
        "with --task shortcut: share of the prompts on which the verifier also accepts the base policy's "
        "favourite answer",
    )
    random_reward: bool = setting(False, "reward each response at random")
    eval_every: int = setting(25, "global steps between evaluations on the validation split", flag="eval.steps")
    eval_samples: int = setting(
        8, "responses per problem of an evaluation, at temperature 1, for pass@k", flag="eval.n_samples_per_prompt"
    )
    test_samples: int = setting(64, "responses per problem of the test after the last step")

    stop_early: bool = setting(
        False, "end the run when two evaluations in a row find that the task is solved or the policy has collapsed"
    )
    record_mechanism: bool = setting(
        False,
        "record the probability of each skill's name, what happens to decision tokens, and predicted entropy "
        "changes (docs/headroom.md)",
    )

    @property
    def evaluated(self) -> tuple[int, ...]:
        """The steps after which there is an evaluation, and 0 for the one before the first."""
        # The last step has an evaluation also where it is no multiple of eval_every: its numbers are those of the run.
        return tuple(sorted({0, 1, self.steps, *range(self.eval_every, self.steps, self.eval_every)}))

    def check(self) -> None:
        """Check the values.

        Raises:
            ValueError: A value is out of range, or the samples of a rollout cannot be shared equally among its
                updates. The message begins with the flag and the value.
        """
        for name in ("steps", "prompts", "updates", "eval_every", "eval_samples", "test_samples"):
            self.require(name, lambda count: count >= 1, "must be at least 1")
        self.require("micro_batch", lambda samples: samples >= 0, "must be at least 0")
        self.require(
            "group",
            lambda count: count >= 2,
            "must be at least 2",
            "; an advantage compares a response with the mean of its group",
        )
        for name in (each.name for each in fields(self) if each.type is int or each.type == "int"):
            self.require(name, lambda number: 0 <= number < 2**31, "must be a number from 0 to 2^31 - 1")
        self.require("learning_rate", lambda rate: 0.0 < rate <= 1.0, "must be above 0 and at most 1")
        self.require("entropy_coef", math.isfinite, "must be a finite number")
        self.require("kl_coef", lambda coef: 0.0 <= coef < math.inf, "must be a finite number of at least 0")
        self.require("clip", lambda ends: all(end >= 0.0 for end in ends), "must be distances from 1 of at least 0")
        self.require("shortcut_share", lambda share: 0.0 <= share <= 1.0, "must be from 0 to 1")
        # All updates of a rollout have equally many samples.
        samples = self.prompts * self.group
        if samples % self.updates:
            raise ValueError(f"--updates {self.updates}: must divide the {samples} samples of a rollout")
