"""From rollouts to experience: upstream's maker, with entropies and with the advantages that a method estimates."""

from typing import Any

import torch
from openrlhf.models.utils import compute_reward
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from torch import Tensor
from torch.nn.functional import pad

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.method import CORRECT, Groups
from openrlhf_cov.models.responses import are_equal, is_two_valued
from openrlhf_cov.models.returns import sums_to_the_end
from openrlhf_cov.trainer import cpu_host
from openrlhf_cov.trainer.sample_info import ENTROPY


class CovExperienceMaker(RemoteExperienceMaker):
    """Upstream's, with the entropies of the scoring policy beside its log-probs, and without its loops over columns.

    Entropies travel in ``Experience.info``, one tensor per sample, so that they follow their sample to whichever rank
    trains on it. Returns and advantages are upstream's bit for bit, unless a method estimates them.
    """

    config: CovConfig | None = None
    """The settings of the global step that is being made, from the controller."""

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
        if method is None or method.estimate is None:
            return self._upstreams_advantages(experiences)
        kls = [experience.kl for experience in experiences]
        entropy = _mean_entropy(experiences)
        experiences = super().compute_advantages_and_returns(experiences)
        in_order, places = _in_order_of_prompts(experiences)
        if method.two_valued and not is_two_valued(in_order):
            raise RunStopped(
                f"{method.flag} needs one reward for right responses, above {CORRECT}, and one for all others, got "
                f"{', '.join(f'{value:g}' for value in in_order.unique()[:5])}"
            )
        groups = Groups(in_order.view(-1, self.args.rollout.n_samples_per_prompt), entropy)
        advantages = method.estimate(self.config, groups).flatten()[places]
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
