r"""Finds the final answer of a response: the last ``\boxed{}``, an answer tag, or a ``####`` or "Answer:" line."""

import re
from collections.abc import Callable

from openrlhf_cov.rewards.maths.boxes import Box, changes_before, is_answer, tokenize
from openrlhf_cov.rewards.verdicts import MAX_RESPONSE, without_end_tokens

BOX = re.compile(r"\\f?box(?:ed)?(?![a-zA-Z])")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
BARE_ARGUMENT = re.compile(r"-?\d+(?:[.,]\d+)*|[a-zA-Z](?![a-zA-Z])")
GSM8K_MARK = "####"
# Boxes side by side that are one answer.
MAX_BOXES = 100

NAMED_BOX = re.compile(r"[A-Za-z](?:_\w|_\{\w{1,6}\})?(?:\([A-Za-z]\))?\s?=\Z")
MAX_BETWEEN = 120
# Tokens between two boxes of one list.
BETWEEN = frozenset({"space", "thin", "end", "font"})
JOINING_WORDS = frozenset({",", ";", "and", "or", "}", r"\lor", r"\vee", r"\land", r"\wedge", *"，、；和或者及以与"})
# Words behind one of those.
DOUBTS = frozenset("maybe perhaps possibly else also alternatively".split())
TURN_END = re.compile(
    r"<[|｜](?:im_end|endoftext|eot_id|end_of_text|end[▁_]of[▁_]sentence|end|im_start|start_header_id|user|assistant)"
    r"[|｜]>|</s>|<end_of_turn>|<eos>|\\end\s?\{document\}"
)
# An end token in a box, which closes after it, belongs to the answer; it is dropped there.
IN_BOX = re.compile(r"\s*(?:<[^<>\s]{1,24}>\s*){0,4}\}")
GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
BOX_INSIDE = rf"[^{{}}]{{0,80}}\\f?box(?:ed)?\s?{GROUP}[^{{}}]{{0,80}}"
UNSEEN = "(?:white|transparent|#[fF]{3}(?:[fF]{3})?)"
UNSEEN_STYLE = (
    r"display\s?:\s?none|visibility\s?:\s?hidden|opacity\s?:\s?0(?:\.0{1,9})?(?![.\d])|font-size\s?:\s?0(?![.\d])|"
    rf"(?<![\w-])color\s?[:=]\s?[\"']?{UNSEEN}"
)
# Text that its reader does not see, or sees crossed out.
HIDDEN = re.compile(
    "|".join(
        (
            # Comments.
            r"<!--.*?(?:-->|\Z)",
            r"^\[//\]: #.*?$",
            r"\\if(?:false|0).*?(?:\\fi(?![a-z])|\Z)",
            r"\\begin\s?\{(?P<block>comment|verbatim|lstlisting)\}.*?(?:\\end\s?\{(?P=block)\}|\Z)",
            # Commands around a box that take no room, cross it out or set it in white.
            rf"\\(?:[hv]?phantom|[rl]lap|[xb]?cancel|sout|st|label|hbox|scalebox\{{0(?:\.0{{1,9}})?\}}|transparent\{{0\}}|"
            rf"textcolor\s?\{{{UNSEEN}\}})\s?\{{{BOX_INSIDE}\}}",
            rf"\\color\s?\{{{UNSEEN}\}}\s?(?:\\boxed\s?{GROUP}|\{{{BOX_INSIDE}\}})",
            rf"~~{BOX_INSIDE}~~",
            # Source text that is shown as such.
            rf"\\verb(?P<bar>[|!+]){BOX_INSIDE}(?P=bar)",
            # Definitions of commands.
            rf"\\(?:re)?newcommand\*?\s?\{{?\\[A-Za-z]+\}}?(?:\[\d\])?\s?{GROUP}",
            rf"\\newenvironment\s?\{{\w{{1,20}}\}}\s?{GROUP}",
            rf"\\[egx]?def\s?\\[A-Za-z]+[^{{}}\n]{{0,20}}\s?{GROUP}",
            # Parts of HTML.
            rf"<(?P<tag>del|strike|template|script)>{BOX_INSIDE}</(?P=tag)>",
            rf"<(?P<styled>span|div|p|font)\s[^<>]{{0,80}}(?:{UNSEEN_STYLE})[^<>]{{0,80}}>{BOX_INSIDE}</(?P=styled)>",
            # The text of an image.
            rf"!\[{BOX_INSIDE}\]\([^()\n]{{0,200}}\)|<img\s[^<>]{{0,80}}{BOX_INSIDE}>",
        )
    ),
    re.DOTALL | re.MULTILINE,
)
# What takes the place of hidden text, so that an answer with hidden text in it is refused.
HIDDEN_MARK = "\x00"
# A percent sign that begins a comment behind text of its line, and the command of a box.
COMMENT_MARK = re.compile(r"(?<=[^\s\d\\}])[ \t]{1,4}%[ \t%]")
BOX_COMMAND = re.compile(r"\\f?box(?:ed)?(?![a-zA-Z])")
TAGS = ("<answer>", "</answer>")
ANSWER_MARK = re.compile(
    r"(?<![A-Za-z0-9])(?:final\s+answer|answer|final\s+result)(?![A-Za-z0-9])[*_\s}]{0,4}(?:[:：]|\bis\b|=)[*_\s}]{0,4}[:：]?[*_]{0,2}"
    r"|^[#*_ \t]{0,8}(?:final[ \t]+)?answer[*_ \t]{0,4}$",  # a heading of its own line
    re.IGNORECASE | re.MULTILINE,
)
# Spacing, in text or in LaTeX, before an answer.
IDLE_START = re.compile(r"(?:\\\\|\\[ \n,;:!]|\\q?quad(?![a-z])|~|\s)+")
# A line of Markdown signs alone.
RULE_LINE = re.compile(r"[*_#>=-]+[ \t]*$", re.MULTILINE)
OPENING = re.compile(r"\$\$|\\\[|\\\(|```|\\begin\s?\{(?P<name>\w{1,20}\*?)\}")
CLOSING = {"$$": "$$", r"\[": r"\]", r"\(": r"\)", "```": "```"}
# A displayed formula, or a block of code, that is the whole answer.
BLOCK = re.compile(
    r"(?:\$\$|\\[\[(])(?P<display>.*?)(?:\$\$|\\[\])])|```\w*\n(?P<code>.*?)\n?```"
    r"|\\begin\s?\{(?P<name>(?:equation|align|gather|displaymath|math)\*?)\}(?P<inside>.*?)\\end\s?\{(?P=name)\}",
    re.DOTALL,
)
# Characters of an answer that goes on over lines.
MAX_BLOCK = 4_000
REVISION = r"(?:no[,.:;!]|(?:or|not|wait|actually|alternatively|hmm|sorry|correction)(?![a-z]))"
# The end of the sentence of an answer, and what follows. A sentence that takes the answer back is a part of it, and so
# is a factorial.
EXCLAMATION = r"(?<![\d)}])(?<!\b[A-Za-z])!"
SENTENCE_END = re.compile(
    rf"(?:(?:\.|{EXCLAMATION})\s+(?!(?i:{REVISION}))[A-Z\"'(].*|(?:[.?]|{EXCLAMATION})\s*)\Z", re.DOTALL
)


