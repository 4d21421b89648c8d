"""Numbers of samples and groups that make whole optimizer steps on every rank (pure).

A rollout of another size would leave ranks with different numbers of micro-batches, for which ZeRO-3 waits for ever,
or with a remainder that shifts DeepSpeed's accumulation against all updates that follow.
"""

import math
from types import SimpleNamespace

from openrlhf_cov.cluster.sizing.flag_sizes import process_groups, ranks_of


def ranks_in_step(args: SimpleNamespace) -> dict[str, int]:
    """Return the data-parallel ranks of each model whose ranks wait for each other.

    These are the models that train, and all models with ZeRO-3.
    """
    waiting = process_groups(args) if args.ds.zero_stage == 3 else process_groups(args).keys() & {"actor", "critic"}
    return {name: ranks_of(args, name) for name in sorted(waiting)}


def update_unit(args: SimpleNamespace) -> int:
    """Return the samples that make whole optimizer steps and, without dynamic batches, whole chunks on every rank.

    Upstream scores rollouts in chunks of ``--rollout.micro_batch_size`` and gives every rank of a model as many of
    them; one rank alone takes any number. Dynamic batches are as many as there are ranks, whatever the samples.
    """
    if args.train.dynamic_batch_enable:
        return args.train.batch_size
    # A model with one rank takes any number of samples.
    ranks = [each for each in ranks_in_step(args).values() if each > 1]
    return math.lcm(args.train.batch_size, *(args.rollout.micro_batch_size * each for each in ranks))


def usable_groups(count: int, args: SimpleNamespace) -> int:
    """Return the largest number of groups whose samples are a multiple of ``update_unit``.

    Args:
        count: The number of groups that there are, which the result does not exceed.
        args: The flags of a training.

    Returns:
        The number; 0 if the groups make no whole unit, or fewer chunks than a model has ranks.
    """
    unit = update_unit(args)
    samples = args.rollout.n_samples_per_prompt
    groups = count - count % (unit // math.gcd(unit, samples))
    return 0 if ranks_without_chunk(groups * samples, args) else groups


def ranks_without_chunk(samples: int, args: SimpleNamespace) -> list[str]:
    """Return the names of the models of which a rank would get no chunk, which upstream answers by ending the run.

    Args:
        samples: The samples of a rollout.
        args: The flags of a training.
    """
    if args.train.dynamic_batch_enable:
        return []
    chunks = -(-samples // args.rollout.micro_batch_size)
    return [name for name in process_groups(args) if ranks_of(args, name) > chunks]
