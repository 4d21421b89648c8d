"""Errors with a message for the user."""


def reason_of(error: BaseException) -> str:
    """The first line of what an error says; its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class UsageError(Exception):
    """A setting or input that the user can mend before training starts; the message is one line that says how."""


class RunStopped(RuntimeError):
    """A run that ends itself; the message is one line that says why and what was done."""


class StoppedBySignal(RunStopped):
    """A run that was asked to stop and did, with everything on disk that was to be there."""
