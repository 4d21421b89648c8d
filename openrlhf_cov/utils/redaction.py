"""What must not be shown or written down: keys, tokens, passwords. One rule for files, reports and messages (pure)."""

import re
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

HIDDEN = "***"
"""Stands in place of a secret."""

OWNERS = "api|access|private|secret|signing|encryption|account|service|auth|ssh|wandb|hf|hub|openai|anthropic|judge"
TEXT = "pad|eos|bos|unk|sep|cls|mask|stop|start|end|image|video|audio|per|special|prefix|suffix|next|first|last"
SECRET_NAME = re.compile(
    rf"(?:^|_)(?:(?:{OWNERS})_?keys?|secrets?|pass(?:word|wd|phrase)s?|pwd|credentials?|authorization|cookie"
    r"|runtime_env_json|[a-z0-9]*token)$"
)
"""Names of settings, parameters and variables that hold secrets, once they are ``lower_case``; a ``…_key`` of data is
none."""
TOKEN_OF_TEXT = re.compile(rf"(?:^|_)(?:{TEXT})_?token$")
WANDB_KEY, SHORTEST = "--logger.wandb.key", "--logger.wandb.k"
"""Upstream's flag of a key, and the shortest beginning by which argparse knows it."""
IN_QUERIES = re.compile(r"(?:^|[._-])(?:key|sig|signature|auth|code|pass|pw|jwt)$", re.IGNORECASE)
"""Parameters of a URL that are secrets there, though no flag is called so."""

USER_INFO = re.compile(r"(://)[^/?#\s\"'<>]*@")
QUERY = re.compile(r"([?&;#])([\w.~%-]+)=([^&;#\s\"'<>,]+)")
VALUE = r"(\"[^\"]*\"|'[^']*'|[^\s,;&\"'}\])]+)"
FLAG = re.compile(rf"(?<![\w.-])(--?[A-Za-z][\w.-]*)(=|\s+)(?!-){VALUE}")
ENTRY = re.compile(rf"(?<![\w.-])([\"']?)([A-Za-z_][\w.-]*)(\1\s*[=:]\s*){VALUE}")
HEADER = re.compile(r"(authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic)\s+)[\w.~+/=-]+", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """True for the name of a flag (``--hf_token``), URL parameter or variable whose value is nobody's business."""
    if name.startswith(SHORTEST) and WANDB_KEY.startswith(name):
        return True
    name = re.sub(r"[.-]+", "_", name.lower()).strip("_")
    return SECRET_NAME.search(name) is not None and TOKEN_OF_TEXT.search(name) is None


def redact(text: str) -> str:
    """The text with ``***`` in place of every secret in it: in URLs (``name:password@``, ``?token=``), as the value of
    a flag, a variable or an entry of JSON, and in an Authorization header."""
    text = USER_INFO.sub(rf"\1{HIDDEN}@", text)
    text = QUERY.sub(lambda m: f"{m[1]}{m[2]}={HIDDEN}" if is_secret(m[2]) or IN_QUERIES.search(m[2]) else m[0], text)
    text = FLAG.sub(lambda m: f"{m[1]}{m[2]}{_hidden(m[3])}" if is_secret(m[1]) else m[0], text)
    text = HEADER.sub(rf"\1{HIDDEN}", text)
    return ENTRY.sub(lambda m: f"{m[1]}{m[2]}{m[3]}{_hidden(m[4])}" if _is_entry(m) else m[0], text)


def redact_words(words: Iterable[str]) -> list[str]:
    """The words of a command line with ``***`` in place of every secret, in all spellings that argparse takes."""
    kept: list[str] = []
    secret = False
    for word in words:
        name, equals, _ = word.partition("=")
        if name.startswith("--"):
            secret = is_secret(name) and not equals
            kept.append(f"{name}={HIDDEN}" if equals and is_secret(name) else redact(word))
        else:
            kept.append(HIDDEN if secret else redact(word))
    return kept


def redact_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Flags and values with ``***`` in place of every secret."""
    return {flag: HIDDEN if is_secret(flag) else redact(value) for flag, value in settings.items()}


def redact_arguments(value: Any, flag: str = "-") -> Any:
    """Parsed flags, as upstream nests them, with ``***`` in place of every secret; ``flag`` is that of the value."""
    if isinstance(value, SimpleNamespace):
        named = vars(value).items()
        return SimpleNamespace(**{name: redact_arguments(each, f"{flag}.{name}") for name, each in named})
    if isinstance(value, list):
        return [redact_arguments(each, flag) for each in value]
    if isinstance(value, str):
        return HIDDEN if is_secret(flag) else redact(value)
    return value


def _is_entry(found: re.Match[str]) -> bool:
    """``NAME=value`` and ``"name": value``; a word before a colon in a sentence is none."""
    return is_secret(found[2]) and (bool(found[1]) or "=" in found[3])


def _hidden(value: str) -> str:
    """``***`` in the quotes of the value."""
    quote = value[0] if value[0] in "\"'" else ""
    return quote + HIDDEN + quote
