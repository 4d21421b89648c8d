r"""Reduces LaTeX and Unicode to one spelling for each symbol. It decides nothing about meaning."""

import re
import unicodedata

CHARACTERS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "‒": "-", "﹣": "-", "－": "-",
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "•": r"\cdot ", "∗": "*", "÷": "/", "∕": "/",
    "⁄": "/", "π": r"\pi ", "∞": r"\infty ", "°": r"^\circ ", "º": r"^\circ ", "±": r"\pm ", "√": r"\sqrt ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "⟨": r"\langle ", "⟩": r"\rangle ",
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "′": "'", "’": "'", "“": '"', "”": '"',
    "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    "⅕": r"\frac{1}{5}", "⅙": r"\frac{1}{6}", "⅛": r"\frac{1}{8}", "⅜": r"\frac{3}{8}", "⅝": r"\frac{5}{8}",
    "⅞": r"\frac{7}{8}", "⅖": r"\frac{2}{5}", "⅗": r"\frac{3}{5}", "⅘": r"\frac{4}{5}", "⅚": r"\frac{5}{6}",
    "⅐": r"\frac{1}{7}", "⅑": r"\frac{1}{9}", "⅒": r"\frac{1}{10}", "、": ",", "，": ",", "。": ".", "\f": "\\f",
    "≈": r"\approx ", "≃": r"\approx ", "≅": r"\approx ", "∼": r"\sim ", "≡": r"\equiv ", "⩽": r"\le ", "⩾": r"\ge ",
    "≦": r"\le ", "≧": r"\ge ", "∓": r"\mp ", "∠": r"\angle ", "△": r"\triangle ", "∖": r"\setminus ", "→": r"\to ",
    "⇒": r"\implies ", "∴": r"\therefore ", "∣": "|", "ℚ": r"\mathbb{Q}", "∫": r"\int ", "∑": r"\sum ", "∏": r"\prod ",
    "∂": r"\partial ", "∛": r"\sqrt[3]", "µ": r"\mu ", "″": "\"", "：": ":", "；": ";",
    "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "ε": r"\epsilon ", "θ": r"\theta ",
    "λ": r"\lambda ", "μ": r"\mu ", "Δ": r"\Delta ", "Ω": r"\Omega ",
    "ρ": r"\rho ", "σ": r"\sigma ", "τ": r"\tau ", "φ": r"\phi ", "ω": r"\omega ",
}  # fmt: skip
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")

FOLDED = ("<font>", "<wide>", "<narrow>", "<small>")
VARIATION_SELECTORS = frozenset(map(chr, range(0xFE00, 0xFE10)))

RENAMED = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "nicefrac": "frac", "sfrac": "frac",
    "dbinom": "binom", "tbinom": "binom", "leq": "le", "geq": "ge",
    "leqslant": "le", "geqslant": "ge", "neq": "ne", "lt": "<", "gt": ">", "ast": "*", "degree": "^\\circ ",
    "degrees": "^\\circ ", "varnothing": "emptyset", "lvert": "|", "rvert": "|",
    "vert": "|", "mid": "|", "mbox": "text", "textrm": "text", "textbf": "text", "textit": "text", "textsf": "text",
    "texttt": "text", "textup": "text", "textnormal": "text", "hbox": "text", "mathrm": "text", "operatorname": "text",
    "mathbf": "text", "mathit": "text", "mathsf": "text", "mathtt": "text", "mathnormal": "text", "emph": "text",
    "unit": "text", "prime": "'", "lbrack": "[", "rbrack": "]", "land": "\\text{ and }", "lor": "\\text{ or }",
    "varepsilon": "epsilon", "varphi": "phi", "vartheta": "theta", "minus": "-", "colon": ":", "ldots": "dots",
    "cdots": "dots", "dotsc": "dots", "dotsb": "dots", "bmod": "mod", "lg": "\\log_{10} ", "arccot": "acot",
    "bar": "overline", "rightarrow": "to", "longrightarrow": "to", "simeq": "approx", "measuredangle": "angle",
    "thickapprox": "approx", "approxeq": "approx", "Longrightarrow": "implies",
    "Rightarrow": "implies", "smallsetminus": "setminus", "widehat": "hat", "pounds": "£", "euro": "€",
    "overrightarrow": "vec",
    "tg": "tan", "ctg": "cot", "arctg": "arctan", "cosec": "csc", "textdegree": "^\\circ ", "dotsm": "dots",
}  # fmt: skip
DROPPED = frozenset(
    "left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle textstyle "
    "scriptstyle scriptscriptstyle limits nolimits quad qquad enspace thinspace negthinspace hfill nonumber notag "
    "boldsymbol bm mathstrut strut rm bf it underline ensuremath tiny small normalsize large Large LARGE huge "
    "Huge".split()
)

