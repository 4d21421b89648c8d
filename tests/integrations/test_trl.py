"""TRL's trainer with our methods: the same gradients as the laboratory, and TRL itself without a method."""

import json
import logging
import math
import runpy
import subprocess
import sys
from pathlib import Path

import pandas
import pytest
import torch
from active import ACTIVE, IN_THE_LAB, OF_EACH_SLOT, OTHER_METHODS, active

pytest.importorskip("trl", reason="needs TRL: pip install openrlhf-cov[trl]")

from trl import GRPOTrainer
from trl_runs import GROUP, AgainstLaboratory, begins_with_digit, flat, new_policy, options, prompts, run

from openrlhf_cov.analysis.runs import interventions, read_run
from openrlhf_cov.integrations.trl import CovGRPOTrainer
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.utils.metrics_log import read_metrics

# To import TRL alone takes more than a second.
pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
# The vocabulary has 48 tokens, so no entropy is above ln 48 = 3.871; an untrained policy is just below.
SETTINGS = ACTIVE | {
    "stare": {"stare_gate": 3.87},
    # The untrained policy is nearly uniform, so only a high min-p leaves tokens out.
    "lp_reg": {"lp_reg_frac": 0.5, "lp_reg_min_p": 0.8, "allow_large_cov_ratio": True},
    "clip_cov": {"clip_cov_ratio": 0.05, "clip_cov_lb": 0.0, "clip_cov_ub": 1e3},
}
TOLERANCE = 1e-5


def loss_type(name):
    """The average that a method was published with."""
    return "grpo" if active(name).aggregation else "dapo"


@pytest.mark.parametrize(
    ("name", "accumulation"), [*((name, 4) for name in IN_THE_LAB), *((name, 1) for name in OF_EACH_SLOT)]
)
def test_gradients_are_those_of_the_laboratory(name, accumulation, tmp_path):
    # Two updates of 16 responses each: before the second the policy has moved.
    args = options(
        tmp_path,
        per_device_train_batch_size=16 // accumulation,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=2 * accumulation,
        loss_type=loss_type(name),
    )
    compared = AgainstLaboratory()
    run(CovGRPOTrainer, args, [compared], method=name, method_settings=SETTINGS.get(name, {}))
    assert len(compared.differences) == 2
    # Before the first update |log pi - log pi_old|, KL-Cov's penalty, is rounding, and its gradient the sign of that.
    first = 1 if name == "kl_cov" else 0
    assert max(compared.differences[first:]) < TOLERANCE
    if METHODS[name].token_slots:
        (line,) = read_metrics(tmp_path / "metrics.jsonl")
        assert line["cov/selected_count"] > 0


# ``make test-long`` has the other methods; on one rank every method is compared above.
@pytest.mark.parametrize(
    "name",
    [*OF_EACH_SLOT, *(pytest.param(name, marks=[pytest.mark.e2e, pytest.mark.long]) for name in OTHER_METHODS)],
)
def test_gradients_of_two_ranks_are_those_of_the_laboratory(name, ranks, tmp_path):
    lines = ranks("gradients", name, str(tmp_path), loss_type(name), SETTINGS.get(name, {}))
    (differences,) = [json.loads(line) for line in lines if line.startswith("[")]  # the others are TRL's
    assert len(differences) == 2
    assert max(differences[1 if name == "kl_cov" else 0 :]) < TOLERANCE


PLAIN = {
    "one update of a rollout": {"steps_per_generation": 1, "per_device_train_batch_size": 16},
    "two updates, twice": {"num_iterations": 2, "max_steps": 5},
    "accumulation": {"gradient_accumulation_steps": 2, "steps_per_generation": 4},
    "a KL term": {"beta": 0.1, "num_iterations": 2},
    "a bonus and a clip of TRL": {"entropy_coef": 0.01, "epsilon": 0.1, "epsilon_high": 0.3, "delta": 1.5},
    "the mean over responses": {"loss_type": "grpo"},
    "the mean over micro-batches": {"loss_type": "bnpo"},
    "a constant": {"loss_type": "dr_grpo"},
    "without truncated responses": {"mask_truncated_completions": True},
}


