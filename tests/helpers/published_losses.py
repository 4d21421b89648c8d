"""The published formulas in plain Python floats.

Written from arXiv 2505.22617 (eq. 10-14, Listing 1) without torch and without the package, so that the two can be
compared. Nested lists are (B, A).
"""

import math
import random


def action_tokens(case):
    """(row, column) of the unmasked tokens, in reading order."""
    return [(b, t) for b, row in enumerate(case["action_mask"]) for t, keep in enumerate(row) if keep]


def covariances(case):
    """Eq. 10 over the action tokens: {(b, t): (log_prob - mean) * (advantage - mean)}."""
    tokens = action_tokens(case)
    log_probs = [case["log_probs"][b][t] for b, t in tokens]
    advantages = [case["advantages"][b][t] for b, t in tokens]
    mean_log_prob, mean_advantage = sum(log_probs) / len(tokens), sum(advantages) / len(tokens)
    return {
        token: (log_prob - mean_log_prob) * (advantage - mean_advantage)
        for token, log_prob, advantage in zip(tokens, log_probs, advantages, strict=True)
    }


def quota(case):
    """Number of tokens to select: a fraction of the action tokens, at least one."""
    return max(1, int(case["ratio"] * len(action_tokens(case))))


def highest_covariance(case):
    """Eq. 13: the tokens of KL-Cov."""
    cov = covariances(case)
    return sorted(cov, key=lambda token: -cov[token])[: quota(case)]


def candidates(case):
    """Eq. 11: the tokens of which Clip-Cov picks some, in the band and not clipped by PPO."""
    cov = covariances(case)
    return [token for token in cov if case["lb"] < cov[token] < case["ub"] and not ppo(case, *token)[1]]


def ppo(case, b, t):
    """(loss, is its gradient clipped away) of one token under the PPO clip of the case."""
    ratio = math.exp(case["log_probs"][b][t] - case["old_log_probs"][b][t])
    advantage = case["advantages"][b][t]
    clipped_ratio = min(max(ratio, 1 - case["clip_low"]), 1 + case["clip_high"])
    plain, clipped = -ratio * advantage, -clipped_ratio * advantage
    return max(plain, clipped), clipped > plain


def loss_and_gradient(case):
    """Token-mean loss of the case and its derivative with respect to ``log_probs``, (B, A)."""
    tokens, selected = action_tokens(case), {tuple(token) for token in case["selected"]}
    total, gradient = 0.0, [[0.0 for _ in row] for row in case["log_probs"]]
    for b, t in tokens:
        log_ratio = case["log_probs"][b][t] - case["old_log_probs"][b][t]
        if case["cov_type"] == "kl_cov":  # eq. 14: no clip, |log ratio| added on the selected
            loss = slope = -math.exp(log_ratio) * case["advantages"][b][t]
            if (b, t) in selected:
                loss += case["coef"] * abs(log_ratio)
                slope += case["coef"] * ((log_ratio > 0) - (log_ratio < 0))
        else:  # eq. 12: selected tokens give nothing, the others PPO's
            loss, clipped = (0.0, True) if (b, t) in selected else ppo(case, b, t)
            slope = 0.0 if clipped else loss
        total += loss / len(tokens)
        gradient[b][t] = slope / len(tokens)
    return total, gradient


KNOBS = [
    {"cov_type": "kl_cov", "ratio": 2e-3, "coef": 1.0},
    {"cov_type": "kl_cov", "ratio": 0.3, "coef": 0.5},
    {"cov_type": "clip_cov", "ratio": 1.0, "lb": 0.2, "ub": 5.0, "clip_low": 1.0, "clip_high": 1.0},
    {"cov_type": "clip_cov", "ratio": 0.1, "lb": 0.2, "ub": 5.0, "clip_low": 0.2, "clip_high": 0.28},
]


def make_case(knobs, seed, rows=3, columns=7):
    """A random case; where Clip-Cov picks at random, the picked tokens are part of the case."""
    rng = random.Random(seed)

    def grid(draw):
        return [[round(draw(), 6) for _ in range(columns)] for _ in range(rows)]

    case = knobs | {"log_probs": grid(lambda: -rng.expovariate(1.0)), "advantages": grid(lambda: rng.gauss(0, 1.5))}
    case["old_log_probs"] = [[round(lp - rng.gauss(0, 0.3), 6) for lp in row] for row in case["log_probs"]]
    lengths = [columns, *(rng.randint(1, columns) for _ in range(rows - 1))]
    case["action_mask"] = [[int(t < length) for t in range(columns)] for length in lengths]
    if knobs["cov_type"] == "kl_cov":
        case["selected"] = highest_covariance(case)
    else:
        in_band = candidates(case)
        case["selected"] = sorted(rng.sample(in_band, min(quota(case), len(in_band))))
    case["selected"] = [list(token) for token in case["selected"]]
    case["loss"], case["gradient"] = loss_and_gradient(case)
    return case


def make_cases():
    """Return random cases of both methods, each with its loss and gradient."""
    return [make_case(knobs, seed) for knobs in KNOBS for seed in range(2)]
