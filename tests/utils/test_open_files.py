import os

from openrlhf_cov.utils.open_files import open_files


def test_processes_that_are_gone_have_nothing_open(tmp_path):
    (tmp_path / "12").mkdir()  # fd went with the process
    (tmp_path / "13/fd").mkdir(parents=True)
    (tmp_path / "13/fd/0").write_text("no link")
    (tmp_path / "13/fd/1").symlink_to("/dev/null")
    (tmp_path / "self").mkdir()
    assert open_files(tmp_path) == {"/dev/null": 13}
    assert open_files(tmp_path / "missing") == {}


def test_what_this_process_has_open(tmp_path):
    with (tmp_path / "lock").open("w"):
        assert open_files()[str(tmp_path / "lock")] == os.getpid()
    assert str(tmp_path / "lock") not in open_files()
