import math
from dataclasses import replace

import pytest
import torch
from method_loss import MethodLoss
from openrlhf.models import PolicyLoss, aggregate_loss

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import Plan
from openrlhf_cov.models.slots import TokenPenalty, TokenWeight

LN2, LN3, LN1_5 = math.log(2), math.log(3), math.log(1.5)

# Four action tokens and a masked one full of garbage, as two sequences of 1 and 3 action tokens:
#   log_probs     -1     | -2     -3   -6       mean -3
#   advantages     2     | -1      0    3       mean  1
#   covariance     2     | -2      0   -6       KL-Cov at 1/4 and Clip-Cov in (1, 5) both take the first token alone
#   ratio          1.5   |  0.5    1    3
LOG_PROBS = [[-1.0, 50.0, -50.0], [-2.0, -3.0, -6.0]]
LOG_RATIOS = [[LN1_5, 0.0, 0.0], [-LN2, 0.0, LN3]]
ADVANTAGES = [[2.0, 1e6, -1e6], [-1.0, 0.0, 3.0]]
MASK = [[1, 0, 0], [1, 1, 1]]


def loss_fn(cov_type, policy_loss, **settings):
    settings = {"clip_cov_ratio": 1.0, "kl_cov_ratio": 0.25, "ppo_kl_coef": 0.5, "cov_scope": "micro_batch"} | settings
    config = CovConfig(cov_type=cov_type, allow_large_cov_ratio=True, **settings)
    return MethodLoss(config, policy_loss=policy_loss, aggregate=aggregate_loss)


def run(loss, log_weights=None, **normalizers):
    """(loss, d loss / d log_probs, rest of the 5-tuple) of the batch above."""
    log_probs = torch.tensor(LOG_PROBS, requires_grad=True)
    old = log_probs.detach() - torch.tensor(LOG_RATIOS)
    rollout = None if log_weights is None else old - torch.tensor(log_weights)
    value, *rest = loss(
        log_probs, old, torch.tensor(ADVANTAGES), action_mask=torch.tensor(MASK), rollout_log_probs=rollout,
        **normalizers,
    )  # fmt: skip
    value.backward()
    return value.item(), log_probs.grad.tolist(), rest


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("clip", [{}, {"clip_eps_low": math.inf, "clip_eps_high": math.inf}, {"dual_clip": 1.5}])
def test_a_surrogate_finds_the_clips_open(advantage, clip):
    # CISPO's coefficient of a token is its ratio 3: the loss is -3 A, and so is its gradient. PPO's clip would give
    # 1.2 and 0 for A = 1, the dual clip 1.5 and 0 for A = -1.
    loss = MethodLoss(CovConfig(method="cispo"), policy_loss=PolicyLoss(**clip), aggregate=aggregate_loss)
    log_probs = torch.tensor([[-1.0]], requires_grad=True)
    old = torch.tensor([[-1.0 - LN3]])
    value, *_ = loss(log_probs, old, torch.tensor([[advantage]]), action_mask=torch.ones(1, 1, dtype=torch.long))
    value.backward()
    assert value.item() == pytest.approx(-3 * advantage, rel=1e-5)
    assert log_probs.grad.item() == pytest.approx(-3 * advantage, rel=1e-5)


def unclipped(**kwargs):
    return PolicyLoss(clip_eps_low=math.inf, clip_eps_high=math.inf, **kwargs)


