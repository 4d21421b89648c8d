"""How labels say what a program is tested with."""

import json

import pytest

from openrlhf_cov.rewards.code.tests import parse_tests


def parsed(content):
    return parse_tests(json.dumps(content))


def test_inputs_and_outputs_of_apps_taco_and_eurus():
    tests = parsed({"inputs": ["1\n", ["2", "3"]], "outputs": ["2\n", ["4", "6"]]})
    assert (tests.kind, tests.cases) == ("stdin", (["1\n", "2\n"], ["2\n3", "4\n6"]))


def test_calls_of_apps_and_eurus_with_values_or_lines_of_json():
    tests = parsed({"fn_name": "add", "inputs": [[1, 2], "3\n[4]"], "outputs": [[3], "[7]"]})
    assert (tests.kind, tests.function, tests.unwrap) == ("calls", "add", True)
    assert tests.cases == ([[1, 2], [3]], [[3, [4]], [7]])


@pytest.mark.parametrize("given", [[{"1": 5, "-2": 6}, {"3": 7}], '{"1": 5, "-2": 6}\n{"3": 7}'])
def test_the_first_argument_has_whole_numbers_as_keys_where_all_are(given):
    # the judge of APPS does so for the first argument alone
    assert parsed({"fn_name": "f", "inputs": [given], "outputs": [5]}).cases == ([[{1: 5, -2: 6}, {"3": 7}], 5],)
    assert parsed({"fn_name": "f", "inputs": [[{"1": 5, "a": 6}]], "outputs": [5]}).cases == ([[{"1": 5, "a": 6}], 5],)


def test_inputs_of_live_code_bench():
    tests = parsed([{"input": "1\n", "output": "2\n", "testtype": "stdin"}])
    assert (tests.kind, tests.cases) == ("stdin", (["1\n", "2\n"],))


def test_statements_of_mbpp_and_acecode():
    assert parsed(["assert f(1) == 2", "assert f(2) == 3"]).kind == "asserts"


def test_our_own_form_with_its_options():
    tests = parsed(
        {"stdin": [["1", "2"]], "unordered": True, "tolerance": 1e-6, "seconds": 2, "prelude": "import math"}
    )
    assert (tests.unordered, tests.tolerance, tests.seconds, tests.prelude) == (True, 1e-6, 2, "import math")


def test_the_settings_tolerance_is_for_rows_that_have_none():
    assert parsed({"stdin": [["1", "2"]]}).with_settings(1e-3).tolerance == 1e-3
    assert parsed({"stdin": [["1", "2"]], "tolerance": 1e-6}).with_settings(1e-3).tolerance == 1e-6


@pytest.mark.parametrize(
    ("label", "fault"),
    [
        ("", "are JSON"),
        ("[" * 100_000, "are JSON"),
        ("3", "an object, a list"),
        ("[]", "an object, a list"),
        ("{}", "have one of"),
        ('{"stdin": [], "calls": []}', "have one of"),
        ('{"stdin": []}', "1 to 10,000"),
        ('{"stdin": [["1"]]}', "an input and an output"),
        ('{"stdin": [[1, 2]]}', "are texts"),
        ('{"calls": [[[1], 2]]}', "name of a function"),
        ('{"calls": [[1, 2]], "function": "f"}', "arguments are a list"),
        ('{"inputs": ["1"], "outputs": []}', "of one length"),
        ('{"inputs": "1", "outputs": "2"}', "of one length"),
        ('["assert f(1 ==", "x"]', "is no Python"),
        ('{"pytest": "import solution"}', "no function test_"),
        ('{"pytest": "def test_x(:"}', "is no Python"),
        ('{"asserts": [""]}', "not empty"),
        ('{"asserts": ["f()"], "seconds": -1}', "finite number"),
        ('{"asserts": ["f()"], "seconds": "1"}', "no option of tests"),
        ('{"asserts": ["f()"], "timeout": 1}', "no option of tests"),
        ('[{"input": "1"}]', "has no 'output'"),
        ('[{"input": "1", "output": "2", "testtype": "functional"}]', "need its name"),
        ('{"inputs": ["1"], "outputs": ["2"], "checker": "x"}', "no option of tests"),
        ('{"inputs": ["a b"], "outputs": ["2"], "fn_name": "f"}', "JSON on each line"),
        ('{"inputs": [], "outputs": []}', "1 to 10,000"),
        ('{"stdin": [["1", ""], ["2", " "]]}', "does nothing"),
        ('{"calls": [[[1], null]], "function": "f"}', "does nothing"),
        ('{"stdin": [["1", "2"]], "prelude": "import numpy"}', "not there"),
    ],
)
def test_a_label_without_tests_says_what_is_wrong(label, fault):
    with pytest.raises(ValueError, match=fault):
        parse_tests(label)


def test_what_apps_gives_as_a_text_is_one_and_what_eurus_gives_is_json():
    assert parsed({"fn_name": "f", "inputs": [["1"], ["a"]], "outputs": ["1", "[1]"]}).cases == (
        [["1"], "1"],
        [["a"], "[1]"],
    )
    assert parsed({"fn_name": "f", "inputs": ['"1"'], "outputs": ['"1"']}).cases == ([["1"], "1"],)


def test_an_output_is_taken_out_of_its_list_only_where_all_are_in_one():
    assert not parsed({"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [1, 2]]}).unwrap


def test_options_of_inputs_and_outputs_are_kept():
    tests = parsed({"inputs": ["1"], "outputs": ["2"], "fn_name": None, "unordered": True, "seconds": 2})
    assert (tests.unordered, tests.seconds) == (True, 2)
