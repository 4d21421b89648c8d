"""Metrics by data source."""

import math

import pytest
import torch
from records_of import sample_of

from openrlhf_cov.trainer.metrics.step_metrics import MAX_SOURCES, source_metrics
from openrlhf_cov.trainer.records import Sample
from openrlhf_cov.trainer.rollout.prompts import Prompt, source_name
from openrlhf_cov.utils.metric_table import is_known


def step_of(lengths, rewards, sources, scores=None, abstained=None):
    """(samples, the same as they are trained on, rewards): sample i has the entropy 0.1 (i + 1) and log-probs -i."""
    count = len(lengths)
    scores, abstained = scores or [None] * count, abstained or [False] * count
    samples, trained = [], []
    for number, length in enumerate(lengths):
        mask = torch.ones(length, dtype=torch.bool)
        tokens = torch.zeros(length + 1, dtype=torch.long)
        samples.append(Sample(tokens=tokens, action_mask=mask, prompt="", source=sources[number]))
        values = {"entropy": 0.1 * (number + 1), "log_probs": -number, "advantages": rewards[number]}
        trained.append(
            sample_of(
                number,
                length + 1,
                score=math.nan if scores[number] is None else scores[number],
                abstained=abstained[number],
                **{name: torch.full((length,), float(value)) for name, value in values.items()},
            )
        )
    return samples, trained, torch.tensor(rewards)


def test_each_source_has_the_means_of_its_samples():
    # Samples 0 and 2 are of a, 1 and 3 of b; lengths by sample 2, 1, 2, 3.
    found = source_metrics(*step_of([2, 1, 2, 3], [0.0, 0.0, 1.0, 0.5], "abab", [0.0, 0.0, 1.0, 1.0]))
    assert found["source/a/samples"] == found["source/b/samples"] == 2
    assert found["source/a/reward"] == 0.5
    assert found["source/b/reward"] == 0.25
    assert found["source/a/pass_rate"] == found["source/b/pass_rate"] == 0.5
    assert found["source/a/response_length"] == found["source/b/response_length"] == 2.0
    # Entropies 0.1, 0.2, 0.3, 0.4 by sample: (2 * 0.1 + 2 * 0.3) / 4 and (1 * 0.2 + 3 * 0.4) / 4
    assert found["source/a/entropy"] == pytest.approx(0.2)
    assert found["source/b/entropy"] == pytest.approx(0.35)
    # Log-probs 0, -1, -2, -3 and advantages 0, 0, 1, 0.5 over 2, 1, 2, 3 tokens: means -14/8 and 3.5/8.
    # Source a: (1.75 * -0.4375 + -0.25 * 0.5625) / 2; source b: (0.75 * -0.4375 + 3 * -1.25 * 0.0625) / 4
    assert found["source/a/cov"] == pytest.approx(-0.453125)
    assert found["source/b/cov"] == pytest.approx(-0.140625)
    assert all(is_known(name) for name in found)


def test_an_abstention_has_a_length_alone():
    found = source_metrics(*step_of([1, 1], [0.75, 0.5], "ab", [None, 0.0], [True, False]))
    assert {"source/a/reward", "source/a/pass_rate", "source/a/entropy", "source/a/cov"}.isdisjoint(found)
    assert found["source/b/entropy"] == pytest.approx(0.2)
    assert found["source/b/cov"] == 0.0  # about the means of its own token
    assert found["source/a/response_length"] == 1.0
    assert found["source/b/reward"] == 0.5


def test_a_step_of_abstentions_has_lengths_alone():
    found = source_metrics(*step_of([1, 3], [0.0, 0.0], "aa", abstained=[True, True]))
    assert found == {"source/a/samples": 2.0, "source/a/response_length": 2.0}


def test_without_a_named_source_nothing_is_logged():
    assert source_metrics(*step_of([1], [1.0], ["default"])) == {}


def test_many_sources_are_counted_together():
    count = MAX_SOURCES + 5
    found = source_metrics(*step_of([1] * count, [1.0] * count, [f"s{place:02}" for place in range(count)]))
    assert sum(name.endswith("/reward") for name in found) == MAX_SOURCES
    assert found["source/other/samples"] == count - MAX_SOURCES + 1


@pytest.mark.parametrize(
    ("datasource", "label", "expected"),
    [
        ("aime", "7", "aime"),
        ("aime", {"answer": "7", "source": "math"}, "aime"),
        ("default", {"answer": "7", "source": "math/hard"}, "math_hard"),
        (None, {"answer": "7"}, "default"),
        ("default", "7", "default"),
        (3, "7", "3"),
        ("open math", None, "open_math"),
        (" math ", None, "math"),
        ("数学/題", None, "数学_題"),
        ("", {"answer": "7", "source": "math/hard"}, "math_hard"),
        (" ", "7", "default"),
        ("default", {"answer": "7", "source": ""}, "default"),
        (float("nan"), "7", "default"),
    ],
)
def test_the_source_of_a_sample(datasource, label, expected):
    assert source_name(Prompt(0, "1+1=", label, source=datasource)) == expected
