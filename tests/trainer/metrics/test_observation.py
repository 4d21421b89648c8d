import math

import pytest
import torch

from openrlhf_cov.models.loss import LossRecord
from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.models.window import ALONE
from openrlhf_cov.trainer.metrics.observation import StepDiagnostics
from openrlhf_cov.trainer.records import MicroBatch, TrainSample


# (log-probs, advantages, entropies) of the tokens of a sample
def item(number, tokens, score=1.0, *, abstained=False, proxy=None):
    log_probs, advantages, entropy = torch.tensor(tokens).T
    return TrainSample(
        sample_id=number,
        score=score,
        abstained=abstained,
        tokens=torch.zeros(len(tokens) + 1, dtype=torch.long),
        action_mask=torch.ones(len(tokens), dtype=torch.bool),
        log_probs=log_probs,
        entropy=entropy,
        advantages=advantages,
        returns=advantages,
        proxy=proxy,
    )


ITEMS = [
    item(3, [(-1.0, 1.0, 0.5), (-3.0, 1.0, 1.0)]),
    item(0, [(-4.0, -2.0, 2.0)], score=0.0),
    item(1, [(-1.0, 0.0, 0.0), (-1.0, 3.0, 0.25), (-2.0, -3.0, 1.5)], score=math.nan),
]


def test_proxies_and_abstentions_go_with_their_sample():
    samples = [
        item(number, [(-1.0, 1.0, 0.5)] * length, abstained=number == 3, proxy=torch.full((length,), float(number)))
        for number, length in ((3, 1), (0, 2))
    ]
    diagnostics = StepDiagnostics(samples, 2, ALONE, "cpu")
    assert diagnostics.rollout.action_mask.tolist() == [[False, False], [True, True]]
    part = diagnostics.window_part(MicroBatch.of([samples[1], samples[0]]), with_entropy=True)
    assert part.proxy.tolist() == [[0.0, 0.0], [3.0, 0.0]]
    assert part.entropy.tolist() == [[0.5, 0.5], [0.5, 0.0]]
    assert StepDiagnostics(ITEMS, 2, ALONE, "cpu").window_part(MicroBatch.of(ITEMS), with_entropy=False).proxy is None


def test_abstentions_change_no_statistic_of_the_rollout():
    graded = [item(0, [(-1.0, 1.0, 0.5), (-3.0, 1.0, 1.0)]), item(1, [(-4.0, -2.0, 2.0)], score=0.0)]
    abstained = item(2, [(-9.0, 0.0, 0.0)] * 5, score=math.nan, abstained=True)
    alone = StepDiagnostics(graded, 2, ALONE, "cpu").finish()
    beside = StepDiagnostics([*graded, abstained], 2, ALONE, "cpu").finish()
    names = [name for name in alone if name.startswith(("entropy/", "cov/"))]
    assert alone["entropy/mean"] == pytest.approx(3.5 / 3)
    assert {name: beside[name] for name in names} == pytest.approx({name: alone[name] for name in names}, nan_ok=True)


def observe_one_token(diagnostics):
    token = torch.zeros(1, 1)
    batch = TokenBatch(token, token, token, torch.ones(1, 1, dtype=torch.long))
    diagnostics.observe(torch.tensor([0]), LossRecord(batch, token, [], (0.2, 0.2)))


def test_the_overlap_of_two_selections():
    diagnostics = StepDiagnostics(ITEMS, 2, ALONE, "cpu")
    # of 3 tokens that the policy before the updates selects, the rollout's log-probs select 1 and 1
    one, other, none = (torch.tensor([row]).bool() for row in ([1, 1, 0], [0, 1, 1], [0, 0, 0]))
    diagnostics.compare([one, none], [other, none])
    diagnostics.compare([none, other[:, 1:2]], [one, other[:, 1:2]])
    observe_one_token(diagnostics)
    assert diagnostics.finish()["cov/old_overlap"] == pytest.approx(2 / 3)
    diagnostics = StepDiagnostics(ITEMS, 2, ALONE, "cpu")
    observe_one_token(diagnostics)
    assert math.isnan(diagnostics.finish()["cov/old_overlap"])  # nothing was compared
