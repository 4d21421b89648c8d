import re
import time

import pytest

from openrlhf_cov.rewards.maths.extraction import EXTRACTORS, MAX_BOXES, answer_of_solution, extract_answer, last_boxed
from openrlhf_cov.rewards.verdicts import MAX_RESPONSE

BOXED = [
    (r"so \boxed{5}.", "5"),
    (r"first \boxed{5}, then \boxed{6}", "6"),  # the last one wins
    (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
    (r"\boxed 7", "7"),
    (r"\boxed7.", "7"),
    (r"\boxed -5.5, so", "-5.5"),
    (r"\boxed x", "x"),
    (r"\fbox{5}", "5"),
    ("\\boxed\n{5}", "5"),
    (r"\boxed{  5 }", "5"),
    (r"\boxed{\{5\}}", r"\{5\}"),  # escaped braces do not count
    (r"\boxed{\boxed{5}, 6}", "{5}, 6"),  # the outermost box is the answer
    (r"}}} {{ \boxed{5}", "5"),
    (r"\boxed{5}}}}", "5"),
    (r"\boxed{5} \boxed{6", "5"),  # an unterminated box is passed over
    (r"\boxed{5}<|im_end|>", "5"),
    ("\\boxed{5}</s>\n<|endoftext|>  ", "5"),
    (r"\boxed{5}\boxed{}", None),  # an empty box takes back what was said before
    (r"\boxed{}", None),
    (r"\boxed{   }", None),
    (r"\boxed{5", None),
    (r"\boxed{5\}", None),
    (r"\boxed", None),
    (r"\boxedabc{5}", None),
    ("boxed{5}", None),
    ("the answer is 5", None),
    ("#### 5", None),
    ("", None),
]


@pytest.mark.parametrize(("response", "answer"), BOXED)
def test_boxed(response, answer):
    assert extract_answer(response, "boxed") == answer


SEVERAL_BOXES = [
    (r"\boxed{1} and \boxed{2}", "1, 2"),
    (r"$\boxed{1}$, $\boxed{2}$, and $\boxed{3}$.", "1, 2, 3"),
    (r"\boxed{1}\boxed{2}", "1, 2"),
    (r"\[\boxed{1} \quad \text{or} \quad \boxed{2}\]", "1, 2"),
    (r"$x = \boxed{1}$ and $y_1 = \boxed{2}$", "x =1, y_1=2"),
    (r"\boxed{5} and \boxed{5}", "5"),  # said twice
    (r"\boxed{4}. So \boxed{1} and \boxed{2}", "1, 2"),
    (r"\boxed{1}. \boxed{2}", "2"),  # two sentences
    ("\\boxed{1}\n\n\\boxed{2}", "2"),  # two paragraphs
    ("\\[\\boxed{1}\\]\n\\[\\boxed{2}\\]", "2"),
    ("$\\boxed{1}$,\n$\\boxed{2}$", "1, 2"),
    ("$\\boxed{1}$\nand $\\boxed{2}$", "1, 2"),
    (r"\boxed{1} then \boxed{2}", "2"),
    (r"\boxed{1}, " + "x" * 200 + r" \boxed{2}", "2"),
    (r"\boxed{1} and \boxed{}", None),
]


@pytest.mark.parametrize(("response", "answer"), SEVERAL_BOXES)
def test_boxes_side_by_side_are_one_list(response, answer):
    assert extract_answer(response, "boxed") == answer


def test_a_row_of_boxes_is_read_up_to_its_limit():
    assert (
        extract_answer(" ".join(f"\\boxed{{{n}}}" for n in range(MAX_BOXES + 5)), "boxed").count(",") == MAX_BOXES - 1
    )


ANSWER_TAGS = [
    ("<think>4</think> <answer>5</answer>", "5"),
    ("<answer>4</answer> <answer>\n5\n</answer>", "5"),
    (r"<answer>so \boxed{5}</answer>", "5"),
    ("<ANSWER>5</ANSWER></s>", "5"),
    ("<answer>4</answer> <answer>5", "4"),  # an open one is passed over
    ("<answer>4</answer> <answer></answer>", None),
    ("5</answer>", None),
    ("<answer>5", None),
    (r"\boxed{5}", None),
]


@pytest.mark.parametrize(("response", "answer"), ANSWER_TAGS)
def test_answer_tag(response, answer):
    assert extract_answer(response, "answer_tag") == answer


ANSWER_LINES = [
    ("Answer: 5", "5"),
    ("**Answer:** 5", "5"),
    ("**Answer**: **5**", "5"),
    ("The answer is $5$.", "$5$"),
    ("The final answer is: 5.", "5"),
    ("ANSWER = 5", "5"),
    ("Answer: 3.14", "3.14"),
    ("Answer:\n5", "5"),
    ("Answer: 5\nThat is all.", "5"),
    ("Answer: 5\nAnswer: 6", "6"),
    ("The answer is 5. Or the answer is 6", "6"),  # also the last one within a line
    ("Final Answer: The final answer is $5$. I hope it is correct.", "$5$"),
    (r"The answer is \boxed{5}, I think", "5"),
    ("The answer is 5. It was easy", "5"),
    ("The answer is 5. No, 6.", "5. No, 6"),  # a sentence that takes it back is a part of it
    ("Answer: 5. Or 6.", "5. Or 6"),
    ("The answer is 5? No.", "5? No"),
    ("The answer is 5. Note that 6 is close.", "5"),
    ("The answer is 5. No further steps are needed.", "5"),
    ("Answer: 5 or 6", "5 or 6"),  # what a guess is worth is for the grader to say
    ("The answer is not 5", "not 5"),
    ("Answer:", None),
    ("Answer:  \n\n", None),
    (r"\boxed{5}", None),
    ("#### 5", None),
    ("5", None),
]


@pytest.mark.parametrize(("response", "answer"), ANSWER_LINES)
def test_answer_line(response, answer):
    assert extract_answer(response, "answer_line") == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("so 2 + 3 = 5\n#### 5", "5"),
        ("#### 5\n#### 6", "6"),
        ("####5\nmore", "5"),
        ("#### $1,200 ", "$1,200"),
        ("####\n5", "5"),
        ("####", None),
        ("### 5", None),
        (r"\boxed{5}", None),
    ],
)
def test_gsm8k(response, answer):
    assert extract_answer(response, "gsm8k") == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("#### 6, and \\boxed{5}", "5"),
        ("Answer: 7\n#### 6", "6"),
        ("Answer: 7", "7"),
        ("<answer>6</answer>\n#### 7\nAnswer: 8", "6"),
        ("<answer>6</answer> \\boxed{5}", "5"),
        ("7", None),
        ("\\boxed{} #### 6", None),  # a form that occurs is not given up for the next one
        ("\\boxed{ Answer: 6", None),
    ],
)
def test_any_takes_the_first_form_that_occurs(response, answer):
    assert extract_answer(response, "any") == answer