# Signs after a backslash that only set spaces or allow a break.
SPACING = frozenset(",;:!>/ \t\n")

# A star belongs to the command only before its argument: in ``\pi**2`` it is an operator.
COMMAND = re.compile(r"\\(?:([a-zA-Z]+)(?:\*(?=\s?\{))?[ \t]*|(.))", re.DOTALL)
MATH_DELIMITER = re.compile(r"(?<!\\)(?:\\[()\[\]]|\$+)")
THOUSANDS_SPACE = re.compile(r"(?<=\d)(?:\\[,!;: ]|\{,\}|~)+(?=\d{3}(?!\d))")
THOUSANDS_COMMA = re.compile(r"(?<=\d)(?:,\s*|\{,\})\\!\s*(?=\d)")
BRACED_COLON = re.compile(r"(?<=\d)\{:\}(?=\d)")
# A multiplication sign typed as a letter: 1.5 x 10^3.
TIMES = re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s?\^)")
# A binomial coefficient in the notation of schools: {}_nC_k.
CHOOSE = re.compile(
    r"(?:\{\s?\}|(?<![\w})\]']))\s?_\s?\{?\s?(?P<n>\w{1,3})\s?\}?\s?C\s?_\s?\{?\s?(?P<k>\w{1,3})\s?\}?"
)
# Commands that hide or redefine what a reader sees, and comments.
REFUSED = re.compile(
    r"\\(?:(?:text|page|f)?color(?:box)?|[hv]?phantom|[rl]lap|(?:re)?newcommand|(?:re)?newenvironment|[egx]?def|let|"
    r"DeclareMathOperator|[hv]space|kern|rule|[bx]?cancel|sout|st|iffalse|verb)(?![a-zA-Z])|(?<!\\)%\s*\n"
)
# A number in a font of its own.
FONT_NUMBER = re.compile(r"\\text\{\s?(-?[\d.,]*\d)\s?\}")
# The letter of a set of numbers, with or without braces.
NUMBER_SET = re.compile(r"\\mathbb\s?\{\s?([A-Z])\s?\}|\\mathbb\s?([A-Z])(?![A-Za-z])")
INFIX_NAMES = {"over": "frac", "choose": "binom"}
INFIX = re.compile(r"\{([^{}]{1,200}?)\\(over|choose)(?![a-z])([^{}]{1,200})\}")
PRIME = re.compile(r"\^\s?(?:\{\s?'\s?\}|')")
# A line break before a number or an operator. Behind a number it separates two answers.
LINE_BREAK = re.compile(r"(?P<between>(?<=\d)[ \t]*(?:\\\\|\n)\s*(?=[-+.]?\d))|\\\\(?=[-+/=.<>\d])")
# A space command that has lost what ends its name, as in ``\quadx``.
GLUED_SPACE = re.compile(r"\\q?quad(?=[a-zA-Z])")
# A wide space between two numbers, which separates them.
WIDE_SPACE = re.compile(r"(?<=\d)\s*\\q?quad(?![a-z])\s*(?=\d)")
NULL_DELIMITER = re.compile(r"\\(?:left|right)\s?\.")
SPACES = re.compile(r"\s+")
IDLE_SPACE = re.compile(r"(?<!\d) | (?!\d)")


