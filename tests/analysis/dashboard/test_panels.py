import dataclasses

import pytest

from openrlhf_cov.analysis.dashboard.panels import (
    TABLE_COLUMNS,
    chart_title,
    compact,
    headline,
    panels,
    shortened,
    snapshot,
    table_cells,
)
from openrlhf_cov.analysis.dashboard.state import COLUMNS, RunningVerdict, build, open_sources
from openrlhf_cov.analysis.runs import read_run

START = 1_700_000_000.0  # of the folders


def state_of(folder, **options):
    run = read_run(folder.path, columns=COLUMNS)
    return dataclasses.replace(build(run, law=RunningVerdict().of(run), **options), path="runs/demo")


@pytest.fixture
def state(folder):
    return state_of(folder().add(1, 2, 3))


NOW = START + 32  # 2 s after step 3


def test_headline(state):
    assert headline(state, NOW) == "demo | step 3 of 40 | ETA 6 min 8 s | last step 2.0 s ago"  # 370 - 2 s
    silent = "demo | step 3 of 40 | no new step for 1 min 30 s (usually 10 s): finished, stopped or stuck"
    assert headline(state, NOW + 88) == silent


def test_the_headline_shortens_the_name_to_fit(state):
    long = dataclasses.replace(state, name="a-long-name-of-a-run-20261121-155139")
    rest = " | step 3 of 40 | ETA 6 min 8 s | last step 2.0 s ago"
    assert headline(long, NOW, 80) == "…e-of-a-run-20261121-155139" + rest
    assert len(headline(long, NOW, 80)) == 80
    assert headline(long, NOW, 30) == "…1121-155139" + rest


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
    assert found["rollouts, newest step"][1] == "responses: no answer 25 %, error 0 %, cut at the limit 0 %"


def test_the_total_is_what_the_user_gave(folder):
    run = folder().add(1, 2, 3)
    (run.path / "command.txt").unlink()
    assert panels(state_of(run), NOW)[0].lines[0] == "step 3"
    assert panels(state_of(run, asked_steps=5), NOW)[0].lines[:2] == ("step 3 of 5", "  from --steps")


def test_sampling_and_its_note_on_the_law(folder):
    some = {"sampling__kept_frac": 0.5, "sampling__all_right_frac": 0.0625, "sampling__rounds": 2.0}
    state = state_of(folder().add(*range(1, 9), **some))
    assert "sampling: groups kept 50 %, all right 6.2 %, rounds 2" in compact(state, NOW)
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


def test_warnings_about_the_file_are_shown(folder):
    run = folder().add(1, 2)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "rew')
    shown = panels(state_of(run), NOW)[-1]
    assert shown.title == "about the file"
    assert shown.lines == ("metrics.jsonl: the last line is cut, or is still being written",)
    assert compact(state_of(run), NOW)[-1] == f"file: {shown.lines[0]}"


def test_warnings_before_the_first_step_are_shown(folder):
    run = folder()
    (run.path / "metrics.jsonl").write_bytes(b"\xff\xfe\x00\n" * 3)
    (source,) = open_sources([run.path])
    source.update()
    warning = "metrics.jsonl: lines that cannot be read left out, 3: 1, 2, 3"
    assert [panel.title for panel in panels(source.state, NOW)] == ["run", "about the file"]
    assert panels(source.state, NOW)[1].lines == (warning,)
    assert compact(source.state, NOW)[1:] == [f"file: {warning}"]


def test_a_step_that_lacks_values(folder):
    broken = {"timing__generation": float("nan"), "timing__step_total": float("nan"), "reward": float("nan")}
    state = state_of(folder().add(1, 2).add(3, **broken))
    lines = panels(state, NOW)[1].lines
    assert lines[0] == "generation           -    20% ██"  # 4 s of 20 s
    assert table_cells(state, NOW)["reward"] == "0.02"


def test_cells(state):
    assert table_cells(state, NOW) == dict(
        zip(TABLE_COLUMNS, ["3/40", "0.03", "0.861", "0.01", "53", "10", "320", "-", "0", "running"], strict=True)
    )


def test_chart_title(state):
    assert chart_title(state.curves[1]) == "entropy (nats): 0.861"
    empty = dataclasses.replace(state.curves[1], values=state.curves[1].values[:0])
    assert chart_title(empty, " (log)") == "entropy (nats): none (log)"


def test_shortened():
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "…cdefg"


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


def test_what_a_method_has_to_say_is_shown_whatever_it_is(folder):
    some = {"control__value": 0.95, "control__gap": -0.02, "method__unheard_of/share": 0.125}
    state = state_of(folder().add(*range(1, 4), **some))
    assert (
        "method: entropy missing to the target: -0.02, value of what is controlled: 0.95, unheard_of/share: 0.125"
        in compact(state, NOW)
    )
