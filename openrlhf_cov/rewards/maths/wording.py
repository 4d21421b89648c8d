r"""What stands around an answer and says nothing about it: Markdown, "the answer is".

Only what is known to say nothing is dropped; words that change a claim ("at most", "not", "or") stay.
"""

import re

from openrlhf_cov.rewards.maths.names import NEGATION, name_of

MARKS = ("**", "__", "```", "`", '"', "*", "$", "'", "“”")
MARKED = frozenset(mark[0] for mark in MARKS)
ENDING = (
    r"\((?:a )?(?:double|triple|repeated) root\)|"
    r"\(?(?:approximately|approx\.|exactly)\)?|is (?:the|our) (?:final |correct )?(?:answer|solution)"
)
QED = re.compile(
    rf"(?<=[^\s])\s?(?:{ENDING}|\\text\s?\{{\s?(?:{ENDING})\s?\}}|"
    r"\\(?:blacksquare|square|checkmark|qed|Box)(?![a-zA-Z])|[✓✔∎✅■□])\Z"
)

TEXT_FIRST = re.compile(r"\\text\s?\{([^{}]*)\}")
ABOUT = r"(?:(?:approximately|approx\.?|about|around|roughly|nearly|exactly|precisely)\s+)"
LEAD = re.compile(
    rf"\A(?:\\(?:therefore|implies)(?![a-z])|=|(?:so|thus|hence|therefore|consequently|finally)(?![a-z])[,:]?|"
    rf"{ABOUT}|(?:a\s+total\s+of|in\s+total,?|total\s*(?:of|:|is))(?![a-z])|there\s+(?:are|is)\s+(?=[\d\\(-])|"
    r"(?:it\s+is|which\s+is|this\s+is|we\s+(?:get|have|obtain|find)(?:\s+that)?)(?![a-z])|(?:final\s+)?answer\s+(?=[\d\\(-]|[A-H]\Z)|"
    r"(?:the\s+|our\s+)?(?:(?:final|correct|right|required|desired|complete)\s+){0,3}(?:answers?|results?|solutions?|value)"
    r"(?:\s*:|\s*=|\s+(?:is|are|was|equals)(?![a-z]))\s*:?)\s*",
    re.IGNORECASE,
)
MAX_LEADS = 4
PLAIN = re.compile(r"[-+\d.(\[{|]|\\(?!text|therefore|implies)")
"""How answers begin that have no words before them."""
SENTENCE = re.compile(
    r"\A(?:(?:the|our|its|a|an|total|number)\s(?:(?!\s(?:is|are|equals)\s).){1,200}?|(?:\\[a-z]+\s?|[A-Za-z])(?:_\w|_\{\w+\})?)"
    rf"\s(?:is|are|equals)\s+(?:equal\s+to\s+)?{ABOUT}?(?P<rest>.+)\Z",
    re.IGNORECASE | re.DOTALL,
)
VERB = re.compile(r"\s(?:is|are|equals)\s", re.IGNORECASE)
DOUBT = re.compile(
    r"(?<![a-z])(?:not|n't|never|no|none|nor|neither|wrong|incorrect|false|except|unless|if|either|or|between|than|least|"
    r"most|but|however|opposite|negative|maybe|perhaps)(?![a-z])|[=<>]",
    re.IGNORECASE,
)
"""Words that turn a sentence around; the sentence is then taken as it stands."""

LETTER = r"(?P<letter>[A-H])"
OPTION = re.compile(rf"(?:option|choice)\s+\(?{LETTER}\)?\Z", re.IGNORECASE)
LETTER_ALONE = re.compile(rf"{LETTER}[.):]\Z")
OPTION_WITH_TEXT = re.compile(
    rf"(?:(?:option|choice)\s+)?(?:\({LETTER}\)[.:]?|(?P<bare>[A-H])\s?[.:)])(?P<space>\s*)(?P<rest>[^\s^_!'/*+=<>|,)].*)\Z",
    re.DOTALL,
)
SECOND_LETTER = re.compile(r"(?<![A-Za-z\\])(?:\([A-H]\)|[A-H]\s?[.:)]|\(?[A-H]\)?\s*\Z)")