@pytest.mark.parametrize("case", PLAIN)
def test_without_a_method_it_is_trl_bit_for_bit(case, tmp_path):
    changes = {"max_steps": 3, "max_grad_norm": 1.0} | PLAIN[case]
    ours = run(CovGRPOTrainer, options(tmp_path / "ours", **changes))
    theirs = run(GRPOTrainer, options(tmp_path / "theirs", **changes))
    assert weights(ours).equal(weights(theirs))
    for mine, other in zip(ours.state.log_history, theirs.state.log_history, strict=True):
        same = {name for name in other if "time" not in name and "per_second" not in name}
        assert {name: mine[name] for name in same} == {name: other[name] for name in same}


def weights(trainer):
    return flat(trainer.model.parameters())


def test_adapters_checkpointing_and_evaluation_go_with_it(tmp_path):
    from peft import LoraConfig

    def trained(trainer_class, folder):
        args = options(folder, max_steps=4, gradient_checkpointing=True, eval_strategy="steps", eval_steps=2)
        adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
        return run(trainer_class, args, peft_config=adapter, eval_dataset=prompts(8))

    assert weights(trained(CovGRPOTrainer, tmp_path / "ours")).equal(
        weights(trained(GRPOTrainer, tmp_path / "theirs"))
    )


@pytest.mark.parametrize("loss", ["dapo", "grpo", "bnpo", "dr_grpo"])
def test_a_penalty_is_averaged_as_trl_averages_its_loss(loss, tmp_path, monkeypatch):
    # Where the policy has not moved the ratio is 1, so TRL's loss is the average of -A. A penalty of A on all tokens
    # then leaves a loss of 0.
    from openrlhf_cov.integrations import trl as module
    from openrlhf_cov.models.loss import policy_loss

    losses = []

    def with_penalty(config, ppo_loss, aggregate, batch, plans, **others):
        result = policy_loss(config, ppo_loss, aggregate, batch, plans, **others)
        losses.append((result.loss.item(), aggregate(batch.advantages, batch.action_mask).item()))
        return result

    monkeypatch.setattr(module, "policy_loss", with_penalty)
    args = options(tmp_path, loss_type=loss, gradient_accumulation_steps=2, per_device_train_batch_size=4, max_steps=1)
    run(CovGRPOTrainer, args)
    assert len(losses) == 2
    for loss_of_trl, average in losses:
        assert loss_of_trl != 0
        assert average == pytest.approx(-loss_of_trl, rel=1e-5)


def test_the_published_clip_is_used_unless_epsilon_is_given(tmp_path):
    # Clip-Cov was published with the clip (1, 1), KL-Cov without a clip.
    assert run(CovGRPOTrainer, options(tmp_path, max_steps=1), method="clip_cov").epsilon_high == 1.0
    given = options(tmp_path, max_steps=1, epsilon=0.1, epsilon_high=0.3)
    trainer = run(CovGRPOTrainer, given, method="clip_cov")
    assert (trainer.epsilon_low, trainer.epsilon_high) == (0.1, 0.3)
    assert run(CovGRPOTrainer, options(tmp_path, max_steps=1), method="kl_cov").epsilon_high == math.inf


def test_metrics_are_logged_and_can_be_read_as_a_run(tmp_path):
    args = options(tmp_path, max_steps=6, gradient_accumulation_steps=2, per_device_train_batch_size=4)
    trainer = run(CovGRPOTrainer, args, method="random_drop", method_settings={"random_drop_ratio": 0.05})
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    logged = [each for each in trainer.state.log_history if "loss" in each]
    for line, log in zip(lines, logged, strict=True):
        for name in ("entropy/mean", "cov/mean", "cov/selected_count", "gradient/norm", "ppo/ratio_max"):
            assert log[name] == line[name]
        # What TRL measures itself.
        assert line["entropy/mean"] == pytest.approx(log["entropy"], rel=1e-5)
        assert line["reward"] == pytest.approx(log["reward"])
        assert line["response_length"] == pytest.approx(log["completions/mean_length"])
        assert line["truncated"] == pytest.approx(log["completions/clipped_ratio"])
        assert line["gradient/norm"] == pytest.approx(log["grad_norm"])
        assert line["policy_loss"] == pytest.approx(log["loss"], abs=1e-6)
        # floor(0.05 * tokens), whatever the micro-batches: 8 responses in two of them.
        assert line["cov/selected_count"] == int(0.05 * round(8 * line["response_length"]))
    assert len(read_run(tmp_path).training.columns["entropy/mean"]) == 6


