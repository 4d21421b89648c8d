import json

import pytest

from openrlhf_cov.analysis.runs import interventions, read_run
from openrlhf_cov.cli import lab
from openrlhf_cov.experiments.lab import tasks
from openrlhf_cov.experiments.lab.request import LabRequest, build_parser
from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig
from openrlhf_cov.utils.metrics_log import read_metrics
from openrlhf_cov.utils.output_folders import alone_in

SHORT = """
    --steps 3 --updates 2 --rollout.batch_size 4 --rollout.n_samples_per_prompt 2
    --eval.steps 2 --eval.n_samples_per_prompt 2
""".split()


@pytest.fixture
def base_policies(tmp_path, monkeypatch):
    """Flags of a folder for base policies that are made in a moment."""
    small = BasePolicyConfig(
        layers=1, heads=2, hidden_size=16, intermediate_size=32, max_length=16, steps=2, tied=False
    )
    monkeypatch.setattr(tasks, "COMMANDS_POLICY", small)
    return ["--base_policies", str(tmp_path / "base")]


@pytest.mark.slow
def test_a_run_writes_what_other_commands_read(tmp_path, base_policies, capsys):
    output = tmp_path / "run"
    assert lab.main(["--output", str(output), *base_policies, *SHORT]) == 0
    assert [line["step"] for line in read_metrics(output / "metrics.jsonl")] == [1, 2, 3]
    evaluations = read_metrics(output / "eval.jsonl")
    assert [line["step"] for line in evaluations] == [0, 1, 2, 3]
    result = json.loads((output / "result.json").read_text())
    assert {name: evaluations[-1].get(name) for name in result if not name.startswith("test/")} == {
        name: value for name, value in result.items() if not name.startswith("test/")
    }
    test = json.loads((output / "test.json").read_text())
    assert len(test["right"]) == len(test["greedy"]) == len(test["prompts"]) == 256
    assert result["test/greedy"] == pytest.approx(sum(test["greedy"]) / 256)
    assert result["test/sampled"] == pytest.approx(sum(test["right"]) / 256 / test["samples"])
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{output}: 3 steps of commands; follow them with ")
    assert any(line.startswith("step 2: reward") for line in others)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "warning"),
    [
        # No token of this policy has such a covariance.
        ("--method clip_cov --clip_cov_lb 50 --clip_cov_ub 60", "step 1: no token had its covariance between"),
        # After the only update of a rollout nothing is trained on its samples.
        ("--method kl_cov --updates 1", "--method kl_cov with one update per rollout: it has no effect"),
        ("--method cispo --updates 1", "--method cispo with one update per rollout: its cap has no effect"),
        ("--actor.eps_clip_low_high 0.2 0.28 --updates 1", "--actor.eps_clip_low_high 0.2 0.28 with one update"),
        ("--method cispo", None),
        ("--method clip_b --updates 1", None),
        # All tokens are in the band.
        ("--method clip_cov --clip_cov_lb=-50 --clip_cov_ub 60", None),
    ],
)
def test_a_method_without_effect_is_warned_of_once(tmp_path, base_policies, capsys, flags, warning):
    lab.main(["--output", str(tmp_path / "run"), *base_policies, *SHORT, *flags.split()])
    lines = capsys.readouterr().out.splitlines()
    warnings = [line for line in lines if line.startswith(("step ", "--")) and ": reward" not in line]
    assert all("--train.batch_size" not in line for line in warnings)  # the advice has a flag of the lab
    assert len(warnings) == (0 if warning is None else 1)
    assert warning is None or warning in warnings[0]


@pytest.mark.slow
def test_no_program_but_the_lab_says_what_a_run_of_the_lab_had(tmp_path, base_policies):
    output = tmp_path / "run"
    lab.main(["--output", str(output), *base_policies, *SHORT])
    run = read_run(output)
    assert run.setting("--algo.kl.init_coef") == "0.0"
    assert run.setting("--rollout.batch_size") == "4"
    assert run.setting("--cov_type") == "none"
    assert interventions(run) == []  # upstream's default of --algo.kl.init_coef is 0.01
    (output / "settings.json").unlink()  # of a run that was made before this file existed
    assert interventions(read_run(output)) == []
    lab.main(["--output", str(tmp_path / "kl"), *base_policies, *SHORT, "--algo.kl.init_coef", "0.1"])
    assert interventions(read_run(tmp_path / "kl")) == ["--algo.kl.init_coef 0.1"]


