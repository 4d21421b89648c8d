"""The base policies that come with the package are those that training makes."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from openrlhf_cov.experiments.lab import lab_policy
from openrlhf_cov.experiments.lab.tasks import SHIPPED_SEED, TASKS
from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig, build_model
from openrlhf_cov.experiments.tiny_task.catalogue import TINY_TASKS
from openrlhf_cov.experiments.tiny_task.commands_policy import in_vllm_heads
from openrlhf_cov.experiments.tiny_task.shipped_policies import FOLDER, WORDS, shipped_policy, write_shipped_policy
from openrlhf_cov.experiments.tiny_task.task_files import TaskSettings, write_task
from openrlhf_cov.experiments.tiny_task.tokenizer import build_tokenizer

SHIPPED = WORDS.keys()
REPOSITORY = Path(__file__).resolve().parents[3]
SMALL = BasePolicyConfig(layers=1, heads=2, hidden_size=16, intermediate_size=32, max_length=32, steps=2)


def behaviour(model, task):
    """Greedy accuracy and entropy (nats per token) on the validation problems of a task of the lab."""
    tokenizer = build_tokenizer(task.policy.max_length, WORDS[task.name])
    prompts = torch.tensor([tokenizer.encode(problem.prompt) for problem in task.validation])
    ids = tokenizer.eos_token_id, tokenizer.pad_token_id
    greedy = lab_policy.sample(model, prompts, task.tokens, None, *ids).responses
    lengths = lab_policy.until_end(greedy, ids[0]).sum(1).tolist()
    texts = [tokenizer.decode(row[: int(length)]) for row, length in zip(greedy.tolist(), lengths, strict=True)]
    right = [task.is_right(text, problem.label) for text, problem in zip(texts, task.validation, strict=True)]
    sampled = lab_policy.sample(model, prompts, task.tokens, torch.Generator().manual_seed(0), *ids, each=8)
    counted = lab_policy.until_end(sampled.responses, ids[0]).bool()
    return sum(right) / len(right), sampled.entropy[counted].mean().item()


def test_all_tasks_have_a_policy_and_together_they_are_small():
    files = list(FOLDER.glob("*.safetensors"))
    assert {path.stem for path in files} == SHIPPED == TINY_TASKS.keys() | {"shortcut"}
    assert sum(path.stat().st_size for path in files) <= 4_000_000


@pytest.mark.parametrize("name", SHIPPED)
def test_another_seed_or_setting_has_no_shipped_policy(name):
    policy = TASKS[name]().policy
    assert shipped_policy(name, SHIPPED_SEED, policy) is not None
    assert shipped_policy(name, SHIPPED_SEED + 1, policy) is None
    assert shipped_policy(name, SHIPPED_SEED, replace(policy, steps=policy.steps + 1)) is None


@pytest.mark.parametrize("task", ["commands", "addition", "shortcut"])
@pytest.mark.parametrize("tied", [True, False])
def test_what_is_read_is_what_was_written(tmp_path, task, tied):
    config = replace(SMALL, tied=tied)
    torch.manual_seed(0)
    model = build_model(config, build_tokenizer(config.max_length, WORDS[task]))
    write_shipped_policy(model, task, 3, config, tmp_path)
    read, tokenizer = shipped_policy(task, 3, config, tmp_path)
    assert tokenizer.encode("12") == build_tokenizer(config.max_length, WORDS[task]).encode("12")
    for name, value in model.state_dict().items():
        # half a step: of an int8 row 1/254 of its largest value, of float16 2**-11 of the value; and the rounding of
        # the factor itself, which is float16
        largest = value.abs().amax(-1, keepdim=True)
        tolerance = {
            "addition": largest * (1 / 254 + 2**-11),
            "commands": value.abs() * 2**-11 + 2**-24,
            "shortcut": 0.0 * value,
        }[task]
        assert ((read.state_dict()[name] - value).abs() <= tolerance * 1.001).all(), name
    assert (read.lm_head.weight is read.model.embed_tokens.weight) == tied


def test_the_lab_starts_from_it_without_training(tmp_path):
    def train(seed):
        raise AssertionError("a base policy was trained")

    task = replace(TASKS["commands"](), make=train)
    model, _ = task.base_policy(tmp_path, SHIPPED_SEED)
    shipped, _ = shipped_policy("commands", SHIPPED_SEED, task.policy)
    assert all(a.equal(b) for a, b in zip(model.parameters(), shipped.parameters(), strict=True))
    with pytest.raises(AssertionError, match="was trained"):
        task.base_policy(tmp_path, SHIPPED_SEED + 1)


@pytest.mark.slow
def test_a_task_folder_has_it_in_the_heads_of_its_engine(tmp_path):
    from transformers import LlamaForCausalLM

    made = TINY_TASKS["commands"]
    write_task(tmp_path / "task", TaskSettings(task="commands", train_rows=8, test_rows=8), made.policy())
    shipped, _ = shipped_policy("commands", SHIPPED_SEED, made.policy())
    read = LlamaForCausalLM.from_pretrained(tmp_path / "task" / "model")
    pairs = zip(in_vllm_heads(shipped).parameters(), read.parameters(), strict=True)
    assert all(a.equal(b) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"seed": 1}, {"test_rows": 513}])
def test_a_task_with_other_settings_is_trained(tmp_path, monkeypatch, changes):
    made = TINY_TASKS["addition"]
    seen = []

    def train(problems, policy, seed):
        seen.append((len(problems), seed))
        raise RuntimeError("trained")

    monkeypatch.setitem(TINY_TASKS, "addition", replace(made, make_policy=train))
    with pytest.raises(RuntimeError, match="trained"):
        write_task(tmp_path / "task", TaskSettings(**changes), made.policy())
    # no base policy sees the 512 problems that the lab holds out
    assert seen == [(8100 - max(512, changes.get("test_rows", 0)), changes.get("seed", 0))]


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize("name", SHIPPED)
def test_training_it_again_gives_the_same_behaviour(tmp_path, name, needs_sandbox):
    """The command that wrote the shipped policies, again, on this machine.

    Training is deterministic on one machine. On another one sums are rounded otherwise, and a run of several hundred
    optimizer steps ends elsewhere: of the 256 validation problems, whose accuracy has a standard error of 3 points,
    the policies may answer other ones.
    """
    script = REPOSITORY / "scripts" / "write_base_policies.py"
    subprocess.run([sys.executable, script, "--tasks", name, "--output", tmp_path], check=True)
    task = TASKS[name]()
    again, _ = shipped_policy(name, SHIPPED_SEED, task.policy, tmp_path)
    shipped, _ = shipped_policy(name, SHIPPED_SEED, task.policy)
    accuracy, entropy = behaviour(shipped, task)
    assert behaviour(again, task) == (pytest.approx(accuracy, abs=0.1), pytest.approx(entropy, rel=0.15))