def test_the_table_of_completions_has_the_advantages_that_train(tmp_path):
    # WAPO trains responses above the mean of their group only, so that no advantage is negative; GRPO's would be.
    run(CovGRPOTrainer, options(tmp_path, max_steps=1, log_completions=True), method="wapo")
    table = pandas.read_parquet(tmp_path / "completions" / "completions_00001.parquet")
    rewards = table["begins_with_digit"].to_numpy().reshape(-1, GROUP)
    expected = (rewards - rewards.mean(1, keepdims=True)).clip(min=0.0)
    assert expected.max() > 0
    assert table["advantage"].tolist() == pytest.approx(expected.flatten().tolist())


def test_a_report_learns_what_acts_on_the_entropy_of_a_run(tmp_path):
    # The entropy law is stated without a method, a KL term, an entropy term and a raised clip. Estimators select no
    # token, so that the metrics alone do not show them.
    changes = {"beta": 0.1, "entropy_coef": 0.01, "epsilon_high": 0.28}
    run(CovGRPOTrainer, options(tmp_path / "all", **changes), method="maxrl")
    run(CovGRPOTrainer, options(tmp_path / "plain"))
    assert interventions(read_run(tmp_path / "all")) == [
        "--method maxrl",
        "--algo.kl.init_coef 0.1",
        "--actor.entropy_coef 0.01",
        "--actor.eps_clip_low_high 0.2 0.28",
    ]
    assert interventions(read_run(tmp_path / "plain")) == []


