import pytest

from openrlhf_cov.rewards.maths.normalization import clean
from openrlhf_cov.rewards.maths.units import split_percent, split_symbols, split_unit

UNITS = [
    (r"5\text{ cm}", "5", "centimeter"),
    ("5 cm", "5", "centimeter"),
    ("5cm", "5", "centimeter"),
    (r"5\,\mathrm{cm}^2", "5", "centimeter^2"),
    (r"5\text{ cm}^{2}", "5", "centimeter^2"),
    (r"5\text{ cm^2}", "5", "centimeter^2"),
    (r"5\text{ square centimeters}", "5", "centimeter^2"),
    (r"5\text{ sq cm}", "5", "centimeter^2"),
    (r"5\text{ inches}", "5", "inch"),
    (r"5\text{ feet}", "5", "foot"),
    (r"5\text{ km/h}", "5", "kilometer / hour"),
    (r"5\text{ km} / \text{h}", "5", "kilometer / hour"),
    (r"5\text{ apples}", "5", "apple"),
    (r"5\text{ units}", "5", ""),  # says nothing
    (r"\$5", "5", "dollar"),
    (r"-\$5", "-5", "dollar"),
    ("5 dollars", "5", "dollar"),
    (r"5^\circ", "5", "degree"),
    ("5°", "5", "degree"),
    (r"5^{\circ}\text{C}", "5", "degree C"),
    (r"5\text{ degrees}", "5", "degree"),
    (r"\frac{1170^{\circ}}{19}", r"\frac{1170}{19}", "degree"),
    (r"2\pi\text{ m}", r"2\pi", "meter"),
    (r"9.8\,\mathrm{m\,s^{-2}}", "9.8", "meter second^-2"),
    (r"8.3\ \mathrm{J/(mol\cdot K)}", "8.3", "joule / mole kelvin"),
    (r"5\text{ cm squared}", "5", "centimeter^2"),
    (r"5\text{ (square units)}", "5", ""),
    ("14 positive integers", "14", "positive integer"),
    (r"14\text{ two-digit numbers}", "14", "two-digit number"),
    ("4 bags of rice", "4", "bag of rice"),
    (r"3\text{ times}", "3", "time"),
    (r"5\$", "5", "dollar"),
    ("USD 5", "5", "dollar"),
    (r"\text{Rs. }500", "500", "rupee"),
    ("€5", "5", "euro"),
    ("5¢", "5", "cent"),
    ('5"', "5", "inch"),
    ("12 元", "12", "元"),
    ("3/4 cup", "3/4", "cup"),
]
NO_UNITS = [
    r"4^\circ033", r"2.75e^\circ11", r"x^\circ^2",
    "5", "x", "2x", "2 xy", "5 ab", r"\sin 30^\circ", r"5\text{ or }6", r"5\text{ or six}", r"5\text{ million}",
    r"5\text{ dozen}", r"5\text{ not}", r"5\text{ halves}", r"5\text{ tenths}", r"5\text{ times two}",
    r"5\text{ point six}", r"5\text{ negative}", r"5\text{ apples, 6 pears}", r"5\text{ cm 7}", r"5\text{ a; b}",
    r"5\text{ x}", r"\text{cm}", r"\text{Evelyn}", "5 or", "five cm",
    "5 m", "5 xyz", "5 hundredths", "5 of them", r"5\text{ twenty-one}", "12 万",
    r"5\text{ times as}", r"\$5\text{ cm}",
]  # fmt: skip


@pytest.mark.parametrize(("text", "value", "unit"), UNITS)
def test_a_unit_is_split_off_and_spelt_one_way(text, value, unit):
    assert tuple(part.strip() for part in split_unit(clean(text).strip())) == (value, unit)


@pytest.mark.parametrize("text", NO_UNITS)
def test_what_changes_the_value_is_no_unit(text):
    text = clean(text).strip()
    assert split_unit(text) == (text, "")


@pytest.mark.parametrize(
    ("text", "value", "percent"),
    [
        (r"5\%", "5", True),
        ("5 %", "5", True),
        (r"5\text{ percent}", "5", True),
        ("5 percent", "5", True),
        ("5", "5", False),
        ("5%6", "5%6", False),
        (r"\%5", r"\%5", False),
    ],
)
def test_percent(text, value, percent):
    assert split_percent(text) == (value, percent)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5 m", ("5", "meter")),
        ("5 m/s^2", ("5", "meter / second^2")),
        ("5m/s", ("5", "meter / second")),
        (r"5 \frac{m}{s}", ("5", "meter / second")),
        (r"2\pi m^2", (r"2\pi", "meter^2")),
        ("5m", ("5m", "")),  # a product
        ("5 x", ("5 x", "")),
        ("5x m", ("5x m", "")),
        ("m", ("m", "")),
    ],
)
def test_units_in_bare_letters(text, expected):
    assert split_symbols(clean(text).strip()) == expected
