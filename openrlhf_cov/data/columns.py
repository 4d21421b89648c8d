"""Problem and answer of a row in the forms in which data sets are published (pure).

The forms are ``problem`` or ``question`` with ``answer``, ``expected_answer`` or ``final_answer``, ``solution`` with a
boxed answer, the ``messages`` of a chat, and verl's ``prompt``, a list of messages, with
``reward_model.ground_truth``.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from openrlhf_cov.rewards.maths.extraction import answer_of_solution
from openrlhf_cov.rewards.thinking import final_part
from openrlhf_cov.utils.json_lines import parse_json
from openrlhf_cov.utils.rows import value_at

# Keys of the problem, in the order in which they are looked for.
PROBLEM_KEYS = ("problem", "question", "prompt", "messages")
# Keys of the answer, in the order in which they are looked for.
ANSWER_KEYS = (
    *("answer", "expected_answer", "final_answer", "solution", "reward_model.ground_truth", "ground_truth"),
    "messages",
)

# Instructions that published prompts put around the problem. Each asks for one form of the answer, which can
# contradict the form that --template asks for.
BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.",
)
AFTER = (
    "Present the answer in LaTex format: \\boxed{Your answer}",  # PRIME-RL/Eurus-2-RL-Data
    'Remember to put your answer on its own line after "Answer:".',  # DAPO-Math-17k
    "Let's think step by step and output the final answer within \\boxed{}.",  # verl, DeepScaleR
    'Let\'s think step by step and output the final answer after "####".',  # verl, GSM8K
    "Please reason step by step, and put your final answer within \\boxed{}.",  # Qwen2.5-Math
)


# The beginning of a list of messages that was written as a text.
WRITTEN_MESSAGES = re.compile(r"\s*(?:array\()?\[\s*\{\s*['\"](?:role|content)['\"]\s*:")


def find_key(row: Mapping[str, Any], key: str, default: str, others: tuple[str, ...]) -> str | None:
    """Return the key of a value in a row; None if the row has no such key.

    Args:
        row: A row of a data set.
        key: The key that the user asked for.
        default: Its default. Only with it are ``others`` looked for.
        others: Keys under which data sets have the same value. ``messages`` counts as a key of the answer only where
            the last message is the assistant's.
    """
    if value_at(row, key, default=row) is not row:
        return key
    if key != default:
        return None
    for other in others:
        value = value_at(row, other, default=row)
        if value is row:
            continue
        if other == "messages" and others is ANSWER_KEYS and not _may_be_answered(value):
            continue
        return other
    return None


def messages_of(value: Any) -> Any:
    """Return the messages that a text holds as JSON, as in files of CSV; any other value as it is.

    Raises:
        ValueError: The text is a list of messages in another form, such as Python's.
    """
    if not isinstance(value, str) or not WRITTEN_MESSAGES.match(value):
        return value
    try:
        messages = parse_json(value.encode())
    except ValueError:
        messages = None
    if not _is_chat(messages):
        raise ValueError("it is a list of messages written as a text that is no JSON; write it as JSON")
    return messages


def problem_of(value: Any) -> Any:
    """Return the text of a problem: the value itself, or what the user says in a list of messages.

    The instructions in ``BEFORE`` and ``AFTER`` are removed from a message, because --template adds its own. A message
    of the system is left out.

    Raises:
        ValueError: The messages are no single question.
    """
    value = messages_of(value)
    if not _is_chat(value):
        return value
    turns = [message for message in value if message.get("role") != "system"]
    if turns and _is_answered(turns):
        turns.pop()
    if len(turns) != 1 or turns[0].get("role") != "user":
        roles = ", ".join(str(message.get("role")) for message in value)
        raise ValueError(
            f"it must be one question of the user, with or without an answer; its messages are of: {roles}; train on "
            "conversations of several turns with --data.input_key and --data.apply_chat_template"
        )
    return _without_instructions(_content(turns[0]))


def answer_of(value: Any, key: str, rule: str) -> Any:
    """Return the final answer that a value gives; "" where the value is null or gives none.

    A text that ends with ``#### x`` gives x, and one with a box gives the content of its last box. Thinking between
    ``<think>`` and ``</think>`` holds no answer. A solution without a box and ``####`` gives an answer only if it is a
    single word, such as a number.

    Args:
        value: What the row has: a text, a number, null or a list of messages.
        key: Where it stands in the row.
        rule: The rule that grades the row. A text that ``code`` grades is returned as it is.
    """
    is_solution = key.rpartition(".")[2] == "solution"
    value = messages_of(value)
    if _is_chat(value):
        value = _content(value[-1]) if _is_answered(value) else None
        is_solution = True
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if not isinstance(value, str) or rule == "code":
        return value
    final = final_part(value)
    answer = answer_of_solution(final)
    if answer is not None:
        return answer
    if final != value:  # thinking, and no answer behind it in one of these forms
        return final.strip() if len(final.split()) == 1 else ""
    return "" if is_solution and len(value.split()) > 1 else value


def _is_chat(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(message, dict) for message in value)


def _is_answered(value: Any) -> bool:
    return _is_chat(value) and value[-1].get("role") == "assistant"


def _may_be_answered(value: Any) -> bool:
    """Return whether the messages of a row can hold an answer; a text that is none is refused when it is read."""
    try:
        return _is_answered(messages_of(value))
    except ValueError:
        return True


def _content(message: dict[str, Any]) -> Any:
    """Return the text of a message, whose parts may stand in a list."""
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return "".join(str(part.get("text") or "") for part in content)
    return content


def _without_instructions(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    text = text.strip()
    for instruction in BEFORE:
        text = text.removeprefix(instruction).lstrip()
    for instruction in AFTER:
        text = text.removesuffix(instruction).rstrip()
    return text
