"""PRIME (arXiv 2502.01456): an implicit process reward model, trained on the fly, rewards every token.

Details that are easy to get wrong:

- The released code normalises process rewards over the samples of one rank, so they depend on the number of ranks.
  Here they are normalised over all samples of the step.
- The process reward of the last token is 0, because the last token carries the outcome reward.
- The baseline averages the mean process reward of each response, not the sum over its tokens.
- The return of a token is the sum of the rewards from this token to the end of the response. Before whitening, early
  tokens therefore have the largest advantages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.method import Groups, Method, ProcessReward, PromptTokens
from openrlhf_cov.models.process_rewards import (
    EPSILON,
    against_other_responses,
    largest_return,
    outcomes_against_others,
    process_rewards,
)
from openrlhf_cov.models.responses import right
from openrlhf_cov.models.slots import ProcessEstimator
from openrlhf_cov.settings import Settings, setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class PrimeSettings(Settings):
    """Flags of PRIME. Raises ValueError, naming the flag, when a value is out of range."""

    prime_beta: float = setting(0.05, "scale of the log ratios of the process reward model to its reference")
    prime_lr: float = setting(1e-6, "learning rate of the process reward model; it stays constant")
    prime_max_norm: float = setting(10.0, "norm to which the gradient of the process reward model is clipped")
    prime_process_coef: float = setting(5.0, "weight of the process rewards; 0: outcome rewards only")
    prime_outcome_coef: float = setting(5.0, "weight of the outcome reward; 0: process rewards only")
    prime_norm: str = setting(
        "step",
        "normalisation of the process rewards\n"
        "step: divided by the largest absolute return of the step\n"
        "none: beta times the log ratios",
        choices=("step", "none"),
    )
    prime_model: str = setting(
        "",
        "model that the process reward model and its reference start from, with the tokenizer of the policy; "
        "empty: the policy's model",
    )

    def check(self) -> None:
        """Check the values, as ``Settings`` describes it.

        Raises:
            ValueError: A value is outside of its range, or both weights of rewards are 0.
        """
        self.require("prime_beta", lambda beta: 0.0 < beta < float("inf"), "must be a finite number above 0")
        self.require("prime_lr", lambda rate: 0.0 < rate < float("inf"), "must be a finite number above 0")
        self.require(
            "prime_max_norm", lambda norm: 0.0 <= norm < float("inf"), "must be a finite number of at least 0"
        )
        for name in ("prime_process_coef", "prime_outcome_coef"):
            self.require(name, lambda weight: 0.0 <= weight < float("inf"), "must be a finite weight of at least 0")
        if not self.prime_process_coef and not self.prime_outcome_coef:
            raise ValueError("--prime_process_coef 0 and --prime_outcome_coef 0 leave no reward; raise one of them")


def estimate(settings: PrimeSettings, groups: Groups) -> Tensor:
    """Return the weighted outcome of each response less the mean outcome of the others, (G, K).

    Arguments and result are described at ``Estimator.estimate``.
    """
    outcomes = right(groups.rewards).to(groups.rewards.dtype)
    return settings.prime_outcome_coef * outcomes_against_others(outcomes)


def token_rewards(settings: PrimeSettings, prompts: Sequence[PromptTokens]) -> list[Tensor]:
    """Return the weighted process rewards less their baseline, (K, A) of each prompt of the step.

    Arguments and result are described at ``ProcessEstimator.token_rewards``.
    """
    rewards = [process_rewards(each.log_ratios, each.action_mask, settings.prime_beta) for each in prompts]
    scale = settings.prime_process_coef
    if settings.prime_norm == "step":
        # One number for the whole step, so that the size of process rewards does not depend on the model's beta and
        # drift.
        scale /= largest_return(rewards, [each.graded for each in prompts]) + EPSILON
    return [
        scale * against_other_responses(of_prompt, each.action_mask, each.graded)
        for of_prompt, each in zip(rewards, prompts, strict=True)
    ]


def process_reward(settings: PrimeSettings) -> ProcessReward:
    """Return the settings of the process reward model."""
    return ProcessReward(
        beta=settings.prime_beta,
        learning_rate=settings.prime_lr,
        max_norm=settings.prime_max_norm,
        model=settings.prime_model,
        model_flag="--prime_model",
    )


def refuses(settings: PrimeSettings, flags: Mapping[str, Any]) -> str | None:
    """Return why the flags do not go with PRIME, None if they do.

    Arguments and result are described at ``Method.refuses``.
    """
    count = flags["rollout.n_samples_per_prompt"]
    if count < 2:
        return (
            f"--method prime compares the responses to a prompt: --rollout.n_samples_per_prompt is {count}; raise it"
        )
    if flags.get("data.max_images_per_prompt"):
        return (
            f"--data.max_images_per_prompt {flags['data.max_images_per_prompt']}: the process reward model of "
            "--method prime reads text alone; drop one of the two"
        )
    if settings.prime_model and flags.get("algo.kl.init_coef", 0) > 0:
        return (
            f"--algo.kl.init_coef {flags['algo.kl.init_coef']:g} and --prime_model: a run has one reference model, "
            "which is --prime_model; set --algo.kl.init_coef 0, or drop --prime_model"
        )
    return None


METHOD = Method(
    name="prime",
    title="PRIME",
    source="arXiv 2502.01456",
    summary="an implicit process reward model, trained on correct and incorrect responses, rewards every token",
    settings=PrimeSettings,
    slot=ProcessEstimator(
        estimate=estimate,
        stands_for="rloo",
        two_valued=True,
        process_reward=process_reward,
        token_rewards=token_rewards,
    ),
    refuses=refuses,
)
