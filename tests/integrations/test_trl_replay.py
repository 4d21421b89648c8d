"""TRL's trainer writes rollouts to files and trains on them; it exchanges them with the laboratory."""

import json
import math
from dataclasses import replace

import pytest
import torch
from texts import missing

pytest.importorskip("trl", reason="needs TRL: pip install openrlhf-cov[trl]")

from transformers import TrainerCallback
from trl_runs import begins_with_digit, flat, new_policy, options, prompts, run

from openrlhf_cov.data.rollout_files import read_rollout, recorded_steps, rollout_path, write_rollout
from openrlhf_cov.experiments.lab.lab_settings import LabSettings
from openrlhf_cov.experiments.lab.tasks import TASKS
from openrlhf_cov.experiments.lab.training import Lab
from openrlhf_cov.integrations.trl import CovGRPOTrainer
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.utils.metrics_log import read_metrics

# To import TRL alone takes more than a second.
pytestmark = pytest.mark.slow

# Two rollouts of 16 completions to 4 prompts, two updates each.
STEPS = 4
# One rollout with one update of all 16 completions.
ONE_UPDATE = {"steps_per_generation": 1, "per_device_train_batch_size": 16, "max_steps": 1}


def weights(trainer):
    return flat(trainer.model.parameters())


def numbers_of(trainer, folder):
    """Everything that the run has logged but times: TRL's numbers, and ours."""
    logs = [
        {name: value for name, value in line.items() if "time" not in name and "per_second" not in name}
        for line in trainer.state.log_history
    ]
    lines = [{**line, "time": None} for line in read_metrics(folder / "metrics.jsonl")]
    return repr(logs), repr(lines)  # repr: NaN is equal to NaN


CASES = {
    "a method": {"method": "kl_cov", "method_settings": {"kl_cov_ratio": 0.05}},
    "a ratio to the policy that sampled": {"method": "dppo", "method_settings": {"dppo_anchor": "rollout"}},
    "one update of a rollout": {
        "method": "dppo",
        "method_settings": {"dppo_anchor": "rollout"},
        "options": {"steps_per_generation": 1, "max_steps": 2},
    },
    "two iterations": {"options": {"num_iterations": 2, "max_steps": 8}},
    "without truncated responses": {"options": {"mask_truncated_completions": True}},
    "a random choice of tokens": {"method": "random_drop", "method_settings": {"random_drop_ratio": 0.05}},
}


@pytest.mark.parametrize("case", CASES)
def test_a_replayed_run_gives_the_same_metrics_and_weights_bit_by_bit(case, tmp_path):
    arguments = dict(CASES[case])
    changes = {"max_steps": STEPS} | arguments.pop("options", {})

    def train(name, **folders):
        folder = tmp_path / name
        trainer = run(CovGRPOTrainer, options(folder, **changes), **arguments, **folders)
        return weights(trainer), numbers_of(trainer, folder)

    rollouts = tmp_path / "rollouts"
    recorded, numbers = train("recorded", dump_dir=rollouts)
    assert recorded_steps(rollouts) == [1, 2]
    replayed, numbers_again = train("replayed", replay_dir=rollouts)
    assert replayed.equal(recorded)
    assert numbers_again == numbers


def test_rewards_are_replayed_without_the_reward_functions(tmp_path):
    calls = []

    def counted(completions, **columns):
        calls.append(len(completions))
        return begins_with_digit(completions)

    def length(completions, **columns):
        # No reward for every fourth completion.
        return [None if number % 4 == 0 else len(text) / 8 for number, text in enumerate(completions)]

    def train(name, **folders):
        model, tokenizer = new_policy()
        args = options(tmp_path / name, reward_weights=[1.0, 0.1])
        data = dict(train_dataset=prompts(), processing_class=tokenizer)
        trainer = CovGRPOTrainer(model, [counted, length], args, **data, **folders)
        trainer.train()
        return weights(trainer), numbers_of(trainer, tmp_path / name)

    recorded, numbers = train("recorded", dump_dir=tmp_path / "rollouts")
    assert calls == [16]
    replayed, numbers_again = train("replayed", replay_dir=tmp_path / "rollouts")
    assert calls == [16]
    assert replayed.equal(recorded)
    assert numbers_again == numbers


