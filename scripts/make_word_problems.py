"""Word problems of one step, of which SmolLM2-135M solves some: data of studies/smollm2.yaml.

GSM8K itself is too hard for a model of this size: of its 48 shortest problems it solves none to two, whatever it is
told, so that no group has an advantage. These have one addition, subtraction or multiplication, and three solved ones
before them, as turns of the model's chat. Needs nothing but Python:

    python scripts/make_word_problems.py --output runs/word_problems
"""

import argparse
import json
import random
from pathlib import Path

NAMES = ("Tom", "Anna", "Ben", "Mary", "Sam", "Lucy", "Jack", "Emma", "Leo", "Ruth")
THINGS = ("pens", "books", "apples", "coins", "cards", "eggs", "toys", "stamps", "shells", "plums")
# Problems with their solutions in the form of GSM8K, which are shown before every problem.
SOLVED = (
    ("Tom has 6 pens and gets 3 more. How many pens does Tom have now?", "6 + 3 = 9\n#### 9"),
    ("Anna has 12 eggs and gives away 5 of them. How many eggs are left?", "12 - 5 = 7\n#### 7"),
    ("Ben has 4 boxes with 5 toys in each. How many toys does Ben have?", "4 * 5 = 20\n#### 20"),
)
TRAIN = 2000
TEST = 128
SEED = 0
KINDS = 3


def problem(kind: int, rng: random.Random) -> tuple[str, int]:
    """A problem that adds (0), subtracts (1) or multiplies (2), and its answer."""
    name = rng.choice(NAMES)
    things = rng.choice(THINGS)
    if kind == 0:
        first = rng.randint(2, 50)
        second = rng.randint(2, 50)
        story = f"gets {second} more. How many {things} does {name} have now?"
        return f"{name} has {first} {things} and {story}", first + second
    if kind == 1:
        second = rng.randint(2, 30)
        first = second + rng.randint(1, 40)
        story = f"gives away {second} of them. How many {things} are left?"
        return f"{name} has {first} {things} and {story}", first - second
    first = rng.randint(2, 9)
    second = rng.randint(2, 12)
    story = f"with {second} {things} in each. How many {things} does {name} have?"
    return f"{name} has {first} boxes {story}", first * second


def prompt_of(question: str) -> str:
    """The solved problems and the question as turns of a chat in ChatML, SmolLM2's own form, no system message."""
    turns = [turn for pair in SOLVED for turn in zip(("user", "assistant"), pair, strict=True)] + [("user", question)]
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"


def make_rows(count: int) -> list[dict[str, str]]:
    """``count`` different problems, kind after kind: rows for training (``prompt``) and evaluation (``problem``)."""
    rng = random.Random(SEED)
    asked = {question for question, _ in SOLVED}
    rows = []
    while len(rows) < count:
        question, answer = problem(len(rows) % KINDS, rng)
        if question not in asked:
            asked.add(question)
            row = {"id": f"word-{len(rows)}", "answer": str(answer), "source": "gsm8k/one-step"}
            rows.append(row | dict.fromkeys(("prompt", "problem"), prompt_of(question)))
    return rows


def main() -> None:
    """Write ``train.jsonl`` and ``test.jsonl``, which share no problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of train.jsonl and test.jsonl")
    folder: Path = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    rows = make_rows(TRAIN + TEST)
    for name, part in {"test": rows[:TEST], "train": rows[TEST:]}.items():
        text = "".join(json.dumps(row) + "\n" for row in part)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
