import os

import pytest

from openrlhf_cov.utils.cores import cores


@pytest.mark.parametrize(
    ("text", "expected"), [("150000 100000", 2), ("100000 100000", 1), ("max 100000", None), ("", None)]
)
def test_a_quota_of_the_control_group_is_rounded_up(tmp_path, monkeypatch, text, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(3))
    (tmp_path / "cpu.max").write_text(text)
    assert cores(tmp_path / "cpu.max") == (expected or 3)
    assert cores(tmp_path / "missing") == 3


@pytest.mark.parametrize(("known", "expected"), [(8, 8), (None, 1)])
def test_without_an_affinity_all_cores_count(tmp_path, monkeypatch, known, expected):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: known)
    assert cores(tmp_path / "missing") == expected
