import json
from dataclasses import fields, replace

import pytest

from openrlhf_cov.cli.make_tiny_task import main
from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig
from openrlhf_cov.experiments.tiny_task.commands_policy import COMMANDS_POLICY
from openrlhf_cov.experiments.tiny_task.task_files import (
    TASK_FILES,
    MadeTask,
    TaskSettings,
    read_task,
    recorded_settings,
    write_task,
)
from openrlhf_cov.rewards.addition import extract_answer

SMALL = BasePolicyConfig(layers=1, heads=2, hidden_size=16, intermediate_size=32, steps=2, rows_per_step=4)
SETTINGS = TaskSettings(seed=7, train_rows=40, test_rows=12)


def put_finished_task(folder, **changes):
    """The files of a task made with the defaults, without content except for task.json."""
    for name in TASK_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    settings = {**recorded_settings(TaskSettings(), BasePolicyConfig()), **changes}
    (folder / "task.json").write_text(json.dumps({"task": "tiny_addition", "settings": settings}), encoding="utf-8")


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_written_folder_is_complete_and_nothing_lies_beside_it(tmp_path):
    output = tmp_path / "new" / "task"
    task = write_task(output, SETTINGS, SMALL)
    assert [path.name for path in output.parent.iterdir()] == ["task"]
    assert all((output / name).is_file() for name in (*TASK_FILES, "benchmark.jsonl"))
    assert json.loads((output / "task.json").read_text()) == task
    assert task["settings"] == recorded_settings(SETTINGS, SMALL)
    # embedding 21 * 16, attention 4 * 16^2, MLP 3 * 16 * 32, three norms of 16
    assert task["parameters"] == 336 + 1024 + 1536 + 48
    assert set(task) == {
        *("task", "settings", "parameters", "seconds"),
        *("accuracy_greedy", "accuracy_sampled", "entropy", "mean_length"),
    }


@pytest.mark.slow
def test_rows_are_disjoint_and_labelled_with_the_sum(tmp_path):
    write_task(tmp_path / "task", SETTINGS, SMALL)
    train, test = (
        [json.loads(line) for line in (tmp_path / "task" / name).read_text().splitlines()]
        for name in ("train.jsonl", "test.jsonl")
    )
    assert (len(train), len(test)) == (40, 12)
    assert len({row["input"] for row in train + test}) == 52
    for row in train + test:
        assert set(row) == {"input", "label", "datasource"}
        assert row["datasource"] == "tiny_addition"
        a, b = row["input"].removesuffix("=").split("+")
        assert extract_answer(row["label"]) == str(int(a) + int(b))


@pytest.mark.slow
def test_the_commands_are_those_of_the_laboratory(tmp_path):
    settings = TaskSettings(task="commands", train_rows=40, test_rows=12)
    task = write_task(tmp_path / "task", settings, replace(COMMANDS_POLICY, steps=2, rows_per_step=4))
    assert task["task"] == "hidden_commands"
    assert 1 <= task["mean_length"] <= 5
    rows = [json.loads(line) for line in (tmp_path / "task" / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 40
    config = json.loads((tmp_path / "task" / "model" / "config.json").read_text())
    assert (config["head_dim"], config["num_attention_heads"], config["hidden_size"]) == (32, 4, 64)


@pytest.mark.slow
def test_the_code_task_is_graded_by_the_sandbox(needs_sandbox, tmp_path):
    settings = TaskSettings(task="code", train_rows=40, test_rows=4)
    policy = replace(SMALL, max_length=64)
    task = write_task(tmp_path / "task", settings, policy)
    assert task["task"] == "tiny_programs"
    assert 0.0 <= task["accuracy_greedy"] <= 1.0
    rows = [json.loads(line) for line in (tmp_path / "task" / "train.jsonl").read_text().splitlines()]
    assert len({row["input"] for row in rows}) == 40
    assert json.loads(rows[0]["label"])["function"] == "f"
    made = MadeTask(**{field.name: task[field.name] for field in fields(MadeTask)})
    assert read_task(tmp_path / "task", "code") == read_task(tmp_path / "task") == made
    assert read_task(tmp_path / "task", "addition") is None


@pytest.mark.slow
def test_same_settings_give_identical_files(tmp_path):
    first, second = (write_task(tmp_path / name, SETTINGS, SMALL) for name in ("first", "second"))
    assert {**first, "seconds": 0} == {**second, "seconds": 0}
    for name in TASK_FILES:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name


def test_failed_run_leaves_nothing(tmp_path):
    # the optimizer refuses the setting, after the data files were written
    broken = BasePolicyConfig(layers=1, heads=2, hidden_size=16, intermediate_size=32, learning_rate=-1.0)
    with pytest.raises(ValueError, match="Invalid learning rate"):
        write_task(tmp_path / "task", SETTINGS, broken)
    assert list(tmp_path.iterdir()) == []


def test_finished_task_with_the_same_settings_is_reused(tmp_path, capsys):
    put_finished_task(tmp_path)
    before = files_of(tmp_path)
    assert main(["--output", str(tmp_path)]) == 0
    assert files_of(tmp_path) == before
    assert capsys.readouterr().out == f"{tmp_path} already holds this task; nothing to do\n"
