"""Whatever stands in a file that we read: it is passed over, or refused in one line; never a traceback.

A module that reads JSON is among ``READERS``, or it says in ``OWN`` that its bytes are our own.
"""

import ast
import gzip
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from openrlhf_cov.analysis.foreign_logs import read_csv, read_events
from openrlhf_cov.analysis.json_rows import JsonRows
from openrlhf_cov.analysis.report.token_view import passages, read_tokens
from openrlhf_cov.analysis.runs import interventions, read_run
from openrlhf_cov.cli import serve_reward
from openrlhf_cov.config import RewardConfig
from openrlhf_cov.data.columns import problem_of
from openrlhf_cov.data.inputs import Keys, open_sources
from openrlhf_cov.data.overlap import read_evaluation_sets
from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation import response_records, samples, summary, tables
from openrlhf_cov.evaluation.benchmarks import BENCHMARKS
from openrlhf_cov.evaluation.data import load_problems
from openrlhf_cov.experiments.tiny_task.task_files import read_task
from openrlhf_cov.rewards import response_files
from openrlhf_cov.rewards.service import parse_request
from openrlhf_cov.trainer.checkpoint import checkpoints
from openrlhf_cov.trainer.preflight import dry_run, preflight
from openrlhf_cov.trainer.preflight.check_data import load_rows
from openrlhf_cov.utils.metrics_log import MetricsLog, read_metrics

OWN = {
    "rewards/worker.py": "what the pool writes to its worker",
    "rewards/code/inside/program.py": "requests of ours, and calls that carry what JSON holds",
    "rewards/code/inside/peer.py": "messages of a program, in a sandboxed process whose fault is the program's",
    "rewards/code/judge.py": "messages of a sandbox; what cannot be read is a wrong value",
    "rewards/code/fusion.py": "answers of a service; test_fusion.py",
    "rewards/code/tests.py": "labels; test_tests.py",
    "rewards/code/datasets.py": "rows of data sets; test_datasets.py",
    "rewards/worker_process.py": "what a worker writes to its pool",
    "config.py": "the flag with arguments of a chat template; test_prompts.py",
    "cluster/host/installed.py": "what a process that doctor starts writes",
    "experiments/lab/request.py": "the record of a run of the lab; tests/cli/test_refusals.py",
    "experiments/lab/base_policy_archive.py": "archives of base policies; tests/cli/test_base_policies.py",
    "experiments/tiny_task/demo_training.py": "the task that the demo has just made or checked",
    "experiments/study/run_results.py": "what a study packed; test_results.py",
    "experiments/study/result_records.py": "files of a run; test_damage.py",
    "data/rollout_files.py": "recorded rollouts; test_rollout_files.py",
    "trainer/rollout/sampler_state_file.py": "the state of a sampler; test_sampler_state_file.py",
    "experiments/tiny_task/shipped_policies.py": "files of this package",
    "integrations/closed_loop.py": "checkpoints, which are trusted input (docs/security.md)",
    "cluster/connection.py": "an environment variable that Ray sets",
}

HOSTILE = {
    "deep list": b"[" * 100_000,
    "deep closed list": b"[" * 100_000 + b"]" * 100_000,
    "deep object": b'{"a":' * 100_000,
    "null": b"null",
    "negative": b"-1",
    "text": b'"text"',
    "list": b"[1, 2]",
    "empty object": b"{}",
    "nothing": b"",
    "white space": b" \t",
    "cut": b'{"step": 3, "rew',
    "two objects": b'{"a": 1}{"b": 2}',
    "no utf-8": b'{"step": "\xff\xfe"}',
    "utf-16": '{"step": 3}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"step": 3}',
    "half a pair": b'{"step": "\\ud800", "\\ud800": 1}',
    "zero bytes": b"\0" * 100,
    "cut gzip": gzip.compress(b'{"step": 3}' * 100)[:-9],
    "NaN": b'{"step": NaN, "schema": NaN}',
    "digits": b'{"step": ' + b"9" * 10_000 + b"}",
    "control characters": b'{"step": "\x1b[31m"}',
    "other newlines": '{"step": 3}\u2028{"step": 4}\x85\x1c'.encode(),
}
# In place of a value of a record.
VALUES = [
    *(b"null", b"true", b"-1", b"0", b"1.5", b"1e999", b"-1e999", b"NaN", b"9" * 5000, b'"many"', b'""', b"[]", b"{}"),
    *(b'"\\ud800"', b'"\\u001b[31m"', b"[" * 50_000 + b"]" * 50_000, b'[null, {"a": -1}]', b"9007199254740993"),
]


