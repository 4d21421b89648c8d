"""The one family of errors that a user can mend."""


class UsageError(Exception):
    """A setting or an input that cannot work; the message is one line: the flag, the value, what to do."""
