"""The exact texts and token ids that models are asked with. Nothing else in the package makes one (pure)."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from openrlhf_cov.errors import UsageError

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
"""Asks for the form of answer that the grader reads."""

CODE = "Please reason step by step, and give your whole program in one block of code: ```python … ```."
"""Asks for the form of program that ``--code_extract fence`` reads."""

Template = Callable[[str, Any], str]
"""``(problem, tokenizer or None) -> prompt``."""


def qwen(problem: str, tokenizer: Any = None, instruction: str = BOXED) -> str:
    """ChatML with the instruction as its system message: Qwen2.5-Math's prompt, for base models as well.

    simpleRL-reason calls another text ``qwen-boxed``: there the instruction follows the problem.
    """
    return (
        f"<|im_start|>system\n{instruction}<|im_end|>\n<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n"
    )


def chat(problem: str, tokenizer: Any = None) -> str:
    """The tokenizer's own chat template around one user message: the problem, a newline, the instruction.

    The instruction is no system message, which some templates refuse. Raises UsageError without a chat template.
    """
    if getattr(tokenizer, "chat_template", None) is None:
        raise UsageError("--template chat: the model's tokenizer has no chat template; use qwen-boxed or plain")
    messages = [{"role": "user", "content": plain(problem)}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def plain(problem: str, tokenizer: Any = None, instruction: str = BOXED) -> str:
    """The problem, a newline, the instruction."""
    return f"{problem}\n{instruction}"


def none(problem: str, tokenizer: Any = None) -> str:
    """The problem as it is, for models that know their task, such as that of the embedded one."""
    return problem


TEMPLATES: dict[str, Template] = {
    "qwen-boxed": qwen,
    "qwen-code": partial(qwen, instruction=CODE),
    "chat": chat,
    "plain": plain,
    "plain-code": partial(plain, instruction=CODE),
    "none": none,
}
"""--template."""
FOR_PROGRAMS = ("qwen-code", "plain-code", "none")
"""Templates that do not ask for an answer in a box."""


def get_template(name: str) -> Template:
    """The template of this name; UsageError names the known ones."""
    if name not in TEMPLATES:
        raise UsageError(f"--template {name}: no such prompt template; choose one of {', '.join(TEMPLATES)}")
    return TEMPLATES[name]


def check_asks(template: str, *, program: bool, what: str) -> None:
    """UsageError for a template that does not ask for what is graded; ``none`` asks for nothing and is the user's."""
    if template != "none" and program != (template in FOR_PROGRAMS):
        fit = " or ".join(FOR_PROGRAMS) if program else "another template"
        raise UsageError(f"--template {template} does not ask for what {what} grades; use {fit}")


def template_text(name: str, tokenizer: Any = None) -> str:
    """The text of a template with ``{problem}`` where the problem goes, to be stored with the results."""
    return get_template(name)("{problem}", tokenizer)


def prompt_ids(text: str, tokenizer: Any) -> list[int]:
    """Return the token ids of one prompt, as ``prompts_ids``."""
    return prompts_ids([text], tokenizer)[0]


def prompts_ids(texts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Return the token ids of prompts: the one way to token ids for rollouts, evaluations, the lab and dry runs.

    The special tokens that the tokenizer puts before a text, such as BOS, are added unless the text already begins
    with them, as the text of most chat templates does. The tokens that it puts after a text, such as EOS, are left
    out: a response follows.

    Args:
        texts: Whole prompts, with their template.
        tokenizer: A Hugging Face tokenizer, or a processor that holds one.
    """
    if not texts:
        return []
    if hasattr(tokenizer, "image_processor"):
        tokenizer = tokenizer.tokenizer
    bare = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    full = tokenizer(list(texts), add_special_tokens=True)["input_ids"]
    return [_with_prefix(list(ids), list(with_special)) for ids, with_special in zip(bare, full, strict=True)]


def _with_prefix(ids: list[int], with_special: list[int]) -> list[int]:
    """Return ``ids`` behind the special tokens that stand before them in ``with_special``."""
    # Post-processors have no interface that lists their tokens; the place of the text shows which come before it.
    for start in range(len(with_special) - len(ids) + 1):
        if with_special[start : start + len(ids)] == ids:
            overlap = next(n for n in range(start, -1, -1) if ids[:n] == with_special[start - n : start])
            return with_special[: start - overlap] + ids
    return ids
