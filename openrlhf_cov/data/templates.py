"""The exact texts and token ids of all prompts. No other module of the package makes a prompt (pure)."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from openrlhf_cov.errors import UsageError, reason_of

# Asks for the form of answer that the grader reads.
BOXED = "Please reason step by step, and put your final answer within \\boxed{}."

# Asks for the form of program that ``--code_extract fence`` reads.
CODE = "Please reason step by step, and give your whole program in one block of code: ```python … ```."

WORD = re.compile(r"\w+")

# ``(problem, tokenizer or None) -> prompt``.
Template = Callable[[str, Any], str]


def qwen(problem: str, tokenizer: Any = None, instruction: str = BOXED) -> str:
    """Return a prompt in ChatML with the instruction as its system message.

    It is the prompt of Qwen2.5-Math, for base models as well. simpleRL-reason calls another text ``qwen-boxed``: there
    the instruction follows the problem.

    Args:
        problem: Text of the problem.
        tokenizer: Not used; every template takes one.
        instruction: What the system message says.
    """
    return (
        f"<|im_start|>system\n{instruction}<|im_end|>\n<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n"
    )


def chat(problem: str, tokenizer: Any = None, arguments: Mapping[str, Any] | None = None) -> str:
    """Return the tokenizer's own chat template around one user message: the problem, a newline, the instruction.

    The instruction is no system message, which some templates refuse.

    Args:
        problem: Text of the problem.
        tokenizer: A Hugging Face tokenizer with a chat template.
        arguments: Further arguments of the template, such as ``{"enable_thinking": False}``.

    Raises:
        UsageError: There is no chat template, or it fails.
    """
    if getattr(tokenizer, "chat_template", None) is None:
        raise UsageError("--template chat: the model's tokenizer has no chat template; use qwen-boxed or plain")
    messages = [{"role": "user", "content": plain(problem)}]
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **(arguments or {}))
    except Exception as error:  # a chat template is code of the model and may raise anything
        given = f" with --chat_template_kwargs {json.dumps(dict(arguments))}" if arguments else ""
        raise UsageError(
            f"--template chat: the chat template of the model fails{given} ({reason_of(error)}); use qwen-boxed or "
            "plain"
        ) from error


def plain(problem: str, tokenizer: Any = None, instruction: str = BOXED) -> str:
    """Return the problem, a newline and the instruction.

    Args:
        problem: Text of the problem.
        tokenizer: Not used; every template takes one.
        instruction: Text of the instruction.
    """
    return f"{problem}\n{instruction}"


def none(problem: str, tokenizer: Any = None) -> str:
    """Return the problem as it is, for models that know their task, such as the policies of embedded tasks.

    Args:
        problem: Text of the problem.
        tokenizer: Not used; every template takes one.
    """
    return problem


# --template.
TEMPLATES: dict[str, Template] = {
    "qwen-boxed": qwen,
    "qwen-code": partial(qwen, instruction=CODE),
    "chat": chat,
    "plain": plain,
    "plain-code": partial(plain, instruction=CODE),
    "none": none,
}
# Templates that do not ask for an answer in a box.
FOR_PROGRAMS = ("qwen-code", "plain-code", "none")


def get_template(name: str, arguments: Mapping[str, Any] | None = None) -> Template:
    """Return the template of this name.

    Args:
        name: A key of ``TEMPLATES``.
        arguments: Arguments for the chat template of the tokenizer, only with ``chat``.

    Raises:
        UsageError: There is no such template, or it takes no arguments.
    """
    if name not in TEMPLATES:
        raise UsageError(f"--template {name}: no such prompt template; choose one of {', '.join(TEMPLATES)}")
    if not arguments:
        return TEMPLATES[name]
    if name != "chat":
        raise UsageError(f"--chat_template_kwargs only applies with --template chat, got {name}; drop one of the two")
    return partial(chat, arguments=arguments)


def sent_template(name: str, tokenizer: Any, arguments: Mapping[str, Any] | None = None) -> Template:
    """Return the template of the texts that are sent to the model or the server.

    It is the template of this name, except ``plain`` for ``chat`` without a tokenizer: a server is sent the message
    and the arguments, and puts the chat template of its model around the message.

    Args:
        name: A key of ``TEMPLATES``.
        tokenizer: Tokenizer of the model; None where a server tokenizes.
        arguments: Arguments for the chat template, only with ``chat``.

    Raises:
        UsageError: There is no such template, or it takes no arguments.
    """
    template = get_template(name, arguments)
    return plain if name == "chat" and tokenizer is None else template


def unread_arguments(arguments: Mapping[str, Any], tokenizer: Any) -> str | None:
    """Return a warning that names arguments which the chat template of a tokenizer does not read; None without any.

    Args:
        arguments: Further arguments of the template, as the user gave them.
        tokenizer: A Hugging Face tokenizer. One without a chat template causes no warning.
    """
    templates = getattr(tokenizer, "chat_template", None)
    if templates is None:
        return None
    # A tokenizer may have several templates by name, or a template may set a variable and include another text.
    text = templates if isinstance(templates, str) else json.dumps(templates)
    words = set(WORD.findall(text))
    unread = [name for name in arguments if name not in words]
    if not unread:
        return None
    return f"the chat template of the model does not read {', '.join(unread)}, so the prompts stay as they are"


def own_template_warning(name: str, tokenizer: Any, flag: str = "--template") -> str | None:
    """Return a warning for a model whose own chat template differs from the default template of the prompts.

    Returns None where the model has no chat template, where that fails, and where it gives the same text.

    Args:
        name: Name of the default template, which the prompts have.
        tokenizer: Tokenizer of the model.
        flag: Flag that chooses the template, for the message.
    """
    if getattr(tokenizer, "chat_template", None) is None:
        return None
    try:
        own = chat("{problem}", tokenizer)
    except UsageError:
        return None
    if own == get_template(name)("{problem}", tokenizer):
        return None
    return (
        f"{flag} is not given, so prompts have the template {name}; the model's own chat template writes {own!r}: use "
        f"{flag} chat for it, or {flag} {name} to go without this warning"
    )


def check_asks(template: str, *, program: bool, what: str) -> None:
    """Check that a template asks for what is graded. The template ``none`` asks for nothing and passes.

    Args:
        template: Name of the template.
        program: True if programs are graded, False if answers in a box are.
        what: Whose responses are graded, for the message, such as the name of a benchmark.

    Raises:
        UsageError: The template asks for a program where an answer is graded, or the reverse.
    """
    if template != "none" and program != (template in FOR_PROGRAMS):
        fit = " or ".join(FOR_PROGRAMS) if program else "another template"
        raise UsageError(f"--template {template} does not ask for what {what} grades; use {fit}")


def template_text(name: str, tokenizer: Any = None, arguments: Mapping[str, Any] | None = None) -> str:
    """Return the text that is sent, with ``{problem}`` where the problem goes, to be stored with the results.

    Args and errors are those of ``sent_template``. It also raises UsageError where the chat template fails.
    """
    return sent_template(name, tokenizer, arguments)("{problem}", tokenizer)


# A text that has tokens under every tokenizer.
PROBE = "a"


def prompt_ids(text: str, tokenizer: Any) -> list[int]:
    """Return the token ids of one prompt.

    Args:
        text: The whole prompt, with its template.
        tokenizer: As in ``prompts_ids``, whose docstring says which special tokens are added.
    """
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
    found = [_with_prefix(list(ids), list(with_special)) for ids, with_special in zip(bare, full, strict=True)]
    if all(found):
        return found
    # The place of a text among the special tokens shows which of them come before it. An empty text has no place, so
    # it gets the tokens that come before another text.
    probe = list(tokenizer(PROBE, add_special_tokens=False)["input_ids"])
    with_prefix = _with_prefix(probe, list(tokenizer(PROBE, add_special_tokens=True)["input_ids"]))
    prefix = with_prefix[: len(with_prefix) - len(probe)]
    return [ids or list(prefix) for ids in found]


def _with_prefix(ids: list[int], with_special: list[int]) -> list[int]:
    """Return ``ids`` behind the special tokens that stand before them in ``with_special``."""
    # Post-processors have no interface that lists their tokens.
    for start in range(len(with_special) - len(ids) + 1):
        if with_special[start : start + len(ids)] == ids:
            overlap = next(n for n in range(start, -1, -1) if ids[:n] == with_special[start - n : start])
            return with_special[: start - overlap] + ids
    return ids
