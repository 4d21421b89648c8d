"""Redact keys, tokens and passwords. One rule for files, reports and messages (pure)."""

import re
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

# The text in place of a secret.
HIDDEN = "***"

OWNERS = (
    "api|access|private|secret|signing|encryption|account|service|auth|ssh|wandb|hf|hub|openai|anthropic|judge|master"
    "|session|storage|license|x_api"
)
TEXT = "pad|eos|bos|unk|sep|cls|mask|stop|start|end|image|video|audio|per|special|prefix|suffix|next|first|last"
# Names of settings, parameters and variables that hold secrets, once they are ``lower_case``; a ``…_key`` of data is
# none.
SECRET_NAME = re.compile(
    rf"(?:^|_)(?:(?:{OWNERS})_?keys?(?:_id)?|secrets?|pass(?:word|wd|phrase|code)?s?|pwd|[a-z0-9]+passw(?:or)?ds?|credentials?|authorization"
    r"|(?:set_?)?cookies?|connection_string|signature|runtime_env_json|[a-z0-9]*token)$"
)
# The plural is secret where its values are texts; ``max_tokens`` and the like are numbers.
TOKENS = re.compile(r"(?:^|_)(?:(?:api|access|auth|bearer|refresh|secret|session|hub|hf)_?)?tokens$")
TOKEN_OF_TEXT = re.compile(rf"(?:^|_)(?:{TEXT})_?token$")
# Names that say how many, or which way, and end like the name of a secret.
NO_SECRET = re.compile(r"(?:^|_)(?:first|second|one|two|single|per|n|num|max|min|forward|backward)_pass(?:es)?$")
# Upstream's flag of a key, and the shortest beginning by which argparse knows it.
WANDB_KEY = "--logger.wandb.key"
SHORTEST = "--logger.wandb.k"
# Parameters of a URL that are secrets there, though no flag is called so.
IN_QUERIES = re.compile(
    r"(?:^|[._-])(?:keys?|sig|sas|signature|auth|access|code|pass|pw|pwd|jwt|sid|session|credential)$", re.IGNORECASE
)
# Keys that services give out, by their published prefixes; as in the tables of detect-secrets, gitleaks and GitHub.
KNOWN_KEYS = re.compile(
    r"(?<![\w-])(?:"
    r"(?:hf|api_org)_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|sk-(?:proj-|ant-|or-|svcacct-)?[A-Za-z0-9_-]{20,}"  # OpenAI, Anthropic, OpenRouter
    r"|(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{40,})"  # GitHub
    r"|glpat-[A-Za-z0-9_-]{20,}"  # GitLab
    r"|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}"  # AWS
    r"|AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,}"  # Google
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"  # Slack
    r"|(?:gsk|nvapi|r8|pplx|xai|tgp_v1|wandb_v1|fw)[_-][A-Za-z0-9_-]{30,}"  # Groq, NVIDIA, Replicate, and others
    r"|[sr]k_(?:live|test)_[A-Za-z0-9]{10,}"  # Stripe
    r"|pypi-[A-Za-z0-9_-]{50,}|npm_[A-Za-z0-9]{36}"  # registries of packages
    r"|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"  # JSON web tokens
    r")"
)
PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----).*?(-----END|\Z)", re.DOTALL)