@pytest.mark.slow
def test_a_complete_run_is_left_alone_and_a_cut_one_is_made_again(tmp_path, base_policies, capsys):
    output = tmp_path / "run"
    command = ["--output", str(output), *base_policies, *SHORT, "--method", "cispo"]
    lab.main(command)
    first = (output / "metrics.jsonl").read_bytes()
    assert lab.main(command) == 0
    assert (output / "metrics.jsonl").read_bytes() == first
    assert "nothing to do" in capsys.readouterr().out
    (output / "result.json").unlink()
    (output / "metrics.jsonl").write_bytes(first[:100])
    assert lab.main(command) == 0

    def numbers(content):
        lines = [json.loads(line) for line in content.splitlines()]
        return [{k: v for k, v in line.items() if k != "time" and not k.startswith("timing/")} for line in lines]

    assert numbers((output / "metrics.jsonl").read_bytes()) == numbers(first)


@pytest.mark.slow
def test_a_run_that_was_made_before_a_setting_existed_counts(tmp_path, base_policies, capsys):
    output = tmp_path / "run"
    command = ["--output", str(output), *base_policies, *SHORT]
    lab.main(command)
    record = json.loads((output / "lab.json").read_text())
    del record["cispo_cap"], record["random_reward"]
    record |= {"clip": [0.2, 0.2], "allow_large_cov_ratio": True}  # no number depends on the second
    (output / "lab.json").write_text(json.dumps(record))
    assert lab.main(command) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert lab.main([*command, "--random_reward"]) == 2
    assert "does not hold this run (--random_reward False there, True here)" in capsys.readouterr().err


def test_a_clip_in_place_of_the_methods_is_another_run(tmp_path, base_policies, capsys):
    command = ["--output", str(tmp_path / "run"), *base_policies, *SHORT, "--cov_type", "clip_cov"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lab.json").write_text(json.dumps(LabRequest.of(build_parser(), command).record))
    assert lab.main([*command, "--actor.eps_clip_low_high", "0.2", "0.2"]) == 2
    assert "does not hold this run" in capsys.readouterr().err


def test_two_processes_do_not_write_one_run(tmp_path, base_policies, capsys):
    with alone_in(tmp_path / "run"):
        assert lab.main(["--output", str(tmp_path / "run"), *base_policies, *SHORT]) == 2
    assert "another process is writing there" in capsys.readouterr().err
    with alone_in(tmp_path / "run"):  # which has ended
        assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


@pytest.mark.slow
def test_base_policies_are_made_once(tmp_path, monkeypatch, base_policies):
    task = tasks.TASKS["commands"]()
    made, again = (task.base_policy(tmp_path / "base", 0)[0] for _ in range(2))
    other, _ = task.base_policy(tmp_path / "base", 1)
    for first, second, third in zip(made.parameters(), again.parameters(), other.parameters(), strict=True):
        assert first.equal(second)
        assert first.dim() == 1 or not first.equal(third)


@pytest.mark.slow
def test_a_run_at_a_target_entropy(tmp_path, base_policies, capsys):
    output, target = tmp_path / "run", ["--method", "positive_weight", "--entropy_target"]
    assert lab.main(["--output", str(output), *base_policies, *SHORT, *target, "9e-3"]) == 0
    lines = read_metrics(output / "metrics.jsonl")
    assert [line["control/value"] for line in lines] == [1.0] * 3  # the entropy of a fresh policy is far above it
    assert all(line["control/gap"] == pytest.approx(9e-3 - line["entropy/mean"], abs=1e-6) for line in lines)
    assert lab.main(["--output", str(tmp_path / "other"), *base_policies, *SHORT, *target, "40"]) == 2
    assert "--entropy_target 40 is out of reach" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_a_damaged_run_is_made_again(tmp_path, base_policies, capsys):
    output = tmp_path / "run"
    command = ["--output", str(output), *base_policies, *SHORT]
    lab.main(command)
    damages = {"eval.jsonl": "", "metrics.jsonl": '{"step": 1', "test.json": "[]", "result.json": ""}
    for name, content in damages.items():
        (output / name).write_text(content)
        assert lab.main(command) == 0
        assert f"{output} is damaged" in capsys.readouterr().err
    assert lab.main(command) == 0
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_damaged_base_policy_is_named(tmp_path, base_policies, capsys, name):
    lab.main(["--output", str(tmp_path / "first"), *base_policies, *SHORT])
    path = tmp_path / "base" / "commands-0" / name
    path.write_bytes(path.read_bytes()[:20])
    assert lab.main(["--output", str(tmp_path / "second"), *base_policies, *SHORT]) == 2
    assert str(path.parent) in capsys.readouterr().err
    assert not (tmp_path / "second").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content"),
    [("model.safetensors", None), ("config.json", None), ("config.json", b"{}"), ("lab.json", b"\xff[")],
)
def test_a_base_policy_that_lacks_a_file_is_made_again(tmp_path, base_policies, name, content):
    task = tasks.TASKS["commands"]()
    first, _ = task.base_policy(tmp_path / "base", 0)
    path = tmp_path / "base" / "commands-0" / name
    path.unlink() if content is None else path.write_bytes(content)
    again, _ = task.base_policy(tmp_path / "base", 0)
    assert all(a.equal(b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
