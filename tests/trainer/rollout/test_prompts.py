"""Prompts of data sets, and the order in which they are drawn."""

import pytest
import torch
from datasets import Dataset
from run_flags import run_flags
from torchdata.stateful_dataloader import StatefulDataLoader

from openrlhf_cov.config import template_arguments
from openrlhf_cov.data.templates import BOXED, get_template
from openrlhf_cov.rewards import reward_func
from openrlhf_cov.trainer.model.strategy import CovStrategy
from openrlhf_cov.trainer.rollout.prompts import (
    Prompt,
    PromptOrder,
    frozen_updates,
    load_evaluation_prompts,
    load_prompts,
    prompts_of,
    scheduled_updates,
)

ROWS = [
    {"problem": "a", "answer": "5", "source": "gsm8k/test"},
    {"problem": "b", "answer": r"\frac{1}{2", "source": "math"},  # braces do not match
    {"problem": "c", "answer": "B", "source": "choice"},
]


def make_args(label_key="answer", template=None, chat=False, **changes):
    return run_flags({
        "data.input_key": "problem", "data.label_key": label_key, "data.max_samples": 100,
        "data.input_template": template, "data.apply_chat_template": chat, "reward.remote_url": [reward_func.__file__],
    } | changes)  # fmt: skip


def build(rows=ROWS, tokenizer=None, **settings) -> list[Prompt]:
    return prompts_of(Dataset.from_list(rows), make_args(**settings), tokenizer)


def labels(prompts):
    return [prompt.label for prompt in prompts]


def texts(prompts):
    return [prompt.text for prompt in prompts]


def test_prompts_are_those_of_the_rows():
    prompts = build()
    assert labels(prompts) == ["5", r"\frac{1}{2", "B"]
    assert [(prompt.number, prompt.text, prompt.images) for prompt in prompts] == [
        (0, "a", None), (1, "b", None), (2, "c", None)
    ]  # fmt: skip
    assert texts(build(**{"data.max_samples": 2})) == ["a", "b"]
    assert texts(build(template="Q: {}")) == ["Q: a", "Q: b", "Q: c"]


def test_labels_carry_the_source_where_it_decides_the_rule():
    prompts = build(reward_source="row")
    assert prompts[0].label == {"answer": "5", "source": "gsm8k/test"}
    assert (prompts[2].text, prompts[2].label) == ("c", {"answer": "B", "source": "choice"})


def test_rows_with_bad_labels_are_dropped_if_asked():
    prompts = build(reward_skip_bad_labels=True)
    assert (texts(prompts), labels(prompts)) == (["a", "c"], ["5", "B"])


@pytest.mark.parametrize("skip", [False, True])
def test_without_a_label_key_there_are_no_labels(skip):
    assert labels(build(label_key=None, reward_skip_bad_labels=skip)) == ["", "", ""]


class Tokenizer:
    """Writes messages and arguments as they come."""

    chat_template = "{{ enable_thinking }}"

    def apply_chat_template(self, messages, tokenize, add_generation_prompt, **arguments):
        assert (tokenize, add_generation_prompt) == (False, True)
        return f"{[message['content'] for message in messages]} {arguments}"


@pytest.mark.parametrize(("given", "written"), [("", {}), ('{"enable_thinking": false}', {"enable_thinking": False})])
def test_rollouts_and_evaluations_give_the_chat_template_the_same_arguments(given, written):
    args = make_args(label_key=None, chat=True)
    args.chat_template_kwargs = given
    rows = Dataset.from_list([{"problem": f"1+1=\n{BOXED}"}])
    tokenizer = Tokenizer()
    prompts = prompts_of(rows, args, tokenizer)
    assert texts(prompts) == [f"{[rows[0]['problem']]} {written}"]
    assert texts(prompts) == [get_template("chat", template_arguments(given))("1+1=", tokenizer)]


def test_nested_keys():
    rows = [
        {"task": {"text": "a"}, "reward_model": {"ground_truth": "5"}, "datasource": "x"},
        {"task": {"text": "b"}, "reward_model": None, "datasource": "y"},
    ]
    prompts = build(rows=rows, label_key="reward_model.ground_truth", **{"data.input_key": "task.text"})
    assert texts(prompts) == ["a", "b"]
    assert labels(prompts) == ["5", None]
    assert [prompt.source for prompt in prompts] == ["x", "y"]
    graded = build(
        rows=rows,
        label_key="reward_model.ground_truth",
        reward_skip_bad_labels=True,
        **{"data.input_key": "task.text"},
    )
    assert (texts(graded), labels(graded)) == (["a"], ["5"])


