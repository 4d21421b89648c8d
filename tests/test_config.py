import dataclasses
import math
from dataclasses import replace

import pytest

from openrlhf_cov.config import RunConfig
from openrlhf_cov.models.cov_config import BY_COVARIANCE, LARGE_COV_RATIO, CovConfig
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.settings import Schedule


def test_defaults_are_the_published_settings():
    assert dataclasses.asdict(CovConfig()) == {
        "cov_type": "none",
        "cov_scope": "global",  # exact; the published code ranks within a micro-batch
        "cov_log_probs": "current",
        "clip_cov_ratio": 2e-4,  # arXiv 2505.22617, section 4.3; fractions, never percent
        "clip_cov_lb": 1.0,
        "clip_cov_ub": 5.0,
        "kl_cov_ratio": 2e-3,  # 7B
        "ppo_kl_coef": 1.0,
        "kl_cov_keep_ppo_clip": False,
        "method": "none",
        "top_entropy_frac": 0.2,  # arXiv 2506.01939
        "top_entropy_policy": "current",
        "top_entropy_mean": "kept",  # its equation 6
        "cispo_cap": 5.0,  # ScaleRL; MiniMax did not publish its own
        "cispo_floor": 0.0,
        "gspo_token_clip": (3e-4, 4e-4),  # arXiv 2507.18071
        "dppo_divergence": "tv",  # arXiv 2602.04879
        "dppo_delta": 0.0,  # that of the divergence: 0.2, 0.05
        "dppo_cap": 20.0,
        "dppo_anchor": "rollout",
        "sapo_tau_pos": 1.0,  # arXiv 2511.20347
        "sapo_tau_neg": 1.05,
        "cegppo_beta1": 0.75,  # arXiv 2509.20712, 7B
        "cegppo_beta2": 1.0,
        "cegppo_clip": (0.2, 0.2),
        "cegppo_dual_clip": 10.0,
        "gmpo_clip": 0.4,  # arXiv 2507.20673, a log ratio
        "qae_quantile": 0.4,  # arXiv 2509.22611
        "qae_baseline": "exact",
        "passk_k": 4,  # arXiv 2508.10751
        "w_reinforce_lambda": 0.1,  # arXiv 2506.01347
        "prime_beta": 0.05,  # arXiv 2502.01456
        "prime_lr": 1e-6,
        "prime_max_norm": 10.0,  # of the released script
        "prime_process_coef": 5.0,
        "prime_outcome_coef": 5.0,
        "prime_norm": "step",
        "prime_model": "",
        "dr_grpo_length": None,  # arXiv 2503.20783 has 3000, the limit of the response length
        "lite_ppo_std": "raw",  # arXiv 2508.08221
        "ucpo_tau": 0.2,  # arXiv 2605.00365, its scripts
        "wapo_length": None,  # arXiv 2606.16154 has 4096 or 8192, the limit of prompt and response
        "wapo_anchor": "rollout",
        "entropic_alpha": 0.0,  # arXiv 2511.15248
        "entropic_theta": 0.95,
        "entropic_form": "weight",
        "clip_v_mu": 8.5,
        "clip_v_frac": 1e-4,
        "clip_v_mean": "all",
        "clip_b_mu": 2.5,  # arXiv 2602.03392
        "clip_b_mean": "all",
        "rs_grpo_beta": 2.0,  # arXiv 2509.24261
        "entrocraft_low": 0.6,  # arXiv 2604.26326
        "entrocraft_high": 0.7,
        "lp_reg_coef": 1.0,  # arXiv 2510.03222
        "lp_reg_frac": 0.01,
        "lp_reg_min_p": 0.02,
        "entropy_target": None,
        "entropy_control": "",
        "entropy_control_form": "sign",
        "entropy_gain_p": 0.5,  # EntroPIC, arXiv 2511.15248: 1 and 0.01 of a range of 2
        "entropy_gain_i": 0.005,
        "entropy_integral_limit": None,
        "entropy_step": None,
        "entropy_low": None,
        "entropy_high": None,
        "entropy_band": 0.0,
        "adaptive_clip_eps": 0.6,  # MAI-Thinking-1
        "adaptive_clip_high": 0.0,
        "entropy_bonus": 0.0,  # arXiv 2505.22312 starts here
        "entropy_advantage_coef": 0.4,  # arXiv 2506.14758, GRPO
        "entropy_advantage_kappa": 2.0,
        "entropy_advantage_policy": "current",
        "erc_low": 0.95,  # arXiv 2512.05591, its scripts
        "erc_high": 1.05,
        "positive_weight": 1.0,
        "random_drop_ratio": 2e-4,  # as Clip-Cov's
        "random_drop_on": "all",
        "repo_zeta": 0.01,  # arXiv 2603.11682
        "stare_frac": 0.1,  # arXiv 2606.19236
        "stare_strength": 0.1,
        "stare_on": "positive",
        "stare_gate": 0.3,
        "steer_form": "exponential",  # arXiv 2510.10150
        "steer_min": 0.8,
        "steer_max": 1.2,
        "allow_large_cov_ratio": False,
        "allow_no_trust_region": False,
        "cov_dump_every": 0,
        "cov_dump_tokens": 200,
    }


