"""Processes that are the ranks of one group and do one task after the other: they import DeepSpeed once."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Timer

DONE = "this task is done"
TIMEOUT = 180.0


def serve(work: Callable[..., None]) -> None:
    """In a rank: do the ``work`` of each line of standard input, a JSON list of arguments."""
    for line in sys.stdin:
        work(*json.loads(line))
        print(DONE, flush=True)


class RankGroup:
    """``ranks`` processes of one command, which calls ``serve``; their standard error is in ``folder``."""

    def __init__(self, command: list[str], ranks: int, folder: Path) -> None:
        self.command, self.ranks, self.folder = command, ranks, folder
        self.running: list[subprocess.Popen] = []

    def __call__(self, *task: str | int) -> list[str]:
        """What the ranks print for a task, line by line. A group that has ended, or does now, is started anew."""
        if not self.running or any(process.poll() is not None for process in self.running):
            self.end()
            self.start()
        for process in self.running:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
        watch = Timer(TIMEOUT, lambda: [process.kill() for process in self.running])
        watch.start()
        try:
            return [line for rank in range(self.ranks) for line in self.printed(rank, task)]
        except BaseException:
            self.end()
            raise
        finally:
            watch.cancel()

    def printed(self, rank: int, task: tuple) -> list[str]:
        lines = []
        for line in self.running[rank].stdout:
            if line == f"{DONE}\n":
                return lines
            lines.append(line.removesuffix("\n"))
        raise AssertionError(f"expected of rank {rank}: to do {task}\n{self.log(rank).read_text()[-3000:]}")

    def log(self, rank: int) -> Path:
        return self.folder / f"rank{rank}.log"

    def start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": "0"}
        env |= {"WORLD_SIZE": str(self.ranks), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [env.get("PYTHONPATH")])])
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for rank in range(self.ranks):
            with self.log(rank).open("w") as log:
                self.running.append(subprocess.Popen(self.command, env=env | {"RANK": str(rank)}, stderr=log, **pipes))

    def end(self) -> None:
        for process in self.running:
            process.kill()
            process.communicate()
        self.running = []
