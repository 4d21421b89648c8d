"""Shared by all commands: output folders, and the end of a command with one line and an exit status."""

import signal
import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.utils.terminal import refuse, say

Given = ParamSpec("Given")
STOPPED = "what it started on this host is stopped"


def run_as_program(name: str, work: Callable[[], int | None], after_signal: str = STOPPED) -> int:
    """Do the work of a command, and say in one line on stderr what ends it.

    Args:
        name: The command as users type it, such as ``openrlhf-cov train``.
        work: The work, which returns its exit status, or None for 0.
        after_signal: What the line says after an interruption.

    Returns:
        The exit status of the work; 2 for a bad setting, 1 for a run that stopped or a file that cannot be written,
        130 after Ctrl-C, 143 after SIGTERM.

    Raises:
        ValueError: An error of the program. A message that begins with a flag is of a bad setting instead.
        OSError: An error that is not of the system, such as one of Ray's, whose traceback is worth reading.
    """
    terminated = False

    def terminate(*_: object) -> None:
        nonlocal terminated
        terminated = True
        raise SystemExit(128 + signal.SIGTERM)  # an exception, so that the work cleans up behind itself

    handlers = {
        signal.SIGTERM: terminate,
        signal.SIGINT: signal.default_int_handler,  # a background shell starts programs with SIGINT ignored
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        return work() or 0
    except UsageError as error:
        return refuse(name, error)
    except ValueError as error:
        if not str(error).startswith("--"):
            raise
        return refuse(name, error)
    except RunStopped as error:
        return refuse(name, error, 1)
    except OSError as error:
        if error.strerror is None:
            raise
        return refuse(name, f"{error.filename}: {error.strerror}" if error.filename else error.strerror, 1)
    except (KeyboardInterrupt, SystemExit) as error:
        # Where SIGTERM interrupts a wait for Ray, Ray raises a SystemExit of its own, with status 1.
        if isinstance(error, SystemExit) and not terminated:
            raise
        say(f"\n{name}: interrupted; {after_signal}\n", sys.stderr)
        return 128 + (signal.SIGTERM if terminated else signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: it was not set by Python


def program(name: str, after_signal: str = STOPPED) -> Callable[[Callable[Given, int | None]], Callable[Given, int]]:
    """Return a decorator for the ``main`` of a command, which then ends as ``run_as_program`` says.

    Args:
        name: The command as users type it.
        after_signal: What the line says after an interruption.
    """

    def decorate(main: Callable[Given, int | None]) -> Callable[Given, int]:
        @wraps(main)
        def ending(*args: Given.args, **kwargs: Given.kwargs) -> int:
            return run_as_program(name, lambda: main(*args, **kwargs), after_signal)

        return ending

    return decorate
