import math
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from active import PLANNED, active
from example import example, window_of_example

from openrlhf_cov.models.config import BY_COVARIANCE, CovConfig, methods_of
from openrlhf_cov.models.loss import LossRecord
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.models.slots import UNCLIPPED
from openrlhf_cov.models.window import Window, WindowItem, plan_step
from openrlhf_cov.utils.metric_table import definition


@pytest.mark.parametrize("name", METHODS)
def test_a_method_names_settings_that_exist(name):
    method, known = METHODS[name], CovConfig.__dataclass_fields__
    own = {each.name for each in fields(method.settings)}
    assert method.name == name
    assert {control.setting for control in method.controls} <= own
    assert {*method.entropies} <= own
    for record in (method.slot, method.beside):
        named = {each: getattr(record, each, None) for each in ("proxy_min_p", "keeps_clip", "anchor_policy")}
        assert {*named.values()} - {None} <= own
        for policy in (getattr(record, each, None) for each in ("entropy_policy", "log_probs_policy")):
            assert policy in (None, "current", "old") or policy in known


@pytest.mark.parametrize("name", ["erc", "clip_b", "clip_v", "lp_reg"])
def test_a_value_that_the_window_was_not_given_is_named(name):
    batch = example()
    window = Window(
        [WindowItem(replace(batch, log_probs=batch.log_probs.detach()), torch.arange(6).view(2, 3))], UNCLIPPED
    )
    with pytest.raises(RuntimeError, match=r"a method needs \w+.*, and the window was given none"):
        plan_step(active(name), window)