def test_settings_cannot_change_after_they_are_checked():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CovConfig().kl_cov_ratio = 0.5


@pytest.mark.parametrize("name", ["clip_cov_ratio", "kl_cov_ratio", "random_drop_ratio"])
def test_a_fraction_that_looks_like_percent_must_be_meant(name):
    assert LARGE_COV_RATIO == 0.05
    assert getattr(CovConfig(**{name: 0.05}), name) == 0.05
    for value in (0.2, Schedule(0.2, 2e-3, 5), Schedule(2e-3, 0.2, 5)):
        with pytest.raises(ValueError, match=rf"^--{name} 0\.2 selects 20\.0% .* --allow_large_cov_ratio"):
            CovConfig(**{name: value})
        assert getattr(CovConfig(**{name: value}, allow_large_cov_ratio=True), name) == value


@pytest.mark.parametrize(("lower", "upper"), [(-math.inf, math.inf), (-2.0, -1.0), (0.0, 1e-9)])
def test_any_band_that_is_not_empty_will_do(lower, upper):
    assert CovConfig(clip_cov_lb=lower, clip_cov_ub=upper).clip_cov_ub == upper


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [
        ("cov_type", "klcov", ", ".join(("none", *BY_COVARIANCE))),
        ("cov_scope", "batch", "global, micro_batch"),
        ("cov_log_probs", "new", "current, old"),
    ],
)
def test_a_name_is_one_of_its_choices(name, value, choices):
    with pytest.raises(ValueError, match=f"^--{name} {value}: must be one of {choices}"):
        CovConfig(**{name: value})


def test_old_log_probs_belong_to_the_global_scope():
    assert CovConfig(cov_log_probs="old").cov_scope == "global"
    with pytest.raises(
        ValueError, match=r"^--cov_log_probs old only applies to --cov_scope global, got --cov_scope micro_batch$"
    ):
        CovConfig(cov_log_probs="old", cov_scope="micro_batch")
    assert CovConfig(cov_log_probs="current", cov_scope="micro_batch").cov_scope == "micro_batch"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-3", 2e-3),
        ("1", 1.0),
        ("-1", -1.0),  # ranges are the config's business
        ("2e-3:2e-4:100", Schedule(2e-3, 2e-4, 100)),
        ("2e-3:2e-4:100:linear", Schedule(2e-3, 2e-4, 100, "linear")),
        ("0:1:1:cosine", Schedule(0.0, 1.0, 1, "cosine")),
        ("0:1:100-200", Schedule(0.0, 1.0, 200, begin=100)),
        ("0:1:0-200:cosine", Schedule(0.0, 1.0, 200, "cosine")),
    ],
)
def test_a_number_or_a_schedule(text, value):
    parsed = Schedule.parse(text)
    assert parsed == value
    assert type(parsed) is type(value)
    if isinstance(parsed, Schedule):
        assert (type(parsed.start), type(parsed.end), type(parsed.steps)) == (float, float, int)


NO_SCHEDULE = [
    "", "many", "1:2", "1:2:", ":2:3", "1::3", "1:2:3:", "1:2:0", "1:2:-5", "1:2:1.5", "1:2:ten", "x:2:3", "1:x:3",
    "1:2:3:cubic", "1:2:3:Linear", "1:2:3:linear:4", "1:2:3:4", "1,2,3", "1:2:nan",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_SCHEDULE)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011  argparse adds flag and value
        Schedule.parse(text)


