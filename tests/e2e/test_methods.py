"""Three real steps of every registered method through the command line: Ray, vLLM, DeepSpeed. It must act in one.

A run costs its start, so each is of several methods, of other slots; together they are all.
"""

import json
import math

import pytest

from openrlhf_cov.models.method import fills
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.models.slots import Estimator, ProcessEstimator

pytestmark = [pytest.mark.e2e, pytest.mark.long]

# Two updates in a step: in the second one the policy has moved, but so little that no ratio comes near to what PPO
# clips, 0.8 and 1.2. All tokens are written out, with their advantages.
SMALL = """
    --rollout.batch_size 8 --rollout.n_samples_per_prompt 4 --rollout.micro_batch_size 32 --train.batch_size 16
    --train.micro_batch_size 16 --data.max_samples 24 --algo.kl.init_coef 0
    --rollout_seeded --actor.adam.lr 1e-5 --cov_dump_every 1 --cov_dump_tokens 100000
""".split()
# Nats, above what a policy of the embedded task has, 0.7 to 0.9: the loop moves its setting in every step.
TARGET = 2.0

# Names of the methods -> settings with which each of them shows, and the setting that a target entropy moves.
RUNS = {
    "clip_cov qae steer cw_grpo entropy_advantage": """
        --clip_cov_lb 0.1 --clip_cov_ub 1e3 --entropy_control clip_cov_ratio
    """,
    "kl_cov top_entropy passk repo_r stare": """
        --kl_cov_ratio 0.04 --ppo_kl_coef 1e4 --passk_k 2 --repo_zeta 0.4 --entropy_control repo_zeta
    """,
    "lp_reg erc entrocraft": """
        --lp_reg_frac 0.5 --allow_large_cov_ratio --lp_reg_min_p 1e-2 --lp_reg_coef 100 --erc_low 0.9999
        --erc_high 1.0001 --entrocraft_low 2 --entrocraft_high 3
    """,
    "dppo random_drop w_reinforce positive_weight": """
        --dppo_delta 1e-3 --random_drop_ratio 0.05 --positive_weight 0.5 --entropy_control positive_weight
    """,
    "psr adaptive_clip": """
        --adaptive_clip_eps 1e-3 --entropy_control adaptive_clip_high --entropy_step 1e-4
    """,
    "clip_b dr_grpo": "--clip_b_mu 0.5 --dr_grpo_length 12",
    "clip_v ucpo entropic": """
        --clip_v_mu 0.5 --clip_v_frac 0.02 --ucpo_tau 1 --entropic_alpha -0.2 --entropic_theta 0.5
        --entropy_control entropic_alpha --entropy_control_form pi --entropy_gain_p 0.1
    """,
    "wapo": "--wapo_length 12",
    "nsr cispo": "--cispo_floor 1 --cispo_cap 1",
    "cegppo rs_grpo": "--cegppo_clip 1e-3 1e-3 --cegppo_beta2 100",
    "sapo kl_cov": """
        --sapo_tau_pos 1e4 --sapo_tau_neg 1e4 --actor.loss_agg_mode token-mean
        --kl_cov_ratio 0.01 --ppo_kl_coef 1e4 --entropy_control kl_cov_ratio --entropy_high 0.04
    """,
    "gspo_token stare maxrl": "--entropy_control stare_strength",
    "gmpo adaptive_entropy lite_ppo": """
        --gmpo_clip 1e-3 --entropy_bonus 100 --entropy_control entropy_bonus --entropy_step 50 --entropy_high 200
    """,
}

