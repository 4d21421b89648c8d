r"""Units of measurement after (or, for money, before) a value: split off, spelt one way, never converted."""

import re

NOT_UNITS = frozenset(
    "not no or and nor is isn't isnt wrong incorrect false without minus plus times over of hundred thousand "
    "million billion trillion dozen dozens hundreds thousands millions billions score half mod modulo base "
    "if when where for except but maybe perhaps about approximately either only less more greater than least most "
    "nan inf infinity undefined to the power sqrt squared cubed root factorial percentile percentage "
    "fewer above below loss unless against xor neither point divided multiplied choose negative positive twice "
    "thrice double doubled triple tripled halved guess guesses option options else otherwise instead never unknown "
    "error incorrectly zero one two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty "
    "sixty seventy eighty ninety halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths "
    "seventh sevenths eighth eighths ninth ninths tenth tenths hundredth hundredths thousandth thousandths mil bn "
    "kilo mega crore crores lakh lakhs tens gross grand googol googols myriad myriads by through until at with".split()
)
"""Words after a number that change its value or its claim."""

BEFORE_A_NOUN = frozenset({"positive", "negative", "real", "of", "per", "the", "in", "at", "with", "to", "for"})
"""Words of ``NOT_UNITS`` that may stand inside a unit, after or before its noun: bags of rice, positive integers."""

GENERIC = frozenset({"unit", "unit^2", "unit^3"})
POWERS = {"square": "^2", "cubic": "^3"}
POWERS_AFTER = {"squared": "^2", "cubed": "^3"}

SPELLINGS = {
    "mm": "millimeter", "cm": "centimeter", "m": "meter", "km": "kilometer", "in": "inch", "inche": "inch",
    "ft": "foot", "feet": "foot", "yd": "yard", "mi": "mile", "metre": "meter", "centimetre": "centimeter",
    "millimetre": "millimeter", "kilometre": "kilometer", "sq": "square", "per": "/", "s": "second", "sec": "second",
    "min": "minute", "h": "hour", "hr": "hour", "g": "gram", "kg": "kilogram", "mg": "milligram", "lb": "pound",
    "oz": "ounce", "l": "liter", "litre": "liter", "ml": "milliliter", "deg": "degree", "usd": "dollar",
    "$": "dollar", "¢": "cent", "inches": "inch", "mph": "mile / hour", "j": "joule", "n": "newton", "w": "watt",
    "v": "volt", "k": "kelvin", "hz": "hertz", "rad": "radian", "€": "euro", "£": "sterling", "¥": "yen", "₹": "rupee",
    "rs": "rupee", "eur": "euro", "ev": "electronvolt", "'": "foot", '"': "inch", "mol": "mole", "pa": "pascal",
    "ohm": "ohm", "kwh": "kilowatt-hour", "wh": "watt-hour", "kph": "kilometer / hour",
    "mu m": "micrometer", "hrs": "hour", "mins": "minute", "secs": "second", "lbs": "pound",
}  # fmt: skip

SHORT_WORDS = frozenset(
    "cup cups day days way ways boy boys man men pie pies box bag bags egg eggs cat cats dog dogs car cars set sets "
    "row rows bit bits erg amu ohm ohms atm rpm psi yen won year men ant ants bus jar jars can cans pen pens hat hats "
    "yd oz lb lbs sec secs min mins hr hrs deg rad mph in ft mi sq cm mm km kg mg ml hz gal per old of for the at to "
    "th st nd rd in mol usd eur rs sides side units unit kwh wh mwh gwh kw mw hp kph kb mb gb tb".split()
)
"""Words of up to three letters that are units where nothing marks them as text; ``5 abc`` is a product."""

