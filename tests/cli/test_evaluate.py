"""The command line against a server on this host; engines are started in tests/e2e."""

import json
import os
import signal
import time

import pytest
from texts import missing

from openrlhf_cov.cli import evaluate
from openrlhf_cov.evaluation.benchmarks import BENCHMARKS, GROUPS, PROTOCOLS
from openrlhf_cov.evaluation.response_records import read_responses, read_settings

pytestmark = pytest.mark.usefixtures("quiet_engines")


def test_list(capsys):
    assert evaluate.main(["--list"]) == 0
    output = capsys.readouterr().out
    for name in (*BENCHMARKS, *GROUPS, *PROTOCOLS):
        assert name in output


@pytest.mark.slow
def test_a_run(evaluate_flags, openai_server, tmp_path, capsys, words):
    assert evaluate.main(words(evaluate_flags)) == 0
    output = capsys.readouterr()
    responses = read_responses(tmp_path / "run")
    assert [response.key for response in responses] == [("sums", f"p{n}", k) for n in range(4) for k in range(3)]
    # the server answers 0, 1 or 2 by seed, and 0 is right
    right = sum(response.answer == "0" for response in responses)
    assert 0 < right < 12
    assert sum(response.correct for response in responses) == right
    title, _, head, row = output.out.splitlines()[:4]
    assert title == "tiny, protocol paper"
    assert head.split()[:4] == ["benchmark", "problems", "samples", "avg@K"]
    assert row.split()[:4] == ["sums", "4", "3", f"{100 * right / 12:.1f}"]
    assert output.out.splitlines()[-1] == str(tmp_path / "run" / "report.html")
    assert "evaluate: 12 responses\n" in output.err
    [warning] = [line for line in output.err.splitlines() if "warning" in line]
    assert missing(warning, "server", "the template qwen-boxed", "--template chat") == []
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        *("run.json", "problems.jsonl", "responses.jsonl", "summary.json", "summary.md", "report.html"),
        "differences.jsonl",
    }
    bodies = [body for _, body, _ in openai_server.asked]
    assert all("<|im_start|>user\nWhat is " in body["prompt"] for body in bodies)
    assert sorted(body["seed"] for body in bodies) == sorted(response.seed for response in responses)
    assert {(body["temperature"], body["top_p"], body["max_tokens"]) for body in bodies} == {(0.6, 1.0, 24)}


def test_benchmarks_are_written_as_files_and_left_alone_where_they_are(problems_file, write_rows, tmp_path, capsys):
    other = write_rows(tmp_path / "other.jsonl", [{"id": "1", "problem": "1 + 1?", "answer": "2", "source": "math"}])
    words = ["--benchmarks", f"{problems_file},omni_math,{other}", "--write_data", str(tmp_path / "eval")]
    # One that no hub has does not keep the others away.
    assert evaluate.main(words) == 2
    assert ": error: omni_math is not on the Hugging Face hub; " in capsys.readouterr().err
    for path in (problems_file, other):
        rows, written = (
            [json.loads(line) for line in each.read_text().splitlines()]
            for each in (path, tmp_path / "eval" / path.name)
        )
        assert written == rows
    for name in ("omni_math.jsonl", "other.jsonl"):
        (tmp_path / "eval" / name).write_text("mine")
    assert evaluate.main(words) == 0
    assert (tmp_path / "eval" / "other.jsonl").read_text() == "mine"


@pytest.mark.slow
def test_the_settings_of_a_run_are_those_of_its_flags(evaluate_flags, tmp_path, words):
    own = {"--template": "plain", "--seed": "5", "--protocol": "quick", "--limit": "2", "--reward_format": "any"}
    own |= {"--code_timeout": "9"}
    assert evaluate.main(words(evaluate_flags | own)) == 0
    settings = read_settings(tmp_path / "run")
    assert (settings.model, settings.protocol, settings.template, settings.seed) == ("tiny", "quick", "plain", 5)
    assert settings.template_text.startswith("{problem}\nPlease reason")
    assert (settings.reward_format, settings.log_probs, settings.max_model_len) == ("any", False, 64)
    assert (settings.code_timeout, settings.reward_timeout, settings.code_sandbox) == (9.0, 3.0, "bubblewrap")
    assert (settings.model_sha256, settings.dtype) == (None, None)
    (sums,) = settings.benchmarks
    assert (sums.samples, sums.temperature, sums.max_tokens, sums.problems, sums.complete) == (3, 0.6, 24, 2, False)


@pytest.mark.slow
def test_arguments_of_the_chat_template_are_sent_and_recorded(evaluate_flags, openai_server, tmp_path, words):
    flags = evaluate_flags | {"--template": "chat", "--chat_template_kwargs": '{"enable_thinking": false}'}
    assert evaluate.main(words(flags)) == 0
    settings = read_settings(tmp_path / "run")
    assert settings.chat_template_kwargs == {"enable_thinking": False}
    assert settings.template_text.startswith("{problem}\nPlease reason")
    assert {json.dumps(body["chat_template_kwargs"]) for _, body, _ in openai_server.asked} == {
        '{"enable_thinking": false}'
    }
    assert '"enable_thinking": false' in (tmp_path / "run/summary.md").read_text()
    assert evaluate.main(words(evaluate_flags | {"--template": "chat"})) == 2  # is another run


