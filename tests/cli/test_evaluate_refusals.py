"""What the command line refuses, each in one line."""

import pytest

from openrlhf_cov.cli import evaluate

pytestmark = pytest.mark.usefixtures("quiet_engines")


@pytest.fixture
def refusal(evaluate_flags, capsys, words):
    """Function (changes, flags...) -> the line with which the changed command line is refused."""

    def run(changes=(), *extra):
        changed = {flag: value for flag, value in (evaluate_flags | dict(changes)).items() if value is not None}
        try:
            status = evaluate.main(words(changed, *extra))
        except SystemExit as stop:  # argparse
            status = stop.code
        assert status == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith("openrlhf-cov evaluate: error: ")
        assert output.err.count("\n") == 1
        return output.err.removeprefix("openrlhf-cov evaluate: error: ").rstrip("\n")

    return run


@pytest.mark.parametrize(
    ("flag", "then"),
    [
        ("--model", "give a folder of a Hugging Face model, or its name on the hub or at --base_url"),
        ("--benchmarks", "--list shows the benchmarks"),
        ("--output", "give a folder for the results"),
    ],
)
def test_a_missing_flag_is_refused(refusal, flag, then):
    assert refusal({flag: None}) == f"{flag} is missing; {then}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--benchmarks": "aime2"}, "--benchmarks aime2: no benchmark 'aime2'; did you mean aime25?"),
        ({"--protocol": "papr"}, "--protocol papr: no such protocol; choose one of paper, quick"),
        (
            {"--template": "qwen"},
            "--template qwen: no such prompt template; choose one of "
            "qwen-boxed, qwen-code, chat, plain, plain-code, none",
        ),
        (
            {"--chat_template_kwargs": '{"enable_thinking": false}'},
            "--chat_template_kwargs only applies with --template chat, got qwen-boxed; drop one of the two",
        ),
        (
            {"--chat_template_kwargs": "enable_thinking=false"},
            "--chat_template_kwargs 'enable_thinking=false': it is not a JSON object; write "
            """'{"enable_thinking": false}'""",
        ),
        (
            {"--template": "chat", "--chat_template_kwargs": '{"tokenize": true}'},
            "--chat_template_kwargs: tokenize cannot be changed; give arguments of the template alone",
        ),
        ({"--limit": "0"}, "--limit 0: must be at least 1"),
        ({"--limit": "x"}, "--limit x: must be a whole number"),
        ({"--model": "large"}, "--model large is not served at {url}; it serves tiny"),
        (
            {"--benchmarks": "math500", "--data_dir": "{folder}", "--samples": "1", "--temperature": "0"},
            "--data_dir {folder}: no file math500.jsonl, which math500 needs",
        ),
        ({"--samples": "0"}, "sums: --samples 0: must be at least 1"),
        ({"--temperature": "0"}, "sums: --samples 3 with --temperature 0: greedy responses are all the same; use 1"),
        ({"--top_p": "0"}, "sums: --top_p 0.0: must be a fraction in (0, 1]"),
        (
            {"--num_engines": "2"},
            "--num_engines is for engines started here and has no effect with --base_url; drop it",
        ),
        ({"--concurrency": "0"}, "--concurrency 0: must be at least 1"),
        ({"--reward_timeout": "0"}, "--reward_timeout 0.0: must be a number of seconds in (0, 86400]"),
        ({"--smaples": "2"}, "--smaples 2: unknown flag; did you mean --samples?"),
    ],
)
def test_a_bad_flag_is_refused(refusal, openai_server, tmp_path, changes, message):
    changes = {flag: value.replace("{folder}", str(tmp_path)) for flag, value in changes.items()}
    assert refusal(changes) == message.replace("{folder}", str(tmp_path)).replace("{url}", openai_server.url)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_used_is_refused(refusal, evaluate_flags, problems_file, tmp_path, capsys, words):
    for folder in (problems_file, problems_file / "run"):
        assert refusal({"--output": folder}) == f"--output {folder}: {problems_file} is a file; give a folder"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    message = "is not empty and holds no evaluation; choose another folder"
    assert refusal({"--output": tmp_path / "full"}).endswith(message)
    assert evaluate.main(words(evaluate_flags)) == 0
    capsys.readouterr()
    assert refusal({"--seed": "1"}) == (
        f"--output {tmp_path / 'run'} holds another run: seed was 0, now 1; choose another folder"
    )


def test_regrading_needs_a_run(refusal, tmp_path, capsys):
    assert evaluate.main(["--regrade"]) == 2
    assert "--output is missing" in capsys.readouterr().err
    message = f"{tmp_path} is not the folder of an evaluation: run.json: No such file or directory; give its --output"
    assert refusal({"--output": tmp_path}, "--regrade") == message


def test_results_that_cannot_be_written_are_refused(evaluate_flags, tmp_path, capsys, words):
    assert evaluate.main(words(evaluate_flags)) == 0
    (tmp_path / "run" / "report.html").unlink()
    (tmp_path / "run" / "report.html").mkdir()
    capsys.readouterr()
    assert evaluate.main(words(evaluate_flags)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"openrlhf-cov evaluate: error: {tmp_path / 'run'} cannot be written: ")
