"""Samples of a step, their scores and the flags of a run, for tests of the controller's stages."""

import torch
from run_flags import run_flags

from openrlhf_cov.trainer.records import Sample, Scores


def flags(estimator="group_norm", group=4, **settings):
    """Return the flags of a run; ``settings`` are ``section__name=value``."""
    own = {"algo.advantage.estimator": estimator, "rollout.n_samples_per_prompt": group, "train.seed": 1}
    return run_flags(own, **settings)


def sample(number=0, reward=0.0, response=2, prompt=1, **fields):
    """Return a sample whose response ends its text; its tokens are ``10 (number + 1) + place``.

    Args:
        number: The number of the sample.
        reward: Its reward, also its score.
        response: Tokens of the response, or the action mask itself as a list.
        prompt: Tokens of the prompt, at least 1.
        fields: Other fields of the record.
    """
    mask = [False] * (prompt - 1) + [True] * response if isinstance(response, int) else response
    return Sample(
        tokens=10 * (number + 1) + torch.arange(len(mask) + 1),
        action_mask=torch.tensor(mask, dtype=torch.bool),
        **{"prompt": f"prompt {number}", "reward": reward, "score": reward, "sample_id": number} | fields,
    )


def scores(samples, kl=None, values=None, entropy=0.5):
    """Return scores with the same KL (k1) and value for every action token; None without reference and critic."""

    def constant(value, mask):
        return None if value is None else value * mask.float()

    return [
        Scores(
            log_probs=-1.0 * each.action_mask.float(),
            entropy=constant(entropy, each.action_mask),
            base_log_probs=constant(None if kl is None else -1.0 - kl, each.action_mask),
            values=constant(values, each.action_mask),
        )
        for each in samples
    ]