RIGHT, WRONG = 1.0, -1.0
# Estimator -> the advantages that it can give, or what holds of them. GRPO's, beside 0, are 1.5, 0.866025, 0.5 and
# their negatives.
ADVANTAGES = {
    # 1, 2 or 3 of 4 responses are right: their deviation is 1/2, 0.577350 or 1/2, the second smallest reward 0, 0 or 1
    "qae": {0.0, 2.0, 1.732051, -2.0},
    # pairs with a right one: 3, 5 or 6 of 6; so the mean is 1/2, 5/6 or 1, the deviation 1/2, 0.372678 or 0, and of
    # the pairs of a wrong response 2/3, 1/3 or none fail
    "passk": {0.0, 1.0, -0.333333, 0.447214, -0.447214},
    "psr": {0.0, RIGHT},
    "nsr": {0.0, WRONG},
    "w_reinforce": {0.1, WRONG},
    # wrong responses have GRPO's; correct ones share theirs where there are several of them
    "ucpo": lambda found: (
        {each for each in found if each < 0} <= {-0.5, -0.86603, -1.5}
        and any(each > 0 and each not in (0.5, 0.86603, 1.5) for each in found)
    ),
    "wapo": {0.0, 0.75, 0.5, 0.25},
    "dr_grpo": {0.0, 0.75, 0.5, 0.25, -0.75, -0.5, -0.25},
    # about 1/4, 1/2 or 3/4, over the deviation of all 32 rewards, of which up to 31 are 1
    "lite_ppo": {
        0.0,
        *(
            (reward - mean / 4) / ((right * (1 - right / 32) / 31) ** 0.5 + 1e-6)
            for right in range(1, 32)
            for mean in (1, 2, 3)
            for reward in (0, 1)
        ),
    },
    # 1 - m over m for a right response, where m is 1/4, 1/2 or 3/4
    "maxrl": {0.0, WRONG, 3.0, 1.0, 0.333333},
    # a right response has e^2 / (1 + m (e^2 - 1)) - 1 over 2, a wrong one 1 / (1 + m (e^2 - 1)) - 1 over 2
    "rs_grpo": {
        0.0,
        *((each / (1 + m * (math.e**2 - 1)) - 1) / 2 for m in (1 / 4, 1 / 2, 3 / 4) for each in (1, math.e**2)),
    },
    "entrocraft": {0.0, WRONG},  # the entropy is below its band
}


def dropped(line):
    """Share of the tokens without a gradient for another reason than a clip."""
    return line["gradient/zero_frac"] - line["ppo/clip_frac"]


def weights(line):
    """Effective share of the tokens that are not dropped: 1 where all of these weigh the same."""
    return line["gradient/effective_frac"] / (1 - dropped(line))


def penalty(line):
    """The loss, a mean over tokens, less that of the surrogate where nothing is clipped."""
    return line["policy_loss"] - (line["gradient/negative_mass"] - line["gradient/positive_mass"])


def drops_selected(line):
    return line["cov/selected_count"] > 0 and dropped(line) == pytest.approx(line["cov/selected_frac"], abs=1e-6)