SYMBOL = (
    r"(?:[kcmdMGTnpµ]|da|\\mu\s?)?(?:m|g|s|L|l|J|N|W|V|A|K|F|C|T|Pa|Hz|mol|eV|cal|Wb|H|bar|\\Omega)|"
    r"h|hr|min|ft|in|lb|rad|erg|u|AU|ly"
)
POWER = r"(?:\s?\^\s?(?:\{\s?-?\s?[1-9]\s?\}|-?[1-9]))"
SYMBOLS = re.compile(
    rf"(?<=[\d}}) ])(?P<space>\s)?(?P<unit>(?:{SYMBOL})(?![A-Za-z]){POWER}?"
    rf"(?:\s?(?:/|\\cdot(?![a-z])|\*|\s)\s?\(?(?:{SYMBOL})(?![A-Za-z]){POWER}?\)?){{0,4}})\Z"
)
PIECE = rf"(?:\\text\s?\{{\s?(?:{SYMBOL})\s?\}}|(?:{SYMBOL})(?![A-Za-z])){POWER}?"
QUOTIENT = re.compile(rf"(?<=[\d}}) ])\s?\\frac\s?\{{\s?(?P<top>{PIECE})\s?\}}\s?\{{\s?(?P<bottom>{PIECE})\s?\}}\Z")
NAME_FREE = re.compile(r"(?:\\(?:frac|sqrt|pi|cdot|times|circ|pm)(?![a-z])|[^A-Za-z\\]|(?<=\d)[eE](?=[-+]?\d))*")
"""What has no names in it: a letter after it can only be a unit."""

UNIT_TOKEN = re.compile(
    r"(?P<text>\\text\s?\{)|(?P<word>[A-Za-z]+(?:[-'][A-Za-z]+)*\.?)|(?P<power>\^\s?(?:\{\s?-?\s?[1-9]\s?\}|-?[1-9]))|"
    r"(?P<join>\\cdot(?![a-z])|/)|(?P<symbol>\\(?:mu|Omega|\$)(?![a-z])|[°€£¥₹¢])|(?P<close>\})|(?P<space>\s+)|"
    r"(?P<bracket>[()\[\]])|(?P<cjk>[\u4e00-\u9fff]+)"
)
OUTSIDE_TEXT = re.compile(r"\\text\s?\{(?:[^{}]|\{[^{}]*\})*\}|\\(?:mu|Omega|cdot|frac)(?![a-z])")
MAX_TOKENS = 40
OTHER_SIGN = re.compile(r"[,;:=<>+?!&|]|(?<!\^)(?<!\^\{)(?<!\^-)(?<!\^\{-)\d")
"""What no unit has: punctuation, and digits that are no exponent."""
VALUE_BEFORE = re.compile(r"(?:[\d})\]]|\\pi|\\circ|(?<=[\d ])(?:hundred|thousand|million|billion|trillion))\s?\Z")
COUNTED_TEXT = re.compile(
    r"\s?\\text\s?\{\s*(?P<count>hundred|thousand|million|billion|trillion)\s+(?P<unit>[A-Za-z][A-Za-z /]{0,60})\}\Z"
)
CJK_NUMBERS = frozenset("一二三四五六七八九十百千万亿兆半零两分之倍")

TRIGONOMETRY = re.compile(r"(?:sin|cos|tan|cot|sec|csc)")
DEGREES = re.compile(r"\s?\^\s?(?:\{\s?\\circ\s?\}|\\circ)\s?(?P<scale>(?:\\text\{\s?)?[CFK](?:\s?\})?)?\s?\Z")
INNER_DEGREES = re.compile(
    r"(?<=[\w)}])\s?\^\s?(?:\{\s?\\circ\s?\}|\\circ(?![a-z]))(?=\s?(?:[-+*/=,)}]|\\(?:cdot|times)(?![a-z])|\Z))"
)
PERCENT_WORD = r"(?:percent|per cent|pct|percentage|\\?%)"
PERCENT = re.compile(
    rf"\s?(?:\\?%|\\text\s?\{{\s*{PERCENT_WORD}\.?\s*\}}|\s?(?:percent|per cent|pct\.?|percentage))\s?\Z"
)
MONEY_SIGN = r"(?:US\s?)?\\\$|[€£¥₹]|Rs\.?|USD|EUR"
MONEY = re.compile(
    rf"\A(?P<minus>-?)\s?(?:\\text\s?\{{\s*(?P<text>{MONEY_SIGN})\s*\}}|(?P<sign>{MONEY_SIGN}))\s?(?=[-\d.\\(])"
)
MONEY_AFTER = re.compile(r"(?<=[\d}])\s?(?:\\text\s?\{\s*(?P<text>\\\$|[€£¥₹¢])\s*\}|(?P<sign>\\\$|[€£¥₹¢]))\Z")
MARKED_LENGTH = re.compile(r"(?P<number>-?\d[\d.,/]*)\s?(?P<mark>['\"])")
"""Feet or inches; behind anything but a number ``'`` is a derivative."""


