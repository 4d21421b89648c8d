import math
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from active import PLANNED, active
from example import example, window_of_example

from openrlhf_cov.models.cov_config import BY_COVARIANCE, CovConfig, methods_of
from openrlhf_cov.models.loss import LossRecord
from openrlhf_cov.models.method import Groups
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.models.slots import UNCLIPPED
from openrlhf_cov.models.window import Window, WindowItem, plan_step
from openrlhf_cov.settings import Schedule
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


# Estimators that subtract the mean reward of the group.
ABOUT_THE_MEAN = ("dr_grpo", "lite_ppo", "maxrl", "rs_grpo", "ucpo", "wapo")


@pytest.mark.parametrize("name", [*ABOUT_THE_MEAN, "prime", "qae"])
def test_an_estimator_that_compares_responses_refuses_a_group_of_one(name):
    flags = {"actor.loss_agg_mode": "token-mean"}
    said = METHODS[name].refuses(CovConfig(method=name), flags | {"rollout.n_samples_per_prompt": 1})
    assert "--rollout.n_samples_per_prompt" in said
    assert METHODS[name].refuses(CovConfig(method=name), flags | {"rollout.n_samples_per_prompt": 2}) is None


@pytest.mark.parametrize("name", [*ABOUT_THE_MEAN, "passk", "prime", "qae"])
def test_equal_rewards_have_no_advantage(name):
    equal = [[0.0] * 6, [1.0] * 6]
    # The mean of seven 0.1 in float32 is not 0.1. A response that is alone differs from no other response.
    equal += [[-0.1] * 7, [1.0]] if name in ABOUT_THE_MEAN and name not in ("maxrl", "ucpo") else []
    for rewards in equal:
        groups = Groups(torch.tensor([rewards]), 0.5, torch.full((1, len(rewards)), -0.5))
        assert not METHODS[name].slot.estimate(CovConfig(method=name), groups).any(), rewards


INF = math.inf
NAN = math.nan
# Setting -> values that it cannot have. Fractions are no percent, and a band or a ratio is where its method acts.
OUT_OF_RANGE = {
    "adaptive_clip_eps": (0.0, 1.0),
    "adaptive_clip_high": (-0.1, INF),
    "cegppo_beta1": (-0.1,),
    "cegppo_beta2": (INF,),
    "cegppo_clip": ((1.2, 0.2), (0.2, NAN)),
    "cegppo_dual_clip": (1.0,),
    "cispo_cap": (0.28, INF),
    "cispo_floor": (1.5, NAN),
    "clip_b_mu": (0.0, -1.0, INF, NAN),
    "clip_cov_lb": (5.0, 9.0, NAN),
    "clip_cov_ratio": (0.0, -1e-9, 1.0 + 1e-9, 20.0, NAN, INF, Schedule(0.0, 1e-3, 5), Schedule(1e-3, 1.5, 5)),
    "clip_cov_ub": (1.0, NAN),
    "clip_v_frac": (0.0, 1.1, 20, NAN),
    "clip_v_mu": (0.0, -1.0, INF),
    "dppo_anchor": ("new",),
    "dppo_cap": (0.5,),
    "dppo_delta": (-0.1, 1.0, 20, NAN),
    "dppo_divergence": ("js",),
    "dr_grpo_length": (0.0, -3.0, NAN, INF),
    "entrocraft_high": (NAN,),
    "entrocraft_low": (0.0, 0.7),
    "entropic_alpha": (-1.1, 2.0, NAN),
    "entropic_theta": (0.0, 1.0, 95.0),
    "entropy_advantage_coef": (-0.1, NAN, INF),
    "entropy_advantage_kappa": (1.0, NAN),
    "entropy_bonus": (-1e-3, INF),
    "erc_high": (0.05,),
    "erc_low": (1.0, -0.1),
    "gmpo_clip": (0.0, -0.4, 40.0, NAN),
    "gspo_token_clip": ((-1e-4, 4e-4), (3e-4, INF), (1.5, 4e-4), (NAN, 4e-4)),
    "kl_cov_ratio": (0.0, -1e-9, 1.0 + 1e-9, 20.0, NAN, INF, Schedule(0.0, 1e-3, 5), Schedule(1e-3, 1.5, 5)),
    "lite_ppo_std": ("batch",),
    "lp_reg_coef": (-1.0, NAN),
    "lp_reg_frac": (0.0, 1.0),
    "lp_reg_min_p": (2.0,),
    "passk_k": (0,),
    "positive_weight": (-0.1, 1.1, NAN, Schedule(0.5, 2.0, 9)),
    "ppo_kl_coef": (-1e-9, NAN, INF, Schedule(-1.0, 1.0, 5), Schedule(1.0, INF, 5)),
    "prime_beta": (0.0,),
    "prime_lr": (-1e-6,),
    "prime_max_norm": (-1.0,),
    "prime_norm": ("batch_norm",),
    "prime_outcome_coef": (INF,),
    "prime_process_coef": (-1.0,),
    "qae_quantile": (0.0, 1.0, 40, NAN),
    "random_drop_ratio": (0.0, 1.1, 20.0, NAN),
    "repo_zeta": (INF, NAN),
    "rs_grpo_beta": (0.0, -1.0, 50.1, NAN, INF),
    "sapo_tau_neg": (0.0, -1.0, INF, NAN),
    "sapo_tau_pos": (0.0, -1.0, INF, NAN),
    "stare_frac": (10.0,),
    "stare_gate": (0.0,),
    "stare_strength": (-0.1, 1.1),
    "steer_max": (0.9,),
    "steer_min": (0.0, 1.1),
    "top_entropy_frac": (0.0, 1.0, 1.01, 20, NAN),
    "ucpo_tau": (-0.1, 1.1, NAN),
    "w_reinforce_lambda": (0.0, -0.1, 1.1, 10, NAN),
    "wapo_length": (0.0, -3.0, NAN, INF),
}