USER_INFO = re.compile(r"(//)[^/?#\s\"'<>]*@")
QUERY = re.compile(r"([?&;#])([\w.~%-]+)=([^&;#\s\"'<>,]+)")
VALUE = r"(\[[^\[\]]*\]|b?\"(?:[^\"\\]|\\.)*\"|b?'(?:[^'\\]|\\.)*'|[^\s,;&\"'}\])]+)"
FLAG = re.compile(rf"(?<![\w.-])(--?[A-Za-z][\w.-]*)(=|\s+)(?!-){VALUE}")
ENTRY = re.compile(rf"(?<![\w.%-])([\"']?)([A-Za-z_][\w.%-]*)(\1\s*[=:]\s*){VALUE}")
# An object as the value: all of it is secret. Values of other objects are looked at one by one.
OBJECT = re.compile(r"(?<![\w.%-])([\"'])([A-Za-z_][\w.%-]*)(\1\s*:\s*)\{[^{}]*\}")
# A header ends with its line, or with the quotation mark of a word in which it is.
HEADER = re.compile(
    r"(?<![\w-])((?:(?:proxy-)?authorization|(?:set-)?cookie|x-(?:[a-z0-9]+-)*(?:key|token|secret|auth|signature)"
    r"|(?:[a-z0-9]+-)*(?:api-?key|access-token|auth-token|api-token))[\"']?\s*[:=]\s*[\"']?)"
    r"((?:bearer|basic|token|digest|apikey|negotiate)\s+)?[^\s\"'\n][^\"'\n]*",
    re.IGNORECASE,
)
AWS = re.compile(r"^aws_(?!.*(?:region|profile|output|endpoint|file|bucket|retry|default)).*", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Return True if the value of a flag (``--hf_token``), URL parameter or variable of this name is a secret."""
    if name.startswith(SHORTEST) and WANDB_KEY.startswith(name):
        return True
    name = re.sub(r"[.-]+", "_", unquote(name).lower()).strip("_")
    if TOKEN_OF_TEXT.search(name) or NO_SECRET.search(name):
        return False
    return SECRET_NAME.search(name) is not None or AWS.match(name) is not None


def redact(text: str) -> str:
    """Return the text with ``***`` in place of every secret in it.

    Secrets are found in URLs (``name:password@``, ``?token=``), as the value of a flag, a variable or an entry of
    JSON, in an Authorization header, and by the form of known keys.
    """
    text = PRIVATE_KEY.sub(rf"\1{HIDDEN}\2", text)
    text = KNOWN_KEYS.sub(HIDDEN, text)
    text = USER_INFO.sub(rf"\1{HIDDEN}@", text)
    text = QUERY.sub(lambda m: f"{m[1]}{m[2]}={HIDDEN}" if _is_parameter(m[2]) else m[0], text)
    text = FLAG.sub(lambda m: f"{m[1]}{m[2]}{_hidden(m[3])}" if is_secret(m[1]) else m[0], text)
    text = HEADER.sub(lambda m: f"{m[1]}{m[2] or ''}{HIDDEN}", text)
    text = OBJECT.sub(lambda m: f'{m[1]}{m[2]}{m[3]}"{HIDDEN}"' if is_secret(m[2]) else m[0], text)
    return ENTRY.sub(lambda m: f"{m[1]}{m[2]}{m[3]}{_hidden(m[4])}" if _is_entry(m) else m[0], text)


def redact_words(words: Iterable[str]) -> list[str]:
    """Return the words of a command line with ``***`` in place of every secret.

    Both spellings that argparse takes are covered, ``--flag value`` and ``--flag=value``.
    """
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
    """Return flags and values with ``***`` in place of every secret."""
    return {flag: HIDDEN if is_secret(flag) else redact(value) for flag, value in settings.items()}


def redact_arguments(value: Any, flag: str = "-") -> Any:
    """Return parsed flags with ``***`` in place of every secret.

    Args:
        value: A value, a list of values, or flags in namespaces, as upstream nests them.
        flag: Name of the flag that has the value, which shows whether the value is a secret; ``-`` for the outermost
            namespace.
    """
    if isinstance(value, SimpleNamespace):
        named = vars(value).items()
        return SimpleNamespace(**{name: redact_arguments(each, f"{flag}.{name}") for name, each in named})
    if isinstance(value, list):
        return [redact_arguments(each, flag) for each in value]
    if isinstance(value, str):
        return HIDDEN if is_secret(flag) else redact(value)
    return value


def _is_parameter(name: str) -> bool:
    """Return True for a parameter of a URL that is secret; its name may be percent-encoded, also twice."""
    plain = unquote(unquote(name))
    return is_secret(plain) or IN_QUERIES.search(plain) is not None


def _is_entry(found: re.Match[str]) -> bool:
    """Return True for ``NAME=value``, ``"name": value``, ``NAME: value`` and a line ``name: value``, if it is secret.

    A word before a colon in a sentence is no name.
    """
    name = unquote(found[2]).lower().replace("-", "_")
    if not is_secret(name) and not (TOKENS.search(name) and re.match(r"\[\s*b?[\"']|b?[\"']", found[4])):
        return False
    if found[1] or "=" in found[3] or found[2].isupper():
        return True
    before = found.string[: found.start()].rpartition("\n")[2]
    after = found.string[found.end() :].partition("\n")[0]
    return before.strip(" \t-") == "" and after.strip() == ""


def _hidden(value: str) -> str:
    """Return ``***`` in the quotes, or the brackets, of the value."""
    if value.startswith("["):
        return f'["{HIDDEN}"]'
    value = value.removeprefix("b") if value[:2] in ('b"', "b'") else value
    quote = value[0] if value[0] in "\"'" else ""
    return quote + HIDDEN + quote
