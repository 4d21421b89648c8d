import dataclasses

import pytest
from texts import missing

from openrlhf_cov.analysis.dashboard.panels import compact, headline, panels, snapshot, table_cells
from openrlhf_cov.analysis.dashboard.state import COLUMNS, RunningVerdict, build
from openrlhf_cov.analysis.runs import read_run

START = 1_700_000_000.0  # of the folders


def state_of(folder, **options):
    run = read_run(folder.path, columns=COLUMNS)
    return dataclasses.replace(build(run, law=RunningVerdict().of(run), **options), path="runs/demo")


@pytest.fixture
def state(folder):
    return state_of(folder().add(1, 2, 3))


NOW = START + 32  # 2 s after step 3


def test_waiting(folder):
    state = dataclasses.replace(build(read_run(folder().add(1).path)), curves=(), total=None, path="runs/demo")
    assert headline(state, NOW) == "demo | waiting for the first step"
    assert compact(state, NOW) == ["waiting for the first step in runs/demo"]
    assert panels(state, NOW)[0].lines == ("waiting for the first step", "in runs/demo")
    assert table_cells(state, NOW)["state"] == "waiting"


def test_panels(state):
    found = {panel.title: panel.lines for panel in panels(state, NOW)}
    assert list(found) == ["progress", "time of a step", "rollouts, newest step", "entropy law R = -a exp(H) + b"]
    assert found["progress"][0] == "step 3 of 40"
    assert "ETA 6 min 8 s" in found["progress"]
    assert found["time of a step"] == (
        "generation        2.00 s  20% ██",
        "scoring           1.00 s  10% █",
        "updates           6.00 s  60% ██████",
        "weight transfer   0.50 s   5% ▌",
        "other             0.50 s   5% ▌",
        "newest step      10.00 s",
    )
    assert "1,600" in found["rollouts, newest step"][0]  # tokens per second of generation
    assert missing(found["rollouts, newest step"][1], "no answer 25 %", "error 0 %", "cut", "0 %") == []


def test_sampling_and_its_note_on_the_law(folder):
    some = {"sampling__kept_frac": 0.5, "sampling__all_right_frac": 0.0625, "sampling__rounds": 2.0}
    state = state_of(folder().add(*range(1, 9), **some))
    assert "sampling: groups kept 50 %, all correct 6.2 %, rounds 2" in compact(state, NOW)
    assert state.keeps_groups


def test_a_law_that_does_not_apply_has_reasons_and_no_numbers(folder):
    state = state_of(folder(cov_type="kl_cov").add(*range(1, 13), cov__selected_frac=0.002))
    assert state.law.fit is not None
    first, *reasons = panels(state, NOW)[3].lines
    assert first == "does not apply:"
    assert reasons == [f"- {reason.text}" for reason in state.law.verdict.reasons]
    assert compact(state, NOW)[-1].startswith("entropy law: does not apply: --cov_type kl_cov")
    assert table_cells(state, NOW)["ceiling"] == "-"
    assert "0.2 % selected" in compact(state, NOW)[2]


def test_a_step_that_lacks_values(folder):
    broken = {"timing__generation": float("nan"), "timing__step_total": float("nan"), "reward": float("nan")}
    state = state_of(folder().add(1, 2).add(3, **broken))
    lines = panels(state, NOW)[1].lines
    assert lines[0] == "generation           -    20% ██"  # 4 s of 20 s
    assert table_cells(state, NOW)["reward"] == "0.02"


def test_snapshot(folder):
    bad = {"reward__error_frac": 0.5}
    states = [state_of(folder().add(1, 2, 3)), state_of(folder("other").add(1, **bad))]
    first, second = snapshot(states, NOW).split("\n\n")
    assert first.splitlines()[:3] == [
        "demo | step 3 of 40 | ETA 6 min 8 s | last step 2.0 s ago",
        "  reward                              0.01 to 0.03      ▁▅█",
        "  entropy (nats)                     0.951 to 0.861     █▄▁",
    ]
    assert second.splitlines()[-1].startswith("  ALERT rewards fail: 50 % of the responses")
    assert "ALERT" not in first