def replaced(record, name, value):
    """The record as a line of JSON with the bytes ``value`` in place of one of its values."""
    text = json.dumps({**record, name: "PLACE-OF-THE-VALUE"}, ensure_ascii=False)
    return text.encode().replace(b'"PLACE-OF-THE-VALUE"', value)


HOW = {"name": "b", "version": 1, "problems": 1, "complete": True, "samples": 1, "temperature": 1.0, "top_p": 1.0}
HOW |= {"max_tokens": 8, "grader": "math", "sha256": "0", "ungradable": []}
RUN = {"model": "m", "protocol": "paper", "template": "plain", "template_text": "{problem}", "seed": 0}
RUN |= {"log_probs": False, "reward_format": "boxed", "max_model_len": 9, "benchmarks": [HOW], "packages": {}}
RUN |= {"model_sha256": None, "dtype": None, "schema": 1}
PROBLEM = {"id": "p", "problem": "1 + 1?", "answer": "2", "source": "math/tests"}
RESPONSE = {"benchmark": "b", "id": "p", "sample": 0, "seed": 1, "text": "2", "tokens": 1, "prompt_tokens": 1}
RESPONSE |= {"truncated": False, "surprisal": 0.5, "answer": "2", "status": "graded", "correct": True}
RESPONSE |= {"published": True}
STEP = {"step": 3, "time": 1.7e9, "reward": 0.5, "entropy/mean": 1.0}
TOKEN = {"token": "a", "cov": 1.0, "selected": True, "sample_id": 1, "position": 2, "before": "b", "after": "c"}


def lines(record, line):
    """A file of three records with ``line`` in place of the second."""
    whole = json.dumps(record).encode()
    return b"\n".join([whole, line, whole]) + b"\n"


def evaluation(tmp_path, run=None, problem=None, response=None):
    """Read a folder of an evaluation to its table; what is not given is as it should be."""
    asked = {"benchmark": "b"} | PROBLEM
    for name, record, line in (
        (response_records.RUN_FILE, RUN, run),
        (response_records.PROBLEMS_FILE, asked, problem),
        (response_records.RESPONSES_FILE, RESPONSE, response),
    ):
        (tmp_path / name).write_bytes(json.dumps(record).encode() + b"\n" if line is None else line + b"\n")
    how, found = samples.read_samples(tmp_path)
    scores = summary.summarize_benchmark(found[0])
    tables.table(summary.Summary(settings=how, benchmarks=(scores,), mean_avg_at_k=None))


def read_problem_file(tmp_path, line):
    path = tmp_path / "problems.jsonl"
    path.write_bytes(lines(PROBLEM, line).split(b"\n", 1)[1])
    load_problems(replace(BENCHMARKS["math500"], rows=None, path=path), None)


def read_sources(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines(PROBLEM, line))
    (source,) = open_sources(str(path), None, Keys())
    list(source.read(SimpleNamespace(update=lambda content: None)))


def read_evaluation_files(tmp_path, line):
    (tmp_path / "set.jsonl").write_bytes(lines(PROBLEM, line))
    read_evaluation_sets(tmp_path, 3).similar("1 + 1 = ?")


def read_dumped_tokens(tmp_path, line):
    path = tmp_path / "step_1.jsonl"
    path.write_bytes(lines(TOKEN, line))
    passages(read_tokens(path))


def grade_a_file(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines({"response": r"\boxed{2}", "answer": "2"}, line))
    rows = response_files.read_response_rows(path, "response", "answer")
    response_files.check_labels(path, rows, RewardConfig())