def clean(text: str) -> str:
    r"""Return a text with one spelling per symbol: ASCII digits, ``\frac`` for its variants, no sizes or delimiters.

    Font commands become ``\text{}``, curly braces of sets become ``\lbrace`` and ``\rbrace``, runs of white space one
    space. What is inside ``\text{}`` keeps its words. Linear time; cleaning twice changes nothing but white space.
    """
    text = _plain_characters(text)
    if r"\begin" not in text:
        # Doubly escaped commands; in a matrix two backslashes separate rows.
        text = LINE_BREAK.sub(lambda m: " " if m["between"] is None else ";", text).replace("\\\\", "\\")
    text = BRACED_COLON.sub(":", text)
    text = THOUSANDS_SPACE.sub("", THOUSANDS_COMMA.sub(",", text))
    text = MATH_DELIMITER.sub(" ", text).replace("~", " ")
    text = GLUED_SPACE.sub(" ", WIDE_SPACE.sub(";", NULL_DELIMITER.sub(" ", text)))
    text = CHOOSE.sub(r"\\binom{\g<n>}{\g<k>}", text)
    text = TIMES.sub(r"\\times ", PRIME.sub("'", COMMAND.sub(_respell, text)))
    text = INFIX.sub(lambda m: f"\\{INFIX_NAMES[m[2]]}{{{m[1].strip()}}}{{{m[3].strip()}}}", text)
    text = NUMBER_SET.sub(lambda m: f"\\mathbb{{{m[1] or m[2]}}}", SPACES.sub(" ", text))
    return FONT_NUMBER.sub(r"\1", text).strip()


def is_refused(text: str) -> bool:
    """Return True for a text with commands that hide a part of it, or with characters that nobody sees."""
    if REFUSED.search(text) or any(char < " " and char not in "\t\n\r\f" for char in text):
        return True
    return not text.isascii() and any(map(_is_invisible, text))


def _is_invisible(char: str) -> bool:
    return char in VARIATION_SELECTORS or unicodedata.category(char) in ("Cf", "Cc", "Co", "Cn", "Cs")


def without_end_mark(text: str) -> str:
    """Return a text without a full stop and line breaks at its end; dots that say "and so on" stay."""
    text = text.rstrip(" \\")
    return text if text.endswith("..") else text.rstrip(" .\\")


def compact(text: str) -> str:
    """Return a text without white space except between digits: the key by which equal spellings are found."""
    return IDLE_SPACE.sub("", text)


def _plain_characters(text: str) -> str:
    if text.isascii():
        return text.replace("\f", "\\f")
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+", lambda m: "^{" + m[0].translate(SUPERSCRIPTS) + "}", text)
    text = re.sub(r"[₀₁₂₃₄₅₆₇₈₉]+", lambda m: "_{" + m[0].translate(SUBSCRIPTS) + "}", text)
    return "".join(map(_plain_character, text))


def _plain_character(char: str) -> str:
    if char.isascii():
        return "\\f" if char == "\f" else char
    if char in CHARACTERS:
        return CHARACTERS[char]
    category = unicodedata.category(char)
    if category == "Nd":
        return str(unicodedata.digit(char))
    if category in ("Cf", "Cc") or char in VARIATION_SELECTORS:  # zero-width marks, direction marks
        return ""
    if category.startswith("Z"):
        return " "
    # Only fonts and widths are spellings of a character; a circled or a Roman digit is another sign.
    if unicodedata.decomposition(char).startswith(FOLDED):
        folded = unicodedata.normalize("NFKC", char)
        return folded if folded.isascii() else char
    return "..." if char == "…" else char


def _respell(match: re.Match) -> str:
    name = match[1] or ""
    sign = match[2]
    if not name:
        if sign in "{}":
            return r"\lbrace " if sign == "{" else r"\rbrace "
        return " " if sign in SPACING else match[0]
    if name in DROPPED:
        return " "
    new = RENAMED.get(name) or name
    if new.isalpha():
        followed_by_letter = match.string[match.end() : match.end() + 1].isalpha()
        return f"\\{new}" if new in ("frac", "text") and not followed_by_letter else f"\\{new} "
    return new
