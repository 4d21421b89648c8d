"""From rollouts to experience: upstream's maker, with entropies and with the advantages that a method estimates."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from openrlhf.models.utils import compute_reward
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties
from torch import Tensor
from torch.nn.functional import pad

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.method import CORRECT, Groups, Method
from openrlhf_cov.models.responses import (
    apart_among,
    are_equal,
    is_two_valued,
    leave_one_out_among,
    mean_among,
    normalised_among,
)
from openrlhf_cov.models.returns import sums_to_the_end
from openrlhf_cov.trainer import cpu_host
from openrlhf_cov.trainer.sample_info import ENTROPY, abstentions
from openrlhf_cov.trainer.source_metrics import source_metrics, source_of


class CovExperienceMaker(RemoteExperienceMaker):
    """Upstream's, with the entropies of the scoring policy beside its log-probs, and without its loops over columns.

    Entropies travel in ``Experience.info``, one tensor per sample, so that they follow their sample to whichever rank
    trains on it. Returns and advantages are upstream's bit for bit, unless a method estimates them.
    """

    config: CovConfig | None = None
    """The settings of the global step that is being made, from the controller."""

    source_metrics: Mapping[str, float] = MappingProxyType({})
    """Metrics by data source of the experience that was made last."""

    def make_experience_batch(self, rollout_samples: list) -> list:
        """Make upstream's experience and note its metrics by data source."""
        sources = [source_of(sample) for sample in rollout_samples]
        experiences = super().make_experience_batch(rollout_samples)
        self.source_metrics = source_metrics(experiences, sources)
        return experiences

    @torch.no_grad()
    def make_experience(self, samples_list: list) -> list:
        """Upstream's, which has every policy rank score its share of the samples, in order."""
        experiences = super().make_experience(samples_list)
        refs = self.actor_model_group.async_run_method(method_name="take_scored")
        copies = self.args.ds.ring_attn_size * self.args.ds.tensor_parallel_size
        for experience, scored in zip(experiences, self._flatten_results(refs, copies), strict=True):
            for name, rows in scored.items():
                experience.info[name] = [row.clone() for row in rows]  # a view would be pickled with its whole batch
        return experiences

    def _dispatch_forward(self, group: Any, sync_condition: bool, **kwargs: Any) -> list:
        """Upstream's, where models that share a GPU score one after the other; on a CPU host they do side by side."""
        return super()._dispatch_forward(group, sync_condition and not cpu_host.is_cpu_host(), **kwargs)

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list) -> list:
        """Upstream's; with an estimator among the methods, its advantages in the place of upstream's.

        Whatever upstream puts into a token's reward beside that of the response, it puts there too. Raises RunStopped
        where an estimator of right and wrong meets other rewards.
        """
        method = self.config.estimator if self.config else None
        abstained = [abstentions(experience.info, len(experience.rewards)) for experience in experiences]
        if method is None or method.estimate is None:
            if torch.cat(abstained).any():
                return self._advantages_of_graded(experiences, abstained)
            return self._upstreams_advantages(experiences)
        kls = [experience.kl for experience in experiences]
        entropy = _mean_entropy(experiences)
        experiences = super().compute_advantages_and_returns(experiences)
        in_order, places = _in_order_of_prompts(experiences)
        graded = torch.ones_like(in_order, dtype=torch.bool)
        graded[places] = ~torch.cat(abstained)
        if method.two_valued and not is_two_valued(in_order[graded]):
            raise RunStopped(
                f"{method.flag} needs one reward for right responses, above {CORRECT}, and one for all others, got "
                f"{', '.join(f'{value:g}' for value in in_order[graded].unique()[:5])}"
            )
        size = self.args.rollout.n_samples_per_prompt
        advantages = _estimates(method, self.config, in_order.view(-1, size), graded.view(-1, size), entropy)
        advantages = advantages.flatten()[places]
        sizes = [len(experience.rewards) for experience in experiences]
        for experience, kl, of_responses in zip(experiences, kls, advantages.split(sizes), strict=True):
            left_out, mask = of_responses.isnan(), experience.action_mask
            reward = compute_reward(  # without upstream's clip of rewards, which would cut advantages
                of_responses.masked_fill(left_out, 0.0),
                self.kl_ctl.value,
                kl,
                action_mask=mask,
            )
            reward = reward.masked_fill(left_out[:, None], 0.0)
            experience.returns = self.get_cumulative_returns(reward, mask, 1.0)
            experience.advantages = experience.returns.clone()
            experience.info["return"] = reward.sum(-1)
        return experiences

    def _upstreams_advantages(self, experiences: list) -> list:
        """Upstream's, with ``group_norm`` for rewards of 0 in the place of others that a group has in common: of -0.1,
        say, it divides what rounding leaves of their mean by that of their deviation, and all have an advantage of
        0.8. Not where upstream still makes other rewards of them by their length."""
        shaping = self.args.reward
        by_length = (shaping.overlong_buffer_len, shaping.stop_properly_penalty_coef) != (None, None)
        if by_length or self.args.algo.advantage.estimator != "group_norm":
            return super().compute_advantages_and_returns(experiences)
        in_order, places = _in_order_of_prompts(experiences)
        groups = in_order.view(-1, self.args.rollout.n_samples_per_prompt)
        groups = groups.masked_fill(are_equal(groups), 0.0)
        given = [experience.rewards for experience in experiences]
        for experience, rewards in zip(experiences, groups.flatten()[places].split([*map(len, given)]), strict=True):
            experience.rewards = rewards
        found = super().compute_advantages_and_returns(experiences)
        for experience, rewards in zip(found, given, strict=True):
            experience.rewards = experience.info["reward"] = rewards
        return found

    def _advantages_of_graded(self, experiences: list, abstained: list[Tensor]) -> list:
        """Return the experiences with upstream's advantages, without the samples whose reward abstained.

        Such a sample is no part of the statistics of its group or of the whitening. Its advantages are 0, also where
        the KL penalty is a part of the reward, and a critic learns nothing from it. ``abstained`` has a mask (B,) for
        each experience.
        """
        # Upstream's length penalties come first: they change the rewards of which the statistics are taken.
        for experience in experiences:
            experience.rewards = experience.rewards.to(torch.promote_types(experience.rewards.dtype, torch.float32))
        apply_length_penalties(experiences, self.args)
        in_order, places = _in_order_of_prompts(experiences)
        graded = torch.ones_like(in_order, dtype=torch.bool)
        graded[places] = ~torch.cat(abstained)
        size = self.args.rollout.n_samples_per_prompt
        groups = in_order.view(-1, size)
        valid = graded.view(-1, size)

        # Replace the rewards so that upstream's baseline is that of the graded samples.
        estimator = self.args.algo.advantage.estimator
        if estimator == "group_norm":
            shaped = normalised_among(groups, valid)
        elif estimator == "rloo":
            shaped = leave_one_out_among(groups, valid)
        elif estimator == "flash_reinforce":
            shaped = groups.where(valid, mean_among(groups.view(1, -1), valid.view(1, -1)))
        else:
            shaped = groups.where(valid, mean_among(groups, valid))
        sizes = [len(experience.rewards) for experience in experiences]
        given = [experience.rewards for experience in experiences]
        masks = [experience.action_mask for experience in experiences]
        rows = zip(experiences, shaped.flatten()[places].split(sizes), abstained, strict=True)
        for experience, rewards, left_out in rows:
            experience.rewards = rewards
            # Without action tokens a row has no KL penalty and no share in the whitening.
            experience.action_mask = experience.action_mask.masked_fill(left_out[:, None], 0)

        shaping = self.args.reward
        penalties = (shaping.overlong_buffer_len, shaping.stop_properly_penalty_coef)
        shaping.overlong_buffer_len = shaping.stop_properly_penalty_coef = None
        if estimator in ("group_norm", "rloo"):
            # The shaped rewards of a group have the mean 0, so dr_grpo, which subtracts the mean, changes nothing.
            self.args.algo.advantage.estimator = "dr_grpo"
        try:
            experiences = super().compute_advantages_and_returns(experiences)
        finally:
            self.args.algo.advantage.estimator = estimator
            shaping.overlong_buffer_len, shaping.stop_properly_penalty_coef = penalties

        apart = apart_among(groups, valid)
        deviation = (apart.square().sum(1, keepdim=True) / (valid.sum(1, keepdim=True) - 1).clamp(min=1)).sqrt()
        deviations = deviation.expand(-1, size).flatten()[places].split(sizes)
        for experience, rewards, mask, left_out, of_group in zip(
            experiences, given, masks, abstained, deviations, strict=True
        ):
            experience.rewards = experience.info["reward"] = rewards
            experience.action_mask = mask
            if size > 1:
                experience.info["group_reward_std"] = of_group
            experience.advantages = experience.advantages.masked_fill(left_out[:, None], 0.0)
            target = 0.0 if experience.values is None else experience.values
            experience.returns = torch.where(left_out[:, None], target, experience.returns)
        return experiences

    @torch.no_grad()
    def get_cumulative_returns(self, rewards: Tensor, action_mask: Tensor | None, gamma: float) -> Tensor:
        """Returns (B, A) of every token; upstream's own loop where ``gamma`` is not 1."""
        if gamma != 1.0:
            return super().get_cumulative_returns(rewards, action_mask, gamma)
        masked = rewards if action_mask is None else action_mask * rewards
        return sums_to_the_end(masked).to(rewards.dtype)

    @torch.no_grad()
    def get_advantages_and_returns(
        self, values: Tensor, rewards: Tensor, action_mask: Tensor | None, gamma: float, lambd: float
    ) -> tuple[Tensor, Tensor]:
        """(Advantages, returns) of GAE, both (B, A).

        Upstream's own loop where ``gamma`` or ``lambd`` is not 1, and in half precision, in which it rounds each sum.
        """
        in_full = torch.promote_types(values.dtype, rewards.dtype) in (torch.float32, torch.float64)
        if not (gamma == lambd == 1.0 and in_full):
            return super().get_advantages_and_returns(values, rewards, action_mask, gamma, lambd)
        if action_mask is not None:
            values, rewards = action_mask * values, action_mask * rewards
        next_values = pad(values[:, 1:], (0, 1))
        advantages = sums_to_the_end(rewards + next_values - values)
        return advantages, advantages + values


