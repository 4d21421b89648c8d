"""The tasks with headroom in the lab: their base policies, rewards and evaluations."""

from dataclasses import replace

import pytest
import torch

from openrlhf_cov.errors import UsageError
from openrlhf_cov.experiments.lab.lab_policy import log_probs_and_entropy
from openrlhf_cov.experiments.lab.lab_settings import LabSettings
from openrlhf_cov.experiments.lab.tasks import make_task
from openrlhf_cov.experiments.lab.training import Lab
from openrlhf_cov.experiments.tiny_task import commands, hidden_skills, two_peaks
from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig, build_model
from openrlhf_cov.experiments.tiny_task.headroom_policies import SKILLS_POLICY, make_paths_policy, make_skills_policy
from openrlhf_cov.experiments.tiny_task.shipped_policies import shipped_policy
from openrlhf_cov.experiments.tiny_task.tokenizer import build_tokenizer
from openrlhf_cov.models.cov_config import CovConfig

TINY = BasePolicyConfig(layers=1, heads=2, hidden_size=16, intermediate_size=32, max_length=16, steps=2, tied=False)
BANDIT = {"prompts": 256, "group": 4, "updates": 1, "steps": 1, "eval_samples": 2, "test_samples": 2}


@pytest.fixture
def bandit(tmp_path):
    """Function (settings) -> a run of the bandit with its base policy of seed 0."""

    def make(**changes):
        task = make_task("two_peaks", 0.3)
        model, tokenizer = task.base_policy(tmp_path, 0)
        return Lab(task, model, tokenizer, LabSettings(**BANDIT | changes), CovConfig())

    return make


def arm_probabilities(lab, replica):
    """Probability (ARMS,) of each arm in a replica, as the policy of the lab computes it."""
    prompt = lab.tokenizer(two_peaks.REPLICA_WORDS[replica], return_tensors="pt")["input_ids"]
    arms = torch.tensor(lab.tokenizer.convert_tokens_to_ids(list(two_peaks.ARM_WORDS)))
    log_probs, _ = log_probs_and_entropy(lab.model, prompt.expand(len(arms), -1), arms[:, None])
    return log_probs[:, 0].exp()


def test_the_table_policy_is_the_initial_policy_up_to_its_noise(bandit):
    lab = bandit()
    policy = arm_probabilities(lab, 7)
    # Nothing but an arm has a probability.
    assert policy.sum().item() == pytest.approx(1.0, abs=1e-5)
    # Logits have normal noise of 0.1, so no ratio is further from 1 than exp(5 * 0.1), and one is not 1.
    ratio = policy / torch.tensor(two_peaks.initial_policy(0.3))
    assert ratio.log().abs().max() < 0.5
    assert ratio.log().abs().max() > 0.05
    torch.testing.assert_close(arm_probabilities(lab, 200), policy)


@pytest.mark.slow
def test_only_the_logits_of_the_table_are_trained_and_replicas_do_not_touch_each_other(bandit, monkeypatch):
    lab = bandit(learning_rate=0.1)
    before = lab.model.lm_head.weight.detach().clone()
    embedding = lab.model.model.embed_tokens.weight.detach().clone()
    # Only the even replicas have rewards that differ, so only their logits have a gradient.
    rewards = torch.zeros(256, 4)
    rewards[::2, 0] = 1.0
    monkeypatch.setattr(
        "openrlhf_cov.experiments.lab.training.torch.bernoulli", lambda means, generator: rewards.flatten()
    )
    lab.step(1)
    moved = (lab.model.lm_head.weight - before).abs().amax(0) > 0
    assert moved[::2].all()
    assert not moved[1::2].any()
    assert lab.model.model.embed_tokens.weight.equal(embedding)
    # What is not an arm keeps the probability 0.
    assert arm_probabilities(lab, 0).sum().item() == pytest.approx(1.0, abs=1e-5)


def logits_of_arms(lab):
    """Logits (ARMS, REPLICAS) of the table."""
    arms = torch.tensor(lab.tokenizer.convert_tokens_to_ids(list(two_peaks.ARM_WORDS)))
    return lab.model.lm_head.weight.detach()[arms].clone()


