"""Send the weights of the policy to the vLLM engines, and handle engines that are dead or do not answer."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import ray
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from openrlhf.utils.logging_utils import init_logger

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.checkpoint.stopping import named_dead
from openrlhf_cov.trainer.rollout.batch_stream import BatchStream
from openrlhf_cov.trainer.rollout.engine_health import dead_engines, limited_transfer
from openrlhf_cov.trainer.weights.weight_check import WeightCheck

logger = init_logger(__name__)


def have_other_weights(engines: list[Any], seconds: float) -> bool:
    """Return True if an engine has other weights than its files, because another run has used it.

    Args:
        engines: Handles of the vLLM engines.
        seconds: ``--vllm.no_progress_timeout``, in which all of them have to answer; 0 waits without limit.

    Raises:
        RunStopped: An engine did not answer in time.
    """
    answers = [engine.needs_weights.remote() for engine in engines]
    ready, _ = ray.wait(answers, num_returns=len(answers), timeout=seconds or None) if answers else ([], [])
    silent = [str(place) for place, answer in enumerate(answers) if answer not in ready]
    if silent:
        raise RunStopped(
            f"vLLM engine {', '.join(silent)} did not answer within {seconds:g} s (--vllm.no_progress_timeout) at the "
            "start of the run; look for the cause in the log above"
        )
    return any(ray.get(answers))


def deliver_weights(
    args: SimpleNamespace,
    stream: BatchStream,
    send: Callable[[], None],
    *,
    version: int,
    ranks: Iterable[Any] = (),
    weight_check: WeightCheck | None = None,
    is_start: bool = False,
) -> list[int]:
    """Send the weights of the policy to the engines; return the places of engines that died.

    If an engine died, no engine gets the weights, because the transfer would wait for the dead one. The caller can
    finish the current step, and has to end the run after it.

    The transfer waits for the rollout that is being generated. With ``--train.partial_rollout_enable`` the engines
    pause instead, and go on with the new weights.

    Args:
        args: The parsed flags.
        stream: Generates rollouts with the engines, and is told the new version.
        send: Sends the weights and returns when all engines have them.
        version: The number of steps that made the weights.
        ranks: Ray handles of the policy's ranks, which are ended if the transfer hangs.
        weight_check: ``--train.check_weight_update``; None where no step was made yet.
        is_start: True if no step was made since this process started, so that there is nothing to finish.

    Raises:
        RunStopped: The transfer took longer than ``--vllm.no_progress_timeout``, the weight check failed, or an
            engine is dead at the start.
    """
    engines = stream.engines.engines
    if not engines:  # recorded rollouts without an evaluation
        stream.delivered(version)
        return []
    is_partial = args.train.partial_rollout_enable

    if is_partial:
        dead = _find_dead(engines, is_start)
        if not dead:
            # The check asks the engines, which do not answer while they pause.
            with limited_transfer(engines, ranks, args.vllm_no_progress_timeout), _checked(weight_check):
                batch_vllm_engine_call(engines, "pause_generation")
                try:
                    send()
                finally:
                    batch_vllm_engine_call(engines, "resume_generation")
            stream.delivered(version)
        return dead

    with stream.exclusive():
        dead = _find_dead(engines, is_start)
        if not dead:
            with limited_transfer(engines, ranks, args.vllm_no_progress_timeout), _checked(weight_check):
                if args.vllm.enable_sleep:
                    # The cache of keys and values stays asleep until the next rollout, to save memory.
                    batch_vllm_engine_call(engines, "wake_up", tags=["weights"])
                send()
            # The next rollout begins when the block ends, and has to know its version then.
            stream.delivered(version)
    return dead


def _find_dead(engines: list[Any], is_start: bool) -> list[int]:
    dead = dead_engines(engines)
    if not dead:
        return []
    message = f"{named_dead(dead)}; look for the cause in the log above"
    if is_start:
        raise RunStopped(f"{message}; no step was made")
    logger.warning(f"{message}; no engine gets the new weights, and the run ends after this step")
    return dead


@contextmanager
def _checked(weight_check: WeightCheck | None) -> Iterator[None]:
    """Run the weight check around a transfer."""
    if weight_check is None:
        yield
        return
    weight_check.before_transfer()
    yield
    weight_check.after_transfer()