def extract_answer(response: str, mode: str) -> str | None:
    """Return the answer that a response gives. Takes linear time.

    End-of-text tokens are dropped first. The answer is stripped of white space and never empty.

    Args:
        response: Text of the response without thinking.
        mode: The form in which the answer is given, a key of ``EXTRACTORS``.

    Returns:
        The answer; None if the response has none in this form.

    Raises:
        ValueError: ``mode`` is unknown.
    """
    if mode not in EXTRACTORS:
        raise ValueError(f"--reward_format is one of {', '.join(EXTRACTORS)}, got {mode!r}")
    answer = EXTRACTORS[mode](visible(without_end_tokens(response[-MAX_RESPONSE:])))
    return (answer or "").strip() or None


def last_boxed(text: str, *, is_label: bool = False) -> str | None:
    r"""Return the content of the last outermost balanced ``\boxed{...}``, or the token after ``\boxed``.

    None if there is none, if it is a part of a formula, or if the text says at once that it is not the answer. A box
    inside a box is part of the outer one. Escaped braces do not count. An unterminated box is passed over. Boxes with
    nothing between them but a comma, "and", "or" or a name such as ``y =`` are one answer: a list.

    Args:
        text: A response, or a label.
        is_label: True for a label or a written solution, in which a relation, a factor or a percent sign may stand
            beside the box, because its author means the box.
    """
    mark = BOX.search(text)
    if mark is None:
        return None
    closing = _closing_braces(text, mark.start())
    boxes: list[Box] = []
    while mark is not None:
        content, end = _argument(text, mark.end(), closing)
        if content is not None:
            boxes.append(Box(mark.start(), end, BOX.sub("", content)))
        mark = BOX.search(text, end)
    if not boxes or not is_answer(text, boxes[-1], is_label=is_label):
        return None
    return _joined(text, boxes, is_label)


