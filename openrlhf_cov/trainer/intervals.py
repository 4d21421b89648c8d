"""Evaluations, checkpoints and files that are due after every so many global steps."""


def is_due(steps: int, interval: float) -> bool:
    """Return True if something that happens after every ``interval`` global steps is due.

    Args:
        steps: Number of global steps that are finished, which is the number of the last one in ``metrics.jsonl``.
        interval: A flag such as ``--ckpt.save_steps``; 0, and -1 as in upstream's flags, is never.
    """
    return interval > 0 and steps % interval == 0