def test_a_file_has_prompts_completions_and_rewards(tmp_path):
    trainer = run(CovGRPOTrainer, options(tmp_path, max_steps=2), dump_dir=tmp_path / "rollouts")
    record = read_rollout(rollout_path(tmp_path / "rollouts", 1))
    # 16 completions in groups of 4.
    header = record.header
    assert (header.step, header.samples_per_prompt, header.prompts_per_step) == (1, 4, 4)
    assert [sample.sample_id for sample in record.samples] == list(range(16))
    (line,) = read_metrics(tmp_path / "metrics.jsonl")
    assert sum(sample.reward for sample in record.samples) / 16 == pytest.approx(line["reward"])
    assert sum(int(sample.action_mask.sum()) for sample in record.samples) / 16 == line["response_length"]
    assert sum(sample.truncated for sample in record.samples) / 16 == line["truncated"]
    words = trainer.processing_class.convert_ids_to_tokens
    for sample in record.samples:
        assert "".join(words(sample.tokens.tolist())).startswith(sample.prompt)
        assert sample.log_probs[~sample.action_mask].eq(0).all()
        # The untrained policy is nearly uniform over 48 tokens: log 1/48 = -3.87.
        assert sample.log_probs[sample.action_mask].add(math.log(48)).abs().max() < 1
    same_prompt = {sample.prompt for sample in record.samples[:4]}
    assert len(same_prompt) == 1


class Gradients(TrainerCallback):
    """Keep the gradient of every optimizer step of TRL."""

    def __init__(self):
        self.found = []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.found.append(flat(parameter.grad for parameter in self.trainer.model.parameters()))


SETTINGS = {"none": {}, "random_drop": {"random_drop_ratio": 0.05}}


def gradient_of_trl(folder, method, settings=None, **folders):
    """The gradient of one update of a rollout of 16 completions to 4 prompts."""
    gradients = Gradients()
    arguments = {"method": method, "method_settings": SETTINGS[method] if settings is None else settings}
    run(CovGRPOTrainer, options(folder, **ONE_UPDATE), [gradients], **arguments, **folders)
    (gradient,) = gradients.found
    return gradient


def gradient_of_laboratory(_, method, **folders):
    """The gradient of the same update in the laboratory, before it is clipped."""
    model, tokenizer = new_policy()
    model.train()
    task = replace(TASKS["commands"](), is_right=lambda response, label: response[:1].isdigit())
    config = CovConfig(method=method, **SETTINGS[method])
    # TRL's seed: random choices depend on it.
    lab = Lab(task, model, tokenizer, LabSettings(steps=1, prompts=4, group=4, updates=1, seed=3), config, **folders)
    found = []
    lab.optimizer.step = lambda: found.extend(parameter.grad.clone() for parameter in model.parameters())
    norm = lab.step(1)["gradient/norm"]
    # The laboratory clips gradients to a norm of 1, as PyTorch does it: by 1 / (norm + 1e-6).
    return flat(found) * max(1.0, norm + 1e-6)


def make_groups_alike(folder):
    """Let every second sample of the file be correct, so that all groups have the same standard deviation."""
    path = rollout_path(folder, 1)
    record = read_rollout(path)
    samples = [replace(each, reward=float(each.sample_id % 2), metrics={}) for each in record.samples]
    write_rollout(path, replace(record, samples=samples))


@pytest.mark.parametrize("method", ["none", "random_drop"])
@pytest.mark.parametrize("recorded_by", ["laboratory", "trl"])
def test_the_same_file_gives_the_same_gradient_in_trl_and_in_the_laboratory(recorded_by, method, tmp_path):
    gradients = {"trl": gradient_of_trl, "laboratory": gradient_of_laboratory}
    rollouts = tmp_path / "rollouts"
    gradients[recorded_by](tmp_path, method, dump_dir=rollouts)
    make_groups_alike(rollouts)
    theirs = gradient_of_trl(tmp_path, method, replay_dir=rollouts)
    ours = gradient_of_laboratory(tmp_path, method, replay_dir=rollouts)
    # TRL divides by the standard deviation plus 1e-4, the laboratory by the deviation plus 1e-9. That of 0, 1, 0, 1
    # is sqrt(4 * 0.25 / 3) = 0.57735.
    deviation = math.sqrt(1 / 3)
    ours *= (deviation + 1e-9) / (deviation + 1e-4)
    assert float((theirs - ours).abs().max() / ours.abs().max()) < 1e-5


