"""Which checkpoint a run goes on from, and which of them stay."""

import json
import os
from functools import partial
from pathlib import Path

import pytest
from run_flags import run_flags
from transformers import LlamaConfig

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.trainer.checkpoint import checkpoints
from openrlhf_cov.trainer.checkpoint.checkpoints import (
    comparable_metric,
    describe_run,
    differences,
    point_back,
    pointed_to,
    prune,
    save_whole,
    tag_to_restore,
    uses_checkpoints,
)

RUN = {"ranks": 2, "ZeRO stage": 2}


def save(folder, tag, run=RUN):
    save_whole(
        lambda name: (folder / name).mkdir(parents=True), folder, tag, run, first=True, share=lambda error: [error]
    )


def test_a_checkpoint_of_upstream_is_not_compared(tmp_path):
    (tmp_path / "latest").write_text("global_step1")
    (tmp_path / "global_step1").mkdir()
    assert differences(tmp_path, RUN) is None


@pytest.mark.parametrize(
    ("policy", "critic", "expected"),
    [
        ([1, 2], [1, 2], "global_step2"),
        ([1], [1, 2], "global_step1"),  # killed after the critic's was complete
        ([1, 2], [1], "global_step1"),  # and after the policy's
        ([2], [1], None),  # none that both have: each takes its own, and the controller ends the run
        ([1, 2], [], None),
        ([1, 2], None, "global_step2"),
    ],
)
def test_policy_and_critic_restore_what_both_have(tmp_path, policy, critic, expected):
    for model, steps in (("_actor", policy), ("_critic", critic or [])):
        for step in steps:
            save(tmp_path / model, f"global_step{step}")
    args = run_flags({"ckpt.path": str(tmp_path), "critic.model_name_or_path": None if critic is None else "model"})
    folders = [tmp_path / "_actor"] + [tmp_path / "_critic"] * (critic is not None)
    own = [pointed_to(folder) for folder in folders]
    restored = [expected] * len(folders) if expected else own
    assert [tag_to_restore(args, folder) for folder in folders] == restored
    # the run goes on from there and saves the newest step once more: a second resume finds it in both
    if expected and critic:
        following = f"global_step{int(expected[-1]) + 1}"
        for folder in folders:
            point_back(folder, expected)
            save(folder, following)
        assert [tag_to_restore(args, folder) for folder in folders] == [following] * 2
    args.ds.use_universal_ckpt = True  # whose pointer DeepSpeed reads
    assert {tag_to_restore(args, folder) for folder in folders} == {None}


def test_the_checkpoint_that_the_other_model_points_to_stays(tmp_path):
    save(tmp_path / "_actor", "global_step1")
    for step in (1, 2, 3):
        save(tmp_path / "_critic", f"global_step{step}")
    prune(tmp_path / "_critic", "global_step3", 1, float("inf"), lambda path: None)
    assert {path.name for path in (tmp_path / "_critic").iterdir()} == {"global_step1", "global_step3", "latest"}


@pytest.mark.parametrize(
    ("save_steps", "eval_steps", "best", "on_signal", "disable_ds", "load_enable", "expected"),
    [
        (2, -1, "", "stop", False, False, True),
        (-1, -1, "", "checkpoint", False, False, True),
        (-1, 4, "eval_task_pass1", "stop", False, False, False),  # the best model is an export
        (-1, 4, "none", "stop", False, False, False),
        (-1, -1, "", "stop", False, False, False),
        (2, 4, "", "checkpoint", True, False, False),
        (-1, -1, "", "stop", True, True, True),
    ],
)
def test_which_runs_use_checkpoints(save_steps, eval_steps, best, on_signal, disable_ds, load_enable, expected):
    args = run_flags({
        "ckpt.save_steps": save_steps, "ckpt.best_metric_key": best, "ckpt.disable_ds": disable_ds,
        "ckpt.load_enable": load_enable, "eval.dataset": "data", "eval.steps": eval_steps, "on_signal": on_signal,
    })  # fmt: skip
    assert uses_checkpoints(args) is expected


def test_old_checkpoints_go_and_the_newest_stays(tmp_path):
    metrics = {"global_step1": 0.9, "global_step2": None, "global_step3": 0.1, "global_step4": 0.0, "best_step2": 0.9}
    for age, name in enumerate(metrics):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (age, age))
    metric_of = lambda path: metrics[os.path.basename(path)]  # noqa: E731
    prune(tmp_path, "global_step4", 2, float("inf"), metric_of)
    # four regular ones, two may stay: the one without metric goes, then 0.1; 0.0 is worse but the newest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best_step2", "global_step1", "global_step4"]
    prune(tmp_path, "global_step4", 1, float("inf"), metric_of)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best_step2", "global_step4"]


