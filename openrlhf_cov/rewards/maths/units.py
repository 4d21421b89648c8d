r"""Units of measurement after (or, for money, before) a value: a closed list, and nouns of the problem.

A unit is split off and spelt one way. Nothing is converted.
"""

import re
from collections.abc import Collection

# Short forms and irregular plurals -> the unit.
SPELLINGS = {
    "mm": "millimeter", "cm": "centimeter", "m": "meter", "km": "kilometer", "in": "inch", "ft": "foot",
    "feet": "foot", "yd": "yard", "mi": "mile", "metre": "meter", "centimetre": "centimeter",
    "millimetre": "millimeter", "kilometre": "kilometer", "s": "second", "sec": "second", "min": "minute",
    "h": "hour", "hr": "hour", "g": "gram", "kg": "kilogram", "mg": "milligram", "lb": "pound", "oz": "ounce",
    "l": "liter", "litre": "liter", "ml": "milliliter", "deg": "degree", "usd": "dollar", "$": "dollar",
    "¢": "cent", "inches": "inch", "mph": "mile / hour", "j": "joule", "n": "newton", "w": "watt", "v": "volt",
    "k": "kelvin", "hz": "hertz", "rad": "radian", "€": "euro", "£": "sterling", "¥": "yen", "₹": "rupee",
    "rs": "rupee", "eur": "euro", "ev": "electronvolt", "mol": "mole", "pa": "pascal", "kwh": "kilowatt-hour",
    "kph": "kilometer / hour", "ghz": "gigahertz", "mhz": "megahertz", "khz": "kilohertz", "mum": "micrometer",
    "hrs": "hour", "mins": "minute", "secs": "second",
    "lbs": "pound", "元": "yuan", "度": "degree", "个": "piece", "人": "person", "天": "day", "岁": "year",
    "people": "person", "men": "man", "women": "woman", "children": "child", "ways": "way",
}  # fmt: skip

# Short forms that are products of names as well, such as ``ma``: they are units in ``\text{}``, and where a problem
# asks for them.
MARKED_SPELLINGS = {
    "nm": "nanometer", "å": "angstrom", "ms": "millisecond", "yr": "year", "yrs": "year", "myr": "megayear",
    "gyr": "gigayear", "kn": "kilonewton", "kj": "kilojoule", "kpa": "kilopascal", "mpa": "megapascal",
    "gpa": "gigapascal", "kw": "kilowatt", "ma": "milliampere", "mv": "millivolt", "kv": "kilovolt",
    "kev": "kiloelectronvolt", "mev": "megaelectronvolt", "gev": "gigaelectronvolt", "pc": "parsec",
    "kpc": "kiloparsec", "mpc": "megaparsec", "au": "astronomical-unit", "ly": "light-year", "db": "decibel",
}  # fmt: skip

UNITS = frozenset(SPELLINGS.values()) | frozenset(MARKED_SPELLINGS.values()) | frozenset(
    "micro micrometer nanometer kilojoule megahertz kilohertz gigahertz kilopascal hectare acre gallon quart pint cup "
    "ton tonne day week month year decade century dime nickel penny pennies way unit ohm farad coulomb tesla "
    "arcsecond parsec lightyear erg bit byte person man woman child student people point digit light-year "
    "yuan piece pair triple solution integer side root".split()
)  # fmt: skip
# Units that count, of which every problem may have its own.
COUNTED_UNITS = frozenset(
    "way unit person man woman child student people point digit piece pair triple solution integer side root".split()
)
GENERIC = frozenset({"unit", "unit^2", "unit^3"})
POWERS_AFTER = {"squared": "^2", "cubed": "^3"}
POWERS = {"square": "^2", "cubic": "^3", "sq": "^2"}
# Words that may stand inside the name of a unit, before its last noun.
INSIDE = frozenset({"of", "per", "the", "in", "a", "an"})

# Words that may stand before a noun that is counted: 12 distinct ways.
ADJECTIVES = frozenset("ordered distinct different possible real positive integer".split())
# Likewise, if the problem asks "how many more".
COMPARED = frozenset("more fewer less additional extra".split())
# Nouns that are other words as well.
NOUNS = frozenset({"cans", "logs", "times"})
COMPOUND = frozenset({"m/s", "m/s^2", "m/s^{2}", "J/K", "N/m", "J/mol"})

