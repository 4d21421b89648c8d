"""The exact texts that models are asked with. Nothing else in the package holds a piece of one (pure)."""

from collections.abc import Callable
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

    The text has the special tokens of the template; tokenize it without adding others. The instruction is no system
    message, which some templates refuse. Raises UsageError without a chat template.
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
