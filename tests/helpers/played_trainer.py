"""A study through Ray whose trainings are played."""

import json

import yaml

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.experiments.study import ray_runs
from openrlhf_cov.experiments.study.ray_runs import RayStudy
from openrlhf_cov.experiments.study.spec_file import read_spec

ASKED = "--benchmarks aime24 --samples 4"
FLAGS = "--actor.model_name_or_path m --data.prompt_dataset d --reward.remote_url r.py --vllm.num_engines 1"
TEST = {"kinds": ["easy", "hard"], "samples": 4, "greedy": [1, 0], "right": [4, 1]}


def write_spec(folder, **changes):
    """Write a study of two runs, with these changes, into a file of that folder."""
    path = folder / "short.yaml"
    content = {"title": "t", "task": "math", "engine": "ray", "flags": FLAGS, "test": ASKED}
    path.write_text(yaml.safe_dump(content | {"seeds": [0, 1], "arms": [{"name": "GRPO"}]} | changes))
    return path


class Trainer:
    """Plays the commands that a study starts: a training that may break off after its first step."""

    def __init__(self, monkeypatch) -> None:
        self.calls: list[list[str]] = []
        self.environments: list[dict[str, str]] = []
        self.breaks_off = False
        monkeypatch.setattr(ray_runs, "call", self)
        monkeypatch.setattr(ray_runs, "seen_by_evaluate", lambda *_: ({3: {"greedy": 0.5}}, TEST))

    def __call__(self, words, log, environment=None):
        self.calls.append(list(words))
        self.environments.append(dict(environment or {}))
        folder = log.parent
        (folder / "metrics.jsonl").write_text("".join(
            json.dumps({"step": step, "time": 0.0, "reward": 0.1, "timing/step_total": 2.0 + step}) + "\n"
            for step in ((1,) if self.breaks_off else (1, 2, 3))
        ))  # fmt: skip
        if self.breaks_off:
            raise RunStopped("broken off")
        assert not list(folder.glob("*.safetensors"))  # of a training that was cut off
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"")


def ray_study(path, tmp_path):
    return RayStudy(read_spec(path), tmp_path / "out", tmp_path / "base")