# Words of a problem that change a value or a claim, and so are never its unit.
NOT_UNITS = frozenset(
    "not no first last next previous or and nor is isn't isnt wrong incorrect false without minus plus times over "
    "hundred thousand "
    "million billion trillion dozen dozens hundreds thousands millions billions score half mod modulo base "
    "if when where for except but maybe perhaps about approximately either only less more greater than least most "
    "nan inf infinity undefined to power sqrt squared cubed root factorial percentile percentage percent "
    "fewer above below loss unless against xor neither divided multiplied choose negative positive twice "
    "thrice double doubled triple tripled halved guess guesses option options else otherwise instead never unknown "
    "error zero one two three four five six seven eight nine ten eleven twelve thirteen "
    "fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty "
    "sixty seventy eighty ninety halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths "
    "seventh eighths eighth ninth tenth tenths hundredth hundredths thousandth thousandths mil bn product sum "
    "kilo mega crore lakh tens gross grand googol myriad by through until at with squares cubes radical difference "
    "quotient ratio exponent multiple multiples reciprocal inverse opposite equals equal answer value values solution "
    "pi mean average remainder sine cosine tangent log logarithm true both all any other another answers "
    "does do did is are was were can will would should could has have had be been than then how many much what "
    "which who whose find compute determine evaluate solve under down off reverse reversed subtraction subtracted "
    "excluding removed".split()
) | set("一二三四五六七八九十百千万亿兆半零两分之倍成折或且减乘除少不非负余超于")
# Nouns among these, in the plural, that a problem may count: how many values, the number of quarters. Scales such as
# "dozens" and "thirds" are no such nouns.
COUNTED_NOUNS = frozenset(
    "values answers squares cubes multiples quarters zeros guesses options products sums differences ratios kilos "
    "logarithms tangents powers roots factorials reciprocals remainders radicals exponents quotients".split()
)
ILLION = re.compile(r"ill(?:ion|iard)s?\Z|(?:eleven|twelf|teen|tie|hundred|thousand|million)ths?\Z")

# Where a unit may begin: a word, a command, a bracket or a slash.
PART = re.compile(r"[A-Za-z]+(?:-[A-Za-z]+)*|\\(?:text|mu|Omega|cdot)(?![a-z])|[/({]|[\u4e00-\u9fff]+|\S")
# Signs of LaTeX and brackets in a unit, and its powers.
IDLE = re.compile(r"\\(?:text|cdot)(?![a-z])|[{}()]|\.(?=[\s})]|\Z)")
POWER = re.compile(r"\s?\^\s?\{?\s?(-?)\s?([1-9])\s?\}?")
WORD = re.compile(r"\^-?[1-9]|/|[A-Za-z]+(?:-[A-Za-z]+)*|[\u4e00-\u9fff]+|\S")
VALUE_BEFORE = re.compile(r"(?:[\d})\]]|\\pi|\\circ)\s?\Z")

DEGREES = re.compile(r"\s?\^\s?(?:\{\s?\\circ\s?\}|\\circ)\s?(?P<scale>(?:\\text\{\s?)?[CFK](?:\s?\})?)?\s?\Z")
# Scales of temperatures in words.
SCALES = {"celsius": "C", "fahrenheit": "F"}
# A degree sign above a fraction bar, or before a slash.
DEGREES_ABOVE = re.compile(
    r"(?P<minus>-?)\s?\\frac\s?\{\s?(?P<top>[-\d.]{1,30})\s?\^\s?(?:\{\s?\\circ\s?\}|\\circ)\s?\}\s?\{(?P<bottom>\s?\d{1,30}\s?)\}|"
    r"(?P<top1>-?\d{1,30})\s?\^\s?(?:\{\s?\\circ\s?\}|\\circ)\s?/\s?(?P<bottom1>\d{1,30})"
)
TRIGONOMETRY = re.compile(r"(?:sin|cos|tan|cot|sec|csc)")
PERCENT_WORD = r"(?:percent|per cent|pct|percentage|\\?%)"
PERCENT = re.compile(
    rf"\s?(?:\\?%|\\text\s?\{{\s*{PERCENT_WORD}\.?\s*\}}|\s?(?:percent|per cent|pct\.?|percentage))\s?\Z"
)
MONEY_SIGN = r"(?:US\s?)?\\\$|[€£¥₹]|Rs\.?|USD|EUR"
MONEY = re.compile(
    rf"\A(?P<minus>-?)\s?(?:\\text\s?\{{\s*(?P<text>{MONEY_SIGN})\s*\}}|(?P<sign>{MONEY_SIGN}))\s?(?=[-\d.\\(])"
)
MONEY_AFTER = re.compile(r"(?<=[\d}])\s?(?:\\text\s?\{\s*(?P<text>\\\$|[€£¥₹¢])\s*\}|(?P<sign>\\\$|[€£¥₹¢]))\Z")
LONG_WORD = re.compile(r"[A-Za-z]{2,}")
MAX_UNIT = 80
MAX_WORDS = 5


def split_percent(text: str) -> tuple[str, bool]:
    """Return the clean text without its percent sign, and whether it had one."""
    bare = PERCENT.sub("", text)
    return bare, bare != text