def assert_loss(result, loss, gradient):
    assert result[0] == pytest.approx(loss, rel=1e-5, abs=1e-6)
    for row, expected in zip(result[1], gradient, strict=True):
        assert row == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_clip_cov_by_hand():
    loss = loss_fn("clip_cov", PolicyLoss(clip_eps_low=1.0, clip_eps_high=1.0))
    result = run(loss)
    # -min(r A, clamp(r, 0, 2) A): first token dropped, 0.5, 0, -min(9, 6) = -6; mean -5.5 / 4
    # gradient -r A / 4 of tokens that are neither dropped nor clipped: 0.5 / 4 for the second, 0 for the third (A = 0)
    assert_loss(result, -1.375, [[0.0, 0.0, 0.0], [0.125, 0.0, 0.0]])
    assert loss.record.selected.tolist() == [[True, False, False], [False, False, False]]
    clip_frac, ppo_kl, vllm_kl, filtered = result[2]
    assert clip_frac.item() == 0.25  # the last token
    assert ppo_kl.item() == pytest.approx(-(LN1_5 - LN2 + LN3) / 4, rel=1e-5)  # mean of old - new
    assert (vllm_kl, filtered) == (None, None)


def test_clip_cov_leaves_tokens_that_ppo_clips():
    # at eps 0.2 PPO clips the first token itself (2.4 < 3), so it is no candidate and nothing is left to drop;
    # -2.4 + 0.8 (min(-0.5, -0.8) at ratio 0.5) + 0 - 3.6 = -5.2; every token is clipped or has no advantage
    loss = loss_fn("clip_cov", PolicyLoss(clip_eps_low=0.2, clip_eps_high=0.2))
    assert_loss(run(loss), -1.3, [[0.0] * 3, [0.0] * 3])
    assert not loss.record.selected.any()


def test_kl_cov_by_hand():
    loss = loss_fn("kl_cov", unclipped())
    # -r A: -3 + 0.5 + 0 - 9 = -11.5, and 0.5 |ln 1.5| on the first token
    # gradient: (-3 + 0.5) / 4, 0.5 / 4, 0, -9 / 4
    assert_loss(run(loss), (-11.5 + 0.5 * LN1_5) / 4, [[-0.625, 0.0, 0.0], [0.125, 0.0, -2.25]])
    assert loss.record.selected.tolist() == [[True, False, False], [False, False, False]]


def test_kl_cov_with_the_ppo_clip_kept_by_hand():
    loss = loss_fn("kl_cov", PolicyLoss(clip_eps_low=0.2, clip_eps_high=0.2), kl_cov_keep_ppo_clip=True)
    # the clipped sum -5.2 of the test above; only the penalty 0.5 |ln 1.5| still has a gradient
    assert_loss(run(loss), (-5.2 + 0.5 * LN1_5) / 4, [[0.125, 0.0, 0.0], [0.0, 0.0, 0.0]])


def test_kl_cov_with_a_mean_per_sequence_by_hand():
    loss = loss_fn("kl_cov", unclipped(token_level_loss=False))
    # first sequence (-3 + 0.5 ln 1.5) / 1, second (0.5 + 0 - 9) / 3, mean of both
    expected = ((-3 + 0.5 * LN1_5) - 8.5 / 3) / 2
    assert_loss(run(loss), expected, [[-1.25, 0.0, 0.0], [0.5 / 6, 0.0, -9 / 6]])


def test_normalizers_scale_both_parts():
    # sum / batch_num_tokens * dp_size: 2 / 10 instead of 1 / 4
    result = run(loss_fn("kl_cov", unclipped()), dp_size=2, batch_num_tokens=10.0, global_batch_size=5.0)
    assert_loss(result, (-11.5 + 0.5 * LN1_5) / 5, [[-0.5, 0.0, 0.0], [0.1, 0.0, -1.8]])


