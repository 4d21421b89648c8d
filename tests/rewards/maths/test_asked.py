"""Answers with another unit or another name than the problem asks for."""

import pytest

from openrlhf_cov.rewards.maths.grading import grade

# A problem whose answer is the bare number 5, an answer with the unit that is asked for, and one with another unit.
UNITS = [
    ("Find the mass in kg.", r"5\text{ kg}", r"5\text{ g}"),
    ("Find the mass in kg.", r"5 kg", r"5 lb"),
    ("Find the mass in kg.", r"5\text{ kilograms}", r"\$5"),
    ("Find the mass (in g).", r"5\text{ g}", r"5\text{ kg}"),
    ("Find the length in cm.", r"5 cm", r"5\text{ m}"),
    ("Find the length in m.", r"5\text{ m}", r"5\text{ cm}"),
    (r"What is the length, in $\text{cm}$, of the rope?", r"5 cm", r"5 mm"),
    ("Find the distance in km.", r"5\text{ km}", r"5\text{ m}"),
    ("Find the distance in kilometers.", r"5\text{ km}", r"5\text{ miles}"),
    ("Find the area in cm^2.", r"5\text{ cm}^2", r"5\text{ m}^2"),
    ("Find the area in square feet.", r"5\text{ ft}^2", r"5\text{ ft}"),
    ("Determine the wavelength in nm.", r"5\text{ nm}", r"5\text{ mm}"),
    ("Determine the wavelength in nanometers.", r"5\text{ nm}", r"5\text{ pm}"),
    ("What is its energy in MeV?", r"5\text{ MeV}", r"5\text{ keV}"),
    ("What is the heat in kJ/mol?", r"5\text{ kJ/mol}", r"5\text{ J/mol}"),
    ("What is the pressure in kPa?", r"5\text{ kPa}", r"5\text{ MPa}"),
    ("How old is it in Gyr?", r"5\text{ Gyr}", r"5\text{ Myr}"),
    ("Find the distance in Mpc.", r"5\text{ Mpc}", r"5\text{ kpc}"),
    ("Find the current in mA.", r"5\text{ mA}", r"5\text{ mV}"),
    ("Find the area in meters squared.", r"5\text{ m}^2", r"5\text{ m}"),
    ("Find the volume in meters cubed.", r"5\text{ m}^3", r"5\text{ m}^2"),
    ("Find the second moment in $cm^4$.", r"5\text{ cm}^4", r"5\text{ cm}^3"),
    ("Determine the frequency in $s^{-1}$.", r"5\text{ s}^{-1}", r"5\text{ s}"),
    (r"Give the wave number in $\mathrm{cm}^{-1}$.", r"5\text{ cm}^{-1}", r"5\text{ m}^{-1}"),
    (r"Give the wave number in $\mathrm{~m}^{-1}$.", r"5\mathrm{~m}^{-1}", r"5\text{ cm}^{-1}"),
    ("Find the speed in m/s.", r"5\text{ m/s}", r"5\text{ km/h}"),
    ("Find the speed in m/s.", r"5\text{ m s}^{-1}", r"5\text{ m}"),
    ("Find the speed in miles per hour.", r"5\text{ mph}", r"5\text{ miles per minute}"),
    ("Find the acceleration in m/s^2.", r"5\text{ m/s}^2", r"5\text{ cm/s}^2"),
    (r"What is the price in \$?", r"\$5", r"5\text{ cents}"),
    ("What is the price in dollars?", r"5\text{ dollars}", r"5\text{ cents}"),
    ("What does she earn in dollars per hour?", r"\$5", r"5\text{ cents}"),
    ("How many minutes does it take?", r"5\text{ min}", r"5\text{ hours}"),
    ("How many hours per week does he work?", r"5\text{ hours}", r"5\text{ minutes}"),
]  # fmt: skip


@pytest.mark.parametrize(("prompt", "own", "other"), UNITS)
def test_another_unit_than_the_problem_asks_for_is_wrong(prompt, own, other):
    verdicts = [grade(rf"\boxed{{{answer}}}", "5", prompt=prompt).correct for answer in ("5", own, other)]
    assert verdicts == [True, True, False]


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("A rope is 5 m long. What is its length?", r"5\text{ cm}"),  # no unit is asked for
        ("The masses are given in g. Find the total in kg or in mg.", r"5\text{ mg}"),  # several are
        ("He walks in m days as far as she does in $s$ days. How far is it?", r"5\text{ km}"),  # names of numbers
    ],
)
def test_units_are_free_if_the_problem_names_none_or_several(prompt, answer):
    assert grade(rf"\boxed{{{answer}}}", "5", prompt=prompt).correct


@pytest.mark.parametrize("product", ["ma", "mv", "ms", "kw", "pc", "nm", "db"])
def test_a_product_of_names_is_no_number_with_a_unit(product):
    assert not grade(rf"\boxed{{5{product}}}", "5").correct
    assert not grade(r"\boxed{5}", f"5{product}").correct
    assert grade(rf"\boxed{{5\text{{ {product}}}}}", "5").correct


