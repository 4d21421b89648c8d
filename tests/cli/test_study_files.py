"""Files that a study is given, and those that it is told to write."""

import os
from functools import partial

import pytest
from played_trainer import FLAGS, Trainer, ray_study, write_spec

from openrlhf_cov.cli import study
from openrlhf_cov.experiments.study.ray_runs import RayStudy
from openrlhf_cov.experiments.study.run_plan import all_runs
from openrlhf_cov.experiments.study.run_results import unpack


@pytest.fixture
def spec_file(tmp_path):
    """Function (changes) -> a study of two runs in a file."""
    return partial(write_spec, tmp_path)


@pytest.fixture
def fuller(tmp_path, spec_file, monkeypatch, capsys):
    """A packed file of both runs of the study, and the study with one of them in another folder."""
    Trainer(monkeypatch)
    made = ray_study(spec_file(), tmp_path)
    for run in all_runs(made.spec, {}):
        made.train(run)
    study.write(made, tmp_path / "all.jsonl.xz")
    poorer = RayStudy(made.spec, tmp_path / "new", tmp_path / "base")
    poorer.train(all_runs(made.spec, {})[1])
    capsys.readouterr()
    return tmp_path / "all.jsonl.xz", poorer


def test_a_fuller_packed_file_is_not_replaced(tmp_path, fuller, spec_file, capsys):
    path, poorer = fuller
    content = path.read_bytes()
    words = [str(spec_file()), "--output", str(poorer.output), "--page", "--pack", str(path)]
    assert study.main(words) == 1
    said = capsys.readouterr().err
    assert str(path) in said
    assert said.count("\n") == 1
    assert path.read_bytes() == content
    assert study.main([*words, "--unpack", str(path)]) == 0
    assert len(list(unpack(path))) == 2


def test_what_another_study_packed_is_not_replaced(tmp_path, fuller, spec_file, capsys):
    path, _ = fuller
    content = path.read_bytes()
    words = [str(spec_file(flags=FLAGS + " --actor.adam.lr 1e-7")), "--output", str(tmp_path / "other"), "--page"]
    assert study.main([*words, "--pack", str(path)]) == 2
    assert str(path) in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    assert path.read_bytes() == content


@pytest.mark.parametrize("flag", ["--pack", "--unpack", "--output", "--base_policies"])
@pytest.mark.parametrize("place", ["spec", "folder", "fifo", "below a file", "long"])
def test_a_place_that_cannot_be_is_refused_before_anything_runs(tmp_path, spec_file, monkeypatch, capsys, flag, place):
    trainer, spec = Trainer(monkeypatch), spec_file()
    content = spec.read_bytes()
    places = {"spec": spec, "folder": tmp_path, "below a file": spec / "x", "long": tmp_path / ("n" * 300)}
    os.mkfifo(fifo := tmp_path / "fifo")
    if (flag, place) in (("--pack", "fifo"), ("--output", "folder"), ("--base_policies", "folder")):
        pytest.skip("it can be written to")
    words = {"--output": str(tmp_path / "out"), flag: str(places.get(place, fifo))}
    assert study.main([str(spec), "--page", *(word for pair in words.items() for word in pair)]) == 2
    said = capsys.readouterr().err
    assert words[flag].removesuffix("/x") in said
    assert said.count("\n") == 1
    assert not trainer.calls
    assert not (tmp_path / "out").exists()
    assert spec.read_bytes() == content


@pytest.mark.parametrize("kind", ["folder", "fifo", "missing", "huge"])
def test_a_spec_that_is_no_file_is_refused(tmp_path, capsys, kind):
    path = tmp_path / "x.yaml"
    if kind == "folder":
        path.mkdir()
    if kind == "fifo":
        os.mkfifo(path)
    if kind == "huge":
        with path.open("wb") as file:
            file.truncate(2**40)
    assert study.main([str(path), "--dry_run"]) == 2
    assert str(path) in (said := capsys.readouterr().err)
    assert said.count("\n") == 1
