"""Blocks of the docs are executed as they stand; what needs a GPU is dry-run on one that is described to it."""

import glob
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openrlhf_cov.cli import train_ppo_ray
from openrlhf_cov.cluster import cpu_host

pytestmark = pytest.mark.slow

ONE_GPU = "--dry_run --dry_run_nodes 1 --dry_run_gpus 1 --dry_run_gpu_memory 80".split()


def test_blocks_to_run_do_and_print_what_the_page_says(page, run_page, workplace):
    """All of a page in one folder, in their order; ``…`` in the output stands for anything."""
    blocks = page(run_page).blocks
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block.marker != "run":
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text], **workplace, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{block.place}: status {done.returncode}\n{done.stdout}{done.stderr}"
        if following is not None and following.marker == "output":
            shown = ".*?".join(map(re.escape, following.text.strip().split("…")))
            assert re.fullmatch(shown, done.stdout.strip(), flags=re.S), f"{following.place}: it prints\n{done.stdout}"


def test_python_of_the_pages_runs(page, python_page, workplace):
    if python_page == "docs/extending.md":
        return  # test_extending.py
    code = "\n".join(block.text for block in page(python_page).blocks if block.language == "python")
    done = subprocess.run([sys.executable, "-c", code], **workplace, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_blocks_for_a_terminal_run_in_one(page, terminal_page, commands_of, workplace):
    for block in page(terminal_page).blocks:
        if block.marker == "terminal":
            for command in commands_of(block.text.replace("/checkpoints/", "checkpoints/")):
                words = expanded(command, workplace["cwd"])
                if "watch" in " ".join(words[:3]) and "--once" not in words:
                    watch_until_it_shows("entropy", words, workplace)
                else:
                    done = subprocess.run(words, **workplace, capture_output=True, text=True)
                    assert done.returncode == 0, f"{block.place}: {' '.join(words)}\n{done.stderr}"


def expanded(words: list[str], folder: Path) -> list[str]:
    """The words with the files and folders that their ``*`` stand for, as a shell in the folder has them."""
    found = [sorted(glob.glob(word, root_dir=folder)) if "*" in word else [word] for word in words]
    assert all(found), words
    return [word for each in found for word in each]


def watch_until_it_shows(text: str, words: list[str], how: dict[str, object]) -> None:
    """Start the command in a terminal, press q once the text is there, and see it end with status 0."""
    ours, its = pty.openpty()
    env = how["env"] | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(words, stdin=its, stdout=its, stderr=its, cwd=how["cwd"], env=env)
    os.close(its)
    shown, pressed, deadline = b"", False, time.monotonic() + 120
    try:
        while process.poll() is None:
            assert time.monotonic() < deadline, shown[-500:]
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    shown += os.read(ours, 65536)
                except OSError:  # it has closed the terminal
                    break
            if not pressed and text.encode() in shown:
                os.write(ours, b"q")
                pressed = True
        assert process.wait(30) == 0, shown[-500:]
        assert pressed, shown[-500:]
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_what_trains_on_a_gpu_would_run(page, gpu_page, commands_of, workplace, monkeypatch, capfd):
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)
    monkeypatch.chdir(workplace["cwd"])
    for block in page(gpu_page).blocks:
        for words in commands_of(block.text) if block.marker == "gpu" else ():
            if words[:2] == ["openrlhf-cov", "train"]:
                monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *words[2:], *ONE_GPU])
                assert train_ppo_ray.main() == 0, f"{block.place}: {capfd.readouterr().err}"
                assert "dry run: it would run" in capfd.readouterr().out
