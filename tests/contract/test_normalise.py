"""What follows from the flags, compared with what the main block of the installed OpenRLHF makes of the same flags."""

import contextlib
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openrlhf.utils.config import hierarchize
from upstream_flags import completed_by_upstream, parsed_by_upstream

from openrlhf_cov.errors import UsageError
from openrlhf_cov.trainer.flags.normalise import normalise

BASE = ["--vllm.num_engines", "1", "--actor.model_name_or_path", "policy", "--rollout.batch_size", "8"]
URL = ["--reward.remote_url", "reward.py"]
REWARD_MODEL = ["--reward.model_name_or_path", "first,second"]
GRPO = ["--algo.advantage.estimator", "group_norm", "--rollout.n_samples_per_prompt", "4"]
ONE_PROCESS = ["--actor.num_gpus_per_node", "1"]
ACCEPTED = {
    "defaults": [*URL],
    "critic from the reward model": [*REWARD_MODEL],
    "critic of its own": [*URL, "--critic.model_name_or_path", "critic"],
    "no critic": [*URL, *GRPO],
    "agent": [*GRPO, "--train.agent_func_path", "agent.py"],
    "several servers": [*GRPO, "--reward.remote_url", "http://a,http://b"],
    "clip range": [*URL, "--actor.eps_clip_low_high", "0.1", "0.3"],
    "one bound": [*URL, "--algo.advantage.is_correction_threshold", "2"],
    "two bounds": [*URL, "--algo.advantage.is_correction_threshold", "0.5", "2"],
    "template": [*URL, "--data.input_template", "Q: {}"],
    "template without a place": [*URL, "--data.input_template", "Q:"],
    "template with a backslash": [*URL, "--data.input_template", r"Q: {}\n"],
    "ring attention": [*URL, "--ds.ring_attn_size", "2"],
    "dynamic batches": [*URL, "--train.dynamic_batch_enable"],
    "dynamic batches with two limits": [*URL, "--train.dynamic_batch_enable", "--rollout.max_tokens_per_gpu", "9"],
    "packing": [*URL, "--ds.packing_samples", "--ds.attn_implementation", "sdpa"],
    "packing with flash attention 3": [*URL, "--ds.packing_samples", "--ds.attn_implementation", "flash_attention_3"],
    "sleep without colocation": [*URL, "--vllm.enable_sleep"],
    "sleep": [*URL, "--vllm.enable_sleep", "--train.colocate_all"],
    "asynchronous": [*URL, "--train.async_enable", "--train.colocate_all"],
    "partial rollouts": [*URL, "--train.async_enable", "--train.partial_rollout_enable"],
    "more prompts at once": [*URL, "--train.async_enable", "--rollout.vllm_generate_batch_size", "16"],
    "KL loss": [*URL, "--algo.kl.use_loss"],
    "KL loss, k3": [*URL, "--algo.kl.use_loss", "--algo.kl.estimator", "k3"],
    "KL reward, k3": [*URL, "--algo.kl.estimator", "k3"],
    "dynamic sampling": [*URL, *GRPO, "--algo.dynamic_filtering_enable"],
    "evaluation": [*URL, "--eval.dataset", "x.jsonl"],
    "images": [*URL, *GRPO, "--data.max_images_per_prompt", "2"],
}
REFUSED = {
    "three bounds": ([*URL, "--algo.advantage.is_correction_threshold", "1", "2", "3"], "threshold 1 2 3: give LOW"),
    "a group of one": ([*URL, "--algo.advantage.estimator", "rloo"], "n_samples_per_prompt 1: .* rloo .* at least 2"),
    "images and a critic": ([*URL, "--data.max_images_per_prompt", "2"], "max_images_per_prompt 2: .* critic"),
    "images and packing": (
        [*URL, *GRPO, "--data.max_images_per_prompt", "2", "--ds.packing_samples"],
        "max_images_per_prompt 2: .* packed; drop --ds.packing_samples",
    ),
    "asynchronous and sleep": (
        [*URL, "--train.async_enable", "--vllm.enable_sleep", "--train.colocate_all"],
        "--vllm.enable_sleep: engines cannot sleep with --train.async_enable",
    ),
    "partial rollouts alone": ([*URL, "--train.partial_rollout_enable"], "only applies with --train.async_enable"),
    "evaluation without rewards": ([*REWARD_MODEL, "--eval.dataset", "x.jsonl"], "eval.dataset x.jsonl: evaluation"),
    "more prompts at once": ([*URL, "--rollout.vllm_generate_batch_size", "16"], "generate_batch_size 16: more"),
    "range of filtering": (
        [*URL, *GRPO, "--algo.dynamic_filtering_enable", "--algo.dynamic_filtering_range", "1", "1"],
        "--algo.dynamic_filtering_range 1 1: the lower bound must come first",
    ),
    "filtering without scores": (
        [*REWARD_MODEL, *GRPO, "--algo.dynamic_filtering_enable"],
        "--algo.dynamic_filtering_enable needs the scores",
    ),
    "filtering of one": ([*URL, "--algo.dynamic_filtering_enable"], "n_samples_per_prompt 1: --algo.dynamic"),
    "fewer samples than ranks": ([*URL, "--actor.num_gpus_per_node", "9"], "--rollout.batch_size 8: 8 micro-batches"),
}


