"""docs/upstream_flags.md names every flag of upstream, and its tests exist and use the flag."""

import re
from functools import cache
from pathlib import Path

import pytest
from flag_uses import flags_used_by
from upstream_flags import declared_by_upstream

PAGE = Path(__file__).parents[2] / "docs" / "upstream_flags.md"
ROW = re.compile(r"\| `(--[^`]+)` \| (tested|refused|untested) \| (.+) \|")


@cache
def rows() -> dict[str, tuple[str, str]]:
    """Return {flag: (status, what the page says)}."""
    found = [
        match.groups() for line in PAGE.read_text(encoding="utf-8").splitlines() if (match := ROW.fullmatch(line))
    ]
    flags = [flag for flag, _, _ in found]
    assert len(flags) == len(set(flags)), "a flag has two rows"
    return {flag: (status, why) for flag, status, why in found}


def upstream_options() -> set[str]:
    actions = declared_by_upstream()._actions
    return {option for action in actions for option in action.option_strings if option.startswith("--")} - {"--help"}


def test_the_page_has_every_flag_of_upstream_and_no_other():
    assert sorted(rows()) == sorted(upstream_options())


@pytest.mark.parametrize("status", ["tested", "refused"])
def test_a_named_test_exists_and_uses_the_flag(status):
    for flag, (found, why) in rows().items():
        if found != status:
            continue
        tests = re.findall(r"`(tests/\S+::\w+)`", why)
        assert tests, f"{flag} names no test"
        assert status == "refused" or all(test.startswith("tests/e2e/") for test in tests), f"{flag}: no whole run"
        for test in tests:
            assert flag in flags_used_by(test), f"{flag} is not used by {test}"


def test_what_is_untested_says_why():
    assert all(len(why) > 20 for status, why in rows().values() if status == "untested")