SETS = r"\\mathbb\s?(?:\{\s?[A-Z]\s?\}|[A-Z])(?:\s?[\^_]\s?(?:\{[^{}]{1,12}\}|[+*-]))*"
VARIABLES = r"(?:\\[a-z]+\s?|[A-Za-z])(?:_\w|_\{\w+\})?(?:\s?,\s?(?:\\[a-z]+\s?|[A-Za-z])(?:_\w|_\{\w+\})?){0,5}"
SIGN = r"(?:\\(?:ne|le|ge)(?![a-z])|<=?|>=?|!=)"
TERM = r"[^<>=,;]{1,60}?"
RELATION = re.compile(
    rf"\A(?:{VARIABLES}\s?\\in(?![a-z])\s?{SETS}(?:\s?\\setminus\s?\\lbrace\s?0\s?\\rbrace)?|"
    rf"{TERM}{SIGN}{TERM}(?:{SIGN}{TERM})?|"
    rf"{VARIABLES}\s?=\s?(?:\d+\s?,\s?){{1,6}}(?:\\dots|\.\.\.)(?:\s?,\s?\w+)?)\Z"
)
QUALIFIERS = frozenset(
    "all any every each some is are an a the integer integers positive negative real complex number numbers constant "
    "constants natural nonnegative non-negative nonzero non-zero arbitrary and whole values value of".split()
)
CONDITION_WORD = re.compile(
    r"\\text\s?\{\s?,?\s?(?:for|where|if|when|with|whenever|provided)(?P<more>[^{}]*)\}|"
    r"(?<![A-Za-z\\{])(?:for|where|if|when|with|whenever|provided)(?![A-Za-z])"
)
MODULUS = re.compile(
    r"\s?(?:\\pmod\s?(?:\{\s?(?P<braced>\d+)\s?\}|(?P<bare>\d+))|\(\s?\\?(?:mod|pmod|text\s?\{\s*mod\s*\})\s?\{?\s?(?P<inside>\d+)\s?\}?\s?\))\Z"
)


YES_OR_NO = re.compile(
    r"(?P<word>yes|no)(?:\s?[,.:;]\s|\s-\s|\s?\()(?!.*(?<![a-z])(?:yes|no|or|but|if)(?![a-z]))"
    r"[a-z][a-z0-9 ,.'()=<>+*/^$-]*",
    re.IGNORECASE,
)
"""A yes or no, and a sentence behind it."""
NO_SOLUTION = re.compile(
    r"(?:there(?:is|are|exists?))?no(?:real|such)?(?:solutions?|roots?|integers?|numbers?|values?)(?:exists?)?|(?:the)?emptyset|none"
)
SAME_WORDS = {"dne": "doesnotexist"}
HAS = re.compile(
    r"(?P<name>[A-Z][a-z]{1,20})\s(?:has|gets|got|receives|earns|pays|owns)\s(?P<value>[-\d\\($].*)", re.DOTALL
)


def without_marks(text: str) -> str:
    """The raw ``text`` without Markdown marks, quotes or dollars around the whole of it."""
    text = text.strip()
    for _ in range(MAX_LEADS):
        if text[:1] not in MARKED or not text:
            return text
        for mark in MARKS:
            opening, closing = (mark[0], mark[-1]) if mark == "“”" else (mark, mark)
            if len(text) > 2 * len(opening) and text.startswith(opening) and text.endswith(closing):
                inner = text[len(opening) : -len(closing)]
                if opening not in inner and closing not in inner:
                    text = inner.strip()
                    break
        else:
            return text
    return text


def without_lead(text: str) -> str:
    """The clean ``text`` without the words before the answer that say nothing about it."""
    text = QED.sub("", text)
    if PLAIN.match(text):
        return text
    for _ in range(MAX_LEADS):
        rest = _led(text)
        if rest is None:
            first = TEXT_FIRST.match(text)
            rest = _led(f"{first[1].strip()} {text[first.end() :].strip()}") if first else None
        if rest is None:
            return text
        text = rest
    return text


def _led(text: str) -> str | None:
    match = LEAD.match(text)
    if match and match.end() < len(text):
        return text[match.end() :]
    sentence = SENTENCE.match(text)
    if sentence is None or DOUBT.search(text[: sentence.start("rest")]) or len(VERB.findall(text)) != 1:
        return None
    return sentence["rest"]


def split_option(text: str) -> tuple[str, str] | None:
    """The letter of an option and the text beside it ("" for none), as in ``(B) 12``; None for anything else."""
    if text[:1] not in "(ABCDEFGHoOcC\\" or (text[:1] == "\\" and not text.startswith(r"\text")):
        return None
    first = TEXT_FIRST.match(text)
    flat = f"{first[1].strip()} {text[first.end() :].strip()}".strip() if first else text
    option = OPTION.match(flat) or LETTER_ALONE.match(flat)
    if option:
        return option["letter"].upper(), ""
    match = OPTION_WITH_TEXT.match(flat)
    if match is None or not (match["space"] or first):
        return None
    rest = match["rest"].strip()
    if SECOND_LETTER.search(rest) or (DOUBT.search(TEXT_FIRST.sub(r" \1 ", rest)) and not rest.isalpha()):
        return None
    if rest.startswith("-") and rest[1:2] == " ":
        return None
    return match["letter"] or match["bare"], rest


