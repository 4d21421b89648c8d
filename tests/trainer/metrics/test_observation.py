import math

import pytest
import torch
from simulated_ranks import Simulated

from openrlhf_cov.models.loss import LossRecord
from openrlhf_cov.models.method import Plan, TokenBatch
from openrlhf_cov.models.window import ALONE, Ranks
from openrlhf_cov.trainer.metrics.observation import StepDiagnostics, all_reduce_over
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
    assert diagnostics.rollout.abstained.tolist() == [True, False]
    part = diagnostics.window_part(MicroBatch.of([samples[1], samples[0]]), with_entropy=True)
    assert part.proxy.tolist() == [[0.0, 0.0], [3.0, 0.0]]
    assert part.entropy.tolist() == [[0.5, 0.5], [0.5, 0.0]]
    assert StepDiagnostics(ITEMS, 2, ALONE, "cpu").window_part(MicroBatch.of(ITEMS), with_entropy=False).proxy is None


def record(update, mask, selected=None):
    """Of a micro-batch with this mask in which a plan acts on the tokens ``selected``."""
    zeros = torch.zeros(mask.shape)
    plans = [] if selected is None else [Plan(selected)]
    return LossRecord(TokenBatch(zeros, zeros, zeros, mask), zeros, plans, (0.2, 0.2), update=update)


def test_the_overlap_of_two_selections():
    diagnostics = StepDiagnostics(ITEMS, 2, ALONE, "cpu")
    # of 3 tokens that the policy before the updates selects, the rollout's log-probs select 1 and 1
    one, other, none = (torch.tensor([row]).bool() for row in ([1, 1, 0], [0, 1, 1], [0, 0, 0]))
    diagnostics.compare([one, none], [other, none])
    diagnostics.compare([none, other[:, 1:2]], [one, other[:, 1:2]])
    diagnostics.observe(torch.tensor([0]), record(0, torch.ones(1, 1, dtype=torch.long)))
    assert diagnostics.finish()["cov/old_overlap"] == pytest.approx(2 / 3)
    diagnostics = StepDiagnostics(ITEMS, 2, ALONE, "cpu")
    diagnostics.observe(torch.tensor([0]), record(0, torch.ones(1, 1, dtype=torch.long)))
    assert math.isnan(diagnostics.finish()["cov/old_overlap"])  # nothing was compared


def test_a_step_from_start_to_finish():
    diagnostics = StepDiagnostics(ITEMS, 2, ALONE, "cpu")
    # update 7 selects the first token of sample 1 and the second of sample 3, 8 nothing, 9 the first again
    ids, mask = torch.tensor([1, 3]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    first = torch.tensor([[1, 0, 0], [0, 1, 1]]).bool()  # the last one lies on padding
    diagnostics.observe(ids, record(7, mask, first))
    diagnostics.observe(torch.tensor([0]), record(7, torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.bool)))
    diagnostics.observe(ids, record(8, mask))
    diagnostics.observe(ids[:1], record(9, mask[:1], first[:1]))
    assert diagnostics.selected.tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 0]]
    values = diagnostics.finish()
    assert values["cov/empty_update_frac"] == pytest.approx(1 / 3)
    assert values["entropy/selected"] == 0.5  # (1 + 0) / 2
    assert values["entropy/unselected"] == pytest.approx(4.25 / 4)  # 0.5 + 2 + 0.25 + 1.5
    assert values["cov/mean"] == pytest.approx(7 / 6)  # means -2 and 0: 1 - 1 + 4 + 0 + 3 + 0
    assert values["entropy/mean"] == pytest.approx(5.25 / 6)
    assert float(diagnostics.mean_entropy) == 5.25 / 6
    diagnostics = StepDiagnostics(ITEMS[:1], 2, ALONE, "cpu")
    assert not diagnostics.selected.any()
    values = diagnostics.finish()
    assert values["entropy/mean"] == pytest.approx(0.75)
    assert math.isnan(values["cov/empty_update_frac"])  # no update


@pytest.mark.parametrize("parts", [[ITEMS[:1], ITEMS[1:]], [ITEMS[1:2], ITEMS[2:], ITEMS[:1]]])
def test_ranks_log_what_one_rank_logs(parts):
    def work(items, ranks):
        diagnostics = StepDiagnostics(items, 2, ranks, "cpu")
        ids, mask = diagnostics.rollout.sample_ids, diagnostics.rollout.action_mask
        diagnostics.observe(ids, record(0, mask, mask & (ids == 1)[:, None]))
        return diagnostics.finish()

    (expected,) = Simulated(1).run(work, [ITEMS])
    for values in Simulated(len(parts)).run(work, parts):
        assert values == pytest.approx(expected, nan_ok=True, rel=1e-12)
    assert expected["cov/empty_update_frac"] == 0  # although ranks without sample 1 select nothing


def test_reducing_over_the_data_parallel_ranks():
    reduce = all_reduce_over(Ranks(lambda tensor: 2 * tensor, lambda tensor: torch.cat([tensor, tensor + 1])), "cpu")
    assert reduce(torch.tensor([1.0, 2.0]), "sum").tolist() == [2.0, 4.0]
    assert reduce(torch.tensor([1.0, 2.0]), "max").tolist() == [2.0, 3.0]