@pytest.mark.parametrize(
    ("answer", "label", "same"),
    [
        ("noon", "12:00 PM", True), ("12 noon", "12:00 PM", True), ("12 midnight", "12:00 AM", True),
        ("24:00", "12:00 AM", True), ("3:30 noon", "3:30 PM", False), ("3:30 midnight", "3:30 AM", False),
        ("24:30", "12:30 AM", False),
    ],
)  # fmt: skip
def test_a_time_of_day_exists(answer, label, same):
    assert grade(rf"\boxed{{{answer}}}", label).correct is same


def test_a_percent_that_is_asked_for_may_have_its_sign():
    problem = "The ant is on a line. Find the percent of the way from $B$ to $C$ that it has gone."
    assert grade(r"\boxed{26\%}", "26", prompt=problem).correct
    assert not grade(r"\boxed{26\%}", "26", prompt="Of 50 ants 13 percent are red. How many are that?").correct


# A problem whose answer is 5, names that may stand before it, and names that may not.
NAMES = [
    ("If $xy=6$ and $x-y=1$, find $x+y$.", ["x+y", "S"], ["xy", "x-y", "x"]),
    ("What is $x+y$ if $xy=6$ and $x-y=1$?", ["x+y", "S"], ["xy", "x-y", "y"]),
    (r"The answer is $\frac{p}{q}$. Find $p+q$.", ["p+q"], [r"\frac{p}{q}", "p"]),
    ("What is the sum $m+n$, where $m-n=1$?", ["m+n", r"\text{Sum}"], ["m-n", "n"]),
    ("What is $f(2)$ if $f(3)=2$?", ["f(2)", "f"], ["f(3)", "f(x)", "f(-2)"]),
    ("If $a_1=3$, what is the value of $a_2$?", ["a_2"], ["a_1", "a_3"]),
    (r"In $ABC$, $\angle B=20^\circ$. Find angle $A$.", [r"\angle A", r"\angle BAC", "A"], [r"\angle B", "C"]),
    (r"If $\angle B=20^\circ$, what is $\angle A$?", [r"m\angle A", "x"], [r"\angle B", r"\angle ABC"]),
    ("In triangle ABC, find the measure of angle A.", [r"\angle A", "x"], [r"\angle B", r"\angle C"]),
    ("In triangle $ABC$, find the length of $BC$.", ["BC", r"\overline{CB}", "a"], ["AB", r"\overline{AC}"]),
    ("What is the area of a square of perimeter 20?", [r"\text{Area}", "A", "S"], [r"\text{Perimeter}"]),
    ("Find the average of the numbers.", [r"\text{mean}", "m"], [r"\text{sum}", r"\text{median}"]),
    ("What is the sum of the roots of $x^2-5x+6$?", [r"\text{sum}", "S"], ["x^2-5x+6", r"\text{product}"]),
    ("Solve for $x$: $2x+1=11$.", ["x"], ["2x+1"]),
    ("Evaluate $f(x)$ at $x=2$.", ["f(2)", "f(x)", "y"], ["x"]),
    ("Find $a_n$ for $n=3$.", ["a_3", "a_n"], ["n"]),
    ("Find the maximum value of $f(x)$ on $[0,1]$.", ["f(1)", "f(x)", "y"], []),
    ("Find $E[X]$ if $V[X]=2$.", ["E[X]", "E(X)", r"\mathbb{E}[X]"], ["V"]),
    (r"Find $\frac{dy}{dx}$ at $x=1$.", [r"\frac{dy}{dx}"], ["x"]),
    (r"Find $\frac{x}{y}$ if $xy=2$.", [r"\frac{x}{y}"], ["xy", "x"]),
    (r"Find $\det A$.", ["|A|", "D"], []),
    (r"Find the area of $\triangle ABC$.", ["[ABC]", "S", r"\text{Area}"], [r"\text{Perimeter}"]),
    ("Find the value of $x+y+z$.", ["x+y+z"], ["x"]),
    ("Find $f(g(2))$ if $g(2)=1$.", ["f(g(2))"], ["g(2)"]),
    ("The length of $AB$ is 2. How long is the way?", ["AB", "x", r"\text{distance}"], []),  # asks for no name
    ("Find $x$ and $y$ if $x=y$.", ["x", "y"], []),  # asks for several
]  # fmt: skip


@pytest.mark.parametrize(("prompt", "own", "others"), NAMES)
def test_a_name_of_another_quantity_than_the_problem_asks_for_is_wrong(prompt, own, others):
    accepted = [name for name in own + others if grade(rf"\boxed{{{name}=5}}", "5", prompt=prompt).correct]
    assert accepted == own


