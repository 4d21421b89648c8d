import os

from openrlhf_cov.utils.open_files import open_files


def test_what_this_process_has_open(tmp_path):
    with (tmp_path / "lock").open("w"):
        assert open_files()[str(tmp_path / "lock")] == os.getpid()
    assert str(tmp_path / "lock") not in open_files()
