import importlib
import os
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def step_profile(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("step_profile")
    for name in ("step_profile", "race.race", "race"):
        sys.modules.pop(name, None)


def test_the_table_has_medians_of_the_rounds_and_their_sum(step_profile):
    names = [*step_profile.PROCESSES.values(), step_profile.OTHERS]

    def rounds(*values):
        return [dict.fromkeys(names, value) for value in values]

    lines = step_profile.table({Path("before"): rounds(1.0, 4.0, 2.0), Path("after"): rounds(0.5)}).splitlines()
    assert lines[0] == "| CPU seconds | before | after |"
    assert lines[2] == "| policy: update, scoring | 2.00 (1.00–4.00) | 0.50 (0.50–0.50) |"
    # Six processes: 6, 24 and 12 seconds.
    assert lines[-1] == "| a step | 12.00 (6.00–24.00) | 3.00 (3.00–3.00) |"


def test_a_process_that_is_no_part_of_the_training_is_counted_with_the_rest(step_profile):
    assert step_profile.name_of(os.getpid()) == step_profile.OTHERS


def test_the_flags_are_those_of_the_training(step_profile, tmp_path):
    words = step_profile.flags(Path("task"), tmp_path, steps=5)
    # 5 steps of 32 prompts
    assert words[words.index("--data.max_samples") + 1] == "160"
    assert words[words.index("--ckpt.path") + 1] == f"{tmp_path}/checkpoints"
