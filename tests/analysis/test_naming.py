import pytest

from openrlhf_cov.analysis.naming import renaming
from openrlhf_cov.errors import UsageError

OPENRLHF = ["train/reward", "train/entropy_loss", "train/timing/generation", "eval/eval_math_pass1", "train/return"]
VERL = [
    "training/global_step",
    "actor/entropy",
    "critic/score/mean",
    "critic/rewards/mean",
    "response_length/mean",
    "timing_s/gen",
    "val-core/math/acc/mean@4",
    "perf/throughput",
]
TRL = [
    "train/global_step",
    "train/reward",
    "train/entropy",
    "train/completions/mean_length",
    "train/rewards/f/mean",
    "eval/reward",
    "train/kl",
]


def test_openrlhf():
    found = renaming(OPENRLHF)
    assert found.training == {
        "entropy/mean": "train/entropy_loss",
        "reward": "train/reward",
        "return": "train/return",
        "timing/generation": "train/timing/generation",
    }
    assert found.evaluation == {"eval_math_pass1": "eval/eval_math_pass1"}


def test_our_entropy_is_preferred_to_upstreams():
    assert renaming([*OPENRLHF, "train/entropy/mean"]).training["entropy/mean"] == "train/entropy/mean"


def test_verl():
    found = renaming(VERL)
    assert found.training["entropy/mean"] == "actor/entropy"
    assert found.training["reward"] == found.training["score"] == "critic/score/mean"
    assert found.training["step"] == "training/global_step"
    assert found.training["timing/generation"] == "timing_s/gen"
    assert found.training["perf/throughput"] == "perf/throughput"
    assert found.evaluation == {"val-core/math/acc/mean@4": "val-core/math/acc/mean@4"}


def test_trl():
    found = renaming(TRL)
    assert found.training["entropy/mean"] == "train/entropy"
    assert found.training["response_length"] == "train/completions/mean_length"
    assert found.training["rewards/f/mean"] == "train/rewards/f/mean"
    assert found.evaluation == {"reward": "eval/reward"}


def test_mapping():
    found = renaming(VERL, {"entropy": "critic/rewards/mean", "reward": "perf/throughput", "cov/mean": "timing_s/gen"})
    assert found.training["entropy/mean"] == "critic/rewards/mean"
    assert found.training["reward"] == "perf/throughput"
    assert found.training["cov/mean"] == "timing_s/gen"
    assert found.training["response_length"] == "response_length/mean"  # what is not mapped is still known


def test_a_mapping_may_take_an_evaluation_for_the_reward():
    found = renaming(VERL, {"reward": "val-core/math/acc/mean@4"})
    assert found.training["reward"] == "val-core/math/acc/mean@4"
    assert found.evaluation == {}


def test_names_that_are_not_there():
    with pytest.raises(UsageError, match=r"reward is mapped to 'critic/score/men'.*it has critic/score/mean"):
        renaming(VERL, {"reward": "critic/score/men"})
    with pytest.raises(UsageError, match="no names of 'verll' are known, only of openrlhf, verl, trl"):
        renaming(VERL, "verll")


def test_entropy_and_reward_tell_the_trainer():
    # five names of verl, but entropy and reward as TRL calls them
    names = ["step", "reward", "entropy", "response_length/mean", "actor/lr", "timing_s/gen", "actor/grad_norm"]
    assert renaming(names).training["entropy/mean"] == "entropy"
