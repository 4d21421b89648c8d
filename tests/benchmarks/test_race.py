import json
from argparse import Namespace

import pytest


@pytest.fixture(scope="module")
def race(load_benchmark):
    return load_benchmark("race/race")


def test_a_table_has_the_median_and_the_ends_of_every_contestant(race, tmp_path):
    rows = [{"name": name, **dict.fromkeys(race.COLUMNS.values(), value)} for name, value in MEASURED]
    results = tmp_path / "embedded.jsonl"
    results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = race.table(race.read(results)).splitlines()
    assert lines[2].startswith("| none | 2 (1–4) | 2 (1–4) |")
    assert lines[2].endswith("| 3 |")
    assert lines[3].startswith("| trl | 2.71 (2.71–2.71) |")
    assert {line.count("|") for line in lines} == {len(race.COLUMNS) + 3}


MEASURED = [("none", 2.0), ("trl", 2.71), ("none", 1.0), ("none", 4.0)]


def test_a_step_is_read_from_what_upstream_logs(race):
    line = "(CovPPOTrainer pid=7) INFO ✨ Global step 3: {'timing/generation': 1.5, 'policy_loss': nan}\n"
    assert race.steps_of(2 * line) == [{"timing/generation": 1.5, "policy_loss": None}] * 2


@pytest.mark.parametrize(("task", "prompts"), [("embedded", None), ("smollm2", None), ("smollm2", 4)])
def test_every_contestant_does_the_same_work(race, tmp_path, task, prompts):
    args = Namespace(task=task, folder=tmp_path, steps=4, trl=tmp_path / "trl", prompts=prompts)
    commands = {name: race.command(name, args, tmp_path / "out")[0] for name in (*race.OURS, *race.OTHERS)}
    trl = commands.pop("trl")
    value = lambda argv, flag: argv[argv.index(flag) + 1]  # noqa: E731
    for argv in commands.values():
        upstream = {
            "--prompts": value(argv, "--rollout.batch_size"),
            "--samples": value(argv, "--rollout.n_samples_per_prompt"),
            "--train_batch": value(argv, "--train.batch_size"),
            "--micro_batch": value(argv, "--train.micro_batch_size"),
            "--new_tokens": value(argv, "--rollout.max_new_tokens"),
            "--lr": value(argv, "--actor.adam.lr"),
            "--kl_coef": value(argv, "--algo.kl.init_coef"),
            "--model": value(argv, "--actor.model_name_or_path"),
            "--data": value(argv, "--data.prompt_dataset"),
        }
        assert {flag: value(trl, flag) for flag in upstream} == upstream
        assert ("--actor.gradient_checkpointing_enable" in argv) == ("--checkpointing" in trl)
    if prompts:  # a quarter of the prompts in as many updates
        assert (value(trl, "--prompts"), value(trl, "--train_batch")) == ("4", "16")
