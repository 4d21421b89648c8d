"""Commands in processes of their own: a failure says first what was expected of the run, then what it said."""

import subprocess
from collections.abc import Sequence
from typing import Any

from processes import HANGS

# Characters of each output.
SHOWN = 20_000


def ended(command: Sequence[Any], what: str, *, status: int = 0, **settings: Any) -> subprocess.CompletedProcess:
    """Return the finished command, which is to end with ``status``.

    ``settings`` are those of ``subprocess.run``. A command that hangs is ended after ``HANGS`` seconds.
    """
    done = subprocess.run(command, **{"capture_output": True, "text": True, "timeout": HANGS} | settings)
    told = [str(output)[-SHOWN:] for output in (done.stdout, done.stderr) if output]
    assert done.returncode == status, (
        f"expected of {what}: to end with status {status}, not {done.returncode}\n{''.join(told)}"
    )
    return done