def test_a_ratio_to_the_engine_is_one_in_the_loss_of_trl(tmp_path):
    # The engine gives every token a log-prob that is 0.5 lower than the policy's. Before the first update the ratio to
    # the policy is 1, and that to the engine e^0.5 = 1.65, within WAPO's clip of 10. So is the ratio of the gradients.
    rollouts = tmp_path / "rollouts"
    gradient_of_trl(tmp_path, "none", dump_dir=rollouts)
    make_groups_alike(rollouts)
    path = rollout_path(rollouts, 1)
    record = read_rollout(path)
    samples = [replace(each, log_probs=each.log_probs - 0.5 * each.action_mask) for each in record.samples]
    write_rollout(path, replace(record, samples=samples))
    to_engine, to_policy = (
        gradient_of_trl(tmp_path, "wapo", {"wapo_anchor": anchor}, replay_dir=rollouts)
        for anchor in ("rollout", "old")
    )
    largest = to_policy.abs().max()
    assert largest > 0
    assert (to_engine - math.exp(0.5) * to_policy).abs().max() < 1e-5 * largest


def test_ucpo_compares_truncated_completions_as_trl_rewards_them(tmp_path):
    # UCPO's advantages depend on the log-probs of the correct responses to a prompt, truncated ones included. Whether
    # TRL trains on these does not change the advantages.
    rollouts = tmp_path / "rollouts"
    gradient_of_trl(tmp_path, "none", dump_dir=rollouts)
    make_groups_alike(rollouts)
    assert any(each.truncated and each.reward for each in read_rollout(rollout_path(rollouts, 1)).samples)

    def advantages(hides_truncated):
        args = options(tmp_path, **ONE_UPDATE, mask_truncated_completions=hides_truncated)
        trainer = run(CovGRPOTrainer, args, method="ucpo", method_settings={"ucpo_tau": 1.0}, replay_dir=rollouts)
        (batch,) = trainer._buffered_inputs
        return batch["advantages"][batch["sample_ids"].argsort()]

    assert advantages(True).tolist() == pytest.approx(advantages(False).tolist(), abs=1e-6)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with two recorded rollouts."""
    folder = tmp_path_factory.mktemp("recorded")
    run(CovGRPOTrainer, options(folder / "out", max_steps=STEPS), dump_dir=folder / "rollouts")
    return folder / "rollouts"


@pytest.fixture
def rollouts(recorded, tmp_path):
    """A copy of it, which a test may change."""
    copy = tmp_path / "rollouts"
    copy.mkdir()
    for step in (1, 2):
        rollout_path(copy, step).write_bytes(rollout_path(recorded, step).read_bytes())
    return copy


def refusal(folder, *, changes=None, **arguments):
    """The one line with which a replayed run ends."""
    with pytest.raises(ValueError, match=r"^[^\n]*$") as refused:
        run(CovGRPOTrainer, options(folder / "out", **(changes or {})), **arguments)
    return str(refused.value)


def test_folders_and_sizes_that_do_not_fit_are_refused_in_one_line(rollouts, tmp_path):
    nothing = refusal(tmp_path, replay_dir=tmp_path / "nowhere")
    assert missing(nothing, f"replay_dir: {tmp_path}/nowhere: ", "step_000001.safetensors") == []
    assert "is also replay_dir" in refusal(tmp_path, replay_dir=rollouts, dump_dir=rollouts)
    groups = refusal(tmp_path, replay_dir=rollouts, changes={"num_generations": 8})
    assert missing(groups, "step_000001.safetensors", "4 samples per prompt", "8") == []
    sizes = refusal(tmp_path, replay_dir=rollouts, changes={"steps_per_generation": 4})
    assert missing(sizes, "4 prompts per step", "8") == []
    # Two rollouts of two updates.
    long = refusal(tmp_path, replay_dir=rollouts, changes={"max_steps": 5})
    assert missing(long, f"replay_dir='{rollouts}'", "2 rollouts of 2 updates", "max_steps=5", "4") == []
    assert "6 tokens, more than max_completion_length=5" in refusal(
        tmp_path, replay_dir=rollouts, changes={"max_completion_length": 5}
    )
    assert "rollout_func has no effect" in refusal(tmp_path, replay_dir=rollouts, rollout_func=lambda *_: {})
    rollout_path(rollouts, 1).unlink()
    assert "step_000001.safetensors is missing" in refusal(tmp_path, replay_dir=rollouts)


def test_a_run_does_not_replace_the_rollouts_of_another_one(rollouts, tmp_path):
    message = refusal(tmp_path, dump_dir=rollouts)
    assert missing(message, f"dump_dir='{rollouts}'", "step_000001.safetensors", "another run") == []


@pytest.mark.parametrize(("saved", "again"), [(1, {1, 2}), (2, {2})])
def test_a_resumed_run_sets_the_rollouts_aside_that_it_samples_anew(saved, again, tmp_path):
    # Two rollouts of two updates: a checkpoint after update 1 is within the first rollout.
    rollouts = tmp_path / "rollouts"

    def train(**changes):
        model, tokenizer = new_policy()
        args = options(tmp_path / "out", max_steps=STEPS, save_strategy="steps", save_steps=saved)
        data = dict(train_dataset=prompts(), processing_class=tokenizer)
        CovGRPOTrainer(model, begins_with_digit, args, dump_dir=rollouts, **data).train(**changes)
        return {step: rollout_path(rollouts, step).read_bytes() for step in (1, 2)}

    before = train()
    checkpoint = tmp_path / "out" / f"checkpoint-{saved}"
    after = train(resume_from_checkpoint=str(checkpoint))
    names = {rollout_path(rollouts, step).name: step for step in (1, 2)}
    kept = {names[path.name.removesuffix(".bak")]: path.read_bytes() for path in rollouts.glob("*.bak")}
    assert kept == {step: before[step] for step in again}
    assert all(after[step] == before[step] for step in {1, 2} - again)


def test_a_run_ends_where_the_data_asks_for_more_rollouts_than_there_are(rollouts, tmp_path):
    # 64 prompts are 16 rollouts.
    message = refusal(tmp_path, replay_dir=rollouts, changes={"max_steps": -1, "num_train_epochs": 1})
    assert message.endswith("step_000003.safetensors: no such file")


def test_samples_that_do_not_fit_end_the_run_in_one_line(rollouts, tmp_path):
    path = rollout_path(rollouts, 1)
    record = read_rollout(path)
    first = record.samples[0]
    for fields, reason in (
        ({"tokens": first.tokens + 1000}, "is outside of the vocabulary of the model, 48 ids"),
        ({"reward": None}, "its samples have no rewards"),
        ({"metrics": {"reward_function/1": 1.0, "reward_function/2": 1.0}}, "it has rewards of 2 functions"),
        # A token of an environment inside of the response.
        ({"action_mask": first.action_mask ^ torch.eye(len(first.tokens) - 1)[-2].bool()}, "several turns"),
    ):
        write_rollout(path, replace(record, samples=[replace(first, **fields), *record.samples[1:]]))
        assert reason in refusal(tmp_path, replay_dir=rollouts)
    write_rollout(path, replace(record, samples=record.samples[:12]))
    assert "it has 12 samples; TRL needs full steps" in refusal(tmp_path, replay_dir=rollouts)
    path.write_bytes(rollout_path(rollouts, 2).read_bytes())
    assert "it is the file of step 2" in refusal(tmp_path, replay_dir=rollouts)
    path.write_bytes(b"no rollout")
    assert "it is no recorded rollout that can be read" in refusal(tmp_path, replay_dir=rollouts)


def test_samples_without_a_reward_are_left_out_as_in_trl(rollouts, tmp_path):
    # An abstention of our trainer: the reward 0, no score.
    path = rollout_path(rollouts, 1)
    record = read_rollout(path)
    abstained = replace(record.samples[0], reward=0.0, score=None, abstained=True, metrics={})
    write_rollout(path, replace(record, samples=[abstained, *record.samples[1:]]))
    trainer = run(CovGRPOTrainer, options(tmp_path / "out"), replay_dir=rollouts)
    rest = [sample.reward for sample in record.samples[1:]]
    assert trainer.state.log_history[0]["reward"] == pytest.approx(sum(rest) / 15)


def test_two_ranks_write_and_replay_the_same_files(ranks, tmp_path):
    lines = ranks("replay", str(tmp_path))
    ((recorded, replayed),) = [json.loads(line) for line in lines if line.startswith("[")]  # the others are TRL's
    assert replayed == recorded