# from 1 to 3 over 8 steps, by hand: linear 1 + 2 t / 8; cosine 2 - cos(pi t / 8)
HALF_ROOT = math.sqrt(0.5)
AT = [
    (0, 1.0, 1.0),
    (2, 1.5, 2.0 - HALF_ROOT),  # cos 45 degrees
    (4, 2.0, 2.0),
    (6, 2.5, 2.0 + HALF_ROOT),
    (8, 3.0, 3.0),
    (9, 3.0, 3.0),
    (10**6, 3.0, 3.0),
]


@pytest.mark.parametrize(("step", "linear", "cosine"), AT)
def test_schedules_by_hand(step, linear, cosine):
    assert Schedule(1.0, 3.0, 8).at(step) == pytest.approx(linear, abs=1e-12)
    assert Schedule(1.0, 3.0, 8, "cosine").at(step) == pytest.approx(cosine, abs=1e-12)
    # downwards the same, upside down
    assert Schedule(3.0, 1.0, 8).at(step) == pytest.approx(4 - linear, abs=1e-12)
    assert Schedule(3.0, 1.0, 8, "cosine").at(step) == pytest.approx(4 - cosine, abs=1e-12)


def test_a_schedule_may_begin_later():
    # 0 in the first half, then a line to 1
    schedule = Schedule(0.0, 1.0, 8, begin=4)
    assert [schedule.at(step) for step in (0, 4, 5, 6, 8, 9)] == [0, 0, 0.25, 0.5, 1, 1]


@pytest.mark.parametrize("text", ["0:1:200-100", "0:1:5-5", "0:1:-5", "0:1:5-", "0:1:1-2-3"])
def test_a_schedule_that_ends_before_it_begins_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011  whichever int() finds
        Schedule.parse(text)


@pytest.mark.parametrize("shape", ["linear", "cosine"])
@pytest.mark.parametrize(("start", "end"), [(0.02, 0.002), (1e-3, 2e-4), (2e-3, 2e-4), (1e-3, 1e-2), (0.05, 1e-19)])
def test_a_schedule_starts_and_ends_at_its_numbers_exactly(start, end, shape):
    # a value one rounding below 0.002 selects 1 of 1,000 tokens, not 2
    schedule = Schedule(start, end, 10, shape)
    assert schedule.at(0) == start
    assert {schedule.at(step) for step in (10, 11, 10**6)} == {end}


def test_the_settings_of_a_step_by_hand():
    plain = CovConfig(cov_type="kl_cov", cov_log_probs="old", clip_cov_ratio=1e-3)  # plain values stay
    config = replace(plain, kl_cov_ratio=Schedule(2**-7, 2**-9, 6), ppo_kl_coef=Schedule(0.0, 2.0, 4, "cosine"))
    # 4/512 -> 1/512 in 6 steps: 2/512 in step 4, where the coefficient has just arrived
    assert config.at(4) == replace(plain, kl_cov_ratio=2**-8, ppo_kl_coef=2.0)
    assert config.at(1).ppo_kl_coef == pytest.approx(1 - HALF_ROOT)
    assert config.kl_cov_ratio == Schedule(2**-7, 2**-9, 6)  # and so does the config itself


def test_the_scheduled_settings():
    scheduled = {field.name for field in dataclasses.fields(CovConfig) if field.metadata["scheduled"]}
    # what a closed loop may move can move with the steps, too; the band of Entrocraft is published as a schedule
    controlled = {control.setting for method in METHODS.values() for control in method.controls}
    others = {"entropy_advantage_coef", "random_drop_ratio", "entropy_target", "entrocraft_low", "entrocraft_high"}
    assert scheduled == controlled | others


def test_every_setting_has_a_help_text():
    assert all(setting.metadata["help"] for setting in dataclasses.fields(CovConfig))


def test_no_setting_belongs_to_two_methods():
    names = [setting.name for method in METHODS.values() for setting in dataclasses.fields(method.settings)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_the_time_to_wait_for_room_is_finite(value):
    with pytest.raises(ValueError, match=f"^--ray.placement_timeout {value}: must be"):
        RunConfig(placement_timeout=value)
    assert RunConfig(placement_timeout=90.0).placement_timeout == 90.0
