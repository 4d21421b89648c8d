"""docs/presets.md shows every flag that a preset sets, with its value."""

import re

import pytest

from openrlhf_cov.trainer.flags.presets import PRESETS, WITHOUT_GPUS

# End of a row's first cell -> where a preset keeps the flags of such rows.
CONDITIONS = {
    "": lambda preset: preset.flags,
    ", without `--method`": lambda preset: preset.without_method,
    ", with `kl_cov`": lambda preset: preset.of_methods.get("kl_cov", {}),
    ", on GPUs": lambda preset: preset.on_gpus,
}


@pytest.fixture(scope="module")
def section(repository):
    """The section of the page that lists the flags."""
    text = (repository / "docs/presets.md").read_text(encoding="utf-8")
    return text.partition("## What each preset sets")[2].partition("\n## ")[0]


def table_of(section):
    """Return {(preset, condition): {flag: value}} of the rows that differ between presets."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    names = [cell.strip("`") for cell in rows[0][1:]]
    found = {(name, condition): {} for name in names for condition in CONDITIONS}
    for first, *values in rows[2:]:
        flag, condition = re.fullmatch(r"`--([\w.]+)`(.*)", first).groups()
        for name, value in zip(names, values, strict=True):
            if value != "–":
                found[name, condition][flag] = "" if value == "on" else value
    return names, found


def shared_by_all(section):
    """Return {start of a list entry: {flag: value}} of the flags that all presets set alike."""
    entries = re.findall(r"^- (on GPUs: |without a GPU: |)(`.*)$", section, flags=re.M)
    spans = {start: [span.partition(" ") for span in re.findall(r"`--([^`]+)`", text)] for start, text in entries}
    return {start: {flag: value for flag, _, value in found} for start, found in spans.items()}


def test_the_page_shows_all_that_a_preset_sets(section):
    names, table = table_of(section)
    shared = shared_by_all(section)
    assert set(names) == set(PRESETS)
    for name, preset in PRESETS.items():
        for condition, flags_of in CONDITIONS.items():
            of_all = shared.get({"": "", ", on GPUs": "on GPUs: "}.get(condition), {})
            assert of_all | table[name, condition] == flags_of(preset), f"{name}{condition}"
        # The page has a row for one method; a preset with flags for another needs a row more.
        assert set(preset.of_methods) <= {"kl_cov"}
    assert shared["without a GPU: "] == WITHOUT_GPUS