@pytest.mark.parametrize(("name", "value"), [(name, each) for name, values in OUT_OF_RANGE.items() for each in values])
def test_a_setting_out_of_range_is_named(name, value):
    with pytest.raises(ValueError, match=rf"--{name}\b"):
        CovConfig(**{name: value})


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if fields(method.settings)])
def test_every_method_checks_its_settings(name):
    assert {field.name for field in fields(METHODS[name].settings)} & OUT_OF_RANGE.keys()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cispo_cap": 0.28}, r"0\.28.*1\.28"),  # what verl's flag takes
        ({"erc_high": 0.05}, r"1\.05"),
        ({"entrocraft_high": Schedule(0.7, 0.5, 10)}, "--entrocraft_"),  # ends below 0.6
        # after 100 of 400 steps the lower end is at 0.6 - 0.2 * 100 / 400 = 0.55, the upper one at 0.5
        (
            {"entrocraft_low": Schedule(0.6, 0.4, 400), "entrocraft_high": Schedule(0.7, 0.5, 100)},
            "--entrocraft_low .*: must lie below --entrocraft_high",
        ),
        ({"lp_reg_frac": 0.5}, r"selects 50\.0% .* --allow_large_cov_ratio"),  # 0.5 % is 0.005
        ({"prime_process_coef": 0.0, "prime_outcome_coef": 0.0}, "leave no reward"),
        ({"rs_grpo_beta": 0.0}, "dr_grpo"),
        ({"stare_frac": 10.0}, "not percent"),
        ({"stare_strength": 1.1}, "1.1 and 0.9"),
    ],
)
def test_a_refused_setting_says_what_to_write(settings, said):
    with pytest.raises(ValueError, match=said):
        CovConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "cisspo"}, ["--method", "'cisspo'", "cispo"]),
        ({"method": ""}, ["--method"]),
        ({"method": "none,cispo"}, ["--method", "'none'"]),
        ({"method": "cispo,"}, ["--method cispo,", "a name is missing"]),
        ({"cov_type": "clip_cov", "method": "cispo"}, ["--method clip_cov", "--method cispo", "--allow_no_trust"]),
        ({"method": "cispo,clip_cov"}, ["--method clip_cov", "--method cispo", "--allow_no_trust"]),
        ({"cov_type": "clip_cov", "method": "top_entropy"}, ["--method clip_cov", "--method top_entropy"]),
        ({"cov_type": "kl_cov", "method": "clip_cov"}, ["--method kl_cov", "--method clip_cov"]),
        ({"method": "top_entropy", "cov_scope": "micro_batch"}, ["--method top_entropy", "--cov_scope micro_batch"]),
        ({"cov_type": "kl_cov", "method": "cispo"}, ["--method kl_cov", "--method cispo", "--allow_no_trust_region"]),
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
        *(
            ({"method": f"psr,{name}"}, ["--method psr", f"--method {name}", "leaves responses out"])
            for name in ("clip_cov", "kl_cov", "top_entropy", "random_drop", "lp_reg", "cw_grpo")
        ),
        *(
            ({"method": f"clip_b,{name}"}, ["--method clip_b", f"--method {name}"])
            for name in ("clip_cov", "clip_v", "top_entropy", "psr")
        ),
        *(
            ({"method": f"gmpo,{name}"}, ["--method gmpo", "one advantage for all tokens"])
            for name in ("clip_cov", "top_entropy", "entropic")
        ),
        ({"method": "gmpo,prime"}, ["--method gmpo", "--method prime", "one advantage for all tokens"]),
        ({"method": "gmpo,kl_cov"}, None),  # a penalty is no advantage
        *(
            (
                {"method": f"{one},{other}", f"{one}_length": 16.0, f"{other}_mean": "kept"},
                [f"--{one}_length", f"--{other}_mean kept", f"--{other}_mean all"],
            )
            for one in ("dr_grpo", "wapo")
            for other in ("top_entropy", "clip_b", "clip_v")
        ),
        ({"method": "dr_grpo,top_entropy", "dr_grpo_length": 16.0, "top_entropy_mean": "all"}, None),
        ({"method": "dr_grpo,top_entropy", "top_entropy_mean": "kept"}, None),
        ({"method": "entropic,positive_weight"}, ["--method entropic", "--method positive_weight"]),
        ({"method": "wapo,steer,top_entropy"}, None),
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
