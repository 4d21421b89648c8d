import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.errors import UsageError
from openrlhf_cov.study.spec import read_spec, spec_of


def changed(content, path, value):
    """The content with the field at ``path`` (dots) set, or gone where the value is None."""
    *parents, last = path.split(".")
    place = content
    for name in parents:
        place = place[int(name)] if isinstance(place, list) else place[name]
    if value is None:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return content


def test_cells_are_all_pairs_of_the_common_grid_and_the_arms(spec):
    first, second, third = spec.arms
    lr, clip = "--actor.adam.lr", "--actor.eps_clip_low_high"
    assert first.cells == (
        (lr, "0.0001", clip, "0.1", "0.1"),
        (lr, "0.0001", clip, "0.2", "0.2"),
        (lr, "3e-4", clip, "0.1", "0.1"),
        (lr, "3e-4", clip, "0.2", "0.2"),
    )
    assert second.cells == ((lr, "0.0001"), (lr, "3e-4"))
    assert third.cells == second.cells
    assert third.words == ("--cov_type", "kl_cov", "--cov_scope", "micro_batch")
    assert (third.at, third.tier, third.seeds) == ("KL-Cov", 2, (0, 1, 2))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("title", None, "the study lacks the field title"),
        ("seeds", [], "seeds is a list of at least one whole numbers, got []"),
        ("seeds", [0, "x"], "seeds are whole numbers from 0, got 'x'"),
        ("seeds", [1, 1], "seeds has a number twice"),
        ("seeds", [0, 101], "seeds: 101 is one of the tuning's"),
        ("engine", "slurm", "engine is one of lab, ray, got 'slurm'"),
        ("colour", "red", "the study has no field 'colour'; choose of title"),
        ("flags", 7, "flags is text, got 7"),
        ("flags", "--a 'b", 'flags is a line of flags as a shell takes it, got "--a \'b"'),
        ("arms", [], "arms is a list of at least one, got []"),
        ("arms.0", "GRPO", "arm 1 is a list of fields"),
        ("arms.1.name", "grpo", "arm grpo: another arm has this name"),
        ("arms.1.name", "//", "arm 2: name has letters or digits, got '//'"),
        ("arms.1.tier", 0, "arm KL-Cov: tier is a number from 1, got 0"),
        ("arms.1.grid", ["x"], "arm KL-Cov: grid is a list of values for each flag, got ['x']"),
        ("arms.1.grid", {"lr": [1]}, "arm KL-Cov: grid has values of flags such as --actor.adam.lr, got 'lr'"),
        ("arms.1.grid", {"--x": 1}, "arm KL-Cov: grid: --x has a list of values, got 1"),
        ("arms.1.grid", {"--x": [True]}, "arm KL-Cov: grid: --x has numbers or words, got True"),
        ("arms.1.grid", {"--x": [1, 1]}, "arm KL-Cov: grid has a value twice"),
        ("arms.2.at", "nobody", "arm by micro-batch: at is the name of an arm above it"),
        ("arms.2.grid", {"--x": [1]}, "arm by micro-batch: it takes the point of KL-Cov, so a grid has no effect"),
        ("tuning.finalists", 0, "tuning.finalists is a number from 1, got 0"),
        ("tuning.final_seeds", [100], "tuning.final_seeds: 100 is one of tuning.seeds"),
        ("tuning.seeds", [], "arm GRPO: grid has 4 cells and tuning.seeds is empty"),
        ("arms.0.seeds", [5, 101], "arm GRPO: seeds: 101 is one of the tuning's"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(content, path, value, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        spec_of(changed(content, path, value))


@pytest.mark.parametrize(
    "text", [b"\xff", b"a: [", b"[" * 3000, b"", b"7", b"title: x", b"a: &a [*a]", b"? {a: b}\n: c"]
)
def test_a_file_that_is_no_study_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "x.yaml"
    path.write_bytes(text)
    with pytest.raises(UsageError) as refused:
        read_spec(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_key_that_stands_twice_is_refused(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("title: x\ntask: commands\nseeds: [1]\narms:\n  - name: a\n    flags: --a\n    flags: --b\n")
    with pytest.raises(UsageError, match=r"x\.yaml: line 5: 'flags' stands twice"):
        read_spec(path)


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_spec(tmp_path / "nothing.yaml")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(field=st.sampled_from(["title", "flags", "seeds", "tuning", "arms", "engine", "about"]), value=values)
def test_anything_in_a_field_is_taken_or_refused(field, value):
    content = {"title": "t", "task": "commands", "seeds": [0], "arms": [{"name": "a"}], field: value}
    with contextlib.suppress(ValueError):
        spec_of(content)