# importance weights of the rollout correction: 4 on the first token, 1/4, 1 and 1 on the others
LOG_WEIGHTS = [[2 * LN2, 0.0, 0.0], [-2 * LN2, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("mode", "sum_of_ratios", "gradient"),
    [
        # weights clamped to [0.5, 2]: 2 (-3) + 0.5 * 0.5 + 0 - 9 = -14.75; the penalty 0.5 ln 1.5 has weight 1
        # gradient: (-6 + 0.5) / 4, 0.25 / 4, 0, -9 / 4
        ("clip", -14.75, [[-1.375, 0.0, 0.0], [0.0625, 0.0, -2.25]]),
        # weights outside [0.5, 2] drop a token: 0 + 0 + 0 - 9; the penalty stays on the dropped first token
        ("mask", -9.0, [[0.125, 0.0, 0.0], [0.0, 0.0, -2.25]]),
    ],
)
def test_importance_weights_spare_the_penalty_by_hand(mode, sum_of_ratios, gradient):
    correction = {"is_correction_level": "token", "is_correction_mode": mode, "is_correction_threshold": [0.5, 2.0]}
    result = run(loss_fn("kl_cov", unclipped(**correction)), LOG_WEIGHTS)
    assert_loss(result, (sum_of_ratios + 0.5 * LN1_5) / 4, gradient)
    assert result[2][2].item() == pytest.approx(0.0, abs=1e-6)  # mean of rollout - old: (-2 + 2) ln 2 / 4
    assert result[2][3].item() == 0.5  # two of four weights were outside


def test_beside_a_ratio_to_the_engine_the_penalty_is_toward_the_old_policy_by_hand():
    # WAPO's ratio is to the engine. old - rollout is -2 ln 2 on the first token, 2 ln 2 on the second, else 0:
    #   ratio to the engine 1.5 / 4 = 0.375 | 0.5 * 4 = 2, 1, 3; WAPO's clip keeps what is in [0, 10]
    # -r A: -0.75 + 2 + 0 - 9 = -7.75
    # EntroPIC's penalty on the first token, with alpha 0.5 and a factor of 2: -0.5 * 2 * r |A|. Its ratio is to the
    # old policy, 1.5: -0.5 * 2 * 1.5 * 2 = -3, and its gradient is the same. With that to the engine it would be -0.75
    # gradient: (-0.75 - 3) / 4, 2 / 4, 0, -9 / 4
    config = CovConfig(method="wapo,entropic", entropic_form="penalty", entropic_alpha=0.5)
    loss = MethodLoss(config, policy_loss=PolicyLoss(1.0, 9.0), aggregate=aggregate_loss)
    first = torch.tensor([[1, 0, 0], [0, 0, 0]]).bool()
    plans = {TokenWeight: Plan(first & False), TokenPenalty: Plan(first, penalty_scale=torch.tensor(2.0))}
    loss.expect([plans[type(slot)] for slot in config.token_slots])
    log_weights = [[-each for each in row] for row in LOG_WEIGHTS]
    assert_loss(run(loss, log_weights), (-7.75 - 3) / 4, [[-0.9375, 0.0, 0.0], [0.5, 0.0, -2.25]])


def test_the_penalty_has_no_gradient_on_policy():
    # ratio 1 everywhere: loss -sum(A) / 4 = -1, gradient -A / 4; the penalty is 0 and so is its gradient
    log_probs = torch.tensor(LOG_PROBS, requires_grad=True)
    value, *_ = loss_fn("kl_cov", unclipped(), ppo_kl_coef=1e3)(
        log_probs, log_probs.detach(), torch.tensor(ADVANTAGES), action_mask=torch.tensor(MASK)
    )
    value.backward()
    assert_loss((value.item(), log_probs.grad.tolist()), -1.0, [[-0.5, 0.0, 0.0], [0.25, 0.0, -0.75]])


def test_with_global_scope_the_given_tokens_are_restrained():
    # the second sequence's first token instead of the first one's: its penalty 0.5 |ln 0.5|, gradient -0.5 / 4
    loss = loss_fn("kl_cov", unclipped(), cov_scope="global")
    given = torch.tensor([[0, 0, 0], [1, 0, 0]]).bool()
    loss.expect([Plan(given)])
    assert_loss(run(loss), (-11.5 + 0.5 * LN2) / 4, [[-0.75, 0.0, 0.0], [0.0, 0.0, -2.25]])
    assert torch.equal(loss.record.selected, given)


@pytest.mark.parametrize("cov_type", ["kl_cov", "clip_cov"])
def test_the_same_tokens_give_the_same_loss_in_both_scopes(cov_type):
    local = loss_fn(cov_type, PolicyLoss(1.0, 1.0))
    expected = run(local)
    loss = loss_fn(cov_type, PolicyLoss(1.0, 1.0), cov_scope="global")
    loss.expect(local.record.plans)
    assert run(loss)[:2] == expected[:2]


@pytest.mark.parametrize("selected", [None, torch.zeros(2, 2).bool(), torch.zeros(3, 3).bool(), torch.zeros(6).bool()])
def test_with_global_scope_a_missing_or_foreign_mask_stops_the_run(selected):
    loss = loss_fn("kl_cov", unclipped(), cov_scope="global")
    loss.expect([] if selected is None else [Plan(selected)])
    with pytest.raises(RuntimeError, match=r"tensors \(B, A\)"):
        run(loss)


def test_a_step_brings_its_settings():
    loss = loss_fn("kl_cov", unclipped())
    penalties = []
    for coef in (0.5, 1.0):
        loss.start_step(replace(loss.config, ppo_kl_coef=coef), seed=42, global_step=0, rank=0)
        penalties.append(run(loss)[0] + 11.5 / 4)  # without penalty the loss is -11.5 / 4
    assert penalties == pytest.approx([0.5 * LN1_5 / 4, LN1_5 / 4], rel=1e-5)


def draws(loss, calls=2):
    """Selections of the next calls on 200 tokens that are all in the band; 10 of them each time."""
    log_probs = torch.tensor([[0.0], [-4.0]]).expand(2, 100)
    advantages = torch.tensor([[1.0], [-1.0]]).expand(2, 100)  # covariance (±2)(±1) = 2
    selected = []
    for _ in range(calls):
        loss(log_probs, log_probs, advantages, action_mask=torch.ones(2, 100))
        selected.append(tuple(loss.record.selected.flatten().nonzero().flatten().tolist()))
    assert all(len(picked) == 10 for picked in selected)
    return selected


def band_loss():
    return loss_fn("clip_cov", PolicyLoss(clip_eps_low=1.0, clip_eps_high=1.0), clip_cov_ratio=0.05)


def test_draws_depend_on_seed_step_and_rank_alone():
    fresh = band_loss()
    fresh.start_step(fresh.config, 42, 7, 1)
    expected = draws(fresh)
    used = band_loss()
    used.start_step(used.config, 1, 2, 3)
    draws(used, calls=5)
    torch.rand(10)  # neither earlier steps nor the global random state matter
    used.start_step(used.config, 42, 7, 1)
    assert draws(used) == expected
    assert expected[0] != expected[1]  # micro-batches of one step draw on


def test_each_of_seed_step_and_rank_gives_draws_of_its_own():
    loss, seen = band_loss(), set()
    triples = [(seed, step, rank) for seed in range(3) for step in range(3) for rank in range(3)]
    for triple in triples:
        loss.start_step(loss.config, *triple)
        seen.update(draws(loss))
    assert len(seen) == 2 * len(triples)


def test_selection_leaves_the_global_random_state_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    draws(band_loss())
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("settings", [{}, {"cov_type": "kl_cov", "cov_scope": "micro_batch"}, {"method": "cispo"}])
def test_a_micro_batch_without_tokens_has_neither_loss_nor_gradient(settings):
    loss = MethodLoss(CovConfig(**settings), policy_loss=PolicyLoss(), aggregate=aggregate_loss)
    log_probs = torch.full((2, 3), -1.0, requires_grad=True)
    none = torch.zeros(2, 3, dtype=torch.long)
    value, *_ = loss(log_probs, log_probs.detach(), torch.ones(2, 3), action_mask=none)
    value.backward()
    assert value.item() == 0.0
    assert log_probs.grad.tolist() == [[0.0] * 3] * 2