def split_condition(text: str) -> tuple[str, str] | None:
    """The answer and the condition under which it holds; None where there is none, or more than one."""
    modulus = MODULUS.search(text)
    if modulus and modulus.start() > 0 and r"\pmod" not in text[: modulus.start()]:
        number = modulus["braced"] or modulus["bare"] or modulus["inside"]
        return text[: modulus.start()].strip(), rf"\text{{mod {number}}}"
    words = list(CONDITION_WORD.finditer(text))
    if words:
        word = words[0]
        if len(words) > 2:
            return None
        condition = f"{word['more'] or ''} {text[word.end() :]}".strip()
        value = text[: word.start()].strip(" ,;")
        return (value, condition) if value and _is_condition(condition) else None
    return _split_relation(text)


def _is_condition(text: str) -> bool:
    if len(text) > 200:
        return False
    text = text.strip(" ,.()")
    relation = re.sub(r"\A(?:all|any|every|each|some)\s+", "", TEXT_FIRST.sub(r" \1 ", text).strip())
    if RELATION.match(relation) and not re.search(r"(?<![a-z])(?:or|and|otherwise|else)(?![a-z])", relation):
        return True
    words = re.findall(r"\\?[A-Za-z]+(?:-[a-z]+)?|\S", TEXT_FIRST.sub(r" \1 ", text))
    names = [word for word in words if word.lower() not in QUALIFIERS and word != ","]
    plain = [word for word in words if word.lower() in QUALIFIERS - {"a", "and"}]
    return bool(plain) and 0 < len(names) <= 5 and all(re.fullmatch(r"\\?[A-Za-z]", n) for n in names)


def _split_relation(text: str) -> tuple[str, str] | None:
    r"""``e^{-t}, t > 0`` or ``\frac1x (x \ne 0)``: the relation is about a name in the answer."""
    place = text.rfind(" (") if text.endswith(")") else -1
    if place > 0:
        value, condition = text[:place], text[place + 2 : -1]
    else:
        place = _comma(text)
        if place < 0:
            return None
        value, condition = text[:place], text[place + 1 :]
    value, condition = value.strip(" ,;"), condition.strip()
    if (
        not value
        or len(condition) > 120
        or not RELATION.match(condition)
        or re.search(r"\\(?:le|ge|ne|in)(?![a-z])|[<>]", value)
    ):
        return None
    right = value.rpartition("=")[2]
    names = re.findall(r"\\[a-z]+|(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", TEXT_FIRST.sub(" ", condition))
    about = [name for name in names if name in re.findall(r"\\[a-z]+|[A-Za-z]", right)]
    return (value, condition) if about and right.strip() not in about else None


def _comma(text: str) -> int:
    r"""Place of the first comma outside brackets from which on all is one relation; -1 without one."""
    depth = 0
    for place, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            return place if RELATION.match(text[place + 1 :].strip()[:200]) else -1
    return -1


def names_part(text: str) -> tuple[str, str] | None:
    """``Anna: 7`` or ``Anna has 7`` as name and value; None without a name before the colon or the verb."""
    has = HAS.fullmatch(text)
    if has:
        return None if _is_doubtful(has["name"]) else (has["name"], has["value"].strip())
    name, colon, value = text.partition(":")
    value = value.removeprefix("=").strip()
    first = re.fullmatch(r"\s*\\text\s?\{\s*([A-Za-z][A-Za-z .'-]{0,40}?):\s*\}(.*)", text, re.DOTALL)
    if first:
        name, colon, value = first[1], ":", first[2].strip()
    if not colon or not value or ":" in value:
        return None
    plain = re.fullmatch(r"[A-Za-z][A-Za-z '-]{0,40}", name.strip())
    key = name_of(name.strip()) if not plain else (None if _is_doubtful(name) else name.strip().replace(" ", ""))
    return (key, value) if key and not key.isdigit() else None


def _is_doubtful(name: str) -> bool:
    return bool(DOUBT.search(name) or NEGATION.search(name))


def text_key(text: str) -> str:
    """Words in the spelling by which they are compared: without case, spaces and punctuation."""
    said = YES_OR_NO.fullmatch(text.strip())
    key = "".join(re.findall(r"\w", said["word"] if said else text)).casefold()
    return "emptyset" if NO_SOLUTION.fullmatch(key) else SAME_WORDS.get(key, key)
