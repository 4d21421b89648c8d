"""What stands inside the thinking of a model is never an answer, by whatever rule and program it is graded."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.rewards.maths.grading import grade
from openrlhf_cov.rewards.sources import grade_label
from openrlhf_cov.rewards.thinking import final_part, opens_thinking


@pytest.mark.parametrize(
    ("response", "final"),
    [
        ("5", "5"),  # a model that does not think
        ("<think>a</think>b", "b"),
        ("a</think>b", "b"),  # the prompt opened it
        ("<think>a", ""),
        ("<think>a</think>b<think>c", ""),  # cut off in the second thinking
        ("<think>a<think>b</think>c", "c"),  # one closing marker closes all that were opened
        ("<THINK>a</Think>b", "b"),
        ("< think >a</ think >b", "b"),
        ("<think >a", ""),
        ("<thinking>a", "<thinking>a"),  # another word
        # a marker that is spoken of closes and opens nothing
        ('<think>I close with "</think>" and', ""),
        ("<think>a</think>b `<think>` c", "b `<think>` c"),
        ("<think>a</think>b \\boxed{</think>}", "b \\boxed{</think>}"),
        ('<think>a</think>print("<think>", x)', 'print("<think>", x)'),
        ("<think>a</think>re.sub(r'<think>.*</think>', '', s)", "re.sub(r'<think>.*</think>', '', s)"),
        ("<think>It's a.</think>b", "b"),  # an apostrophe is no quotation mark
        ('<think>He said "x".</think>b "c"', 'b "c"'),
        ("<think>the boys' a</think> the girls' b", " the girls' b"),  # nor is one behind a plural
        ('<think>It is 5" tall</think> and 6" wide', ' and 6" wide'),  # nor is the sign for inches
        ("<think>so f'(1) = 2</think> and f'(2) = 4", " and f'(2) = 4"),  # nor is that of a derivative
        ('<think>"Maybe</think>The "answer" is b', 'The "answer" is b'),  # one quotation was never closed
        ('<think>a</think>re.sub(r"<think>.*</think>", "", s)', 're.sub(r"<think>.*</think>", "", s)'),
        ('<think>of 5"</think>\n"b"', '\n"b"'),  # a quotation does not go on over lines
    ],
)
def test_the_final_part(response, final):
    assert final_part(response) == final


@pytest.mark.parametrize("response", ["5", "a <think>b", "", "<think>"])
def test_what_the_prompt_opened_and_nothing_closed_has_no_final_part(response):
    assert final_part(response, opened=True) == ""
    assert final_part(response + "</think> 6", opened=True) == " 6"


@pytest.mark.parametrize(
    ("prompt", "opens"),
    [
        ("<|im_start|>assistant\n<think>", True),
        ("<|im_start|>assistant\n<think>\n", True),
        ("<THINK> \n\n", True),
        ("<think>\n\n</think>\n\n", False),  # a template that switches thinking off
        ("What does <think> mean?<|im_end|>\n<|im_start|>assistant\n", False),
        ('Which tag is "<think>"', False),
        # a template that also begins the thinking
        ("<|im_start|>assistant\n<think>\nOkay, let me see.", True),
        ("User: 1+1\nAssistant: <think> Let me solve this step by step.\n", True),
        ("[/INST]<think>Okay", True),
        ("assistant\n<think>\nNo need.\n</think>\nThe answer", False),
        ("Begin with\n<think>\nplease.<|im_end|>\n<|im_start|>assistant\n", False),
        ("Explain what the tag <think> does.\n", False),
        ("Begin with:\n<think>\nUser: 1+1\nAssistant:", False),
        ("", False),
    ],
)
def test_only_a_prompt_that_ends_inside_the_thinking_opens_it(prompt, opens):
    assert opens_thinking(prompt) is opens


def test_other_markers():
    markers = ("[THINK]", "[/THINK]")
    assert final_part("[THINK]a[/THINK]b", markers) == "b"
    assert final_part("[THINK]a", markers) == ""
    assert final_part("<think>b", markers) == "<think>b"
    assert opens_thinking("<s>[INST]x[/INST][THINK]", markers)
    assert final_part("<|thought|>a<|end_of_thought|>b", ("<|thought|>", "<|end_of_thought|>")) == "b"
    assert final_part("◁think▷a◁/think▷b", ("◁think▷", "◁/think▷")) == "b"


@pytest.mark.parametrize("markers", [("", "</think>"), ("<think>", " "), ("<think>", "<THINK> ")])
def test_markers_that_mark_nothing_are_refused(markers):
    with pytest.raises(ValueError, match=r"--thinking_markers .*: the two markers must be different"):
        RewardConfig(thinking_markers=markers)


PLAIN = st.text(st.characters(exclude_characters="<>{}\"'`", exclude_categories=["Cs"]), max_size=30)


@given(st.lists(st.sampled_from(["<think>", "</think>"]) | PLAIN, max_size=12))
def test_no_word_before_the_last_closing_marker_is_left(parts):
    final = final_part("".join(parts))
    last = max((place for place, part in enumerate(parts) if part == "</think>"), default=-1)
    behind = parts[last + 1 :]
    assert final == ("" if "<think>" in behind else "".join(behind))


@pytest.mark.parametrize("piece", ["<think>", "</think>", '"<think>', "<" + " " * 50, "{</think>}"])
def test_a_hostile_response_takes_little_time(piece):
    started = time.process_time()
    final_part(piece * (400_000 // len(piece)))
    assert time.process_time() - started < 5.0


BOXED = RewardConfig()
PROGRAM = "```python\nprint(1)\n```"
STDIN = '{"stdin": [["", "1\\n"]]}'


@pytest.mark.parametrize(
    ("source", "form", "answer", "label"),
    [
        ("math", "boxed", r"\boxed{1}", "1"),
        ("math", "any", "#### 1", "1"),
        ("gsm8k", "gsm8k", "#### 1", "1"),
        ("math", "answer_tag", "<answer>1</answer>", "1"),
        ("choice", "answer_line", "Answer: B", "B"),
        ("code", "boxed", PROGRAM, STDIN),
    ],
)
def test_every_rule_reads_behind_the_thinking(source, form, answer, label, monkeypatch):
    from openrlhf_cov.rewards.code import rule
    from openrlhf_cov.rewards.code.judge import Verdict

    judged = []

    def passed(program, *_):
        judged.append(program)
        return Verdict(status="passed", passed=1, total=1)

    monkeypatch.setattr(rule, "_judge_here", passed)
    monkeypatch.setattr(rule, "_verdicts", rule.Verdicts())
    config = RewardConfig(reward_source=source, reward_format=form)
    for response, prompt in (
        (f"<think>Maybe {answer}. But wait", ""),
        (f"<think>Maybe\n{answer}\n</think>I do not know.", ""),
        (f"Maybe\n{answer}\nBut wait", "assistant\n<think>\n"),
        (f"<think>a</think>\n{answer}\n<think>But wait", ""),
    ):
        graded = grade_label(response, label, config, prompt=prompt)
        assert (graded.correct, graded.status, graded.answer) == (False, "no_answer", None), response
    assert judged == []  # no program of the thinking was run
    assert grade_label(f"<think>a</think>\n{answer}", label, config).correct
    assert grade_label(f"a</think>\n{answer}", label, config, prompt="<think>").correct
    assert grade_label(f"Maybe\n{answer}", label, config, prompt="What is <think>? Answer:\n").correct


def test_the_public_function_has_the_same_rule():
    assert not grade(r"<think>Maybe \boxed{1}. But wait", "1").correct
    assert grade(r"<think>Maybe \boxed{2}.</think> \boxed{1}", "1").correct
    assert not grade(r"[THINK]\boxed{1}", "1", thinking_markers=("[THINK]", "[/THINK]")).correct


def test_thinking_that_begins_out_of_sight():
    config = RewardConfig(thinking_opened=True)
    assert grade_label(r"Maybe \boxed{1}", "1", config).status == "no_answer"
    assert grade_label(r"Maybe</think>\boxed{1}", "1", config).correct