def _joined(text: str, boxes: list[Box], is_label: bool) -> str | None:
    """Return the last box, or the list of those that stand side by side with it; equal ones count once.

    Return None if the first box of the list is a part of a formula, and the text is no label.
    """
    # Collect the boxes from the last to the first, with the name before each.
    items = [boxes[-1]]
    names: list[str] = []
    for box in reversed(boxes[:-1]):
        name = _name_between(text[box.end : items[-1].start])
        if name is None or len(items) == MAX_BOXES or not (box.content.strip() and items[-1].content.strip()):
            break
        names.append(name)
        items.append(box)
    first = items[-1]
    if not is_label and changes_before(text, first.start):
        return None
    if len({box.content for box in items}) == 1:
        return first.content
    # The name before the first box, such as ``x = ``.
    before = text[max(0, first.start - 60) : first.start].rstrip("$ \n\t")
    match = NAMED_BOX.search(before)
    if match and not before[: match.start()][-1:].isalnum():
        names.append(match[0])
    else:
        names.append("")
    return ", ".join(name + box.content for name, box in zip(reversed(names), reversed(items), strict=True))


def _name_between(text: str) -> str | None:
    """Return the name of the second of two boxes, "" for none; None if the text between them is more than a name.

    Boxes are side by side with a comma, "and" or "or" between them, and without one only on the same line.
    """
    if len(text) > MAX_BETWEEN:
        return None
    tokens = [token for token in tokenize(text) if token.kind not in BETWEEN]
    if not tokens and "\n" in text:
        return None
    joined = False
    while tokens and (tokens[0].text.lower() in JOINING_WORDS or (joined and tokens[0].text.lower() in DOUBTS)):
        tokens.pop(0)
        joined = True
    name = "".join(token.text for token in tokens)
    return name if not name or NAMED_BOX.match(name) else None


def visible(text: str) -> str:
    r"""Return a response without what its reader does not see: comments, ``\phantom{}``, definitions of commands.

    What follows the first token that ends a turn is not a part of the response either.
    """
    for end in TURN_END.finditer(text):
        if not IN_BOX.match(text, end.end()):
            text = text[: end.start()]
            break
    return _without_comments(HIDDEN.sub(HIDDEN_MARK, text))


def _without_comments(text: str) -> str:
    """Return a text without the comments of LaTeX, from ``%`` to the end of the line."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if "%" not in line:
            continue
        if line.lstrip(" \t").startswith("%"):
            lines[number] = ""
            continue
        # A sign between the words of a sentence begins no comment if a box stands behind it: "the profit % is …".
        behind_boxes = 0
        for box in BOX_COMMAND.finditer(line):
            behind_boxes = box.end()
        if mark := COMMENT_MARK.search(line, behind_boxes):
            lines[number] = line[: mark.start()]
    return "\n".join(lines)


def last_answer_tag(text: str) -> str | None:
    """Return the content of the last closed ``<answer>…</answer>``, or of a ``\\boxed{}`` in it."""
    lower = text.lower()
    end = lower.rfind(TAGS[1])
    start = lower.rfind(TAGS[0], 0, max(end, 0))
    if end < 0 or start < 0:
        return None
    inner = text[start + len(TAGS[0]) : end]
    boxed = last_boxed(inner)
    return inner if boxed is None else boxed


def last_gsm8k(text: str) -> str | None:
    r"""Return the first content after the last ``####``, or of a ``\boxed{}`` in it; None without one."""
    _, mark, rest = text.rpartition(GSM8K_MARK)
    if not mark:
        return None
    content = _first_content(rest)
    boxed = last_boxed(content)
    return content if boxed is None else boxed


