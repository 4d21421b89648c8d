import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.errors import UsageError
from openrlhf_cov.experiments.study.spec_file import read_spec, spec_of


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
    first, second, third = spec.methods
    lr, clip = "--actor.adam.lr", "--actor.eps_clip_low_high"
    assert first.configurations == (
        (lr, "0.0001", clip, "0.1", "0.1"),
        (lr, "0.0001", clip, "0.2", "0.2"),
        (lr, "3e-4", clip, "0.1", "0.1"),
        (lr, "3e-4", clip, "0.2", "0.2"),
    )
    assert second.configurations == ((lr, "0.0001"), (lr, "3e-4"))
    assert third.configurations == second.configurations
    assert third.words == ("--cov_type", "kl_cov", "--cov_scope", "micro_batch")
    assert (third.at, third.tier, third.seeds) == ("KL-Cov", 2, (0, 1, 2))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("seeds", [], "seeds: must have at least 1 item, not 0; got []"),
        ("seeds", [0, True], "seeds[1]: must be a valid integer; got True"),
        ("seeds", [2**31], "seeds[0]: must be less than 2147483648; got 2147483648"),
        ("seeds", [1, 1], "seeds: must have each number once; got [1, 1]"),
        ("seeds", [0, 101], "seeds: 101 is one of the tuning's"),
        ("engine", "slurm", "engine: must be 'lab' or 'ray'; got 'slurm'"),
        ("colour", "red", "colour: no such field; choose from title, about, "),
        ("tunning", {}, "tunning: no such field; did you mean tuning?"),
        ("flags", 7, "flags: must be a line of flags as a shell takes it; got 7"),
        ("flags", "--a 'b", "flags: must be a line of flags as a shell takes it (No closing quotation)"),
        ("arms.0", "GRPO", "arms[0]: must have the fields name, flags, grid, at, tier, seeds; got 'GRPO'"),
        ("arms.1.name", "grpo", "method grpo: another method has this name"),
        ("arms.1.name", "//", "arms[1].name: must have 1 to 200 letters or digits; got '//'"),
        ("arms.1.tier", 0, "arms[1].tier: must be at least 1; got 0"),
        ("arms.1.grid", {"lr": [1]}, "arms[1].grid.lr: must be a flag, such as --actor.adam.lr; got 'lr'"),
        ("arms.1.grid", {"--x": []}, "arms[1].grid.--x: must have at least 1 item, not 0; got []"),
        ("arms.1.grid", {"--x": [True]}, "arms[1].grid.--x[0]: must be a number or words; got True"),
        ("arms.1.grid", {"--x": [" "]}, "arms[1].grid.--x[0]: must be a number or words; got ' '"),
        ("arms.1.grid", {"--x": ['"a']}, "arms[1].grid.--x[0]: must be a line of flags as a shell takes it"),
        # two values whose configurations would have one folder, and two spellings of one number
        ("arms.1.grid", {"--x": [1, 1]}, "method KL-Cov: two values of the grid map to the same folder name"),
        ("arms.1.grid", {"--x": ["1 2", "1_2"]}, "method KL-Cov: two values of the grid map to the same folder name"),
        ("arms.1.grid", {"--x": ["1", "+1"]}, "method KL-Cov: two values of the grid map to the same folder name"),
        ("arms.1.grid", {"--x": ["a", "A"]}, "method KL-Cov: two values of the grid map to the same folder name"),
        ("arms.1.grid", {"--x": ["1e-4 2", "0.0001 2.0"]}, "method KL-Cov: the grid has a number twice"),
        # values of a grid follow the flags of a method and would win, also those of the common grid and of ``at``
        ("arms.1.flags", "--actor.adam.lr 1", "method KL-Cov: flags: --actor.adam.lr has values in its grid"),
        ("arms.1.flags", "--actor.adam.lr=1", "method KL-Cov: flags: --actor.adam.lr has values in its grid"),
        ("arms.1.flags", "--actor.adam.l 1", "method KL-Cov: flags: --actor.adam.l has values in its grid"),
        ("arms.2.flags", "--actor.adam.lr 1", "method by micro-batch: flags: --actor.adam.lr has values in its grid"),
        ("arms.2.at", "nobody", "method by micro-batch: at must be the name of a method above it"),
        ("arms.2.grid", {"--x": [1]}, "method by micro-batch: it takes the configuration of KL-Cov"),
        ("tuning.finalists", 0, "tuning.finalists: must be at least 1; got 0"),
        ("tuning.final_seeds", [100], "tuning.final_seeds: 100 is one of tuning.seeds"),
        ("tuning.seeds", [], "method GRPO: grid has 4 configurations and tuning.seeds is empty"),
        ("arms.0.seeds", [5, 101], "method GRPO: seeds: 101 is one of the tuning's"),
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


def test_a_key_that_stands_twice_and_a_missing_file_are_refused(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("title: x\ntask: commands\nseeds: [1]\narms:\n  - name: a\n    flags: --a\n    flags: --b\n")
    with pytest.raises(UsageError, match=r"x\.yaml: line 5: 'flags' stands twice"):
        read_spec(path)
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


@pytest.mark.slow
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_taken_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(b"title: t\n" + content)
    with contextlib.suppress(UsageError):
        read_spec(path)
