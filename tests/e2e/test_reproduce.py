"""Two figures of the paper at the tiny scale: trained, reported, drawn; one in the laboratory, one through Ray."""

import json
import os
import sys

import pytest
from ending import ended

from openrlhf_cov.experiments.reproduction.exhibits import FIGURES
from openrlhf_cov.experiments.tiny_task.task_files import TaskSettings, write_task
from openrlhf_cov.utils.metrics_log import read_metrics

pytestmark = [pytest.mark.e2e, pytest.mark.long]


@pytest.fixture(scope="module")
def reproduce(tmp_path_factory):
    """Function (words) -> what `openrlhf-cov reproduce` prints; runs of all calls lie in one folder."""
    folder = tmp_path_factory.mktemp("reproduce")
    env = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}

    def run(*words):
        command = [sys.executable, "-m", "openrlhf_cov.cli.main", "reproduce", *words, "--scale", "tiny", "--run"]
        command += ["--output", str(folder / "out")]
        return ended(command, f"reproduce {' '.join(words)}", env=env).stdout

    run.output = lambda steps: folder / "out" / f"{steps}-steps"
    return run


def test_figure_8_in_the_laboratory(reproduce):
    figure = FIGURES[8]
    printed = reproduce("--figure", "8", "--steps", "3")
    for run in figure.runs:
        metrics = read_metrics(reproduce.output(3) / run.tiny_name / "metrics.jsonl")
        assert [line["step"] for line in metrics] == [1, 2, 3]
        assert all(line["cov/group_weighted_mean"] is not None for line in metrics)
    drawn = reproduce.output(3) / "figure8" / "figures"
    assert all((drawn / f"{name}.svg").is_file() for name in figure.pictures)
    assert str(drawn) in printed
    again = reproduce("--figure", "8", "--steps", "3")
    assert again.count("already holds this run; nothing to do") == len(figure.runs)


def test_figure_6_through_ray(reproduce):
    """Five estimators; two steps have no law, and no coefficients to compare."""
    from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig

    write_task(
        reproduce.output(2) / "tiny_task", TaskSettings(train_rows=64, test_rows=16), BasePolicyConfig(steps=30)
    )
    reproduce("--figure", "6", "--steps", "2")
    for run in FIGURES[6].runs:
        assert len(read_metrics(reproduce.output(2) / run.tiny_name / "metrics.jsonl")) == 2
    law = json.loads((reproduce.output(2) / "figure6" / "law.json").read_text())
    assert len(law["runs"]) == 5
    assert law["same_coefficients"]["reason"]
