"""Samples of a step, their scores and the flags of a run, for tests of the controller's stages."""

from types import SimpleNamespace

import torch

from openrlhf_cov.trainer.records import Sample, Scores


def flags(estimator="group_norm", group=4, **settings):
    """Return the flags that the stages between rollout and update read; ``settings`` are ``section_name=value``."""
    args = SimpleNamespace(
        algo=SimpleNamespace(
            advantage=SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False),
            kl=SimpleNamespace(init_coef=0.0, estimator="k1", use_loss=False, target=None, horizon=10000),
        ),
        reward=SimpleNamespace(
            clip_range=(-10, 10),
            overlong_buffer_len=None,
            overlong_penalty_factor=1.0,
            stop_properly_penalty_coef=None,
            remote_url=["reward.py"],
        ),
        rollout=SimpleNamespace(
            n_samples_per_prompt=group, micro_batch_size=2, max_tokens_per_gpu=16, max_new_tokens=None, batch_size=2
        ),
        train=SimpleNamespace(
            dynamic_batch_enable=False,
            colocate_all=False,
            colocate_actor_ref=False,
            colocate_critic_reward=False,
            batch_size=8,
            seed=1,
            partial_rollout_enable=False,
        ),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1, enable_sleep=False),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=1),
        critic=SimpleNamespace(freezing_steps=-1, model_name_or_path=None),
        data=SimpleNamespace(max_len=64),
        vllm=SimpleNamespace(enable_sleep=False),
        vllm_no_progress_timeout=0.0,
    )
    for name, value in settings.items():
        *path, last = name.split("__")
        section = args
        for part in path:
            section = getattr(section, part)
        assert hasattr(section, last), name
        setattr(section, last, value)
    return args


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
