"""Names of values, and the conditions under which a formula holds."""

import re

from openrlhf_cov.rewards.maths.normalization import compact
from openrlhf_cov.rewards.maths.shapes import VARIABLE, tuple_items
from openrlhf_cov.rewards.maths.values import WHOLE_NAMES

ARGUMENT = r"\s?(?:\(\s?-?(?:[^()+*/^-]|\([^()]{1,20}\)|\^\{-1\}){1,30}\)|\[[A-Z]\])"
# A letter with an index or an argument, a segment, an angle, a length, an area.
NAME = re.compile(
    rf"(?:\\Delta\s)?(?:{VARIABLE}|\\(?:hat|vec|mathbb|text)\s?\{{?\s?[A-Za-z]\s?\}}?|\\Pr\s?)"
    rf"(?:\^\s?(?:\*|\{{-1\}}))?(?:{ARGUMENT})?'*|"
    r"\\overline\s?(?:\{[^{}]{1,20}\}|\w)|[A-Z]{2,4}|\|[A-Z]\||m?\s?\\angle\s?\{?\s?[A-Z]{1,3}\s?\}?|\\triangle\s?[A-Z]{3}|"
    r"\|\s?(?:[A-Z]{2,3}|\\vec\s?\{[A-Z]{2}\})\s?\||\\text\s?\{[A-Z]{2,4}\}|\[[A-Z]{3,6}\]"
)
PLAIN_NAME = rf"(?:{VARIABLE}|[A-Z]{{2,3}})"
# A quotient, a power or a function of names.
COMPOSED_NAME = re.compile(
    rf"\\frac\s?\{{\s?{PLAIN_NAME}\s?\}}\s?\{{\s?{PLAIN_NAME}\s?\}}|{PLAIN_NAME}\s?[/:]\s?{PLAIN_NAME}|"
    rf"{PLAIN_NAME}\s?\^\s?\{{?[23]\}}?|\\(?:sin|cos|tan)\s?(?:\\angle\s?)?\(?{PLAIN_NAME}\)?|"
    rf"\({PLAIN_NAME}\\circ\s?{PLAIN_NAME}\){ARGUMENT}"
)
FUNCTION_NAME = re.compile(r"([fghFGHy])\([a-z](?:,[a-z])*\)")
NAME_SIGN = re.compile(r"\\[A-Za-z]+|[A-Za-z]")

# A condition behind a label: words, a membership, a relation of one of its names, or a modulus.
LABEL_CONDITION = re.compile(
    r",?\s?(?:\\text\s?\{\s?,?\s?(?:for|where|if|when|with|whenever|provided)(?![a-z])|"
    r"(?<![A-Za-z\\{])(?:for|where|if|when|with)(?![A-Za-z])|"
    rf",\s?\(?(?:{VARIABLE}\s?,\s?){{0,4}}{VARIABLE}\s?\\in(?![a-z])|\s\(?{VARIABLE}\s?\\in\s?\\mathbb).*\Z",
    re.DOTALL,
)
MODULUS = re.compile(r"\s?(?:\\pmod\s?\{?\s?\d+\s?\}?|\(\s?\\?(?:mod|text\s?\{\s*mod\s*\})\s?\{?\s?\d+\s?\}?\s?\))\Z")
RELATION_BEHIND = re.compile(
    rf"(?:,\s?|\s?\()(?P<name>{VARIABLE})\s?(?:\\(?:ne|le|ge)(?![a-z])|<|>|!=)\s?[^,()=]{{1,30}}\)?\Z"
)
BEGINS_WITH_RELATION = re.compile(rf"{VARIABLE}\s?(?:\\ne|<|>|\\[lg]e)")
# The condition that an answer may have: a name is a whole or a real number, as in "for any integer n".
DOMAIN = r"\\mathbb\s?\{?\s?(?P<set>[ZNR])\s?\}?(?:\s?[\^_]\s?\{?[+*]\}?)?"
MEMBERSHIP = re.compile(rf",?\s?\(?(?P<name>{VARIABLE})\s?\\in\s?{DOMAIN}\)?\Z")
FILL = r"[\s{}(),]{0,3}(?:\\text\s?\{)?\s?"
QUANTIFIED = re.compile(
    rf"(?<![A-Za-z])(?:where|for|with){FILL}(?P<all>(?:all|any|some|every|each)\s)?(?:positive |real )?"
    rf"(?P<noun>integers? |constants? |numbers? )?{FILL}(?P<name>{VARIABLE}){FILL}"
    rf"(?P<domain>\\in\s?{DOMAIN}|is (?:an?|any) (?:positive |real |arbitrary )?(?P<kind>integer|constant|number))?"
    r"[\s{}()]{0,3}\Z"
)
OPENED_TEXT = re.compile(r"\s?\\text\s?\{\s?,?\s?\Z")
MAX_CONDITION = 80


