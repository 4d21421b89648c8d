"""docs/presets.md shows every flag that a preset sets, with its value."""

import re

import pytest

from openrlhf_cov.trainer.flags.presets import PRESETS, WITHOUT_GPUS

# Words behind a flag or the names of presets -> the flags of a preset under this condition.
CONDITIONS = {
    "": lambda preset: preset.flags,
    "without a method": lambda preset: preset.without_method,
    "with `kl_cov`": lambda preset: preset.of_methods.get("kl_cov", {}),
    "on GPUs": lambda preset: preset.on_gpus,
    "without a GPU": lambda _: WITHOUT_GPUS,
}


@pytest.fixture(scope="module")
def shown(repository):
    """{(preset, condition): {flag: value}} on the page: rows of the table, and entries of the list below it."""
    text = (repository / "docs/presets.md").read_text(encoding="utf-8")
    section = text.partition("## What each preset sets")[2].partition("\n## ")[0]
    found = {(name, condition): {} for name in PRESETS for condition in CONDITIONS}
    names, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"
    ]
    for first, *values in rows:
        flag, condition = re.fullmatch(r"`--([\w.]+)`(?:, )?(.*)", first).groups()
        for name, value in zip(names[1:], values, strict=True):
            if value != "–":
                found[name.strip("`"), condition][flag] = value
    for line in re.findall(r"^- (.*)$", section, flags=re.M):
        of_which, _, flags = line.partition(": ")
        condition = next(each for each in reversed(CONDITIONS) if of_which.endswith(each))
        for name in PRESETS if of_which.startswith("all presets") else re.findall(r"`([\w-]+)`", of_which):
            for span in re.findall(r"`--([^`]+)`", flags):
                flag, _, value = span.partition(" ")
                found[name, condition][flag] = value
    return found


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("name", PRESETS)
def test_the_page_shows_all_that_a_preset_sets(shown, name, condition):
    assert shown[name, condition] == CONDITIONS[condition](PRESETS[name])


def test_the_page_has_every_preset_and_method():
    # The page has a row for one method; a preset with flags for another needs a row more.
    assert {method for preset in PRESETS.values() for method in preset.of_methods} == {"kl_cov"}
