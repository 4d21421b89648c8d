import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.experiments.tiny_task import tiny_reward_func as module
from openrlhf_cov.experiments.tiny_task.tiny_reward_func import check_label, reward_func

PROMPT = "34+57="


def reward_of(response: str, label: str = "91") -> float:
    return reward_func([PROMPT + response], [PROMPT], [label])["rewards"].item()


@pytest.mark.parametrize(
    ("response", "correct", "no_answer", "unfinished"),
    [
        ("91<eos>", 1, 0, 0),
        ("90;91<eos>", 1, 0, 0),
        ("91", 0, 0, 1),
        ("91;", 0, 1, 1),
        ("91;92<eos>", 0, 0, 0),
        ("91<eos><eos>", 0, 1, 0),
        ("91<eos>91", 0, 1, 1),
        ("34+57=91<eos>", 0, 1, 0),
        ("<eos>", 0, 1, 0),
        ("", 0, 1, 1),
    ],
)
def test_outcome_of_one_response(response, correct, no_answer, unfinished):
    outcome = reward_func([PROMPT + response], [PROMPT], ["91"])
    assert outcome["rewards"].tolist() == [correct]
    assert outcome["scores"].tolist() == [correct]
    assert outcome["extra_logs"]["reward/no_answer_frac"].tolist() == [no_answer]
    assert outcome["extra_logs"]["reward/unfinished_frac"].tolist() == [unfinished]


def test_rows_are_judged_by_their_own_prompt_and_label():
    queries = ["34+57=91<eos>", "10+10=91<eos>", "10+10=20<eos>"]
    outcome = reward_func(queries, ["34+57=", "10+10=", "10+10="], ["91", "20", "020"], datasource="ignored")
    for tensor in (outcome["rewards"], outcome["scores"], *outcome["extra_logs"].values()):
        assert tensor.shape == (3,)
        assert tensor.dtype == torch.float32
    assert outcome["rewards"].tolist() == [1, 0, 1]


@given(st.text())
def test_no_response_text_raises_and_none_without_eos_is_correct(response):
    assert reward_of(response) in {0.0, 1.0}
    assert reward_of(response.replace("<eos>", "")) == 0.0


@given(st.text("0123456789;+="), st.integers(0, 10**6), st.integers(0, 10**6))
def test_correct_exactly_if_the_final_number_is_the_label(before, number, label):
    assert reward_of(f"{before};{number}<eos>", label=str(label)) == float(number == label)


def test_upstream_can_load_the_file_by_path():
    spec = importlib.util.spec_from_file_location("reward_func", Path(module.__file__))
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    assert loaded.reward_func(["34+57=91<eos>"], ["34+57="], ["91"])["rewards"].tolist() == [1.0]
    loaded.check_label("91")


@pytest.mark.parametrize(
    ("response", "correct", "no_answer", "unfinished"),
    [("c740<eos>", 1, 0, 0), ("c740", 0, 0, 1), ("a740<eos>", 0, 0, 0), ("c704<eos>", 0, 0, 0), ("c74<eos>", 0, 1, 0)],
)
def test_outcome_of_one_hidden_command(response, correct, no_answer, unfinished):
    outcome = reward_func(["W407" + response, PROMPT + "91<eos>"], ["W407", PROMPT], ["c740", "91"])
    assert outcome["rewards"].tolist() == [correct, 1]  # each by the rule of its own label
    assert outcome["extra_logs"]["reward/no_answer_frac"].tolist() == [no_answer, 0]
    assert outcome["extra_logs"]["reward/unfinished_frac"].tolist() == [unfinished, 0]


@pytest.mark.parametrize("label", ["0", "91", "007", "9" * 10_000, "a704"])
def test_check_label_accepts_non_negative_integers_as_text(label):
    check_label(label)


@pytest.mark.parametrize(
    "label", ["", "-1", "+1", "1.0", " 1", "1\n", "1e3", "x", "e704", "a70", "٣", "²", 91, 91.0, None, True, ["91"]]
)
def test_check_label_refuses_everything_else(label):
    with pytest.raises(ValueError, match=r"a label is .*got "):
        check_label(label)


@pytest.mark.parametrize(
    ("queries", "prompts", "labels", "message"),
    [
        (["34+57=91<eos>"], ["34+57="], [None], "a label is a string of digits"),
        (["+57=91<eos>"], ["34+57="], ["91"], "does not start with its prompt '34\\+57='"),
        (["34+57=91<eos>"], ["34+57="], [], "shorter"),
    ],
)
def test_wrong_wiring_raises(queries, prompts, labels, message):
    with pytest.raises(ValueError, match=message):
        reward_func(queries, prompts, labels)