def upstream_and_ours(words):
    """Return what OpenRLHF and ours make of the same parsed flags; None where the flags are refused."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            upstream = completed_by_upstream(parsed_by_upstream([*BASE, *words]))
        except AssertionError:
            upstream = None
    ours = hierarchize(parsed_by_upstream([*BASE, *words]))
    try:
        normalise(ours)
    except UsageError:
        ours = None
    return upstream, ours


def without_time(args):
    if args is not None:
        args.logger.wandb.run_name = ""  # the time of day, which may change between two calls
    return args


@pytest.mark.parametrize("words", ACCEPTED.values(), ids=ACCEPTED)
def test_values_that_follow_are_those_of_upstream(words):
    upstream, ours = upstream_and_ours(words)
    assert ours is not None
    assert without_time(ours) == without_time(upstream)


@pytest.mark.parametrize(("words", "message"), REFUSED.values(), ids=REFUSED)
def test_what_upstream_refuses_is_one_line_that_names_the_flag(words, message):
    assert upstream_and_ours(words) == (None, None)
    with pytest.raises(UsageError, match=message) as refusal:
        normalise(hierarchize(parsed_by_upstream([*BASE, *words])))
    assert len(str(refusal.value).splitlines()) == 1


WARNED = {
    "no effect without --train.colocate_all": ["--vllm.enable_sleep"],
    "is ignored": ["--data.input_template", "Q:"],
    "line break": ["--data.input_template", r"Q: {}\n"],
    "turns on --ds.packing_samples": ["--train.dynamic_batch_enable"],
    "ring_attn_size 2 turns on": ["--ds.ring_attn_size", "2"],
    "flash_attention_2 is used": ["--ds.packing_samples", "--ds.attn_implementation", "sdpa"],
    "engines on GPUs of their own": ["--train.async_enable", "--train.colocate_all"],
    "k2 or k3 is recommended": ["--algo.kl.use_loss"],
    "k1 is recommended": ["--algo.kl.estimator", "k2"],
}


@pytest.mark.parametrize(("message", "words"), WARNED.items(), ids=WARNED)
def test_a_value_that_is_replaced_is_a_warning(message, words):
    args = hierarchize(parsed_by_upstream([*BASE, *URL, *words]))
    assert any(message in warning for warning in normalise(args))


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(parts=st.lists(st.sampled_from([*ACCEPTED.values(), *(words for words, _ in REFUSED.values())]), max_size=4))
def test_any_flags_together_are_as_upstream_has_them(parts):
    upstream, ours = upstream_and_ours([*REWARD_MODEL, *ONE_PROCESS, *(word for words in parts for word in words)])
    assert without_time(ours) == without_time(upstream)
