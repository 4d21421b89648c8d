"""Errors with a message for the user."""


def reason_of(error: BaseException) -> str:
    """Return the first line of the message of an error, or the name of its type if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class UsageError(Exception):
    """Raised for a setting or input that the user can mend before training; its message is one line that says how."""


class RunStopped(RuntimeError):
    """Raised to end a run; its message is one line that says why the run ends and what was done."""


class StoppedBySignal(RunStopped):
    """Raised to end a run after a signal; its log, and a checkpoint if the flags ask for one, are then written."""