def test_an_unknown_mode_names_the_flag_and_the_choices():
    with pytest.raises(
        ValueError, match=re.escape("--reward_format is one of boxed, answer_tag, answer_line, gsm8k, any, got 'box'")
    ):
        extract_answer("5", "box")
    assert list(EXTRACTORS) == ["boxed", "answer_tag", "answer_line", "gsm8k", "any"]


def test_only_the_end_of_a_long_response_is_read():
    # the box ends 9 characters after its beginning: with MAX_RESPONSE - 9 characters after it, it is just inside
    box = r"\boxed{5}"
    assert len(box) == 9
    assert extract_answer(box + "x" * (MAX_RESPONSE - 9), "boxed") == "5"
    assert extract_answer(box + "x" * (MAX_RESPONSE - 8), "boxed") is None


def test_last_boxed_drops_inner_marks_but_not_their_braces():
    assert last_boxed(r"\boxed{\fbox{1}+\boxed{2}}") == "{1}+{2}"


ANSWERS_OF_13 = [
    "Answer:\n$$\n13\n$$",
    "Answer: $$\n13\n$$",
    "Answer:\n\\[\n13\n\\]",
    "Answer:\r\n$$\r\n13\r\n$$",
    "Answer:\n\\begin{equation}\n13\n\\end{equation}",
    "Answer:\n$$\n\\boxed{13}\n$$",
    "Answer:\n```\n13\n```",
    "Answer:\n\n**13**",
    "Answer:\n---\n13",
    "Answer: \\\n13",
    "Answer:\\\\ 13",
    r"\textbf{Answer: } 13",
    r"\textbf{Answer:} 13",
    r"\textbf{Answer}: 13",
    r"\textbf{Answer: 13}",
    r"{\bf Answer:} 13",
    r"\boxed{\text{Answer: }13}",
    "**Answer:** 13",
    "_Answer:_ 13",
    "Answer：13",
    "**Answer：** 13",
    "### Answer\n\n13",
    "**Final Answer**\n\n$$\n13\n$$",
    "Answer:\n$$13$$\nas 6 + 7 = 13.",
]