def read_metrics_on_resume(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(lines(STEP, line))
    before = path.read_bytes().split()
    log = MetricsLog(path, resumed_step=4)
    backup = path.with_name("metrics.jsonl.bak")
    kept = path.read_bytes() + (backup.read_bytes() if backup.exists() else b"")
    assert sorted(kept.split()) == sorted(before), "nothing is lost"
    log.write(5, {"reward": 1.0})
    assert read_metrics(path)[-1]["step"] == 5
    assert log.values_of(3)["reward"] == 0.5


def follow_metrics(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_bytes(lines(STEP, line))
    (tmp_path / "eval.jsonl").write_bytes(lines(STEP, line))
    for columns in (None, ["reward", "entropy/mean"]):
        rows = JsonRows(tmp_path / "metrics.jsonl", columns)
        rows.read()
        assert np.isfinite(rows.table.steps).all()
        assert all(warning for warning in rows.warnings)
        interventions(read_run(tmp_path, columns=columns))


def read_checkpoint(tmp_path, line):
    (tmp_path / "global_step1").mkdir(exist_ok=True)
    (tmp_path / "latest").write_bytes(b"global_step1")
    (tmp_path / "global_step1" / "run.json").write_bytes(line)
    raise UsageError(checkpoints.differences(tmp_path, {"ranks": 2}) or "none")


def read_pointer(tmp_path, line):
    (tmp_path / "latest").write_bytes(line)
    raise UsageError(checkpoints.differences(tmp_path, {"ranks": 2}) or "none")


def read_command(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_bytes(lines(STEP, b""))
    (tmp_path / "command.txt").write_bytes(b"train_ppo_ray --cov_type " + line)
    interventions(read_run(tmp_path))


def read_recorded_settings(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_bytes(lines(STEP, b""))
    (tmp_path / "settings.json").write_bytes(line)
    interventions(read_run(tmp_path))


def read_a_task(tmp_path, line):
    (tmp_path / "task.json").write_bytes(line)
    read_task(tmp_path)


def read_model_config(tmp_path, line):
    (tmp_path / "config.json").write_bytes(line)
    dry_run._read_config(str(tmp_path))


def look_for_code(tmp_path, line):
    (tmp_path / "config.json").write_bytes(line)
    preflight._checked_config("--model", str(tmp_path), "is no model", trusted=False)


def read_a_request(tmp_path, line):
    from fastapi import HTTPException

    try:
        parse_request(line, 10)
    except HTTPException as refusal:
        raise UsageError(refusal.detail) from refusal


def read_a_table(tmp_path, line):
    path = tmp_path / "run.csv"
    path.write_bytes(b"step,entropy,reward\n1,0.5,0.5\n2,0.4,0.5\n" + line + b"\n3," + line + b",0.5\n")
    read_csv(path)


def read_event_files(tmp_path, line):
    (tmp_path / "events.out.tfevents.1.host").write_bytes(line)
    read_events(tmp_path)


def read_written_messages(tmp_path, line):
    try:
        problem_of("[" + line.decode("utf-8", "surrogateescape") + "]")
    except ValueError as refusal:
        raise UsageError(str(refusal)) from refusal


def read_a_token(tmp_path, line):
    (tmp_path / "token").write_bytes(line)
    serve_reward.read_token(tmp_path / "token")


# What is read: a good record of it, the module that reads it, and how (folder, line).
READERS = {
    "run.json of an evaluation": (
        RUN,
        "evaluation/response_records.py",
        lambda folder, line: evaluation(folder, run=line),
    ),
    "benchmark in run.json": (
        HOW,
        "evaluation/response_records.py",
        lambda folder, line: evaluation(folder, run=replaced(RUN, "benchmarks", b"[" + line + b"]")),
    ),
    "problems.jsonl": (
        {"benchmark": "b"} | PROBLEM,
        "evaluation/response_records.py",
        lambda folder, line: evaluation(folder, problem=line),
    ),
    "responses.jsonl": (
        RESPONSE,
        "evaluation/response_records.py",
        lambda folder, line: evaluation(folder, response=line),
    ),
    "file of a benchmark": (PROBLEM, "evaluation/data.py", read_problem_file),
    "file to prepare": (PROBLEM, "data/readers.py", read_sources),
    "messages in a text": ({"role": "user", "content": "1 + 1?"}, "data/columns.py", read_written_messages),
    "evaluation set": (PROBLEM, "data/overlap.py", read_evaluation_files),
    "cov_tokens": (TOKEN, "analysis/report/token_view.py", read_dumped_tokens),
    "grade": ({"response": "2", "answer": "2", "source": "math"}, "rewards/response_files.py", grade_a_file),
    "metrics.jsonl on resume": (STEP, "utils/metrics_log.py", read_metrics_on_resume),
    "metrics.jsonl and eval.jsonl": (STEP, "analysis/json_rows.py", follow_metrics),
    "run.json of a checkpoint": ({"ranks": 2}, "trainer/checkpoint/checkpoints.py", read_checkpoint),
    "latest": ({"a": 1}, "trainer/checkpoint/checkpoints.py", read_pointer),
    "command.txt": ({"a": 1}, "utils/command.py", read_command),
    "config.json of a model": ({"model_type": "llama"}, "trainer/preflight/dry_run.py", read_model_config),
    "config.json that may name code": ({"model_type": "llama"}, "trainer/preflight/preflight.py", look_for_code),
    "settings.json": (
        {"--cov_type": "none", "--algo.kl.init_coef": "0.01"},
        "utils/command.py",
        read_recorded_settings,
    ),
    "task.json": ({"task": "sum", "settings": {}}, "experiments/tiny_task/task_files.py", read_a_task),
    "request of a reward": ({"query": ["a"], "prompts": ["a"], "labels": ["a"]}, "rewards/service.py", read_a_request),
    "csv": ({"a": 1}, "analysis/foreign_logs.py", read_a_table),
    "tensorboard": ({"a": 1}, "analysis/foreign_logs.py", read_event_files),
    "token file": ({"a": 1}, "cli/serve_reward.py", read_a_token),
}


def refuses_well(reader, folder, line):
    """Run a reader; whatever it refuses, it does so in one short line."""
    folder.mkdir(exist_ok=True)
    refusal = "none"
    try:
        reader(folder, line)
    except UsageError as error:
        refusal = str(error)
    assert 0 < len(refusal) < 2000
    assert "\n" not in refusal


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("content", HOSTILE)
def test_hostile_content(tmp_path, name, content):
    refuses_well(READERS[name][2], tmp_path, HOSTILE[content])


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_hostile_values(tmp_path, name):
    record, _, reader = READERS[name]
    for field in record:
        for number, value in enumerate(VALUES):
            refuses_well(reader, tmp_path / f"{list(record).index(field)}-{number}", replaced(record, field, value))
        rest = {key: value for key, value in record.items() if key != field}
        refuses_well(reader, tmp_path / f"without-{list(record).index(field)}", json.dumps(rest).encode())


@pytest.mark.parametrize("name", READERS)
def test_good_content_is_read(tmp_path, name):
    record, _, reader = READERS[name]
    if name not in ("latest", "run.json of a checkpoint", "csv", "tensorboard", "token file"):
        line = json.dumps(record | ({"id": "other"} if name == "file of a benchmark" else {})).encode()
        reader(tmp_path, b"kl_cov" if name == "command.txt" else line)


@pytest.mark.parametrize("content", ["deep list", "null", "list", "no utf-8", "half a pair", "zero bytes", "digits"])
def test_hostile_training_data(tmp_path, content):
    path = tmp_path / "train.jsonl"
    path.write_bytes(lines({"input": "1 + 1?", "label": "2"}, HOSTILE[content]))
    data = SimpleNamespace(input_key="input", label_key="label", max_samples=10, prompt_probs=None)

    def read(folder, line):
        load_rows(SimpleNamespace(data=data), "--data.prompt_dataset", str(path), "--data.prompt_split", "train")

    refuses_well(read, tmp_path, b"")


@pytest.mark.slow
def test_every_module_that_reads_json_is_tested(ours):
    parsers = {"json.loads", "json.load", "parse_json", "parse_object", "checked", "find_record"}
    reading = {
        path
        for path in ours.paths()
        for call in ours.nodes(path)
        # Short names only: to write every called expression as text takes seconds.
        if isinstance(call, ast.Call) and isinstance(getattr(call.func, "value", call.func), ast.Name)
        if ast.unparse(call.func) in parsers
    }
    tested = {module for _, module, _ in READERS.values()} | {"evaluation/endpoint.py"}
    assert reading - {"utils/json_lines.py", "utils/record_checks.py"} <= tested | OWN.keys()