# Method -> what holds in a step, as its metrics say, if and only if it acted. Estimators have ``ADVANTAGES``.
ACTS = {
    "clip_cov": drops_selected,
    "random_drop": drops_selected,
    "clip_b": drops_selected,
    "entropic": lambda line: 0 < line["method/entropic/probable"] < 1 and weights(line) < 0.9999,
    "clip_v": drops_selected,
    "psr": drops_selected,
    "nsr": drops_selected,
    "top_entropy": lambda line: dropped(line) >= 0.8,
    "erc": lambda line: dropped(line) > 0.01,
    # Its coefficient is 1e4, so that its term exceeds by far what two means of the surrogate differ by: the loss is
    # the mean of the two updates, the masses are means over all of their tokens.
    "kl_cov": lambda line: (
        penalty(line) == pytest.approx(1e4 * line["cov/selected_frac"] * line["cov/selected_abs_log_ratio"], rel=0.2)
    ),
    "lp_reg": lambda line: line["cov/selected_count"] > 0 and penalty(line) > 1e-5,
    "steer": lambda line: 0.8 < line["method/steer/weight"] < 0.9999,
    "cw_grpo": lambda line: weights(line) < 0.98,  # STEER's, between 0.8 and 1, have 4 * 0.8 / 1.8^2 = 0.9877 or more
    "stare": lambda line: line["method/stare/open"] == 1 and weights(line) < 0.9999,
    "positive_weight": lambda line: weights(line) < 0.99,
    "entropy_advantage": lambda line: line["method/entropy_advantage/added"] > 0.01,
    "repo_r": lambda line: line["method/repo_r/zeroed_frac"] > 0,
    # PPO's clip is open beside these: what is clipped is theirs
    **{name: lambda line: line["ppo/clip_frac"] > 0.01 for name in ("gspo_token", "dppo", "gmpo")},
    "adaptive_clip": lambda line: line["ppo/ratio_max"] < 1.2 and line["ppo/clip_frac"] > 0.005,
    # k is 1, where the mean of the ratios is off by more
    "cispo": lambda line: line["gradient/coefficient_mean"] == pytest.approx(1, abs=1e-6),
    "sapo": lambda line: line["gradient/coefficient_mean"] < 0.8,  # the gates have closed in the second update
    "cegppo": lambda line: line["gradient/coefficient_mean"] > line["ppo/ratio_max"],  # k above the clip is 100
    "adaptive_entropy": lambda line: line["gradient/norm"] > 50,  # without it, 3 to 6
}


def test_every_method_has_a_run_and_something_to_know_it_by():
    # A method with a process reward model has a test of its own: it starts other models (test_prime.py).
    methods = {name for name, method in METHODS.items() if not fills(method, ProcessEstimator)}
    assert {name for names in RUNS for name in names.split()} == ACTS.keys() | ADVANTAGES.keys() == methods
    assert ADVANTAGES.keys() == {name for name in methods if fills(METHODS[name], Estimator)}


@pytest.mark.parametrize("names", RUNS)
def test_three_steps(run_trainer, task, tmp_path, ray, names):
    methods, settings = [METHODS[name] for name in names.split()], RUNS[names].split()
    controlled = "--entropy_control" in settings
    target = ["--entropy_target", str(TARGET)] if controlled else []
    estimator = next((method for method in methods if fills(method, Estimator)), None)
    upstream = ["--algo.advantage.estimator", estimator.slot.stands_for if estimator else "group_norm"]
    flags = [*SMALL, "--method", ",".join(names.split()), *settings, *target, *upstream]
    run = run_trainer([*task.flags(tmp_path / "run"), *flags], tmp_path / "run", ray)
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    for line in run.metrics:
        assert 0.0 < line["entropy/mean"] < math.log(21)  # 21 symbols
        assert math.isfinite(line["policy_loss"])
        assert line["gradient/norm"] > 0
        assert 0.0 < line["gradient/effective_frac"] <= 1.0
        assert line["ppo/skipped_updates"] == 0
        assert ("control/value" in line) is controlled
        if controlled:
            assert line["control/gap"] == pytest.approx(TARGET - line["entropy/mean"], abs=1e-6)
    assert not controlled or len({line["control/value"] for line in run.metrics}) == 3
    # The samples, and so the tokens that a method finds in a step, depend on the rounding of the processor.
    for method in methods:
        acts = ACTS.get(method.name, lambda line: True)
        assert any(acts(line) and not method.idle(line, 2) for line in run.metrics), method.name
    if estimator:
        for line in run.metrics:
            found = advantages(run, line["step"])
            assert found != {0.0}
            expected = ADVANTAGES[estimator.name]
            if callable(expected):
                assert expected(found)
            else:
                assert found <= {round(value, 5) for value in expected}


def advantages(run, step: int) -> set[float]:
    """Of all tokens of a step."""
    tokens = (run.folder / "cov_tokens" / f"step_{step}.jsonl").read_text().splitlines()
    return {round(json.loads(token)["advantage"], 5) + 0.0 for token in tokens}
