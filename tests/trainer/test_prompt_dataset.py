from types import SimpleNamespace

import pytest
from datasets import Dataset

from openrlhf_cov.config import RewardConfig, template_arguments
from openrlhf_cov.rewards import reward_func
from openrlhf_cov.trainer.prompt_dataset import CovPromptDataset
from openrlhf_cov.utils.prompts import BOXED, get_template

ROWS = [
    {"problem": "a", "answer": "5", "source": "gsm8k/test"},
    {"problem": "b", "answer": r"\frac{1}{2", "source": "math"},  # braces do not match
    {"problem": "c", "answer": "B", "source": "choice"},
]


def build(label_key="answer", rows=ROWS, input_key="problem", **settings) -> CovPromptDataset:
    config = RewardConfig(**settings)
    data = SimpleNamespace(input_key=input_key, label_key=label_key, apply_chat_template=False)
    reward = SimpleNamespace(remote_url=[reward_func.__file__])
    args = SimpleNamespace(data=data, reward=reward, **vars(config))
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
    return CovPromptDataset(Dataset.from_list(rows), tokenizer=None, strategy=strategy)


def test_labels_are_those_of_the_rows():
    assert build().labels == ["5", r"\frac{1}{2", "B"]


def test_labels_carry_the_source_where_it_decides_the_rule():
    dataset = build(reward_source="row")
    assert dataset.labels[0] == {"answer": "5", "source": "gsm8k/test"}
    assert dataset[2][1:3] == ("c", {"answer": "B", "source": "choice"})


def test_rows_with_bad_labels_are_dropped_if_asked():
    dataset = build(reward_skip_bad_labels=True)
    assert (dataset.prompts, dataset.labels) == (["a", "c"], ["5", "B"])


@pytest.mark.parametrize("skip", [False, True])
def test_without_a_label_key_there_are_no_labels(skip):
    assert build(label_key=None, reward_skip_bad_labels=skip).labels == ["", "", ""]


class Tokenizer:
    """Writes messages and arguments as they come."""

    chat_template = "{{ enable_thinking }}"

    def apply_chat_template(self, messages, tokenize, add_generation_prompt, **arguments):
        assert (tokenize, add_generation_prompt) == (False, True)
        return f"{[message['content'] for message in messages]} {arguments}"


@pytest.mark.parametrize(("given", "written"), [("", {}), ('{"enable_thinking": false}', {"enable_thinking": False})])
def test_rollouts_and_evaluations_give_the_chat_template_the_same_arguments(given, written):
    data = SimpleNamespace(input_key="problem", label_key=None, apply_chat_template=True)
    args = SimpleNamespace(
        data=data, reward=SimpleNamespace(remote_url=[]), chat_template_kwargs=given, **vars(RewardConfig())
    )
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
    rows = Dataset.from_list([{"problem": f"1+1=\n{BOXED}"}])
    tokenizer = Tokenizer()
    dataset = CovPromptDataset(rows, tokenizer, strategy)
    assert dataset.prompts == [f"{[rows[0]['problem']]} {written}"]
    assert dataset.prompts == [get_template("chat", template_arguments(given))("1+1=", tokenizer)]
    assert dataset.tokenizer is tokenizer


def test_nested_keys():
    rows = [
        {"task": {"text": "a"}, "reward_model": {"ground_truth": "5"}, "datasource": "x"},
        {"task": {"text": "b"}, "reward_model": None, "datasource": "y"},
    ]
    dataset = build(rows=rows, input_key="task.text", label_key="reward_model.ground_truth")
    assert dataset.prompts == ["a", "b"]
    assert dataset.labels == ["5", None]
    assert dataset.datasources == ["x", "y"]
    graded = build(
        rows=rows, input_key="task.text", label_key="reward_model.ground_truth", reward_skip_bad_labels=True
    )
    assert (graded.prompts, graded.labels) == (["a"], ["5"])


def test_the_source_of_a_row_is_also_that_of_verl():
    rows = [
        {"problem": "a", "answer": "5", "datasource": "aime", "data_source": "math"},
        {"problem": "b", "answer": "5", "datasource": None, "data_source": "openai/gsm8k"},
        {"problem": "c", "answer": "5", "datasource": "", "data_source": None},
    ]
    assert build(rows=rows).datasources[:2] == ["aime", "openai/gsm8k"]
    assert build(rows=[{"problem": "a", "answer": "5"}]).datasources == ["default"]
