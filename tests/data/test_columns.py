import hashlib
import json

import pytest

from openrlhf_cov.data.inputs import Keys, open_sources
from openrlhf_cov.errors import UsageError

USER = {"role": "user", "content": "How many?"}
SYSTEM = {"role": "system", "content": "Think."}


def said(text):
    return {"role": "assistant", "content": text}


def verl(content, answer, **fields):
    prompt = [{"role": "user", "content": content}]
    return {"data_source": "openai/x", "prompt": prompt, "reward_model": {"ground_truth": answer}, **fields}


# rows of published data sets, with their problem and answer
PUBLISHED = {
    "question and answer": ({"question": "How many?", "answer": "5"}, "How many?", "5"),
    "GSM8K": ({"question": "How many?", "answer": "He has 3 * 2 = <<3*2=6>>6.\n#### 1,006"}, "How many?", "1,006"),
    "solution": (
        {"problem": "How many?", "level": "Level 5", "solution": r"Not \boxed{3}, but \boxed{\frac{1}{2}}."},
        "How many?",
        r"\frac{1}{2}",
    ),
    "expected answer beside a solution": ({"problem": "?", "solution": "Long.", "expected_answer": "6"}, "?", "6"),
    "solution that is the answer": ({"prompt": "How many?", "solution": "34"}, "How many?", "34"),
    "solution without an answer": ({"problem": "How many?", "solution": "It is 5."}, "How many?", ""),
    "solution beside an answer": ({"problem": "?", "solution": r"\boxed{5}", "answer": "6"}, "?", "6"),
    "boxed answer": ({"problem": "?", "answer": r"$\boxed{5}$"}, "?", "5"),
    "messages": ({"messages": [USER, said(r"So it is \boxed{5}.")]}, "How many?", "5"),
    "messages with a system": ({"messages": [SYSTEM, USER, said("2 + 3 = 5\n#### 5")]}, "How many?", "5"),
    "messages without an answer": ({"messages": [USER, said("I do not know.")]}, "How many?", ""),
    "messages beside an answer": ({"messages": [USER, said("Hm.")], "answer": 7}, "How many?", "7"),
    "messages of parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "How many?"}]}], "answer": "5"},
        "How many?",
        "5",
    ),
    "messages written as JSON": ({"messages": json.dumps([USER, said(r"So it is \boxed{5}.")])}, "How many?", "5"),
    "a problem about lists": ({"problem": "[{1}] has how many?", "answer": "1"}, "[{1}] has how many?", "1"),
    "verl": (verl("How many?", "34"), "How many?", "34"),
    "verl, a number": (verl("How many?", 34), "How many?", "34"),
    "verl, GSM8K": (
        verl('How many? Let\'s think step by step and output the final answer after "####".', "34"),
        "How many?",
        "34",
    ),
    "verl, MATH": (
        verl("How many? Let's think step by step and output the final answer within \\boxed{}.", "34"),
        "How many?",
        "34",
    ),
    "verl, DAPO": (
        verl(
            "Solve the following math problem step by step. The last line of your response should be of the form "
            "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\nHow many?\n\nRemember to "
            'put your answer on its own line after "Answer:".',
            "34",
        ),
        "How many?",
        "34",
    ),
    "headings of Markdown": ({"problem": "?", "solution": "#### Step 1\nHm.\n#### Step 2\nSo \\boxed{5}."}, "?", "5"),
    "headings and no answer": ({"problem": "?", "solution": "#### Step 1\nIt is five.\n"}, "?", ""),
    "a box behind the sign": ({"problem": "?", "solution": "Hm.\n#### \\boxed{5}"}, "?", "5"),
    "a heading and a formula": ({"problem": "?", "solution": "Hm.\n####\n$$\n5\n$$\n"}, "?", "5"),
    "thinking": ({"messages": [USER, said("<think>\\boxed{3}? No.</think>\n5")]}, "How many?", "5"),
    "thinking and a box": ({"messages": [USER, said("<think>\\boxed{3}</think>\\boxed{5}")]}, "How many?", "5"),
    "thinking and words": ({"messages": [USER, said("<think>\\boxed{3}</think>It is 5.")]}, "How many?", ""),
    "thinking that was cut off": ({"problem": "?", "answer": "<think>\\boxed{3}"}, "?", ""),
    "null answer": ({"problem": "How many?", "answer": None}, "How many?", ""),
    "null problem": ({"problem": None, "answer": "5"}, "", "5"),
    "null beside a solution": ({"problem": "?", "answer": None, "solution": r"\boxed{5}"}, "?", ""),
    "null in verl": (verl("How many?", None), "How many?", ""),
    "null struct": (verl("How many?", None) | {"reward_model": None}, "How many?", ""),
}


def read(source):
    return list(source.read(hashlib.sha256()))


@pytest.mark.parametrize(("row", "problem", "answer"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_forms(open_rows, row, problem, answer):
    (found,) = read(open_rows([row]))
    assert (found.problem, found.answer, found.source) == (problem, answer, "math/own")


def test_nested_keys_can_be_named(open_rows):
    row = {"input": {"text": "How many?"}, "output": {"gold": "#### 5"}, "meta": {"n": 3, "kind": "gsm8k/x"}}
    keys = {"problem": "input.text", "answer": "output.gold", "id": "meta.n", "source": "meta.kind"}
    (found,) = read(open_rows([row], **keys))
    assert (found.id, found.problem, found.answer, found.source) == ("3", "How many?", "5", "gsm8k/x")


def test_tests_of_a_program_are_taken_as_they_are(open_rows):
    # a program may print "####" and a test may contain a box
    tests = '{"inputs": ["#### 1"], "outputs": ["\\\\boxed{3}"]}'
    (found,) = read(open_rows([{"problem": "Add.", "answer": tests, "source": "code/x"}]))
    assert found.answer == tests


@pytest.mark.parametrize("messages", [[USER, said("No."), USER, said(r"\boxed{5}")], [SYSTEM], [said(r"\boxed{5}")]])
def test_messages_that_are_no_single_question_are_refused(open_rows, messages):
    with pytest.raises(UsageError, match="line 1: 'messages': it must be one question of the user") as refused:
        read(open_rows([{"messages": messages, "answer": "5"}]))
    assert "\n" not in str(refused.value)


def test_a_program_of_verl_needs_a_rule(write):
    path = write([verl("Add.", '{"inputs": ["1 2"], "outputs": ["3"]}', ability="code")])
    with pytest.raises(UsageError, match=r"line 1: it is a program .*; name its rule with --rule code"):
        [read(source) for source in open_sources(str(path), None, Keys())]
    (source,) = open_sources(str(path), None, Keys(), "code")
    assert [row.source for row in read(source)] == ["code/own"]