def _estimates(method: Method, config: CovConfig, rewards: Tensor, graded: Tensor, entropy: float) -> Tensor:
    """Return the advantages (G, K) of the method, NaN for the responses that are not ``graded`` (G, K).

    Groups with equally many graded responses are estimated together. A single graded response has no advantage.
    """
    if graded.all():
        return method.estimate(config, Groups(rewards, entropy))
    found = torch.full_like(rewards, torch.nan)
    counts = graded.sum(1)
    for count in counts.unique().tolist():
        chosen = (counts == count)[:, None] & graded
        if count > 1:
            of_count = Groups(rewards[chosen].view(-1, count), entropy)
            found[chosen] = method.estimate(config, of_count).flatten()
    return found


def _in_order_of_prompts(experiences: list) -> tuple[Tensor, Tensor]:
    """Rewards (N,) group by group, and the place of each sample of the experiences among them (N,)."""
    places = torch.tensor([place for experience in experiences for place in experience.index])
    rewards = torch.cat([experience.rewards for experience in experiences])
    in_order = torch.empty_like(rewards)
    in_order[places] = rewards
    return in_order, places


def _mean_entropy(experiences: list) -> float:
    """Of all action tokens, under the policy that scored them."""
    masks = [experience.action_mask.bool() for experience in experiences]
    entropies = [torch.stack(experience.info[ENTROPY]) for experience in experiences]
    total = sum(entropy[mask].double().sum() for entropy, mask in zip(entropies, masks, strict=True))
    return float(total / max(1, sum(int(mask.sum()) for mask in masks)))
