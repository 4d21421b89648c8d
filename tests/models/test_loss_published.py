"""The losses against the published code (``../shared/golden``) and against its formulas in plain Python."""

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from method_loss import MethodLoss
from openrlhf.models import PolicyLoss, aggregate_loss
from published_losses import covariances, loss_and_gradient, make_cases

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.covariance import token_covariance
from openrlhf_cov.models.method import Plan, TokenBatch, fills
from openrlhf_cov.models.slots import TokenDrop
from openrlhf_cov.models.window import ppo_clipped

GOLDEN = Path(__file__).resolve().parents[2] / "../shared/golden/cov_loss.npz"


@cache
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as arrays:
        return dict(arrays)


def golden_cases(mode, **knobs):
    if not GOLDEN.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"no reference vectors at {GOLDEN}"))]
    cases = [
        case
        for case in json.loads(str(golden()["meta"]))
        if all(case[k] == v for k, v in {"mode": mode, **knobs}.items())
    ]
    return [pytest.param(case, id=case["case"]) for case in cases]


def golden_gradient(case):
    return torch.from_numpy(golden()[f"{case['case']}_grad"].copy())


def golden_batch(case):
    names = ("lp", "old", "adv", "mask")
    return TokenBatch(*(torch.from_numpy(golden()[f"{case['case']}_{name}"].copy()) for name in names))


def outcome(loss, batch):
    log_probs = batch.log_probs.clone().requires_grad_()
    value = loss(log_probs, batch.old_log_probs, batch.advantages, action_mask=batch.action_mask)[0]
    value.backward()
    return value.detach(), log_probs.grad


def assert_golden(case, result):
    expected = tuple(torch.from_numpy(np.asarray(golden()[f"{case['case']}_{name}"])) for name in ("loss", "grad"))
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-8)


def kl_cov_loss(ratio, coef):
    config = CovConfig(
        cov_type="kl_cov", cov_scope="micro_batch", kl_cov_ratio=ratio, ppo_kl_coef=coef, allow_large_cov_ratio=True
    )
    return MethodLoss(config, policy_loss=PolicyLoss(math.inf, math.inf), aggregate=aggregate_loss)


def clip_cov_loss(ratio, lower, upper, low, high):
    config = CovConfig(
        cov_type="clip_cov", cov_scope="micro_batch", clip_cov_ratio=ratio, clip_cov_lb=lower, clip_cov_ub=upper,
        allow_large_cov_ratio=True,
    )  # fmt: skip
    return MethodLoss(config, policy_loss=PolicyLoss(low, high), aggregate=aggregate_loss)


def clip_cov_knobs(case):
    return tuple(case[knob] for knob in ("ccr", "lb", "ub", "low", "high"))


def selecting(loss, picked):
    """The loss with the tokens ``picked`` (B, A) in place of its own selection."""
    (method,) = loss.config.methods
    loss.config = replace(loss.config, cov_scope="global")
    loss.expect([Plan(picked, drops=fills(method, TokenDrop))])
    return loss


@pytest.mark.parametrize("case", golden_cases("kl_cov"))
def test_kl_cov_is_the_published_code(case):
    batch = golden_batch(case)
    loss = kl_cov_loss(case["kcr"], case["coef"])
    # Equal covariances included, of which both take those that torch.topk takes.
    assert_golden(case, outcome(loss, batch))


@pytest.mark.parametrize("case", golden_cases("clip_cov"))
def test_clip_cov_is_the_published_code(case):
    batch, gradient, knobs = golden_batch(case), golden_gradient(case), clip_cov_knobs(case)
    clipped = ppo_clipped(batch, case["low"], case["high"])
    # no gradient although there is an advantage and PPO does not clip: picked by the published code
    picked = batch.action_mask.bool() & (gradient == 0) & (batch.advantages != 0) & ~clipped
    assert_golden(case, outcome(selecting(clip_cov_loss(*knobs), picked), batch))

    cov = token_covariance(batch.log_probs, batch.advantages, batch.action_mask)
    candidates = batch.action_mask.bool() & ~clipped & (cov > case["lb"]) & (cov < case["ub"])
    quota = max(1, int(case["ccr"] * batch.action_mask.sum().item()))
    drawing = clip_cov_loss(*knobs)
    outcome(drawing, batch)
    for selected in (picked, drawing.record.selected):
        assert not (selected & ~candidates).any()
        assert selected.sum() == min(quota, candidates.sum())


@pytest.mark.parametrize("case", golden_cases("clip_cov", ccr=1.0))
def test_clip_cov_of_every_candidate_is_the_published_code(case):
    assert_golden(case, outcome(clip_cov_loss(*clip_cov_knobs(case)), golden_batch(case)))


@pytest.mark.skipif(not GOLDEN.exists(), reason=f"no reference vectors at {GOLDEN}")
def test_all_published_cases_are_checked():
    assert len(golden_cases("kl_cov")) + len(golden_cases("clip_cov")) == len(json.loads(str(golden()["meta"]))) == 48


@pytest.mark.parametrize("case", make_cases(), ids=lambda case: f"{case['cov_type']}-{case['ratio']}")
def test_losses_are_the_formulas_in_plain_python(case):
    names = ("log_probs", "old_log_probs", "advantages", "action_mask")
    batch = TokenBatch(*(torch.tensor(case[name], dtype=torch.float64) for name in names))
    picked = torch.zeros_like(batch.action_mask, dtype=torch.bool)
    for b, t in case["selected"]:
        picked[b, t] = True
    if case["cov_type"] == "kl_cov":
        loss = kl_cov_loss(case["ratio"], case["coef"])
    else:
        loss = clip_cov_loss(*(case[knob] for knob in ("ratio", "lb", "ub", "clip_low", "clip_high")))
        loss = loss if case["ratio"] == 1.0 else selecting(loss, picked)  # the oracle has its own draws
    result = outcome(loss, batch)
    assert torch.equal(loss.record.selected, picked)
    expected = (torch.tensor(case["loss"], dtype=torch.float64), torch.tensor(case["gradient"], dtype=torch.float64))
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-12)


def test_the_plain_python_formulas_by_hand():
    # log ratios ln 2, ln 2, 0 and advantages 1, 2, -3: mean log-prob -2, mean advantage 0
    case = {
        "log_probs": [[-1.0, -2.0, -3.0]],
        "old_log_probs": [[-1.0 - math.log(2), -2.0 - math.log(2), -3.0]],
        "advantages": [[1.0, 2.0, -3.0]],
        "action_mask": [[1, 1, 1]],
    }
    assert covariances(case) == {(0, 0): 1.0, (0, 1): 0.0, (0, 2): 3.0}
    kl = case | {"cov_type": "kl_cov", "coef": 0.5, "selected": [[0, 1]]}
    loss, gradient = loss_and_gradient(kl)
    assert loss == pytest.approx((-2 - 4 + 3 + 0.5 * math.log(2)) / 3)
    assert gradient[0] == pytest.approx([-2 / 3, -3.5 / 3, 3 / 3])
    # clipped at 1.5: -1.5 without gradient, second dropped, 3
    clip = case | {"cov_type": "clip_cov", "clip_low": 0.5, "clip_high": 0.5, "selected": [[0, 1]]}
    loss, gradient = loss_and_gradient(clip)
    assert loss == pytest.approx((-1.5 + 3) / 3)
    assert gradient[0] == pytest.approx([0.0, 0.0, 1.0])