@pytest.mark.slow
def test_a_finished_run_is_only_told_again(evaluate_flags, openai_server, tmp_path, capsys, words):
    assert evaluate.main(words(evaluate_flags)) == 0
    before, told = (tmp_path / "run" / "responses.jsonl").read_bytes(), capsys.readouterr().out
    asked = len(openai_server.asked)
    assert evaluate.main(words(evaluate_flags)) == 0
    output = capsys.readouterr()
    assert len(openai_server.asked) == asked == 12
    assert "evaluate: 0 of 12 responses are missing\n" in output.err
    assert "warning" not in output.err
    assert output.out == told
    assert (tmp_path / "run" / "responses.jsonl").read_bytes() == before


@pytest.mark.slow
def test_regrading_gives_the_same_and_another_format_other_grades(evaluate_flags, tmp_path, capsys, words):
    assert evaluate.main(words(evaluate_flags)) == 0
    before, told = (tmp_path / "run" / "responses.jsonl").read_bytes(), capsys.readouterr().out
    again = ["--regrade", "--output", str(tmp_path / "run")]
    assert evaluate.main(again) == 0
    assert capsys.readouterr().out == "0 grades changed\n" + told
    assert (tmp_path / "run" / "responses.jsonl").read_bytes() == before
    assert evaluate.main([*again, "--reward_format", "gsm8k"]) == 0  # all answers stand in a box
    assert capsys.readouterr().out.startswith("12 grades changed\n")
    assert {response.status for response in read_responses(tmp_path / "run")} == {"no_answer"}
    # without the flag the format stays that of the run
    assert evaluate.main(again) == 0
    assert capsys.readouterr().out.startswith("0 grades changed\n")
    assert evaluate.main([*again, "--reward_format", "boxed"]) == 0
    assert (tmp_path / "run" / "responses.jsonl").read_bytes() == before


@pytest.mark.slow
def test_without_math_verify_a_run_is_graded_by_strict_alone(evaluate_flags, no_math_verify, tmp_path, capsys, words):
    assert evaluate.main(words(evaluate_flags)) == 0
    output = capsys.readouterr()
    said = "evaluate: graded by strict alone; for both graders, pip install math-verify==0.9.0\n"
    assert output.err.count(said) == 1
    assert "published" not in output.out
    assert {response.published for response in read_responses(tmp_path / "run")} == {None}
    assert not (tmp_path / "run" / "differences.jsonl").exists()
    assert evaluate.main(words(evaluate_flags, "--reward_grader", "published")) == 2
    assert capsys.readouterr().err.endswith("is not installed: pip install math-verify==0.9.0\n")


@pytest.mark.slow
def test_answers_that_cannot_be_graded_are_told(evaluate_flags, problems_file, capsys, problems, words):
    row = problems[0] | {"id": "bad", "answer": "\\frac{1}{2"}
    problems_file.write_text(problems_file.read_text() + json.dumps(row) + "\n")
    assert evaluate.main(words(evaluate_flags)) == 0
    message = "evaluate: sums: 1 gold answers cannot be read by the rule row; responses to them count as incorrect\n"
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_generated(
    evaluate_flags, openai_server, completed, tmp_path, capsys, words, signum
):
    replies = iter(range(12))

    def reply(path, body):
        if next(replies) == 5:
            os.kill(os.getpid(), signum)
            time.sleep(0.5)
        return 200, completed(path, body)

    good, openai_server.reply = openai_server.reply, reply
    evaluate_flags["--concurrency"] = "1"
    assert evaluate.main(words(evaluate_flags)) == 128 + signum
    output = capsys.readouterr()
    assert output.out == ""
    last = "openrlhf-cov evaluate: interrupted; what was generated is kept, the same command continues"
    assert output.err.splitlines()[-1].endswith(last)
    assert len(read_responses(tmp_path / "run")) == 5
    openai_server.reply = good
    assert evaluate.main(words(evaluate_flags)) == 0
    assert len(read_responses(tmp_path / "run")) == 12


@pytest.mark.slow
def test_a_folder_of_another_run_and_one_that_cannot_be_written_are_refused(evaluate_flags, tmp_path, capsys, words):
    assert evaluate.main(words(evaluate_flags)) == 0
    capsys.readouterr()
    assert evaluate.main(words(evaluate_flags | {"--seed": "1"})) == 2
    assert f"--output {tmp_path / 'run'} holds another run: seed was 0, now 1; choose" in capsys.readouterr().err
    (tmp_path / "run" / "report.html").unlink()
    (tmp_path / "run" / "report.html").mkdir()
    assert evaluate.main(words(evaluate_flags)) == 2
    assert f": error: {tmp_path / 'run'} cannot be written: " in capsys.readouterr().err.splitlines()[-1]