@pytest.mark.parametrize(
    ("answer", "label", "prompt"),
    [
        (r"\overline{z}=3-4i", "3-4i", "Let $z=3+4i$. Find the conjugate of $z$."),
        ("y'=2x", "2x", "Let $y=x^2$. Differentiate $y$."),
        (r"\Delta T=5", "5", "The temperature rises from $T=10$ to $T=15$. Find the change of $T$."),
    ],
)
def test_a_question_in_words_asks_for_a_changed_name(answer, label, prompt):
    assert grade(rf"\boxed{{{answer}}}", label, prompt=prompt).correct


@pytest.mark.parametrize(
    ("answer", "label", "prompt"),
    [(r"\overline{z}=3-4i", "3-4i", "Let $z$ satisfy $z+1=4-4i$. Find $z$."), ("x'=5", "5", "Solve $x+1=6$ for $x$.")],
)
def test_a_changed_name_that_nobody_asks_for_is_refused(answer, label, prompt):
    assert not grade(rf"\boxed{{{answer}}}", label, prompt=prompt).correct


@pytest.mark.parametrize(
    ("problem", "answer"),
    [
        ("In square $ABCD$ with side $3$ cm, find the perimeter.", r"5\text{ cm}"),
        ("What is the side of the largest circle in square $PQRS$?", r"5\text{ m}"),
        ("A circle is inscribed in square tiles. Find its radius.", r"5\text{ inches}"),
    ],
)
def test_a_square_is_no_unit(problem, answer):
    assert grade(rf"\boxed{{{answer}}}", "5", prompt=problem).correct
    assert not grade(r"\boxed{5\text{ squares}}", "5", prompt=problem).correct


IN_THE_STORY = [
    ("Find how many gallons of water the pool needs. A gallon costs 10 cents. How much will it cost?", r"\$5"),
    ("He adds one gallon in hour three. How much water is left?", r"5\text{ gallons}"),
    ("He stops. How much water is left in hour three?", r"5\text{ gallons}"),
    ("$h$ is the height (in meters). In how many seconds is it zero?", r"5\text{ seconds}"),
    ("In Pascal's triangle, what is the length of the row?", r"5\text{ cm}"),
    ("In Ms. Lee's class, what is the distance?", r"5\text{ m}"),
    ("What is the length of the longest chord in S?", r"5\text{ cm}"),
    ("Amounts are given in dollars. Calculate the weight.", r"5\text{ kg}"),
]


@pytest.mark.parametrize(("problem", "answer"), IN_THE_STORY)
def test_a_unit_outside_the_question_is_not_asked_for(problem, answer):
    assert grade(rf"\boxed{{{answer}}}", "5", prompt=problem).correct


@pytest.mark.parametrize(
    ("problem", "own", "other"),
    [
        ("It falls 28 meters. In how many seconds does it hit the ground?", r"5\text{ s}", r"5\text{ m}"),
        ("Lengths are given in feet. How long is it? Answer in inches.", r"5\text{ in}", r"5\text{ ft}"),
        ("He earns 8 dollars. Find the time in hours.", r"5\text{ h}", r"\$5"),
        ("What is the frequency in MHz?", r"5\text{ MHz}", r"5\text{ GHz}"),
        ("What is the energy in kJ? It has 5 kg.", r"5\text{ kJ}", r"5\text{ kg}"),
        ("How many ounces did Mr. Lee buy for Mrs. Lee?", r"5\text{ oz}", r"5\text{ lb}"),
        ("How many Newtons is the force?", r"5\text{ N}", r"5\text{ kg}"),
    ],
)
def test_a_unit_of_the_question_is_asked_for(problem, own, other):
    verdicts = [grade(rf"\boxed{{{answer}}}", "5", prompt=problem).correct for answer in (own, other)]
    assert verdicts == [True, False]


FORMAT = 'At what time does it end? (Enter it in the format "HH:MM:SS", without including "am" or "pm".)'
TIMES = [
    (FORMAT, "4:51:06 p.m.", ["04:51:06", "4:51:06", "4:51:06 PM", "16:51:06"], ["4:51:07", "4:51:06 AM", "5:51:06"]),
    ("They start at 3:00. At what time do they meet?", "4:51:06 p.m.", ["4:51:06 PM"], ["04:51:06", "4:51:06"]),
    ("They start at 8:00. What is the earliest time when they meet?", "9:24",
     ["9:24 AM", "09:24", r"9:24\text{ a.m.}"],
     ["9:25", "09:25", "9:25 AM", "21:24", "8:24 AM", "9:24 AM or 9:25 AM", "3:8"]),
    ("They start at 8:00 a.m. At what time do they meet?", "9:24", ["9:24 AM", "9:24"], ["9:24 PM"]),
    ("I am here in the evening. What time do they meet?", "9:24", ["9:24 pm", "9:24"], ["9:24 am"]),
    ("Find the ratio of the legs.", "9:24", ["9:24", "9 to 24"], ["9:24 AM", "09:24"]),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "label", "own", "others"), TIMES)
def test_the_problem_says_whether_a_time_of_day_needs_its_half(problem, label, own, others):
    correct = [each for each in own + others if grade(rf"\boxed{{{each}}}", label, prompt=problem).correct]
    assert correct == own