@pytest.mark.parametrize("name", PLANNED)
def test_what_a_method_logs_of_its_own_is_on_its_page(name):
    ((plan, *_),) = plan_step(active(name), window_of_example())
    page = (Path(__file__).parents[3] / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")
    for number in plan.numbers:
        assert number.startswith(f"{name}/")
        assert definition(f"method/{number}").reduction == "mean"
        assert f"`method/{number}`" in page


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_in_the_table_of_all(name):
    page = (Path(__file__).parents[3] / "docs" / "methods" / "index.md").read_text(encoding="utf-8")
    assert f"({name}.md) `{name}` |" in page


def test_the_table_of_all_is_in_the_order_in_which_methods_go_first():
    """docs/metrics.md points there: of several methods the first that makes a plan has the selected tokens."""
    page = (Path(__file__).parents[3] / "docs" / "methods" / "index.md").read_text(encoding="utf-8")
    order = re.findall(r"^\| \[[^]]+\]\(\w+\.md\) `(\w+)` \|", page, flags=re.M)
    assert order == [method.name for method in methods_of("none", ",".join(METHODS))]


@pytest.mark.parametrize(
    ("given", "first", "other"), [("psr,steer", "steer", "psr"), ("steer,kl_cov", "kl_cov", "steer")]
)
def test_the_selected_tokens_are_those_of_the_first_in_the_table(given, first, other):
    def selected(config):
        (plans,) = plan_step(config, window_of_example())
        return LossRecord(example(), example().advantages, plans, UNCLIPPED).selected

    alone, others = selected(active(first)), selected(active(other))
    assert not torch.equal(alone, others)
    assert torch.equal(selected(replace(active(first), cov_type="none", method=given)), alone)


def test_cov_type_takes_the_methods_by_covariance():
    choices = CovConfig.__dataclass_fields__["cov_type"].metadata["choices"]
    assert choices == ("none", *BY_COVARIANCE)
    assert {"clip_cov", "kl_cov"} <= {*BY_COVARIANCE}


@pytest.mark.parametrize(
    ("cov_type", "method", "expected"),
    [
        ("none", "none", []),
        ("kl_cov", "none", ["kl_cov"]),
        ("none", "kl_cov", ["kl_cov"]),
        ("kl_cov", "top_entropy, kl_cov", ["kl_cov", "top_entropy"]),
        ("none", "cispo,top_entropy", ["top_entropy", "cispo"]),  # one order for all ways of writing them
        ("none", "top_entropy,kl_cov", ["kl_cov", "top_entropy"]),
        ("none", "cispo,cispo", ["cispo"]),
    ],
)
def test_methods_are_those_of_both_flags(cov_type, method, expected):
    assert [each.name for each in methods_of(cov_type, method)] == expected


@pytest.mark.parametrize(
    ("settings", "clip"),
    [
        ({}, None),
        ({"method": "top_entropy"}, None),
        ({"cov_type": "clip_cov"}, (1.0, 1.0)),
        ({"cov_type": "kl_cov", "method": "top_entropy"}, UNCLIPPED),
        ({"cov_type": "kl_cov", "kl_cov_keep_ppo_clip": True}, None),
        ({"method": "top_entropy,cispo"}, UNCLIPPED),
        ({"cov_type": "clip_cov", "method": "cispo", "allow_no_trust_region": True}, UNCLIPPED),
        ({"method": "cispo,clip_cov", "allow_no_trust_region": True}, UNCLIPPED),  # not by the order of names
    ],
)
def test_the_clip_is_the_surrogates_or_that_of_the_method_that_has_one(settings, clip):
    assert CovConfig(**settings).ppo_clip == clip


@pytest.mark.parametrize("name", ["dr_grpo", "lite_ppo", "maxrl", "prime", "qae", "rs_grpo", "ucpo", "wapo"])
def test_an_estimator_that_compares_responses_refuses_a_group_of_one(name):
    flags = {"actor.loss_agg_mode": "token-mean"}
    said = METHODS[name].refuses(CovConfig(method=name), flags | {"rollout.n_samples_per_prompt": 1})
    assert "--rollout.n_samples_per_prompt" in said
    assert METHODS[name].refuses(CovConfig(method=name), flags | {"rollout.n_samples_per_prompt": 2}) is None


BAD = {
    "clip_cov": {"clip_cov_lb": 9.0},
    "kl_cov": {"ppo_kl_coef": -1.0},
    "lp_reg": {"lp_reg_frac": 1.0},
    "top_entropy": {"top_entropy_frac": 2.0},
    "cispo": {"cispo_cap": 0.2},
    "erc": {"erc_high": 0.05},
    "random_drop": {"random_drop_ratio": 20.0},
    "steer": {"steer_min": 0.0},
    "stare": {"stare_strength": 1.1},
    "positive_weight": {"positive_weight": 2.0},
    "entropy_advantage": {"entropy_advantage_kappa": 1.0},
    "repo_r": {"repo_zeta": math.nan},
    "adaptive_clip": {"adaptive_clip_eps": 1.0},
    "adaptive_entropy": {"entropy_bonus": -1.0},
    "gspo_token": {"gspo_token_clip": (-0.1, 0.1)},
    "dppo": {"dppo_delta": 1.0},
    "sapo": {"sapo_tau_neg": 0.0},
    "cegppo": {"cegppo_beta1": -0.5},
    "gmpo": {"gmpo_clip": 0.0},
    "qae": {"qae_quantile": 40},
    "passk": {"passk_k": 0},
    "entrocraft": {"entrocraft_low": 0.0},
    "w_reinforce": {"w_reinforce_lambda": 0.0},
    "dr_grpo": {"dr_grpo_length": 0.0},
    "lite_ppo": {"lite_ppo_std": "batch"},
    "ucpo": {"ucpo_tau": 1.5},
    "wapo": {"wapo_length": -1.0},
    "clip_v": {"clip_v_frac": 0.0},
    "entropic": {"entropic_alpha": 2.0},
    "clip_b": {"clip_b_mu": 0.0},
    "rs_grpo": {"rs_grpo_beta": 0.0},
    "prime": {"prime_beta": 0.0},
}


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if fields(method.settings)])
def test_every_method_checks_its_settings_in_the_common_config(name):
    with pytest.raises(ValueError, match="--"):
        CovConfig(**BAD[name])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "cisspo"}, ["--method", "'cisspo'", "cispo"]),
        ({"method": ""}, ["--method"]),
        ({"method": "none,cispo"}, ["--method", "'none'"]),
        ({"method": "cispo,"}, ["--method cispo,", "a name is missing"]),
        ({"cov_type": "clip_cov", "method": "cispo"}, ["--method clip_cov", "--method cispo", "--allow_no_trust"]),
        ({"method": "cispo,clip_cov"}, ["--method clip_cov", "--method cispo", "--allow_no_trust"]),
        (
            {"cov_type": "clip_cov", "method": "top_entropy"},
            ["--method clip_cov", "--method top_entropy"],
        ),
        ({"cov_type": "kl_cov", "method": "clip_cov"}, ["--method kl_cov", "--method clip_cov"]),
        ({"method": "top_entropy", "cov_scope": "micro_batch"}, ["--method top_entropy", "--cov_scope micro_batch"]),
        (
            {"cov_type": "kl_cov", "method": "cispo"},
            ["--method kl_cov", "--method cispo", "--allow_no_trust_region"],
        ),
        (
            {"cov_type": "kl_cov", "method": "cispo", "kl_cov_keep_ppo_clip": True, "allow_no_trust_region": True},
            ["--kl_cov_keep_ppo_clip", "--method cispo"],
        ),
        ({"cov_type": "kl_cov", "method": "cispo", "allow_no_trust_region": True}, None),
        ({"cov_type": "kl_cov", "method": "top_entropy"}, None),
        ({"method": "random_drop,top_entropy"}, ["--method top_entropy", "--method random_drop"]),
        ({"method": "repo_r,entropy_advantage"}, ["--method entropy_advantage", "--method repo_r"]),
        ({"method": "steer", "cov_scope": "micro_batch"}, ["--method steer", "--cov_scope micro_batch"]),
        ({"cov_type": "clip_cov", "method": "adaptive_clip"}, ["--method adaptive_clip", "--method clip_cov"]),
        ({"method": "adaptive_clip,cispo", "allow_no_trust_region": True}, ["--method adaptive_clip", "PPO clip"]),
        (
            {"cov_type": "kl_cov", "cov_log_probs": "old", "method": "steer"},
            ["--method kl_cov", "--method steer", "log-probs"],
        ),
        ({"method": "erc,entropy_advantage", "entropy_advantage_policy": "old"}, ["entropies of different policies"]),
        ({"method": "steer,stare,cw_grpo,positive_weight,erc,repo_r"}, None),  # weights multiply
        ({"cov_type": "kl_cov", "kl_cov_keep_ppo_clip": True, "method": "adaptive_clip,adaptive_entropy"}, None),
        ({"method": "top_entropy,cispo"}, None),
        ({"method": "psr,qae"}, ["--method qae", "--method psr", "each computes the advantages"]),
        ({"method": "nsr,cw_grpo"}, ["--method nsr", "--method cw_grpo", "leaves responses out"]),
        ({"method": "nsr,steer", "steer_form": "linear"}, ["--method nsr", "--method steer", "leaves responses out"]),
        ({"method": "nsr,steer"}, None),  # the largest change is no token's that has none
    ],
)
def test_what_makes_no_sense_together_is_refused(settings, words):
    if words is None:
        CovConfig(**settings)
        return
    with pytest.raises(ValueError, match="--") as found:
        CovConfig(**settings)
    assert all(word in str(found.value) for word in words)