def test_metrics_of_other_evaluations_do_not_rank(tmp_path):
    """0.9 on an easy set says nothing beside 0.5 on a hard one: of the former checkpoints none is kept."""
    for step, (metric, kind) in enumerate(
        [(0.9, "easy"), (0.85, "easy"), (0.5, "hard"), (0.4, "hard"), (0.3, "hard")]
    ):
        folder = tmp_path / f"global_step{step}"
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"evaluation": {"eval.dataset": kind}, "metric": metric}))
        os.utime(folder, (step, step))

    def metric_of(place):
        return json.loads(Path(place, "run.json").read_text())["metric"]

    run = {"evaluation": {"eval.dataset": "hard"}}
    prune(tmp_path, "global_step4", 3, float("inf"), partial(comparable_metric, run, metric_of))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step2", "global_step3", "global_step4"]
    assert comparable_metric(run, metric_of, str(tmp_path / "global_step2")) == 0.5
    (tmp_path / "global_step2" / "run.json").write_text('{"metric": 0.5}')  # of an earlier version
    assert comparable_metric(run, metric_of, str(tmp_path / "global_step2")) == 0.5
    (tmp_path / "global_step2" / "run.json").write_text("{")
    assert comparable_metric(run, metric_of, str(tmp_path / "global_step2")) is None


def test_a_new_best_replaces_the_old_best_alone(tmp_path):
    for name in ("best_step1", "best_step2", "global_step2"):
        (tmp_path / name).mkdir()
    prune(tmp_path, "best_step2", 3, float("inf"), lambda path: 0.5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best_step2", "global_step2"]


def test_checkpoints_fit_in_the_space_they_may_take(tmp_path):
    for name in ("global_step1", "global_step2", "global_step3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "states.pt").write_bytes(b"x" * 1000)
    prune(tmp_path, "global_step3", 10, 2500 / 1024**3, lambda path: float(path[-1]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step2", "global_step3"]


def test_partial_checkpoints_are_neither_counted_nor_removed(tmp_path):
    for name in ("partial-global_step2", "global_step1", "global_step3"):
        (tmp_path / name).mkdir()
    prune(tmp_path, "global_step3", 2, float("inf"), lambda path: None)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_run_is_described_by_what_a_checkpoint_depends_on(monkeypatch):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: True)
    args = run_flags({
        "actor.num_nodes": 2, "actor.num_gpus_per_node": 4, "ds.zero_stage": 3, "ds.lora.rank": 8,
        "ds.lora.target_modules": ["v_proj", "q_proj"],
    })  # fmt: skip
    config = LlamaConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=21)
    assert describe_run(args, config) == {
        "format": 3,
        "ranks": 8,
        "ZeRO stage": 3,
        "tensor parallel size": 1,
        "dtype": "bf16",
        "Adam offload": False,
        "Adam of": "PyTorch",
        "optimizer": "adam",
        "LoRA": "rank 8, alpha 16, q_proj v_proj",
        "model_type": "llama",
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "vocab_size": 21,
    }
    args.ds.lora.rank = 0
    assert describe_run(args, config)["LoRA"] == "none"
    args.ds.enable_sleep = True  # DeepSpeed moves the states of its own Adam only
    assert describe_run(args, config)["Adam of"] == "DeepSpeed"
    args.ds.enable_sleep = False
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)
    assert describe_run(args, config)["Adam of"] == "DeepSpeed"


@pytest.mark.parametrize("pointer", ["latest", "latest_universal"])
@pytest.mark.parametrize(
    "tag",
    ["../other", "/etc", "a/b", "..", ".", "", "\n", "a\nb", "a\0b", "\x1b[31m", "a\\b", "\udc80", "é" * 9999 + "/"],
)
def test_the_pointer_does_not_lead_out_of_its_folder(tmp_path, pointer, tag):
    actor = tmp_path / "_actor"
    (actor / "a").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (actor / pointer).write_bytes(tag.encode("utf-8", "surrogateescape"))
    found = differences(actor, RUN)
    assert found.startswith(f"{pointer} names no folder beside it")
    assert found.isprintable()
    assert len(found) < 400


def test_a_pointer_that_is_a_link_is_replaced_and_not_followed(tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "_actor"
    victim.write_text("mine")
    folder.mkdir()
    for name in (".latest", ".latest.tmp", "latest"):
        (folder / name).symlink_to(victim)
    checkpoints._point_to(folder, "global_step1")
    assert victim.read_text() == "mine"
    assert (folder / "latest").read_text() == "global_step1"
    assert not (folder / "latest").is_symlink()


def test_what_either_pointer_names_is_kept(tmp_path):
    actor = tmp_path / "_actor"
    for tag in ("global_step1", "global_step2_universal", "global_step3", "global_step4"):
        (actor / tag).mkdir(parents=True)
    (actor / "latest").write_text("global_step4")
    (actor / "latest_universal").write_text("global_step2_universal")
    prune(actor, "global_step4", 2, float("inf"), lambda path: None)
    assert sorted(path.name for path in actor.iterdir() if path.is_dir()) == ["global_step2_universal", "global_step4"]
