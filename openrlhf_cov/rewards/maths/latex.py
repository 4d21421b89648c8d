r"""A whitelist parser for LaTeX and plain-text formulas. It refuses what it does not know, and evaluates nothing."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from openrlhf_cov.rewards.maths.numerals import MAX_DIGITS, parse_number

FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan acot asin acos atan asec acsc arcsec arccsc arccot sinh cosh tanh "
    "sech csch coth asinh acosh atanh acoth arcsinh arccosh arctanh arccoth arsinh arcosh artanh arcoth tg ctg arctg "
    "arcctg ln log exp".split()
)
LIST_FUNCTIONS = frozenset({"gcd", "lcm", "min", "max"})
INVERSES = {name: "a" + name for name in "sin cos tan cot sec csc sinh cosh tanh coth".split()}
ALIASES = {
    **{"arc" + name: inverse for name, inverse in INVERSES.items()},
    **{"ar" + name: inverse for name, inverse in INVERSES.items() if name.endswith("h")},
    "tg": "tan", "ctg": "cot", "arctg": "atan", "arcctg": "acot", "ln": "log",
}  # fmt: skip
ACCENTS = frozenset("overline hat vec tilde dot ddot".split())
BIG_OPERATORS = frozenset("sum prod int lim".split())
CONSTANTS = frozenset({"pi", "e", "i"})
GREEK = frozenset(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell hbar mho".split()
)
WORDS = sorted(FUNCTIONS | LIST_FUNCTIONS | {"sqrt", "pi"}, key=len, reverse=True)
TOKEN = re.compile(
    r"(?P<number>(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)?\.?\d+|\d+\.?)|(?P<command>\\[A-Za-z]+|\\[|])|"
    rf"(?P<word>{'|'.join(WORDS)})(?![a-z])|(?P<letter>[A-Za-z])|(?P<sign>\*\*|[-+*/^_!'(){{}}\[\]|,=])|(?P<space>\s+)"
)
NAMED = re.compile(r"\\text\{\s*([A-Za-z][A-Za-z0-9 ]{0,30}?)\s*\}")


class Refused(ValueError):
    """The text is not a formula that this parser knows."""


def tokenize(text: str) -> list[str]:
    """Return the tokens of a clean text: numbers, letters, commands and ``name:words``.

    Raises:
        Refused: The text has a sign that no formula of this parser has.
    """
    tokens = []
    position = 0
    text = text.replace(r"\text ", r"\text")
    while position < len(text):
        named = NAMED.match(text, position)
        match = named or TOKEN.match(text, position)
        if match is None:
            raise Refused(f"unexpected {text[position]!r}")
        if named:
            word = named[1]
            if word in FUNCTIONS | LIST_FUNCTIONS | CONSTANTS or word == "sqrt":
                tokens.append("\\" + word)
            else:
                tokens.append(word if len(word) == 1 else f"name:{word}")
        elif match.lastgroup == "word":
            tokens.append("\\" + match[0])
        elif match.lastgroup != "space":
            tokens.append("^" if match[0] == "**" else match[0])
        position = match.end()
    return tokens


def is_number(token: str | None) -> bool:
    """Return True for the token of a number, but not for None, the end of the tokens."""
    return token is not None and (token[0].isdigit() or token[0] == ".")


# Nodes of a formula that is computed. The longest label of the usual sets has 65.
MAX_NODES = 200
COMMUTATIVE = frozenset({"add", "mul"})
# Functions that are quotients of two others; "" for 1.
QUOTIENTS = {"tan": ("sin", "cos"), "cot": ("cos", "sin"), "sec": ("", "cos"), "csc": ("", "sin")}
# Powers that are read as products.
SPELT_OUT = range(2, 7)
EVEN_FUNCTIONS = frozenset("cos sec cosh sech abs".split())
ODD_FUNCTIONS = frozenset("sin tan cot csc asin atan sinh tanh coth csch asinh atanh".split())
MAX_LENGTH = 4_000
MAX_DEPTH = 60
MAX_TOKENS = 1_500

CLOSING = {
    "(": ")",
    "[": "]",
    "{": "}",
    r"\lbrace": r"\rbrace",
    "|": "|",
    r"\lfloor": r"\rfloor",
    r"\lceil": r"\rceil",
}
PRODUCT = frozenset({"*", r"\cdot", r"\times", "/", r"\div"})
ONE = Fraction(1)


@dataclass(frozen=True)
class Node:
    """One operation: its ``kind`` and arguments. A leaf has the ``value`` of a number or a ``name``."""

    kind: str
    args: tuple["Node", ...] = ()
    value: Fraction = Fraction(0)
    name: str = ""

    def walk(self) -> Iterator["Node"]:
        """Yield every node of this formula."""
        yield self
        for arg in self.args:
            yield from arg.walk()

    def has(self, kind: str) -> bool:
        """Return True if this formula has a node of a kind."""
        return any(part.kind == kind for part in self.walk())

    def replaced(self, leaf: Callable[[str], "Node"]) -> "Node":
        """Return this formula with ``leaf(name)`` in the place of every name."""
        if self.kind == "sym":
            return leaf(self.name)
        return replace(self, args=tuple(arg.replaced(leaf) for arg in self.args))


ZERO = Node("num")


def parse_formula(text: str) -> Node:
    """Return the formula in a clean text.

    Raises:
        Refused: The text is no formula of the whitelist, or too large.
    """
    if len(text) > MAX_LENGTH:
        raise Refused(f"longer than {MAX_LENGTH} characters")
    tokens = tokenize(text)
    if len(tokens) > MAX_TOKENS:
        raise Refused(f"more than {MAX_TOKENS} signs")
    return _Parser(tokens).whole()


class _Parser:
    """Recursive descent over the tokens; sums, products, signs, powers, atoms, in this order of binding."""

    def __init__(self, tokens: list[str], bound: dict[str, str] | None = None) -> None:
        self.tokens = tokens
        self.position = 0
        self.depth = 0
        self.bars = 0
        self.bound = bound or {}
        self.is_limit = bound is not None

    @property
    def next(self) -> str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def take(self, expected: str | None = None) -> str:
        token = self.next
        if token is None or (expected is not None and token != expected):
            raise Refused(f"expected {expected or 'more'}, found {token}")
        self.position += 1
        return token

    def deeper(self, parse: Callable[..., Node], *args: str) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Refused(f"nested deeper than {MAX_DEPTH}")
        node = parse(*args)
        self.depth -= 1
        return node

    def sum(self) -> Node:
        node = self.deeper(self.product)
        while self.next in ("+", "-"):
            sign = self.take()
            right = self.deeper(self.product)
            node = Node("add", (node, right if sign == "+" else Node("neg", (right,))))
        return node

    def product(self) -> Node:
        node = self.signed()
        while True:
            if self.next in PRODUCT:
                node = self.joined(node, self.take(), self.signed())
            elif self.starts_factor():
                if is_number(self.next) and is_number(self.tokens[self.position - 1]):
                    raise Refused("two numbers side by side")
                node = self.juxtaposed(node)
            else:
                return node

    @staticmethod
    def joined(left: Node, sign: str, right: Node) -> Node:
        r"""Return ``a / b`` as a fraction, but ``a \div b`` as a computation: a product with the inverse."""
        if sign == "/":
            return Node("div", (left, right))
        return Node("mul", (left, Node("div", (Node("num", value=ONE), right)) if sign == r"\div" else right))

    def juxtaposed(self, left: Node) -> Node:
        """Parse a product without sign. A whole number before a proper fraction of numbers is a mixed number."""
        fraction = self.next == r"\frac"
        right = self.power()
        if fraction and left.kind == "num" and right.kind == "div" and all(a.kind == "num" for a in right.args):
            top, bottom = (a.value for a in right.args)
            if left.value.denominator == 1 and 0 < top < bottom:
                return Node("num", value=left.value + top / bottom)
        return Node("mul", (left, right))

    def signed(self) -> Node:
        signs = 0
        negative = False
        while self.next in ("-", "+"):
            negative ^= self.take() == "-"
            signs += 1
        if signs > MAX_DEPTH:
            raise Refused("too many signs")
        node = self.power()
        return Node("neg", (node,)) if negative else node

    def power(self) -> Node:
        node = self.atom()
        while self.next in ("^", "!", "'"):
            sign = self.take()
            if sign == "^":
                degrees = self.degrees()
                node = Node("degrees", (node,)) if degrees else Node("pow", (node, self.script()))
            elif sign == "!":
                node = Node("factorial", (node,))
            elif node.kind == "sym":
                node = Node("sym", name=node.name + "'")
            else:
                raise Refused("a prime after something that is no name")
        return node

    def degrees(self) -> bool:
        for form in ([r"\circ"], ["{", r"\circ", "}"]):
            if self.tokens[self.position : self.position + len(form)] == form:
                self.position += len(form)
                return True
        return False

    def script(self) -> Node:
        """Parse an exponent: a group, or a signed atom. ``x^12`` has the exponent 12, unlike in TeX."""
        negative = self.next == "-" and bool(self.take())
        node = self.deeper(self.power if self.next != "{" else self.atom)
        return Node("neg", (node,)) if negative else node

    def starts_factor(self) -> bool:
        token = self.next
        if token is None or token in PRODUCT or token in ("+", "-", "^", "!", "'", "_", ",", ")", "]", "}", "="):
            return False
        return not (token == "|" and self.bars) and token not in (r"\rfloor", r"\rceil", r"\rbrace")

    def atom(self) -> Node:
        token = self.take()
        if is_number(token):
            return self.number(token)
        if token in ("(", "[", "{", r"\lbrace"):
            return self.enclosed(token)
        if token == "|":
            self.bars += 1
            node = self.enclosed("|")
            self.bars -= 1
            return Node("abs", (node,))
        if token in (r"\lfloor", r"\lceil"):
            return Node("floor" if token == r"\lfloor" else "ceil", (self.enclosed(token),))
        if token.startswith("\\"):
            return self.deeper(self.command, token[1:])
        if token.startswith("name:") or token.isalpha():
            return self.symbol(token)
        raise Refused(f"unexpected {token!r}")

    def enclosed(self, opening: str) -> Node:
        bars = self.bars
        self.bars = self.bars if opening == "|" else 0
        node = self.sum()
        self.bars = bars
        self.take(CLOSING[opening])
        return node

    def number(self, token: str) -> Node:
        number = parse_number(token)
        if number is None or len(token) > MAX_DIGITS:
            raise Refused(f"number {token[:20]}")
        return Node("num" if number.exact else "decimal", value=number.value)

    def command(self, name: str) -> Node:
        if name == "frac":
            return Node("div", (self.argument(), self.argument()))
        if name == "binom":
            return Node("binom", (self.argument(), self.argument()))
        if name == "sqrt":
            return self.root()
        if name in LIST_FUNCTIONS:
            return Node(name, self.arguments())
        if name in FUNCTIONS:
            return self.function(name)
        if name in CONSTANTS:
            return Node(name)
        if name in GREEK:
            return self.symbol("\\" + name)
        if name in ACCENTS:
            return self.accented(name)
        if name in BIG_OPERATORS:
            return self.big_operator(name)
        if name == "infty" and self.is_limit:
            return Node("sym", name=name)
        raise Refused(f"unknown command \\{name}")

    def arguments(self) -> tuple[Node, ...]:
        closing = CLOSING[self.take(self.next if self.next in ("{", r"\lbrace") else "(")]
        args = [self.sum()]
        while self.next == ",":
            self.take()
            args.append(self.sum())
        self.take(closing)
        return tuple(args)

    def argument(self) -> Node:
        """Parse a braced group or, as in ``\\frac12``, one digit, letter or command."""
        token = self.next or ""
        if len(token) < 2 or not is_number(token):
            return self.atom()
        self.tokens[self.position] = token[1:]
        return self.number(token[0])

    def root(self) -> Node:
        index = Node("num", value=Fraction(2))
        if self.next == "[":
            self.take()
            index = self.sum()
            self.take("]")
        return Node("root", (self.atom(), index))

    def function(self, name: str) -> Node:
        base = power = None
        while self.next in ("^", "_"):
            if self.take() == "_":
                base = self.script()
            else:
                power = self.script()
        name = ALIASES.get(name, name)
        if power is not None and power == Node("neg", (Node("num", value=ONE),)) and name in INVERSES:
            name = INVERSES[name]
            power = None
        node = Node(name, (self.function_argument(),))
        if base is not None:
            if name != "log":
                raise Refused(f"a subscript at {name}")
            node = node if base.kind == "e" else Node("div", (node, Node("log", (base,))))
        return node if power is None else Node("pow", (node, power))

    def function_argument(self) -> Node:
        r"""Parse one bracketed group, or the factors up to the next sign or function, as in ``\sin 2 \pi t``."""
        if self.next in ("(", "["):
            return self.atom()  # a power after it is one of the value: \cos(x)^2
        if self.next == "{":
            node = self.atom()
            return Node("pow", (node, self.script())) if self.next == "^" and self.take() else node
        node = self.power()
        while self.starts_factor() and self.tokens[self.position].lstrip("\\") not in FUNCTIONS | {"(", "["}:
            node = self.juxtaposed(node)
        return node

    def accented(self, accent: str) -> Node:
        r"""Parse a name with an accent, such as ``\hat x``."""
        name = "".join(self.script_tokens())
        if not (len(name) == 1 and name.isalpha()) and name[1:] not in GREEK:
            raise Refused(f"\\{accent} over {name[:20]}")
        return self.symbol(f"{accent} {name}")

    def big_operator(self, kind: str) -> Node:
        r"""Parse a sum, product, integral or limit: its bounds and its body, in which the variable is renamed."""
        scripts: dict[str, list[str]] = {"_": [], "^": []}
        while self.next in scripts:
            sign = self.take()
            scripts[sign] = self.script_tokens()
        low = scripts["_"]
        variable = None
        body: list[str] = []
        if kind == "int":
            body, variable = self.integrand()
        else:
            variable, sign, *low = low if len(low) > 2 else ["", "", ""]
            if sign != (r"\to" if kind == "lim" else "=") or not (variable.isalpha() or variable[1:] in GREEK):
                raise Refused(f"\\{kind} without a variable")
        ends = [_Parser(tokens, dict(self.bound)).whole() if tokens else ZERO for tokens in (low, scripts["^"])]
        before = dict(self.bound)
        self.bound[variable] = f"bound {len(before)}"
        node = _Parser(body, dict(self.bound)).whole() if kind == "int" else self.deeper(self.product)
        self.bound = before
        return Node(kind, (*ends, node))

    def integrand(self) -> tuple[list[str], str]:
        """Take the tokens up to the next d, and the variable after it."""
        level = 0
        for place in range(self.position, len(self.tokens) - 1):
            token = self.tokens[place]
            variable = self.tokens[place + 1]
            level += (token in ("(", "[", "{")) - (token in (")", "]", "}"))
            named = variable.isalpha() or variable[1:] in GREEK
            if level == 0 and token == "d" and named and place > self.position:
                body = self.tokens[self.position : place]
                self.position = place + 2
                return body, variable
        raise Refused("an integral without d")

    def script_tokens(self) -> list[str]:
        """Take the tokens of one argument, without its braces."""
        if self.next != "{":
            return [self.take()]
        level = 0
        first = self.position
        while True:
            token = self.take()
            level += (token == "{") - (token == "}")
            if level == 0:
                return self.tokens[first + 1 : self.position - 1]

    def whole(self) -> Node:
        """Parse all tokens as one formula."""
        node = self.sum()
        if self.next is not None:
            raise Refused(f"unexpected {self.next!r}")
        return node

    def symbol(self, name: str) -> Node:
        if name in self.bound and self.next != "_":
            return Node("sym", name=self.bound[name])
        if name in CONSTANTS and self.next != "_":
            return Node(name)
        if self.next == "_":
            self.take()
            name += "_" + self.subscript()
        return Node("sym", name=name)

    def subscript(self) -> str:
        parts = self.script_tokens()
        if len(parts) > MAX_DEPTH:
            raise Refused("a long subscript")
        return "".join(self.bound.get(part, part.removeprefix("name:")) for part in parts)


# Formulas without regard to order, brackets and signs


def size(node: Node) -> int:
    """Return the number of nodes, counted up to a little more than ``MAX_NODES``."""
    count = 0
    stack = [node]
    while stack and count <= MAX_NODES:
        count += 1
        stack.extend(stack.pop().args)
    return count


def literal(node: Node) -> Fraction | None:
    """Return the value of a written number: an integer, a decimal, or a fraction of two integers, with a sign."""
    if node.kind in ("num", "decimal"):
        return node.value
    if node.kind == "neg":
        value = literal(node.args[0])
        return None if value is None else -value
    if node.kind != "div":
        return None
    integers = [arg.args[0] if arg.kind == "neg" else arg for arg in node.args]
    if any(arg.kind != "num" or arg.value.denominator > 1 for arg in integers):
        return None
    top, bottom = (literal(arg) or Fraction(0) for arg in node.args)
    return top / bottom if bottom else None


def terms(node: Node) -> list[tuple[int, Node]]:
    """Return the terms of a sum with their signs."""
    if node.kind == "add":
        return [term for arg in node.args for term in terms(arg)]
    if node.kind == "neg":
        return [(-sign, term) for sign, term in terms(node.args[0])]
    return [(1, node)]


def factors(node: Node) -> tuple[int, list[Node], list[Node]]:
    """Return the sign of a product and its factors above and below the fraction bar."""
    value = literal(node)
    if value is not None:
        return (-1, [Node("num", value=-value)], []) if value < 0 else (1, [node], [])
    if node.kind == "neg":
        sign, above, below = factors(node.args[0])
        return -sign, above, below
    exponent = literal(node.args[1]) if node.kind == "pow" else None
    if exponent is not None and exponent < 0:
        positive = Node("num", value=-exponent)
        return 1, [], [node.args[0] if exponent == -1 else Node("pow", (node.args[0], positive))]
    if node.kind == "mul":
        first = factors(node.args[0])
        second = factors(node.args[1])
        return first[0] * second[0], first[1] + second[1], first[2] + second[2]
    if node.kind == "div":
        first = factors(node.args[0])
        second = factors(node.args[1])
        return first[0] * second[0], first[1] + second[2], first[2] + second[1]
    return 1, [node], []


class FormulaKeys:
    r"""The key of a formula, and its parts. Formulas with one key differ in order, brackets and signs at most.

    If ``reduced``, factors that cancel do not count, ``\tan x`` is ``\frac{\sin x}{\cos x}``, and ``x^2`` is ``x x``.

    A part is an operation: its kind, and the keys of its operands with their counts. The last part is the whole.
    """

    def __init__(self, node: Node, *, reduced: bool = False) -> None:
        self.reduced = reduced
        self.parts: list[tuple[str, Counter[str]]] = []
        self.leaves = 0
        self.key = self._read(_spelt_out(node) if reduced else node)

    def _read(self, node: Node) -> str:
        """Return the key of a node, with a minus before it if it is negative, and keep it as a part."""
        value = literal(node)
        if value is not None or not node.args:
            self.leaves += 1
            return str(value) if value is not None else node.name or node.kind
        if node.kind == "root" and (index := literal(node.args[1])):
            node = Node("pow", (node.args[0], Node("num", value=1 / index)))
        is_inverse = node.kind == "pow" and (literal(node.args[1]) or 0) < 0
        if node.kind in ("add", "neg"):
            operands = [_negated(self._read(term)) if sign < 0 else self._read(term) for sign, term in terms(node)]
            if len(operands) == 1:
                return operands[0]
            is_negative = min(operands, key=_without_sign).startswith("-")
            kind = "add"
            operands = list(map(_negated, operands)) if is_negative else operands
        elif is_inverse or node.kind in ("mul", "div"):
            kind = "mul"
            sign, above, below = factors(node)
            keys = [[self._read(factor) for factor in side] for side in (above, below)]
            minuses = sum(key.startswith("-") for side in keys for key in side)
            is_negative = (sign < 0) != minuses % 2
            top, bottom = ([_without_sign(key) for key in side] for side in keys)
            if self.reduced:
                above, below = Counter(top), Counter(bottom)
                top = [key for key in (above - below).elements() if key != "1"]
                bottom = [key for key in (below - above).elements() if key != "1"]
                if len(top) < 2 and not bottom:  # no product any more
                    key = top[0] if top else "1"
                    return _negated(key) if is_negative else key
            operands = [key for key in top if key != "1"] + [f"1/{key}" for key in bottom]
        else:
            kind = node.kind
            keys = [self._read(arg) for arg in node.args]
            is_negative = _is_odd(node) and keys[0].startswith("-")
            if is_negative or _is_even(node):
                keys[0] = _without_sign(keys[0])
            operands = [f"{place}:{key}" for place, key in enumerate(keys)]
        self.parts.append((kind, Counter(operands)))
        key = f"({kind} {' '.join(sorted(operands))})"
        return _negated(key) if is_negative else key

    def contains(self, other: "FormulaKeys") -> bool:
        """Return True if a part is the operation ``other``, or for sums and products has all of its operands."""
        kind, operands = other.parts[-1]
        forms = [operands]
        if kind == "add":
            forms.append(Counter({_negated(key): count for key, count in operands.items()}))
        return bool(operands) and any(
            kind == own_kind and (form == own or (kind in COMMUTATIVE and form <= own))
            for own_kind, own in self.parts
            for form in forms
        )


def _spelt_out(node: Node) -> Node:
    """Return a formula with quotients of sines and cosines, and with products for small powers.

    Operands that have such parts themselves are not repeated, so that the formula has at most six times as many nodes.
    """
    args = tuple(map(_spelt_out, node.args))
    if any(part.kind == "pow" or part.kind in QUOTIENTS for arg in node.args for part in arg.walk()):
        return replace(node, args=args)
    if node.kind in QUOTIENTS:
        parts = [Node(kind, args) if kind else Node("num", value=ONE) for kind in QUOTIENTS[node.kind]]
        return Node("div", tuple(parts))
    exponent = literal(node.args[1]) if node.kind == "pow" else None
    if exponent is None or exponent not in SPELT_OUT:
        return replace(node, args=args)
    product = args[0]
    for _ in range(int(exponent) - 1):
        product = Node("mul", (product, args[0]))
    return product


def common_divisor(numbers: Sequence[Fraction]) -> Fraction:
    """Return the largest positive number of which all of the numbers are multiples; 1 for zeros."""
    top = math.gcd(*(number.numerator for number in numbers))
    return Fraction(top, math.lcm(*(number.denominator for number in numbers))) if top else Fraction(1)


def _is_even(node: Node) -> bool:
    """Return True if the sign of the argument does not matter."""
    exponent = literal(node.args[1]) if node.kind == "pow" else None
    return node.kind in EVEN_FUNCTIONS or (exponent is not None and exponent.numerator % 2 == 0)


def _is_odd(node: Node) -> bool:
    """Return True if the sign of the argument can stand before the operation."""
    exponent = literal(node.args[1]) if node.kind == "pow" else None
    return node.kind in ODD_FUNCTIONS or (exponent is not None and exponent.numerator % 2 == exponent.denominator == 1)


def _negated(key: str) -> str:
    return key[1:] if key.startswith("-") else f"-{key}"


def _without_sign(key: str) -> str:
    return key.removeprefix("-")
