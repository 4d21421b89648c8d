import numpy as np
import pytest
from texts import missing

from openrlhf_cov.experiments.study.answer import NOT_ENOUGH
from openrlhf_cov.experiments.study.study_law import fitted, forecast_errors, law, off_line, theory


def test_the_law_is_found_and_its_line_moved_or_not(spec, make_runs):
    steady = [dict(accuracy=0.5, entropy=0.2)] * 3
    varied = [dict(accuracy=0.5, entropy=entropy) for entropy in (0.59, 0.6, 0.61)]
    runs = make_runs(GRPO=steady, **{"KL-Cov": varied, "by micro-batch": []})
    # the rewards lie on 0.9 - 0.2 exp(H), apart from noise of 1e-3
    fit = fitted(runs["GRPO"][0])
    assert fit.a.estimate == pytest.approx(0.2, abs=0.005)
    assert fit.b.estimate == pytest.approx(0.9, abs=0.01)
    assert off_line(runs["KL-Cov"][0], fit) == pytest.approx(0.0, abs=0.005)
    answer = law(spec, runs)
    assert missing(answer.text, "at equal entropy: none", "another entropy: KL-Cov") == []
    runs |= make_runs(**{"KL-Cov": [dict(accuracy=0.5, entropy=0.6, off=0.1)] * 3})
    assert missing(law(spec, runs).text, "at equal entropy: KL-Cov", "another entropy: none") == []
    assert off_line(runs["KL-Cov"][0], fit) == pytest.approx(0.1, abs=0.005)
    error, repeated = forecast_errors(runs["GRPO"][0])  # 15 % of 40 steps are six points, the fewest
    assert 0 < error < repeated


@pytest.mark.parametrize(
    ("slopes", "words"),
    [
        ((0.2, 0.21, 0.22), "(reward rises as entropy is spent)"),
        ((-0.2, -0.21, -0.22), "(reward falls as entropy is spent)"),
        ((-0.2, 0.0, 0.2), "(the interval does not show whether reward rises or falls as entropy is spent)"),
    ],
)
def test_the_sign_of_the_slope_is_said_only_where_its_interval_shows_it(spec, make_runs, slopes, words):
    runs = make_runs(GRPO=[dict(accuracy=0.5, entropy=0.2)] * 3, **{"KL-Cov": [], "by micro-batch": []})
    for seed, slope in enumerate(slopes):
        table = runs["GRPO"][seed].metrics
        # The reward of the fixture has a slope of 0.2.
        table.columns["reward"] = table.column("reward") + (0.2 - slope) * np.exp(table.column("entropy/mean"))
    assert words in law(spec, runs).text


def test_a_change_that_follows_its_prediction_is_said(make_runs):
    # predictions of theorem 1 rise with the change that follows, those of theorem 2 fall: the noise is one step early
    answer = theory(make_runs(GRPO=[dict(accuracy=0.5)] * 3))
    assert [row[0] for row in answer.rows] == ["GRPO"]
    assert theory(make_runs(GRPO=[dict(accuracy=0.5)])).text.startswith(NOT_ENOUGH)