def name_key(text: str) -> str | None:
    """Return the name that a text is, in one spelling; None if it is a formula or anything else."""
    text = text.strip()
    if not NAME.fullmatch(text):
        return None
    key = re.sub(r"\\(?:overline|text|vec)(?![a-z])|[{}\s|]|m(?=\\angle)", "", text)
    return "".join(sorted(key)) if re.fullmatch(r"[A-Z]{2}", key) else key  # AB is BA


def tuple_name(text: str) -> str:
    """Return ``(x,y)`` for a tuple of names, "" for anything else."""
    found = tuple_items(text)
    names = [name_key(item) for item in found[1]] if found and found[0] == "()" else [None]
    return f"({','.join(map(str, names))})" if all(names) else ""


def is_same_name(name: str, own: str) -> bool:
    """Return True for one name in two spellings; ``y`` and ``f(x)`` name the same function."""
    name = compact(name)
    own = compact(own)
    if name == own:
        return True
    functions = [FUNCTION_NAME.fullmatch(side) for side in (name, own)]
    letters = [found[1] if found else side for found, side in zip(functions, (name, own), strict=True)]
    return any(functions) and (letters[0] == letters[1] or "y" in letters)


def without_condition(text: str) -> tuple[str, str]:
    """Return the value of a label and its condition, as in ``2k`` and ``\\text{ for integers } k``; "" for none."""
    found = LABEL_CONDITION.search(text) or MODULUS.search(text)
    if found is None and not BEGINS_WITH_RELATION.match(text):
        found = RELATION_BEHIND.search(text)
        if found and found["name"].strip() not in NAME_SIGN.findall(text[: found.start()]):
            found = None
    if found is None or found.start() == 0:
        return text, ""
    return text[: found.start()].strip(" ,;"), text[found.start() :]


def without_domain(text: str, label_text: str) -> str:
    """Return an answer without the condition that a name of its label is a whole or a real number.

    Only letters such as n and k may be whole: ``x^2, x \\in \\mathbb{Z}`` says less than ``x^2``.
    """
    found = QUANTIFIED.search(text, max(0, len(text) - MAX_CONDITION)) or MEMBERSHIP.search(text)
    if found is None or compact(found["name"]) not in compact(label_text):
        return text
    parts = found.groupdict()
    domain = (parts.get("noun") or "") + (parts.get("kind") or "") + (found["set"] or "")
    is_whole = re.search("integer|[ZN]", domain) is not None
    if not (domain or parts.get("all")) or (is_whole and not found["name"].startswith(WHOLE_NAMES)):
        return text
    return OPENED_TEXT.sub("", text[: found.start()]).rstrip(" ,;(")


def without_suffix(text: str, condition: str) -> str:
    """Drop the condition of the label, whatever its white space, from the end of a text that has it there."""
    left = len(re.sub(r"\s", "", condition))
    end = len(text)
    while left and end:
        end -= 1
        left -= not text[end].isspace()
    return text[:end].rstrip(" ,;")
