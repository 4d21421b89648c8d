"""The reports that torch and DeepSpeed write about a host, for the report of a bug."""

import subprocess
import sys
from collections.abc import Iterator, Sequence

# Module -> arguments with which Python prints its report. ``python -m deepspeed.env_report`` would also print the
# state of DeepSpeed's operators with color codes, so only the function for the rest is called.
REPORTS = {
    "torch.utils.collect_env": ("-m", "torch.utils.collect_env"),
    "deepspeed.env_report": ("-c", "from deepspeed.env_report import debug_report; debug_report()"),
}
# Seconds for one report; ``pip list`` alone takes half a minute on a busy host.
TIMEOUT = 120.0


def library_reports(timeout: float = TIMEOUT) -> Iterator[str]:
    """Yield the report of each library, or one line that says why there is none.

    Args:
        timeout: Seconds for each report.
    """
    for module, arguments in REPORTS.items():
        yield f"{module}:\n{_report(arguments, timeout)}"


def _report(arguments: Sequence[str], timeout: float) -> str:
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"no report within {timeout:g} s"
    if done.returncode:
        # The last line of a traceback names the error.
        reason = done.stderr.strip().rpartition("\n")[2] or f"status {done.returncode}"
        return f"no report: {reason}"
    return done.stdout.strip()