def split_unit(
    text: str, words: Collection[str] = (), *, any_noun: bool = False, letters: bool = False
) -> tuple[str, str]:
    r"""Return the clean text without its unit, and the unit in one spelling such as ``centimeter^2``; "" for none.

    Args:
        text: A value and its unit.
        words: Nouns of the problem, singular and in small letters, that may stand behind a number. Those of
            ``COUNTED_NOUNS`` are in the plural.
        any_noun: True for a label, behind whose value any words in ``\text{}`` are its unit.
        letters: True if a bare letter may be a unit, as it may if the label has one.
    """
    above = DEGREES_ABOVE.fullmatch(text)
    if above:
        top = above["top"] or above["top1"]
        return rf"{above['minus'] or ''}\frac{{{top}}}{{{above['bottom'] or above['bottom1']}}}", "degree"
    money = MONEY.match(text)
    if money:
        sign = (money["text"] or money["sign"]).rstrip(".").lower()
        own = SPELLINGS.get(sign, "dollar")
        rest = money["minus"] + text[money.end() :]
        bare, unit = split_unit(rest, words, any_noun=any_noun, letters=letters)
        fits = unit in ("", own) or unit.startswith("/ ")
        return (bare, own) if fits and not MONEY.match(rest) else (text, "")
    after = MONEY_AFTER.search(text)
    if after and after.start() > 0:
        return text[: after.start()], SPELLINGS[(after["text"] or after["sign"]).removeprefix("\\")]
    degrees = None if TRIGONOMETRY.search(text) else DEGREES.search(text)
    if degrees and degrees.start() > 0:
        scale = re.sub(r"\\text|[{}\s]", "", degrees["scale"] or "")
        return text[: degrees.start()], f"degree {scale}".strip()
    return _split_words(text, words, any_noun, letters)


def _split_words(text: str, words: Collection[str], any_noun: bool, letters: bool) -> tuple[str, str]:
    """Split off the longest run of words at the end that is a unit."""
    for match in PART.finditer(text, max(0, len(text) - MAX_UNIT)):
        bare = text[: match.start()].rstrip()
        unit = text[match.start() :]
        if not VALUE_BEFORE.search(bare) or bare.count("{") != bare.count("}") or unit[0] in "{})^":
            continue
        key = _key(unit, words, any_noun, letters=letters, spaced=bare != text[: match.start()])
        if key is not None:
            return bare, key
    return text, ""


def _key(unit: str, words: Collection[str], any_noun: bool, *, letters: bool, spaced: bool) -> str | None:
    """Return ``unit`` in one spelling; None if it is none."""
    marked = unit.startswith((r"\text", r"\mu"))
    words_in_unit = LONG_WORD.findall(unit.lower())
    has_unit = any(word in SPELLINGS or singular(word) in UNITS for word in words_in_unit)
    letters = letters or marked or unit in COMPOUND or ("/" in unit and has_unit)
    plain = IDLE.sub(" ", POWER.sub(r"^\1\2", unit)).replace(r"\mu", " micro ").replace(r"\Omega", " ohm ")
    parts = WORD.findall(plain)
    names: list[str] = []
    prefix = ""
    for place, part in enumerate(parts):
        word = part.lower()
        is_last = place == len(parts) - 1
        if word[0] == "^" and names:
            names[-1] += word
        elif word == "/":
            names.append(word)
        elif (word in ADJECTIVES | COMPARED.intersection(words) and not names and not is_last) or (
            word == "old" and names == ["year"]
        ):
            continue
        elif word in SCALES and names == ["degree"]:
            names[-1] += f" {SCALES[word]}"
        elif word in POWERS_AFTER and names:
            names[-1] += POWERS_AFTER[word]
        elif word in POWERS:
            prefix = POWERS[word]
        elif word in INSIDE and not prefix and not is_last and (names or word == "per"):
            names.append("/" if word == "per" else word)
        else:
            is_bare_letter = len(word) == 1 and word.isascii() and not letters
            name = MARKED_SPELLINGS.get(word) if marked else None
            if name is None and not is_bare_letter:
                name = _name(word, words, any_noun and marked)
            if name is None:
                return None
            names.append(name + prefix)
            prefix = ""
    if not names or prefix or names[-1] in INSIDE or names[-1].startswith("/") or len(names) > MAX_WORDS:
        return None
    is_quotient = names[0] == "/" and r"\text" in unit
    # Chinese writes no space before a unit.
    is_chinese = not names[0].isascii()
    if not (marked or spaced or is_quotient or is_chinese or names[0].partition("^")[0] in UNITS):
        return None
    return " ".join(name for name in names if name not in GENERIC)


def _name(word: str, words: Collection[str], any_noun: bool) -> str | None:
    """Return a word of a unit in the singular; None if the word is neither a unit nor a noun of the problem."""
    single = singular(word)
    name = SPELLINGS.get(word) or SPELLINGS.get(single) or single
    if name in UNITS or word in SPELLINGS:
        return name
    if word in COUNTED_NOUNS and (any_noun or word in words):
        return single
    parts = {*word} if word in NOUNS else {word, single, *word.split("-"), *word}
    if not parts.isdisjoint(NOT_UNITS) or ILLION.search(word) or not (word[0].isalpha() or word == "micro"):
        return None
    if not word.isascii():
        return name if any_noun or word in words else None
    return name if (any_noun and len(word) > 1) or (single in words and len(word) > 2) else None


def singular(word: str) -> str:
    """Return a noun without its plural s."""
    return word[:-1] if word.endswith("s") and len(word) > 3 else word
