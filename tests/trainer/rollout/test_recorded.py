"""Recorded rollouts: what a step writes is what a later run trains on, and files that do not fit end the run."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from character_tokenizer import character_tokenizer
from scored_samples import flags, sample
from texts import missing, refusal_of

from openrlhf_cov.config import SamplingConfig
from openrlhf_cov.data.rollout_files import read_header, read_rollout, recorded_steps, rollout_path, write_rollout
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.experiments.tiny_task.tokenizer import build_tokenizer
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.trainer.records import Rollout
from openrlhf_cov.trainer.rollout.generation import EngineGroup
from openrlhf_cov.trainer.rollout.recorded import RecordedSampler, RolloutRecorder
from openrlhf_cov.trainer.rollout.rollouts import checked_samples

TOKENIZER = character_tokenizer()


@pytest.fixture
def args(tmp_path):
    """The flags of a run with 2 prompts of 4 samples each, which reads from and writes to two folders."""
    args = flags()
    vars(args).update(vars(SamplingConfig()) | vars(CovConfig()))
    args.ds.zero_stage = 2
    args.rollout_dump_dir = str(tmp_path / "dump")
    args.rollout_replay_dir = str(tmp_path / "dump")
    return args


def rollout(step=1, **fields):
    """The eight samples of a step; one text with two labels, of which the second comes first, one reward failed."""
    samples = [
        sample(
            number,
            reward=float(number % 2),
            prompt=1 + number // 4,
            rollout_log_probs=torch.full((2 + number // 4,), -step / 3),
            source="maths",
            label="z" if number < 4 else "b",
            prompt_number=10 + number // 4,
            metrics={"a": 1 / 3} if number else {"a": 0.0, "reward/error_frac": 0.0},
            **{"sample_id": -1},
        )
        for number in range(8)
    ]
    samples = [replace(each, prompt="a") for each in samples]
    given = {"metrics": {"sampling/kept": 1.0}, "seconds": 2.0, "pass_rate": 40.0, "sampler_state": {"is_over": False}}
    return Rollout(samples, **given | fields)


def record(args, steps=2):
    """Write the files of some steps; return the samples of each, as the models of the run scored them."""
    recorder = RolloutRecorder(args, TOKENIZER)
    found = []
    for step in range(1, steps + 1):
        made = rollout(step)
        samples = checked_samples(made.samples, CovConfig(), 1.0)
        recorder.write(step, made, samples)
        found.append(samples)
    return found


def sampler(args, vocabulary=200, tokenizer=TOKENIZER):
    return RecordedSampler(args, EngineGroup([]), tokenizer, vocabulary)


def assert_same(recorded, replayed):
    for one, other in zip(recorded, replayed, strict=True):
        for name, value in vars(one).items():
            found = getattr(other, name)
            if isinstance(value, torch.Tensor):
                assert (found.dtype, found.tolist()) == (value.dtype, value.tolist()), name
            elif name != "label":  # nothing reads it after the reward
                assert found == value, name


def test_a_replayed_step_has_the_samples_that_the_models_scored(args):
    recorded = record(args)
    replay = sampler(args)
    for step, samples in enumerate(recorded, start=1):
        found = replay.next_batch(0)
        assert found.sampler_state == {"step": step, "is_over": step == 2}
        assert (found.metrics, found.pass_rate) == ({"sampling/kept": 1.0}, 40.0)
        # Samples are checked again, and keep the numbers that the labels gave them, which are not recorded.
        replayed = checked_samples(found.samples, CovConfig(), 1.0)
        assert [each.sample_id for each in replayed] == [4, 5, 6, 7, 0, 1, 2, 3]
        assert_same(samples, replayed)
    assert replay.next_batch(0) is None


def test_the_file_of_a_step_says_what_it_is(args):
    record(args)
    header = read_header(rollout_path(args.rollout_dump_dir, 2))
    assert (header.step, header.samples_per_prompt, header.prompts_per_step) == (2, 4, 2)
    assert header.metrics == {"sampling/kept": 1.0, "dynamic_filtering_pass_rate": 40.0}
    first = read_rollout(rollout_path(args.rollout_dump_dir, 1)).samples[0]
    assert (first.prompt, first.prompt_number, first.source, first.score) == ("a", 10, "maths", 0.0)
    assert first.metrics == {"a": 0.0, "reward/error_frac": 0.0}


def test_a_resumed_run_continues_with_the_following_file(args):
    recorded = record(args, steps=3)
    replay = sampler(args)
    # The state may also be that of a run that generated.
    replay.restore({"step": 2, "groups": [], "is_over": False})
    assert_same(recorded[2], replay.next_batch(2).samples)
    assert replay.next_batch(3) is None


def test_a_resumed_run_sets_the_files_of_later_steps_aside(args):
    record(args, steps=3)
    folder = Path(args.rollout_dump_dir)
    RolloutRecorder(args, TOKENIZER).set_aside_after(1)
    assert recorded_steps(folder) == [1]
    assert sorted(path.name for path in folder.glob("*.bak")) == [
        "step_000002.safetensors.bak", "step_000003.safetensors.bak"
    ]  # fmt: skip
    record(args, steps=2)
    RolloutRecorder(args, TOKENIZER).set_aside_after(1)
    assert recorded_steps(folder) == [1]
    assert (folder / "step_000002.safetensors.bak1").is_file()


def test_a_reward_that_is_no_number_ends_the_run(args):
    record(args, steps=1)
    path = rollout_path(args.rollout_dump_dir, 1)
    recorded = read_rollout(path)
    first, *others = recorded.samples
    write_rollout(path, replace(recorded, samples=[replace(first, reward=math.nan), *others]))
    with pytest.raises(RunStopped, match="has the reward nan"):
        sampler(args).next_batch(0)


def test_a_run_ends_at_its_limit(args):
    record(args, steps=3)
    args.rollout_limit = 1
    replay = sampler(args)
    assert replay.next_batch(0).is_last is True
    assert replay.next_batch(0) is None


def refusal(args, **given):
    message = refusal_of(sampler(args, **given).next_batch, 0)
    assert message.startswith("--rollout.replay_dir: ")
    return message


def test_files_that_do_not_fit_end_the_run(args):
    assert "no such file" in refusal(args)
    record(args)
    assert "another tokenizer" in refusal(args, tokenizer=build_tokenizer(96))
    # The samples have token ids up to 10 * 8 + 4 - 1.
    assert missing(refusal(args, vocabulary=83), "token id 83", "vocabulary", "83 ids") == []
    assert sampler(args, vocabulary=84).next_batch(0)
    args.rollout.n_samples_per_prompt = 8
    assert missing(refusal(args), "4 samples per prompt", "8") == []
    args.rollout.n_samples_per_prompt, args.rollout.batch_size = 4, 3
    assert missing(refusal(args), "2 prompts per step", "3") == []
    args.rollout.batch_size, args.data.max_len = 2, 3
    assert missing(refusal(args), "4 tokens", "--data.max_len 3") == []


def test_files_that_were_changed_end_the_run(args):
    record(args)
    path = rollout_path(args.rollout_dump_dir, 1)
    found = read_rollout(path)
    more = [replace(each, sample_id=8 + number) for number, each in enumerate(found.samples[:4])]
    write_rollout(path, replace(found, samples=[*found.samples, *more]))
    assert missing(refusal(args), "3 prompts", "2") == []
    rollout_path(args.rollout_dump_dir, 2).replace(path)
    assert "it is the file of step 2" in refusal(args)
    path.write_bytes(path.read_bytes()[:-1])
    assert path.name in refusal(args)


def test_a_full_disk_ends_the_run_with_one_line(args):
    args.rollout_dump_dir = "/dev/full/dump"
    with pytest.raises(RunStopped, match=r"^--rollout.dump_dir: /dev/full/dump/step_000001.safetensors cannot be wr"):
        record(args)