def test_the_source_of_a_row_is_also_that_of_verl():
    rows = [{"problem": "a", "answer": "5", "datasource": name, "data_source": "verl"} for name in ("aime", None, "")]
    assert [prompt.source for prompt in build(rows=rows)] == ["aime", "verl", "verl"]
    assert build(rows=[{"problem": "a", "answer": "5"}])[0].source == "default"


@pytest.fixture
def files(tmp_path):
    """Two data sets of 6 and 3 rows."""
    paths = []
    for name, count in (("first", 6), ("second", 3)):
        paths.append(tmp_path / f"{name}.jsonl")
        rows = [f'{{"problem": "{name} {place}", "answer": "1"}}' for place in range(count)]
        paths[-1].write_text("\n".join(rows))
    return ",".join(map(str, paths))


@pytest.mark.usefixtures("one_process")
def test_data_sets_are_read_and_blended_as_upstream_does(files):
    args = make_args(**{"data.max_samples": 4, "data.prompt_dataset": files, "eval.dataset": files})
    strategy = CovStrategy(args=args)
    # upstream's limit holds for each data set, and for all together
    assert texts(load_prompts(args, strategy, None)) == [f"first {place}" for place in range(4)]
    args.data.max_samples = 100
    assert len(load_evaluation_prompts(args, strategy, None)) == 9
    args.data.prompt_probs = "0.5,0.5"
    mixed = texts(load_prompts(args, strategy, None))
    assert set(mixed) >= {"first 0", "second 0"}
    assert mixed != sorted(mixed)


def test_prompts_left_over_by_an_episode_are_scheduled_in_the_next_one():
    # 31 prompts x 2 samples are 1.9 updates of 32 samples: 19 in ten episodes, and not ten times one.
    args = run_flags({
        "train.num_episodes": 10, "rollout.n_samples_per_prompt": 2, "train.batch_size": 32, "rollout.batch_size": 16,
    })  # fmt: skip
    assert scheduled_updates(args, prompts=31) == 19


@pytest.mark.parametrize(("steps", "updates"), [(-1, 0), (0, 6), (2, 18)])
def test_the_policy_makes_no_update_in_the_steps_of_the_critic_alone(steps, updates):
    # Up to step ``steps``, counted from 0: 4 prompts x 4 samples are 2 updates of 8 samples, in each of 3 passes.
    args = run_flags({
        "critic.freezing_steps": steps, "critic.model_name_or_path": "model",
        "rollout.batch_size": 4, "train.max_epochs": 3,
    })  # fmt: skip
    assert frozen_updates(args) == updates
    args.critic.model_name_or_path = None
    assert frozen_updates(args) == 0


@pytest.mark.parametrize(("limit", "updates"), [(0, 30), (100, 30), (15, 30), (14, 28), (1, 2)])
def test_a_limit_of_rollouts_shortens_the_schedule(limit, updates):
    # 10 prompts x 4 samples are 5 updates of 8 samples; 3 episodes of 2 passes each make 30. A rollout of 2 prompts is
    # one update in each of 2 passes: the data give 15 rollouts.
    args = run_flags({"train.num_episodes": 3, "train.max_epochs": 2, "rollout_limit": limit})
    assert scheduled_updates(args, prompts=10) == updates


@pytest.mark.parametrize(("seed", "count"), [(42, 10), (7, 100), (1, 1)])
def test_prompts_are_drawn_in_the_order_of_torchs_sampler(seed, count):
    torch.manual_seed(seed)
    loader = StatefulDataLoader(list(range(count)), batch_size=1, shuffle=True, collate_fn=lambda items: items[0])
    order = PromptOrder(count, seed)
    for episode in range(3):
        expected = list(loader)
        assert order.permutation(episode) == expected
        order.move_to(episode)
        assert order.draw(count) == expected
        assert order.draw(1) == []


def test_an_order_continues_from_episode_and_place():
    first = PromptOrder(10, seed=3)
    first.move_to(1)
    first.draw(4)
    assert (first.episode, first.place, first.drawn) == (1, 4, 14)
    second = PromptOrder(10, seed=3)
    second.move_to(first.episode, first.place)
    assert second.draw(100) == first.draw(100)
    assert sorted(second.permutation(1)) == list(range(10))
    assert second.permutation(0) != second.permutation(1)
    assert PromptOrder(10, seed=4).permutation(0) != second.permutation(0)
