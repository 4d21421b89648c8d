"""The check that a person with a GPU runs: here on the CPU at toy size, and with one part of it broken."""

import json

import pytest
import torch

from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.models.window import Window


@pytest.fixture(scope="module")
def gpu_check(load_benchmark):
    return load_benchmark("gpu_check")


def failed(gpu_check, check):
    rows = gpu_check.guarded(check, torch.device("cpu"), gpu_check.TOY)
    return {row.check for row in rows if row.passed is False}


@pytest.mark.slow
def test_every_check_passes_on_the_cpu_and_is_written(gpu_check, tmp_path, capsys):
    output = tmp_path / "gpu_check.json"
    assert gpu_check.main(["--device", "cpu", "--output", str(output)]) == 0
    rows = json.loads(output.read_text())["rows"]
    assert not [row for row in rows if row["passed"] is False]
    checks = " ".join(row["check"] for row in rows)
    for part in ("peak memory", "bf16 error", "sampled uniformly", "after a checkpoint", *METHODS):
        assert part in checks
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert printed[0] == "| check | value | limit | passed |"
    assert len(printed) == 2 + len(rows)


@pytest.mark.slow
def test_a_wrong_head_fails(gpu_check, monkeypatch):
    right = gpu_check.token_scores

    def wrong(*args):
        log_probs, entropy = right(*args)
        return 1.01 * log_probs, entropy

    monkeypatch.setattr(gpu_check, "token_scores", wrong)
    assert any("log-probs" in check for check in failed(gpu_check, gpu_check.output_head))
    assert any(check.endswith("clip_cov") for check in failed(gpu_check, gpu_check.update))


@pytest.mark.slow
def test_a_head_that_keeps_all_logits_fails(gpu_check, monkeypatch):
    def full(hidden, weight, bias, targets, temperature, with_entropy, block):
        return gpu_check.full_scores(hidden, weight, targets)

    monkeypatch.setattr(gpu_check, "token_scores", full)
    assert failed(gpu_check, gpu_check.output_head) == {"head: peak memory, chunked / full"}


@pytest.mark.slow
def test_another_selection_on_the_device_fails(gpu_check, monkeypatch):
    right = Window.largest
    calls = []

    def wrong(self, values, fraction):
        calls.append(fraction)
        return right(self, values, fraction * len(calls))  # the second call is that of the device

    monkeypatch.setattr(Window, "largest", wrong)
    (check,) = failed(gpu_check, gpu_check.selection)
    assert check.startswith("selection: ")


@pytest.mark.slow
def test_a_loss_that_is_not_finite_fails(gpu_check, monkeypatch):
    right = gpu_check.token_scores

    def wrong(*args):
        log_probs, entropy = right(*args)
        return log_probs / 0.0, entropy

    monkeypatch.setattr(gpu_check, "token_scores", wrong)
    assert len(failed(gpu_check, gpu_check.update)) == len(METHODS) + 1


def test_moments_that_stay_after_a_checkpoint_fail(gpu_check, monkeypatch):
    pytest.importorskip("deepspeed")
    monkeypatch.setattr(gpu_check, "drop_offload_buffers", lambda optimizer: None)
    (check,) = failed(gpu_check, gpu_check.optimizer_states)
    assert check.startswith("optimizer states: moments")


def test_an_error_in_a_check_is_a_row_that_fails(gpu_check):
    def broken(device, sizes):
        yield gpu_check.Row("first", 0.0, 1.0)
        raise RuntimeError("no kernel\nfor this")

    first, second = gpu_check.guarded(broken, torch.device("cpu"), gpu_check.TOY)
    assert first.passed is True
    assert (second.value, second.passed) == ("RuntimeError: no kernel", False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")
def test_without_a_gpu_the_message_names_the_other_device(gpu_check, capsys):
    with pytest.raises(SystemExit, match="2"):
        gpu_check.main([])
    assert "--device cpu" in capsys.readouterr().err