@pytest.mark.parametrize("response", ANSWERS_OF_13)
def test_the_first_content_after_the_mark_is_the_answer(response):
    assert extract_answer(response, "answer_line").strip("*") == "13"


@pytest.mark.parametrize("response", ["####\n$$\n13\n$$", "#### \n\n13", "####\n\\[13\\]"])
def test_the_first_content_after_the_hashes_is_the_answer(response):
    assert extract_answer(response, "gsm8k") == "13"


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("Answer:\n$$\n13\n$$ or 14", "$$\n13\n$$ or 14"),
        (r"\textbf{Answer: 13} or 14", "13 or 14"),
        ("Answer:\n$$13$$ $$14$$", "13$$ $$14"),
        ("Answer:\n$$\n13\n14\n$$", "13\n14"),
        ("Answer:\n$$13\n+4$$", "13\n+4"),
        ("Answer:\n```\n13\n14\n```", "13\n14"),
        ("Answer: 13\n### Answer\n14", "14"),
        ("Answer: 13\nAnswer:", None),
        ("Answer:\n$$\n$$\n", None),
        ("Answer:\n\\begin{pmatrix}\n13\\\\14\n\\end{pmatrix}", "\\begin{pmatrix}\n13\\\\14\n\\end{pmatrix}"),
        ("Answer:\n$$\n13", "$$"),  # a formula that was cut off
    ],
)
def test_no_second_answer_is_hidden_behind_the_first(response, answer):
    assert extract_answer(response, "answer_line") == answer


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", ["Answer: ", "$$", "\\[", "}", "{", "```\n", "\\begin{a}", " \\quad", "*\n", "#### "]
)
def test_a_hostile_text_after_the_mark_takes_little_time(piece):
    started = time.process_time()
    for mark in ("Answer: ", "#### "):
        for mode in ("answer_line", "gsm8k", "any"):
            extract_answer(mark + piece * (MAX_RESPONSE // len(piece)), mode)
    assert time.process_time() - started < 10.0


# A box that is a part of a formula, which has another value than the box.
PARTS = [
    r"x > \boxed{17}", r"\boxed{17} < n", r"|\boxed{17}|", r"$| \boxed{17} |$", r"$\boxed{17}!$",
    r"\boxed{17}x + 3", r"\boxed{17}\text{ hundred}", r"\boxed{17} hundred",
    r"$\boxed{17}$ thousand", r"x \ge \boxed{17}", r"$x\leq \boxed{17}$",
    r"\boxed{17} \le x", r"$x \ne \boxed{17}$", r"\boxed{17}\pi", r"\boxed{17}\sqrt{2}", r"$\boxed{17} - x$",
    r"$x - \boxed{17}$", r"$3x \boxed{17}$", r"x\boxed{17}", r"\pi \boxed{17}", r"2\pi\, \boxed{17}",
    r"\frac{1}{2}\boxed{17}", r"$(x+1)\boxed{17}$", r"\boxed{17}(x+1)", r"$\boxed{17} : 3$",
    r"\lfloor \boxed{17}\rfloor", r"\left|\boxed{17}\right|", r"$x^{2} \boxed{17}$", r"\boxed{17} \mid n",
    r"negative \boxed{17}", r"minus \boxed{17}", r"greater than \boxed{17}", r"\boxed{17} factorial",
    r"\boxed{17} squared", r"$\boxed{17} i$", r"\boxed{17}i", r"\boxed{17}xy", r"$\boxed{17}m$",
    r"\boxed{17} dozen", r"\boxed{17}\times 3", r"\[ x > \boxed{17} \]", r"$n + 1 > \boxed{17}$", r"\sin \boxed{17}",
    r"x>\boxed{17}", r"**\boxed{17}** million", r"$\boxed{17}\text{ million}$",
    r"\boxed{17}-hundred", r"$x < \boxed{17}$", r"\boxed{17}\neq x", r"-\boxed{17}, \boxed{18}",
    r"$x > \boxed{17}$ and $y = \boxed{18}$",
    r"|\boxed{-17}|", r"$1.\boxed{17}$", r"$\{\boxed{17}, 6\}$", r"double \boxed{17}", r"$\boxed{17} \bmod 3$",
    r"f(\boxed{17})", r"$(\boxed{17})^2$", r"$\overline{\boxed{17}}2$", r"$\binom{\boxed{17}}{2}$", r"$3*\boxed{17}$",
    r"$x_\boxed{17}$", r"$\boxed{17} \cup \{3\}$", r"$3 : \boxed{17}$",
    # Signs right beside the formula of the box.
    r"-$\boxed{17}$", "−$\\boxed{17}$", r"It is -\(\boxed{17}\).", r"1/$\boxed{17}$",
    "√$\\boxed{17}$",
   
    r"2^$\boxed{17}$", "$\\boxed{17}$²", r"$\boxed{17}$,000", r"$\boxed{17}$.5", "$\\boxed{17}$π",
    r"$x$ > $\boxed{17}$",
    r"3\(\boxed{17}\)", "$n$ ≤ $\\boxed{17}$", r"$\boxed{17}$/10 = 1.7", r"$\boxed{17}$*3",
]  # fmt: skip

# A box that is the whole answer: names, units and signs of Markdown, HTML and LaTeX may stand beside it.
WHOLE = [
    r"x = \boxed{17}", r"\boxed{17}.", r"$\boxed{17}$", r"\boxed{17} \text{ cm}", r"\text{Answer: }\boxed{17}",
    r"\therefore \boxed{17}", r"$$\boxed{17}$$", r"**\boxed{17}**", r"\implies \boxed{17}", r"= \boxed{17}",
    r"> \boxed{17}", r"=> \boxed{17}", r"-> \boxed{17}", r"<i>\boxed{17}</i>", r"<answer>\boxed{17}</answer>",
    r"| x | \boxed{17} |", r"$\boxed{17}$!", r"\boxed{17}, I think", r"\boxed{17} is it", r"- \boxed{17}",
    r"* \boxed{17}", r"The answer - \boxed{17} - is", r"Answer: \boxed{17}", r"(b) \boxed{17}", r"\quad \boxed{17}",
    r"$x = \boxed{17}$ m", r"$\boxed{17}$ cm", r"\boxed{17}\text{cm}", r"\boxed{17} cm", r"$\boxed{17}\ \text{m}$",
    r"$\boxed{17} \text{ m/s}$", r"\boxed{17} m", r"\[ \boxed{17} \]", r"\( \boxed{17} \).",
    r"\boldsymbol{\boxed{17}}", r"x \equiv \boxed{17} \pmod{20}", r"$x \approx \boxed{17}$", r"$x\in \boxed{17}$",
    r"\Rightarrow \boxed{17}", r"\[ \begin{aligned} x &= \boxed{17} \end{aligned} \]", r"\boxed{17}^\circ",
    r"$\boxed{17}$ <br>", r"\boxed{17}<|im_end|>", r"the total is \boxed{17} students", r"\boxed{17} = x",
    r"\boxed{17} times", r"It costs \$\boxed{17}", r"\$\boxed{17}", r"$\$\boxed{17}$", r"\boxed{17} dollars",
    r"$x=3$ and so $y = \boxed{17}$", r"$x=3$: \boxed{17}", r"\to \boxed{17}", r": \boxed{17}",
    r"$\text{answer: } \boxed{17}$", r"{\boxed{17}}", r"\color{red}{\boxed{17}}", '"\\boxed{17}"', r"(\boxed{17})",
    r"a \boxed{17}", r"\boxed{17}\\ ", r"\boxed{17} \quad x = 3", r"is \boxed{17} a", r"\textbf{\boxed{17}}",
    r"$\displaystyle \boxed{17}$", r"\boxed{17})!", r"x\in \boxed{17}", r"$= \boxed{17},$", r"$n! = \boxed{17}$",
    'Thus the area is:\n$$\\boxed{17}$$', r"$\boxed{17} \square$", r"\boxed{17} $\blacksquare$",
    r"$\boxed{17}\,\text{km}$", r"\boxed{17}°", r"x_1 = \boxed{17}",
    r"The answer is \boxed{17}!", r"The answer is: **\boxed{17}!**",
    r"$\text{Answer}: \boxed{17}$", r"It costs $5 and so **\boxed{17}**", "It costs $5.\n- \\boxed{17}",
    r"\boxed{17}!", r"\boxed{17}\%", r"$\boxed{17}\%$", r"\boxed{17}\,\%", r"\boxed{17}\text{ percent}",
    "\\boxed{17}\n- 3 was given", "\\boxed{17}\n+ Check: right", r"\boxed{17} - (see step 2)", r"\boxed{17} *(in cm)*",
    r"\boxed{17} _as asked_", "text\n+ \\boxed{17}", r"and/\boxed{17}", r"$(B) \boxed{17}$",
    r"$\left(\boxed{17}\right)$", r"the \boxed{17}th term", "Done!\n\\boxed{17}",
    r"- $\boxed{17}$", r"* $\boxed{17}$", r"1. $\boxed{17}$", r"**$\boxed{17}$**", r"*$\boxed{17}$*",
    r"|$\boxed{17}$|", r"x=$\boxed{17}$", r"(2)$\boxed{17}$", r"$9+8=17$, so $\boxed{17}$", r"$9+8=17$ $\boxed{17}$",
    "It is 9 + 8.\n\n$$\\boxed{17}$$", r"$\boxed{17}$cm", r"$\boxed{17}$ - because", "–$\\boxed{17}$",
    r"=> $\boxed{17}$", "\n> $\\boxed{17}$", r"$\boxed{17}$ (9+8)", r"thus --$\boxed{17}$", r"\(\boxed{17}\)th",
    r"equals 17.$\boxed{17}$", "答案是$\\boxed{17}$。", r"+ $\boxed{17}$",
    # Headings, quotations and checks on other lines, or behind the formula.
    "**Value of θ**\n\n$$\\boxed{17}$$", "$$\\boxed{17}$$\n\n√289 = 17", "$\\boxed{17}$\n\nπ was approximated.",
    "  > $$\\boxed{17}$$", r">> $\boxed{17}$", r"- > $\boxed{17}$", r"$\boxed{17}$ < 20, valid",
]  # fmt: skip


@pytest.mark.parametrize("response", PARTS)
def test_a_box_that_is_a_part_of_a_formula_is_no_answer(response):
    assert last_boxed(response) is None


@pytest.mark.parametrize("response", WHOLE)
def test_a_box_that_is_the_whole_answer_is_found(response):
    assert last_boxed(response) == "17"


@pytest.mark.parametrize(
    "response",
    [
        r"He pays 50, so the profit % = \boxed{17}", r"The answer in % is \boxed{17}",
        r"The profit % is $\boxed{17}$.",
        "The share is 17 %, of all. % of all: 3.\nGain % = \\boxed{17}",
    ],
)  # fmt: skip
def test_a_percent_sign_in_a_sentence_hides_no_box_behind_it(response):
    assert extract_answer(response, "boxed") == "17"


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["x % a", "profit % is up, ", "a %% b ", r"a % \text{b} "])
def test_many_percent_signs_take_little_time(piece):
    started = time.process_time()
    extract_answer(piece * (MAX_RESPONSE // len(piece)) + r" \boxed{17}", "boxed")
    assert time.process_time() - started < 5.0


def test_a_written_solution_means_its_box():
    assert answer_of_solution(r"So $n \ge \boxed{17}$.") == "17"
    assert answer_of_solution(r"So it is $\boxed{17}\%$.") == "17"
    assert answer_of_solution(r"So it is $-\boxed{17}$.") is None


DENIED = [
    r"\boxed{17} would be a wrong answer", r"$\boxed{17}$ is an incorrect value.", r"\boxed{17} is the wrong answer",
    r"The answer differs from \boxed{17}", r"The answer is different from $\boxed{17}$", r"unlikely to be \boxed{17}",
    r"It is impossible that it is \boxed{17}", r"\boxed{17} is unlikely", r"The wrong answer is \boxed{17}",
    r"I doubt that it is \boxed{17}", r"\boxed{17}\% (or 0.18)", r"\boxed{17}, or 18 of them",
    r"The answer which I got wrong is \boxed{17}", r"This is incorrect, \boxed{17}",
    r"\boxed{17} differs from the answer",
    r"\boxed{17} might be wrong",
]  # fmt: skip
NOT_DENIED = [
    r"This is impossible for 4, so it is \boxed{17}", r"\boxed{17} is the answer", r"\boxed{17} would be the answer.",
    r"The wrong values are left out: so \boxed{17}", r"It differs from 16, and is \boxed{17}",
    r"The number he got wrong is $\boxed{17}$", r"6 is wrong, \boxed{17}", r"Without doubt, \boxed{17}",
    r"\boxed{17} or $1\frac12$ of it", r"\boxed{17}\% (or 0.17)",
]  # fmt: skip


@pytest.mark.parametrize("response", DENIED)
def test_a_box_that_is_denied_is_no_answer(response):
    assert last_boxed(response) is None


@pytest.mark.parametrize("response", NOT_DENIED)
def test_a_denial_of_something_else_does_not_matter(response):
    assert last_boxed(response) == "17"