def split_percent(text: str) -> tuple[str, bool]:
    """The clean text without its percent sign, and whether it had one."""
    bare = PERCENT.sub("", text)
    return bare, bare != text


def split_unit(text: str) -> tuple[str, str]:
    r"""The clean text without its unit, and the unit in one spelling such as ``centimeter^2``; "" for none.

    Every ``\text{}`` of plain words after a value counts as one, and every known or plain word of two letters and
    more, unless it is in ``NOT_UNITS``.
    """
    money = MONEY.match(text)
    if money:
        sign = (money["text"] or money["sign"]).rstrip(".").lower()
        rest = money["minus"] + text[money.end() :]
        if MONEY.match(rest):
            return text, ""
        bare, unit = split_unit(rest)
        own = SPELLINGS.get(sign, "dollar")
        return (bare, own) if unit in ("", own) or unit.startswith("/ ") else (text, "")
    after = MONEY_AFTER.search(text)
    if after and after.start() > 0:
        return text[: after.start()], SPELLINGS.get(after["text"] or after["sign"], "dollar")
    degrees = None if TRIGONOMETRY.search(text) else DEGREES.search(text)
    if degrees and degrees.start() > 0:
        scale = re.sub(r"\\text|[{}\s]", "", degrees["scale"] or "")
        return text[: degrees.start()], f"degree {scale}".strip()
    if degrees is None and r"\circ" in text and not TRIGONOMETRY.search(text):
        bare = INNER_DEGREES.sub("", text)
        return (text, "") if r"\circ" in bare else (bare, "degree")
    marked = MARKED_LENGTH.fullmatch(text)
    if marked:
        return marked["number"], SPELLINGS[marked["mark"]]
    return _split_words(text)


def split_symbols(text: str) -> tuple[str, str]:
    r"""The clean text without a unit in bare letters, as in ``5 m/s^2`` or ``\frac{m}{s}``, and the unit; "" for none.

    Letters may as well be names: only for a text that is compared with a value without any.
    """
    match = SYMBOLS.search(text[-60:])
    if match is None:
        match = QUOTIENT.search(text[-80:])
        if match is None:
            return text, ""
        unit = f"{match['top']} / {match['bottom']}"
    else:
        unit = match["unit"]
        if not (match["space"] or text[: -len(match[0])].endswith(" ") or "/" in unit):
            return text, ""
    bare = text[: len(text) - len(match[0])].rstrip()
    if not bare or not NAME_FREE.fullmatch(bare) or not VALUE_BEFORE.search(bare):
        return text, ""
    return bare, _key(unit.replace("(", "").replace(")", "")) or ""


def has_names(text: str) -> bool:
    """Whether a letter of the clean text may be a name."""
    return NAME_FREE.fullmatch(text) is None


def _split_words(text: str) -> tuple[str, str]:
    """The words at the end as a unit: the longest run of them that is one."""
    counted = COUNTED_TEXT.search(text[-120:])
    if counted:
        text = f"{text[: len(text) - len(counted[0])]} {counted['count']} {counted['unit']}"
    for start in _starts(text):
        bare, unit = text[:start].rstrip(), text[start:]
        if not VALUE_BEFORE.search(bare) and not (unit.startswith("\\text") and bare):
            continue
        if bare.count("{") != bare.count("}") or bare.endswith(("^", "_", "/", r"\cdot", "+", "-")):
            continue
        key = _key_of(unit, bare != text[:start])
        if key is not None:
            return bare, key
    return text, ""