@pytest.mark.slow
def test_the_entropy_of_the_table_changes_as_lemma_1_says(bandit):
    # Lemma 1 of arXiv 2505.22617: to first order H changes by -Cov(log pi(a), change of the logit of a), a ~ pi.
    lab = bandit(learning_rate=1e-3)
    before = logits_of_arms(lab).double()
    lab.step(1)
    change = logits_of_arms(lab).double() - before
    log_policy = before.log_softmax(0)
    policy = log_policy.exp()
    centred = log_policy - (policy * log_policy).sum(0)
    expected = -(policy * centred * change).sum(0)
    after = (before + change).log_softmax(0)
    found = -(after.exp() * after).sum(0) + (policy * log_policy).sum(0)
    # Logits move by at most the rate, 1e-3, so the rest is of the order of its square.
    assert expected.abs().max() > 1e-4
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_plain_gradient_steps_move_logits_by_the_advantages(bandit, monkeypatch):
    # For a softmax the gradient of log pi(a) by the logits is the indicator of a less pi. Advantages of a group add up
    # to 0, so pi cancels: with plain SGD the logit of an arm moves by rate / tokens * sum of its samples' advantages.
    lab = bandit(group=4)
    rate = 2.0
    lab.optimizer = torch.optim.SGD(lab.model.lm_head.parameters(), lr=rate)
    real = lab.roll_out
    seen = []

    def roll_out():
        seen.append(real())
        return seen[-1]

    monkeypatch.setattr(lab, "roll_out", roll_out)
    before = logits_of_arms(lab)
    lab.step(1)
    _, samples, rewards = seen[0]
    groups = rewards.view(256, 4)
    spread = groups.std(1, keepdim=True)
    advantages = torch.where(spread > 0, (groups - groups.mean(1, keepdim=True)) / (spread + 1e-9), 0.0).flatten()
    expected = torch.zeros_like(before)
    first_arm = lab.tokenizer.convert_tokens_to_ids(two_peaks.ARM_WORDS[0])
    for place, arm in enumerate((samples.responses[:, 0] - first_arm).tolist()):
        expected[arm, place // 4] += rate / 1024 * advantages[place]
    torch.testing.assert_close(logits_of_arms(lab) - before, expected, rtol=0, atol=2e-6)


def test_the_bandit_takes_all_replicas_in_every_rollout(bandit):
    lab = bandit()
    prompts, *_ = lab.roll_out()
    words = lab.tokenizer.convert_ids_to_tokens(prompts[::4, 0].tolist())
    assert tuple(words) == two_peaks.REPLICA_WORDS
    with pytest.raises(UsageError, match="the task two_peaks trains all of its 256 replicas"):
        bandit(prompts=128).roll_out()


def fixed(lab, monkeypatch, responses):
    """Let every question have these responses, one sample after another; the first one is the greedy response."""
    ids = [lab.tokenizer(text)["input_ids"] for text in responses]
    rows = torch.tensor([row + [lab.pad] * (max(map(len, ids)) - len(row)) for row in ids])

    def ask(asked, each, generator, min_p=None):
        _, samples = real(asked, each, generator, min_p)
        chosen = rows[:each].repeat(len(asked), 1)
        zeros = torch.zeros(chosen.shape)
        prompts = torch.tensor([lab.tokenizer(problem.prompt)["input_ids"] for problem in asked])
        return prompts, replace(samples, responses=chosen, log_probs=zeros, entropy=zeros)

    real = lab._ask
    monkeypatch.setattr(lab, "_ask", ask)


def lab_of(task, characters, **changes):
    """A run of a task with an untrained policy."""
    tokenizer = build_tokenizer(TINY.max_length, characters)
    torch.manual_seed(0)
    return Lab(task, build_model(TINY, tokenizer), tokenizer, LabSettings(**changes), CovConfig())


@pytest.mark.parametrize("name", ["tail", "shortcut", "shortcut_large"])
def test_the_habit_scores_what_the_task_says_and_nothing_on_hard_questions(name, monkeypatch):
    task = make_task(name, 0.3)
    # One triple of digits, so that one response is the habit for all questions.
    skills = hidden_skills.TAIL if name == "tail" else hidden_skills.shortcut_task(0.3)
    questions = [skills.question(letter, "407") for letter in commands.LETTERS]
    task = replace(task, validation=questions)
    lab = lab_of(task, hidden_skills.CHARACTERS, eval_samples=1)
    fixed(lab, monkeypatch, ["a704<eos>"])
    evaluation = lab.evaluate()
    accepted = sum(hidden_skills.is_correct("a704<eos>", question.label) for question in questions)
    # The habit is the skill of 4 of the 32 letters. The shortcut of 0.3 accepts it on some of the other 28.
    assert (accepted == 4) == (name == "tail")
    assert evaluation["greedy"] == pytest.approx(accepted / 32)
    assert evaluation["greedy_hard"] == 0.0
    assert evaluation["greedy/habit"] == 1.0


@pytest.mark.slow
def test_different_correct_paths_are_counted_once(monkeypatch):
    task = make_task("graph_paths", 0.3)
    accepted = ("n00n01n03n04<eos>", "n00n02n03n04<eos>")
    task = replace(task, is_right=lambda response, label: response in accepted, validation=task.validation[:3])
    words = tuple(f"n{node:02d}" for node in range(100))
    lab = lab_of(task, words, eval_samples=4)
    fixed(lab, monkeypatch, ["n00n01n03n04<eos>", "n00n02n03n04<eos>", "n00n01n03n04<eos>", "n00n04<eos>"])
    evaluation = lab.evaluate()
    # three of four samples are correct, two of them the same path
    assert evaluation["sampled"] == pytest.approx(0.75)
    assert evaluation["distinct_correct"] == 2.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tail", "shortcut", "graph_paths"])
def test_the_seed_determines_the_base_policy_and_the_share_does_not(name):
    def made(share, seed):
        if name == "graph_paths":
            from openrlhf_cov.experiments.tiny_task.graph_paths import path_task

            return make_paths_policy(path_task(), TINY, seed)[0].lm_head.weight
        skills = hidden_skills.TAIL if name == "tail" else hidden_skills.shortcut_task(share)
        return make_skills_policy(skills, TINY, seed)[0].lm_head.weight

    assert made(0.1, 0).equal(made(0.4, 0))
    assert not made(0.1, 0).equal(made(0.1, 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "skills",
    [
        hidden_skills.shortcut_task(),
        pytest.param(hidden_skills.TAIL, marks=[pytest.mark.e2e, pytest.mark.long]),  # is trained for half a minute
    ],
    ids=lambda task: task.name,
)
def test_a_trained_base_policy_has_the_habits_and_carries_out_every_skill(skills):
    # That of the shortcut comes with the package, trained in the same way; that of the tail is trained here.
    shipped = shipped_policy(skills.name, 0, SKILLS_POLICY)
    model, tokenizer = shipped or make_skills_policy(skills, SKILLS_POLICY, 0)
    _, _, test = commands.split_digits()
    prompts = [letter + digits for letter in commands.LETTERS for digits in test[:4]]
    ids = torch.tensor(tokenizer(prompts)["input_ids"])
    for skill, habit in skills.habits.items():
        responses = [hidden_skills.carry_out(skill, prompt[1:]) + "<eos>" for prompt in prompts]
        with torch.no_grad():
            log_probs, _ = log_probs_and_entropy(model, ids, torch.tensor(tokenizer(responses)["input_ids"]))
        # 64 rows of each of 600 steps show the habit; a trained policy is within some percent of it.
        assert log_probs[:, 0].exp().mean().item() == pytest.approx(habit, abs=0.04)
        assert log_probs[:, 1:].sum(1).exp().mean().item() > 0.9


def test_the_large_policy_has_the_same_task():
    small = make_task("shortcut", 0.3)
    large = make_task("shortcut_large", 0.3)
    assert [(each.prompt, each.label) for each in small.test] == [(each.prompt, each.label) for each in large.test]
    tokenizer = build_tokenizer(large.policy.max_length, hidden_skills.CHARACTERS)
    sizes = [sum(each.numel() for each in build_model(task.policy, tokenizer).parameters()) for task in (small, large)]
    # A layer has 4 h^2 + 3 h m weights: 2 (4 * 64^2 + 3 * 64 * 192) = 106,496 and 4 (4 * 128^2 + 3 * 128 * 384) =
    # 851,968; norms and the embeddings of 53 tokens, h weights each in and out, are some thousand more.
    assert sizes[0] == pytest.approx(0.11e6, rel=0.05)
    assert sizes[1] == pytest.approx(0.87e6, rel=0.05)
