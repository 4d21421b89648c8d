"""A run of the lab writes its rollouts, and another one trains on them."""

import copy
from dataclasses import replace

import pytest
import torch

from openrlhf_cov.data.rollout_files import read_rollout, rollout_path, write_rollout
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.experiments.lab.lab_settings import LabSettings
from openrlhf_cov.experiments.lab.training import Lab
from openrlhf_cov.models.cov_config import CovConfig

SETTINGS = LabSettings(steps=3, prompts=4, group=4, updates=2, learning_rate=1e-3)


@pytest.fixture
def make_lab(task, policy):
    """Function (settings of the loss, folders) -> a lab with the same untrained policy every time."""
    model, tokenizer = policy
    model.train()

    def make(config=None, settings=SETTINGS, **folders):
        return Lab(task, copy.deepcopy(model), tokenizer, settings, config or CovConfig(), **folders)

    return make


def train(lab, steps=3):
    return [lab.step(step) for step in range(1, steps + 1)]


def assert_equal_weights(one, other):
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("config", [CovConfig(), CovConfig(cov_type="kl_cov", kl_cov_ratio=0.05)])
def test_a_replayed_run_gives_the_same_weights_and_metrics_bit_by_bit(make_lab, tmp_path, config):
    recorded = make_lab(config, dump_dir=tmp_path)
    before = train(recorded)
    replayed = make_lab(config, replay_dir=tmp_path)
    after = train(replayed)
    assert [repr(line) for line in after] == [repr(line) for line in before]  # NaN included
    assert_equal_weights(recorded, replayed)
    # Another seed draws other prompts, which a replayed run does not use.
    other = make_lab(config, replace(SETTINGS, seed=1), replay_dir=tmp_path)
    assert train(other, 1)[0]["reward"] == before[0]["reward"]


@pytest.mark.slow
def test_another_method_trains_on_the_same_responses_with_its_own_policy(make_lab, tmp_path):
    before = train(make_lab(dump_dir=tmp_path))
    after = train(make_lab(CovConfig(cov_type="kl_cov", kl_cov_ratio=0.05), replay_dir=tmp_path))
    assert [line["reward"] for line in after] == [line["reward"] for line in before]
    # The first step is scored by the policy that sampled it, the later ones by another policy.
    assert after[0]["entropy/mean"] == before[0]["entropy/mean"]
    assert after[2]["entropy/mean"] != before[2]["entropy/mean"]


def test_a_file_has_the_prompts_responses_and_scores_of_its_step(make_lab, tmp_path):
    lab = make_lab(dump_dir=tmp_path)
    line = train(lab, 1)[0]
    record = read_rollout(rollout_path(tmp_path, 1))
    assert (record.header.step, record.header.samples_per_prompt, record.header.prompts_per_step) == (1, 4, 4)
    assert sum(sample.reward for sample in record.samples) / 16 == line["reward"]
    lengths = [int(sample.action_mask.sum()) for sample in record.samples]
    assert sum(lengths) / 16 == pytest.approx(line["response_length"])
    for sample in record.samples:
        assert "".join(lab.words[token] for token in sample.tokens.tolist()).startswith(sample.prompt)
        assert sample.log_probs[~sample.action_mask].eq(0).all()
        assert sample.log_probs[sample.action_mask].lt(0).all()
        assert sample.truncated is (lab.eos not in sample.tokens.tolist())


def changed(path, **fields):
    record = read_rollout(path)
    samples = [replace(record.samples[0], **fields), *record.samples[1:]]
    write_rollout(path, replace(record, samples=samples))


def test_files_that_do_not_fit_end_the_run(make_lab, tmp_path):
    train(make_lab(dump_dir=tmp_path), 1)
    path = rollout_path(tmp_path, 1)
    good = path.read_bytes()
    with pytest.raises(RunStopped, match=r"^--replay_dir: .*step_000001.* it has 4 prompts per step, the run has 8$"):
        make_lab(settings=replace(SETTINGS, prompts=8), replay_dir=tmp_path).step(1)
    with pytest.raises(RunStopped, match=r"step_000002.safetensors: no such file$"):
        make_lab(replay_dir=tmp_path).step(2)
    first = read_rollout(path).samples[0]
    for fields, reason in (
        ({"tokens": first.tokens + 1000}, "token ids outside of the vocabulary"),
        ({"action_mask": torch.ones_like(first.action_mask)}, "prompts of one length"),
        ({"reward": None}, "the samples have no rewards"),
        ({"reward": 0.0, "abstained": True}, "the reward function abstained"),
    ):
        path.write_bytes(good)
        changed(path, **fields)
        with pytest.raises(RunStopped, match=reason):
            make_lab(replay_dir=tmp_path).step(1)