def _starts(text: str) -> list[int]:
    """Where a unit could begin: at each of the last signs that units have, the earliest first."""
    tail = max(0, len(text) - 200)
    found, end = [], tail
    for match in UNIT_TOKEN.finditer(text, tail):
        if match.start() != end:
            found.clear()
        end = match.end()
        found.append(match)
    if end != len(text):
        return []
    kinds = ("text", "word", "symbol", "join", "cjk")
    return [m.start() for m in found[-MAX_TOKENS:] if m.lastgroup in kinds or m[0] in ("(", "[")]


def _key_of(unit: str, spaced: bool) -> str | None:
    r"""``unit`` in one spelling; None if it is none. Words outside ``\text{}`` have to be long or known."""
    opened, closed = unit.startswith(("(", "[")), unit.endswith((")", "]"))
    if opened != closed and (opened or unit.count("(") != unit.count(")")):
        return None
    if re.fullmatch(r"(?:\\text\s?\{\s*)?[\u4e00-\u9fff]{1,6}(?:\s*\})?", unit):
        return None if CJK_NUMBERS & set(unit) else re.sub(r"[^\u4e00-\u9fff]", "", unit)
    marked = r"\text" in unit and not re.search(r"[A-Za-z]", OUTSIDE_TEXT.sub(" ", unit))
    if not marked and not _plain(unit, spaced):
        return None
    if unit.startswith("/") and r"\text" not in unit and "per" not in unit:
        return None
    return _key(re.sub(r"[()\[\]]", " ", unit))


def _plain(unit: str, spaced: bool) -> bool:
    words = re.findall(r"[A-Za-z]+(?:[-'][A-Za-z]+)*", re.sub(r"\\[a-z]+", " ", unit))
    if not words or len(words) > 6 or "\\" in unit.replace(r"\cdot", "").replace(r"\mu", "").replace(r"\Omega", ""):
        return False
    if not spaced and words[0].lower() not in SHORT_WORDS:
        return False
    return all(len(w) >= 4 or w.lower() in SHORT_WORDS for w in words)


def _key(unit: str) -> str | None:
    """``unit`` in one spelling, words in the order given; None if a word of it is none of a unit."""
    unit = re.sub(r"\\mu\s?\\?(?:text)?\s?\{?\s?m\b", "micrometer", unit)
    flat = re.sub(r"\\text|\\cdot(?![a-z])|\*", " ", unit).replace(r"\Omega", "ohm").replace(r"\mu", "micro")
    if OTHER_SIGN.search(flat.replace(" ", "")):
        return None
    names: list[str] = []
    prefix = ""
    parts = re.findall(r"[a-z$']+(?:-[a-z]+)*|\^\s?\{?\s?-?\s?\d|/", flat.lower())
    last = max((place for place, part in enumerate(parts) if part[0].isalpha()), default=-1)
    for place, part in enumerate(parts):
        inner = (
            part in BEFORE_A_NOUN
            and place < last
            and (names or part in ("positive", "negative", "real") or parts[:2] == ["of", "the"])
        )
        if (part in NOT_UNITS and not inner and not _counts(part, parts, names)) or _is_number(part):
            return None
        if len(part) == 1 and part.isalpha() and part not in SPELLINGS:
            return None
        name = _name(part)
        if part.startswith("^") and names:
            names[-1] += part.replace(" ", "").replace("{", "")
        elif part in POWERS_AFTER and names:
            names[-1] += POWERS_AFTER[part]
        elif name in POWERS:
            prefix = POWERS[name]
        else:
            names.append(name + prefix)
            prefix = ""
    return " ".join(name for name in names if name not in GENERIC) if parts else None


def _counts(part: str, parts: list[str], names: list[str]) -> bool:
    """Words that count where they stand alone or last: three times, centimeters squared."""
    return (part == "times" and parts == ["times"]) or (part in POWERS_AFTER and bool(names) and names[-1] in KNOWN)


def _is_number(part: str) -> bool:
    """A number in words such as twenty-one, two-thirds or quadrillion; two-digit is none."""
    return part.endswith(("illion", "illions", "illiard", "illiards")) or (
        "-" in part and all(word in NOT_UNITS for word in part.split("-"))
    )


def _name(part: str) -> str:
    singular = SPELLINGS.get(part, part).removesuffix("s")
    return SPELLINGS.get(singular, singular)


KNOWN = frozenset(SPELLINGS.values())