def answer_of_solution(text: str) -> str | None:
    """Return the answer with which a written solution ends; None if it ends with none.

    The answer is the content of the last box, or what follows ``####`` to the end of the text. Four signs before
    other text are a heading of Markdown.
    """
    _, mark, rest = text.rpartition(GSM8K_MARK)
    body = rest.strip()
    if mark and last_boxed(body, is_label=True) is None and _content_end(body) >= len(body):
        return _first_content(body)
    return last_boxed(text, is_label=True)


def last_answer_line(text: str) -> str | None:
    r"""Return the first content after the last "Answer:" or "the answer is", or of a ``\boxed{}`` in it."""
    end = None
    for mark in ANSWER_MARK.finditer(text):
        end = mark.end()
    if end is None:
        return None
    content = _first_content(text[end:])
    boxed = last_boxed(content)
    if boxed is not None:
        return boxed
    return SENTENCE_END.sub("", content.strip("*_ ")).strip("*_ ")


def _first_content(text: str) -> str:
    r"""Return the first content of a text: the rest of its line, or the displayed formula that begins there.

    White space and lines of Markdown signs before the content are passed over. The delimiters of a displayed formula
    or a block of code are dropped if it is the whole content. What follows a formula on its last line stays, so that a
    second answer is not hidden. Closing braces without an opening one are dropped, as in ``\textbf{Answer: 13}``.
    """
    text = text[: 4 * MAX_BLOCK]
    start = 0
    while found := IDLE_START.match(text, start) or RULE_LINE.match(text, start):
        start = found.end()
    text = text[start:]
    content = text[: _content_end(text)].strip()
    block = BLOCK.fullmatch(content.rstrip(" .,;*_"))
    if block:
        aligned = (block["inside"] or "").replace("&", "")  # which aligns the sides of an equation
        content = (block["display"] or block["code"] or aligned).strip()
    return _without_unmatched_closing_braces(content)


def _content_end(text: str) -> int:
    """Return where the first line of a text ends, or the line on which what it opened is closed."""
    end = (text + "\n").index("\n")
    place = 0
    while opening := OPENING.search(text, place, end):
        closing = CLOSING.get(opening[0], rf"\end{{{opening['name']}}}")
        closed = text.find(closing, opening.end(), MAX_BLOCK)
        if closed < 0:
            return end
        place = closed + len(closing)
        if place > end:
            return (text + "\n").index("\n", place)
    return end


def _without_unmatched_closing_braces(text: str) -> str:
    """Drop the closing braces that close nothing."""
    depth = 0
    unmatched = []
    for brace in BRACE.finditer(text):
        depth += (brace[0] == "{") - (brace[0] == "}")
        if depth < 0:
            unmatched.append(brace.start())
            depth = 0
    for place in reversed(unmatched):
        text = text[:place] + text[place + 1 :]
    return text.strip()


def _any(text: str) -> str | None:
    if BOX.search(text):
        return last_boxed(text)
    if TAGS[1] in text.lower():
        return last_answer_tag(text)
    return last_gsm8k(text) if GSM8K_MARK in text else last_answer_line(text)


# --reward_format -> how the answer is found. ``any`` takes the first of box, tag, #### and line that occurs.
EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "boxed": last_boxed,
    "answer_tag": last_answer_tag,
    "answer_line": last_answer_line,
    "gsm8k": last_gsm8k,
    "any": _any,
}


def _argument(text: str, position: int, closing: dict[int, int]) -> tuple[str | None, int]:
    """Return the LaTeX argument at ``position`` and its end; (None, where to search next) if there is none."""
    start = position
    while text[start : start + 1].isspace():
        start += 1
    if text[start : start + 1] == "{":
        end = closing.get(start)
        return (None, start + 1) if end is None else (text[start + 1 : end], end + 1)
    token = BARE_ARGUMENT.match(text, start)
    return (None, position) if token is None else (token[0], token.end())


def _closing_braces(text: str, start: int) -> dict[int, int]:
    """Return the position of every balanced opening brace from ``start`` on and of the brace that closes it."""
    closing = {}
    stack = []
    for brace in BRACE.finditer(text, start):
        if brace[0] == "{":
            stack.append(brace.start())
        elif brace[0] == "}" and stack:
            closing[stack.pop()] = brace.start()
    return closing