def test_schedules_and_closed_loops_move_once_per_rollout_and_are_resumed(tmp_path):
    method = {"method": "positive_weight", "method_settings": {"positive_weight": 0.5, "entropy_target": 3.0}}
    changes = {"max_steps": 8, "lr_scheduler_type": "constant"}
    whole = run(CovGRPOTrainer, options(tmp_path / "whole", **changes), **method)
    values = [line["control/value"] for line in read_metrics(tmp_path / "whole" / "metrics.jsonl")]
    # The entropy, 3.87, is above the target, so the weight of positive advantages rises by 0.05 per rollout.
    assert values == pytest.approx([0.5, 0.55, 0.6, 0.65])
    assert whole.closed_loop.controller.applied["positive_weight"] == pytest.approx(0.7)

    part = options(tmp_path / "part", save_strategy="steps", save_steps=4, **changes)
    run(CovGRPOTrainer, part, **method)
    again = run(CovGRPOTrainer, part, resume=str(tmp_path / "part" / "checkpoint-4"), **method)
    lines = read_metrics(tmp_path / "part" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert [line["control/value"] for line in lines] == pytest.approx(values)
    assert again.closed_loop.controller.applied["positive_weight"] == pytest.approx(0.7)


REFUSED = {
    "loss_type='sapo'": {"loss_type": "sapo"},
    "importance_sampling_level='sequence'": {"importance_sampling_level": "sequence"},
    "top_entropy_quantile=0.2": {"top_entropy_quantile": 0.2},
    "use_adaptive_entropy=True": {"use_adaptive_entropy": True},
    "off_policy_mask_threshold=0.5": {"off_policy_mask_threshold": 0.5},
    "vllm_importance_sampling_correction=True": {"use_vllm": True},
    "steps_per_generation=2 must be a multiple of gradient_accumulation_steps=4": {"gradient_accumulation_steps": 4},
    "tools": {"tools": [len]},
    "method='prime'": {"method": "prime"},
    "epsilon=0.1": {"epsilon": 0.1, "method": "cispo"},
    "epsilon_high=0.28": {"epsilon_high": 0.28, "method": "adaptive_clip"},
    "delta=4.0": {"delta": 4.0, "method": "sapo"},
    "scale_rewards='none'": {"scale_rewards": "none", "method": "qae"},
    "multi_objective_aggregation='normalize_then_sum'": {
        "multi_objective_aggregation": "normalize_then_sum",
        "method": "qae",
    },
    # What our trainer refuses, in TRL's words.
    "loss_type='dapo', got seq-mean-token-mean": {"loss_type": "grpo", "method": "psr"},
    "entropy_coef 0.01": {
        "entropy_coef": 0.01,
        "method": "adaptive_entropy",
        "method_settings": {"entropy_bonus": 0.1},
    },
    "num_generations": {"method": "passk", "method_settings": {"passk_k": 4}},
    # Methods and settings.
    "no method is called 'kl_covv'": {"method": "kl_covv"},
    "'cov_ratio' is not a setting": {"method": "kl_cov", "method_settings": {"cov_ratio": 0.01}},
    "stare_gate 9 is out of reach": {"method": "stare", "method_settings": {"stare_gate": 9.0}},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_go_together_is_refused_in_one_line(message, tmp_path):
    changes = dict(REFUSED[message])
    arguments = {name: changes.pop(name) for name in ("tools", "method", "method_settings") if name in changes}
    with pytest.raises(ValueError, match=r"^[^\n]*$") as refused:
        run(CovGRPOTrainer, options(tmp_path, **changes), **arguments)
    assert message in str(refused.value)


def test_dropout_is_refused_unless_trl_disables_it(tmp_path):
    model, tokenizer = new_policy()
    mlp = model.model.layers[0].mlp
    mlp.act_fn = torch.nn.Sequential(mlp.act_fn, torch.nn.Dropout(0.1))
    arguments = dict(train_dataset=prompts(), processing_class=tokenizer)
    with pytest.raises(ValueError, match="disable_dropout"):
        CovGRPOTrainer(model, begins_with_digit, options(tmp_path), **arguments)
    CovGRPOTrainer(model, begins_with_digit, options(tmp_path, disable_dropout=True), **arguments)


def test_dropout_of_attention_is_refused_which_trl_does_not_disable(tmp_path):
    model, tokenizer = new_policy()
    model.model.layers[0].self_attn.attention_dropout = 0.5
    arguments = dict(train_dataset=prompts(), processing_class=tokenizer)
    with pytest.raises(ValueError, match=r"attention_dropout=0.5, .*; set it to 0"):
        CovGRPOTrainer(model, begins_with_digit, options(tmp_path, disable_dropout=True), **arguments)


def test_a_method_that_needs_several_updates_warns_where_there_is_one(tmp_path, caplog):
    args = options(tmp_path, steps_per_generation=1, per_device_train_batch_size=16, max_steps=1)
    with caplog.at_level(logging.WARNING):
        run(CovGRPOTrainer, args, method="kl_cov")
    assert any("steps_per_generation" in message for message in caplog.messages)


@pytest.mark.parametrize(("scope", "selected"), [("global", 1), ("micro_batch", 2)])
def test_statistics_are_those_of_the_optimizer_step_or_of_the_micro_batch(scope, selected, tmp_path):
    # Two micro-batches of 4 responses of at most 6 tokens. A share of 0.001 of them is less than a token, so the quota
    # is one token: in the step, or in each micro-batch.
    args = options(
        tmp_path,
        gradient_accumulation_steps=2,
        steps_per_generation=2,
        per_device_train_batch_size=4,
        max_steps=1,
    )
    run(CovGRPOTrainer, args, method="kl_cov", method_settings={"kl_cov_ratio": 0.001, "cov_scope": scope})
    (line,) = read_metrics(tmp_path / "metrics.jsonl")
    assert line["cov/selected_count"] == selected


def test_every_method_but_prime_is_compared():
    assert set(METHODS) - set(IN_THE_LAB) == {"prime"}


def test_the_example_trains_twenty_steps_on_the_embedded_task(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["trl_commands.py", "--steps", "20", "--output", str(tmp_path)])
    runpy.run_path(str(REPOSITORY / "examples" / "trl_commands.py"), run_name="__main__")
    # Eight steps to a rollout: the third rollout is not over.
    first, second = read_metrics(tmp_path / "metrics.jsonl")
    # The base policy knows the skills, so some responses are correct, and plain updates lower its entropy.
    assert 0.1 < first["reward"] < 0.9
    assert 0 < second["entropy/mean"] < first["entropy/mean"] < 1
    assert first["cov/selected_count"] > 0


BLOCKED = """
import sys
for name in ("ray", "vllm", "deepspeed", "openrlhf"):
    sys.modules[name] = None
import openrlhf_cov.integrations.trl
import openrlhf_cov.integrations.verl
"""


def test_integrations_import_without_ray_vllm_deepspeed_and_openrlhf():
    done = subprocess.run([sys.executable, "-c", BLOCKED], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
