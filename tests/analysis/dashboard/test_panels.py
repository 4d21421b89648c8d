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
from openrlhf_cov.analysis.dashboard.state import COLUMNS, RunningVerdict, build
from openrlhf_cov.analysis.dashboard.watched import open_sources
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
    assert list(found) == ["progress", "time of a step", "rollouts, newest step", "law R = -a exp(H) + b"]
    assert found["progress"] == (
        "step 3 of 40",
        "  from 1,280 prompts / 32 a step",
        "10 s a step",
        "ETA 6 min 8 s",
        "last step 2.0 s ago",
    )
    assert found["time of a step"] == (
        "generation        2.00 s  20% ██",
        "scoring           1.00 s  10% █",
        "updates           6.00 s  60% ██████",
        "weight transfer   0.50 s   5% ▌",
        "other             0.50 s   5% ▌",
        "newest step      10.00 s",
    )
    assert found["rollouts, newest step"] == (
        "tokens/s: 1,600 generating, 320 over the step",
        "responses: no answer 25 %; 0 %: error, cut at the limit",
    )
    assert found["law R = -a exp(H) + b"] == ("does not apply:", "- 3 points, fewer than 10", "no fit yet")


def test_the_eta_says_why_it_is_unknown(folder):
    run = folder().add(1, 2, 3)
    (run.path / "command.txt").unlink()
    progress = panels(state_of(run), NOW)[0].lines
    assert progress[1] == "  of how many is unknown"
    assert progress[3] == "ETA unknown: no --data.max_samples, no --steps"
    assert panels(state_of(run, asked_steps=5), NOW)[0].lines[:2] == ("step 3 of 5", "  from --steps")


def test_sampling_and_its_note_on_the_law(folder):
    some = {"sampling__kept_frac": 0.5, "sampling__all_right_frac": 0.0625, "sampling__rounds": 2.0}
    state = state_of(folder().add(*range(1, 9), **some))
    assert "sampling: groups kept 50 %, all right 6.2 %, rounds 2" in compact(state, NOW)
    (law,) = (line for line in compact(state, NOW) if line.startswith("law: "))
    assert law.endswith("; note: R is that of the groups that dynamic sampling kept")


def test_the_law_in_words(folder):
    state = state_of(folder(cov_type="kl_cov").add(*range(1, 13), cov__selected_frac=0.002))
    fit = state.law.fit
    lines = panels(state, NOW)[3].lines
    assert lines[:2] == ("does not apply:", "- --cov_type kl_cov acts on the entropy; the law is stated without")
    assert lines[-2] == f"a {fit.a.estimate:.3g}, b {fit.b.estimate:.3g}, R² {fit.r2:.2f}, 12 points"
    assert lines[-1].startswith(f"ceiling R(H=0) {fit.ceiling.estimate:.3g} (")
    assert compact(state, NOW)[2] == "tokens/s: 1,600 generating, 320 over the step; 0.2 % selected"
    assert table_cells(state, NOW)["ceiling"] == f"{fit.ceiling.estimate:.3g}?"


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


def test_a_log_without_times(folder):
    run = read_run(folder().add(1).path, columns=["reward"])
    assert compact(build(run), NOW)[0] == "pace: seconds a step unknown, step 1 of 40 (1,280 prompts / 32 a step)"


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
    assert snapshot(states, NOW) == (
        "demo | step 3 of 40 | ETA 6 min 8 s | last step 2.0 s ago\n"
        "  reward                              0.01 to 0.03      ▁▅█\n"
        "  entropy (nats)                     0.951 to 0.861     █▄▁\n"
        "  covariance, all tokens (nats)       0.01 to 0.01      ▁▁▁\n"
        "  response length (tokens)              51 to 53        ▁▅█\n"
        "  pace: 10 s a step, step 3 of 40 (1,280 prompts / 32 a step)\n"
        "  time: generation 20%, scoring 10%, updates 60%, weight transfer 5%, other 5%\n"
        "  tokens/s: 1,600 generating, 320 over the step\n"
        "  responses: no answer 25 %; 0 %: error, cut at the limit\n"
        "  law does not apply: 3 points, fewer than 10\n"
        "  law: no fit yet\n"
        "\n"
        "other | step 1 of 40 | ETA 6 min 8 s | last step 22 s ago\n"
        "  reward                              0.01 to 0.01      ▁\n"
        "  entropy (nats)                     0.951 to 0.951     ▁\n"
        "  covariance, all tokens (nats)       0.01 to 0.01      ▁\n"
        "  response length (tokens)              51 to 51        ▁\n"
        "  pace: 10 s a step, step 1 of 40 (1,280 prompts / 32 a step)\n"
        "  time: generation 20%, scoring 10%, updates 60%, weight transfer 5%, other 5%\n"
        "  tokens/s: 1,600 generating, 320 over the step\n"
        "  responses: no answer 25 %; error 50 %; 0 %: cut at the limit\n"
        "  law does not apply: 1 points, fewer than 10\n"
        "  law: no fit yet\n"
        "  ALERT rewards fail: 50 % of the responses of the last step, since step 1; see the errors of the reward"
        " function or server in the log of the run\n"
    )


def test_what_a_method_has_to_say_is_shown_whatever_it_is(folder):
    some = {"control__value": 0.95, "control__gap": -0.02, "method__unheard_of/share": 0.125}
    state = state_of(folder().add(*range(1, 4), **some))
    assert (
        "method: entropy missing to the target -0.02, value of what is controlled 0.95, unheard_of/share 0.125"
        in compact(state, NOW)
    )
