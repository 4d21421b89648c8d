"""Tests that cannot fail, or that a program in another process cannot pass, are refused; others are not."""

import pytest

from openrlhf_cov.rewards.code.written import check_file, check_prelude, check_statements

HEAD = "import pytest\nfrom unittest import TestCase\nfrom solution import f\n"


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("pass", "asserts nothing"),
        ("assert True", "asserts nothing"),
        ("f(1)", "asserts nothing"),
        ("x = f(1)", "asserts nothing"),
        ("f(1) == 2", "compares and asserts nothing"),
        ("assert (f(1) == 2, 'message')", "for every program"),
        ("assert [f(1)]", "for every program"),
        ("assert f(1) == 2 or True", "for every program"),
        ("assert lambda: f(1) == 2", "for every program"),
        ("assert (each == 1 for each in f(1))", "for every program"),
        ("import pandas\nassert f(1)", "not there"),
        ("import subprocess\nassert f(1)", "own process"),
        ("from unittest.mock import patch\nassert f(1)", "own process"),
        ("from unittest import mock\nassert f(1)", "own process"),
        ("import sys\nf(1)\nassert sys.stdout.getvalue() == '1'", "own process"),
        ("with open('x') as file:\n    assert f(file)", "own process"),
        ("async def g(): assert await f(1)", "async"),
        ("assert np.array([1]) == f(1)", "numpy.array is not supported"),
        ("assert f(1 ==", "is no Python"),
    ],
)
def test_statements_that_are_refused(statement, fault):
    with pytest.raises(ValueError, match=fault):
        check_statements([statement], "")


@pytest.mark.parametrize(
    "statement",
    [
        "assert f(1) == 2",
        "assert f(1), 'message'",
        "assert not f(1)",
        "for input, expected in [(1, 2)]: assert f(input) == expected",
        "try:\n    f(1)\n    assert False\nexcept ValueError: pass",
        "try:\n    f(1)\nexcept ValueError: pass\nelse: raise AssertionError",
        "check(f)",
        "assert np.allclose(f(1), 1)",
        "with pytest.raises(ValueError): f(1)",
    ],
)
def test_statements_that_are_taken(statement):
    check_statements([statement], "def check(g): inner(g)\ndef inner(g): assert g(1)")


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("x = 1", "no function test_"),
        ("class Tests_of_f: pass", "no function test_"),
        ("class TestF:\n    def check(self): assert f(1)", "no function test_"),
        ("def test_a(): pass", "asserts nothing"),
        ("def test_a(): assert f(1)\ndef test_b(): print(f(1))", "test_b asserts nothing"),
        ("def test_a():\n    yield\n    assert f(1)", "yields"),
        ("def test_a():\n    assert f(1)\n    return f(1) == 2", "returns a value"),
        ("async def test_a(): assert f(1)", "async"),
        ("def test_a(capsys): assert f(1)", "'capsys', which is no parameter"),
        ("def test_a(self): assert f(1)", "'self', which is no parameter"),
        ("class TestF:\n    def test_a(self, tmp_path): assert f(1)", "'tmp_path'"),
        ("@pytest.fixture\ndef g(request): return 1\ndef test_a(g): assert f(g)", "'request'"),
        ("@pytest.fixture(params=[1])\ndef g(): return 1\ndef test_a(g): assert f(g)", "scope and autouse"),
        ("@pytest.mark.parametrize('a', [])\ndef test_a(a): assert f(a)", "no values"),
        ("@pytest.mark.parametrize('a', [1], indirect=True)\ndef test_a(a): assert f(a)", "indirect"),
        ("@pytest.mark.parametrize('b', [1])\ndef test_a(a): assert f(a)", "'a', which is no parameter"),
        ("@pytest.mark.parametrize(names(), [1])\ndef test_a(a): assert f(a)", "needs the names"),
        (
            "@pytest.mark.parametrize('a', [pytest.param(1, marks=pytest.mark.skip)])\ndef test_a(a): assert f(a)",
            "skip",
        ),
        ("@pytest.mark.skip\ndef test_a(): assert f(1)", "skip is not supported"),
        ("@pytest.mark.xfail(strict=True)\ndef test_a(): assert f(1)", "xfail"),
        ("from unittest import skip\nclass A(TestCase):\n    @skip('x')\n    def test_a(self): self.fail()", "skip"),
        ("pytestmark = pytest.mark.skip\ndef test_a(): assert f(1)", "skip"),
        ("def test_a():\n    pytest.skip()\n    assert f(1)", "pytest.skip is not supported"),
        ("from pytest import importorskip\ndef test_a(): assert f(1)", "importorskip is not supported"),
        ("from . import g\ndef test_a(): assert f(1)", "relative module"),
    ],
)
def test_files_that_are_refused(source, fault):
    with pytest.raises(ValueError, match=fault):
        check_file(HEAD + source)


@pytest.mark.parametrize(
    "source",
    [
        "def test_a(): assert f(1) == 2",
        "def test_a(n=3): assert f(n)",
        "class A(TestCase):\n    def test_a(self): self.assertEqual(f(1), 2)",
        "class TestA:\n    @staticmethod\n    def test_a(): assert f(1)",
        "@pytest.fixture(scope='module', autouse=True)\ndef g():\n    yield 1\ndef test_a(g): assert f(g)",
        "@pytest.mark.slow\n@pytest.mark.parametrize('a,b', [(1, 2)])\ndef test_a(a, b): assert f(a) == b",
        "def helper(a): assert f(a)\ndef test_a(): helper(1)",
        "def test_a():\n    def rows():\n        yield 1\n    assert list(f(rows())) == [1]",
    ],
)
def test_files_that_are_taken(source):
    check_file(HEAD + source)


def test_a_prelude_has_pythons_modules():
    check_prelude("import math\nfrom typing import List")
    with pytest.raises(ValueError, match="not there"):
        check_prelude("import pytest")
