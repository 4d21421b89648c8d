"""Requests to several vLLM engines: shared out evenly, repeated where they fail, and given in order where asked."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ray
from openrlhf.utils.logging_utils import init_logger
from ray.exceptions import RayActorError, RayError
from tqdm import tqdm

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.rollout.engine_health import end_unanswered, is_death
from openrlhf_cov.trainer.rollout.prompts import Prompt
from openrlhf_cov.utils.seeds import seed_of

logger = init_logger(__name__)

Item = TypeVar("Item")

MAX_ATTEMPTS = 3
WAIT_SECONDS = 10.0


def sample_seeds(run_seed: int, prompt: Prompt, count: int) -> list[int]:
    """Return one seed for each sample of a prompt.

    A seed depends on the seed of the run, the number and the text of the prompt and the number of the sample alone.

    Args:
        run_seed: ``--train.seed``.
        prompt: The prompt.
        count: Number of samples.
    """
    return [seed_of(run_seed, prompt.number, prompt.text, sample) for sample in range(count)]


@dataclass
class EngineGroup:
    """The engines that still answer; each new group goes to the one with the fewest unfinished groups."""

    # Handles of all engines, also of those that died; an engine is named by its place here.
    engines: list[Any]
    # --vllm.no_progress_timeout: seconds without a result after which the busy engines are ended; 0: no limit
    no_progress_timeout: float = 0.0
    unfinished: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.unfinished = dict.fromkeys(range(len(self.engines)), 0)

    @property
    def alive(self) -> list[Any]:
        """Handles of the engines that did not die."""
        return [self.engines[place] for place in self.unfinished]

    def assign(self, count: int, avoid: int | None = None) -> list[int]:
        """Choose an engine for each new group, and count the groups as unfinished there.

        Args:
            count: Number of groups.
            avoid: Place of an engine that gets none of them unless it is the only one left; None to avoid no engine.

        Returns:
            The places of the engines, one for each group.

        Raises:
            RunStopped: No engine is left.
        """
        if not self.unfinished:
            raise RunStopped("no vLLM engine answers any more; look for the cause in their logs above")
        places = []
        for _ in range(count):
            # A request that failed goes elsewhere, unless one engine is all that is left.
            others = [engine for engine in self.unfinished if engine != avoid] or list(self.unfinished)
            place = min(others, key=lambda engine: (self.unfinished[engine], engine))
            self.unfinished[place] += 1
            places.append(place)
        return places

    def finish(self, place: int) -> None:
        """Note that one group of this engine is done."""
        if place in self.unfinished:
            self.unfinished[place] -= 1

    def lose(self, place: int) -> None:
        """Note that this engine died."""
        self.unfinished.pop(place, None)


@contextmanager
def awake(engines: EngineGroup, enabled: bool) -> Iterator[None]:
    """Wake the engines for the body and put them to sleep after it.

    Engines that do not answer within ``engines.no_progress_timeout`` seconds are ended and lost.

    Args:
        engines: The engines.
        enabled: ``--vllm.enable_sleep``; with False nothing is done.
    """
    if not enabled:
        yield
        return
    _call_all(engines, "wake_up")
    try:
        yield
    finally:
        with suppress(RayActorError):  # a dead engine is what ended the block, if one did
            _call_all(engines, "sleep")


def _call_all(engines: EngineGroup, method: str) -> None:
    places = list(engines.unfinished)
    for hung in end_unanswered(engines.alive, method, engines.no_progress_timeout):
        engines.lose(places[hung])


def generate_groups(
    prompts: list[Prompt],
    engines: EngineGroup,
    dispatch: Callable[[Any, list[Prompt]], list[Any]],
    window: int | None = None,
) -> Iterator[tuple[int, list[dict]]]:
    """Yield the responses to all prompts as they finish, with a progress bar.

    Args:
        prompts: The prompts. Prompts that the caller appends meanwhile are generated as well.
        engines: Engines that get the prompts.
        dispatch: ``dispatch(engine, prompts)`` returns one Ray reference per prompt.
        window: Largest number of prompts under way; None for no limit.

    Yields:
        Place in ``prompts`` and the responses to the prompt. A group whose request fails is requested again as a
        whole, so no group is half used.

    Raises:
        RunStopped: See ``finished``.
    """
    with tqdm(total=len(prompts), desc="Generate samples") as progress:
        for place, responses in finished(prompts, engines, dispatch, _describe, window):
            progress.total = len(prompts)
            progress.update()
            yield place, responses


def in_order(results: Iterable[tuple[int, Item]]) -> Iterator[tuple[int, Item]]:
    """Yield (place, result) by place, from 0 on, each as soon as all before it are there."""
    early: dict[int, Item] = {}
    given = 0
    for place, result in results:
        early[place] = result
        while given in early:
            yield given, early.pop(given)
            given += 1


def finished(
    items: Sequence[Item],
    engines: EngineGroup,
    dispatch: Callable[[Any, list[Item]], list[Any]],
    describe: Callable[[Item], str],
    window: int | None = None,
) -> Iterator[tuple[int, Any]]:
    """Yield the results of all items as they finish.

    Engines without a result for ``engines.no_progress_timeout`` seconds of waiting are ended like dead ones: their
    items go to other engines, and the run ends after its step, when the health of the engines is checked.

    Args:
        items: Requests. Items that the caller appends meanwhile are sent at the next result.
        engines: Engines that get the items.
        dispatch: ``dispatch(engine, items)`` returns one Ray reference per item.
        describe: Returns the text about an item for an error message.
        window: Largest number of items under way; None for no limit.

    Yields:
        Place in ``items`` and result. An item whose request fails is requested again from another engine.

    Raises:
        RunStopped: One item failed ``MAX_ATTEMPTS`` times, or no engine is left.
    """
    failures: Counter[int] = Counter()
    # Ray reference -> (place of the item, engine).
    in_flight: dict[Any, tuple[int, int]] = {}
    sent = 0
    waited = 0.0  # seconds spent in waiting since the last result; the time that the caller takes does not count

    def send(places: Sequence[int], avoid: int | None = None) -> None:
        chosen = engines.assign(len(places), avoid)
        for engine in sorted(set(chosen)):
            mine = [place for place, other in zip(places, chosen, strict=True) if other == engine]
            try:
                references = dispatch(engines.engines[engine], [items[place] for place in mine])
            except RayActorError:  # it died while it had nothing to do
                engines.lose(engine)
                logger.warning(f"vLLM engine {engine} died; {len(mine)} requests go to others")
                send(mine)
                continue
            in_flight.update({ref: (place, engine) for ref, place in zip(references, mine, strict=True)})

    def send_waiting() -> None:
        nonlocal sent
        end = len(items) if window is None else min(len(items), sent + window - len(in_flight))
        if end > sent:
            first = sent
            sent = end
            send(range(first, end))

    send_waiting()
    while in_flight:
        ready, _ = ray.wait(list(in_flight), num_returns=1, timeout=WAIT_SECONDS)
        if ready:
            waited = 0.0
            # Everything else that is ready by now: one more call for all of it, instead of one for each result.
            ready, _ = ray.wait(list(in_flight), num_returns=len(in_flight), timeout=0)
        else:
            waited += WAIT_SECONDS
            if 0.0 < engines.no_progress_timeout <= waited:
                waited = 0.0
                for engine, places in _end_hung(engines, in_flight).items():
                    send(places, avoid=engine)
        for ref in ready:
            place, engine = in_flight.pop(ref)
            try:
                result = ray.get(ref)
            except RayError as error:
                failures[place] += 1
                _note_failure(error, engines, engine, describe(items[place]), failures[place])
                send([place], avoid=engine)
            else:
                engines.finish(engine)
                send_waiting()
                yield place, result
        send_waiting()


def _end_hung(engines: EngineGroup, in_flight: dict[Any, tuple[int, int]]) -> dict[int, list[int]]:
    """End every engine that still has requests; return engine -> places of its items, which leave ``in_flight``."""
    hung: dict[int, list[int]] = {}
    for place, engine in in_flight.values():
        hung.setdefault(engine, []).append(place)
    in_flight.clear()
    for engine, places in hung.items():
        engines.lose(engine)
        ray.kill(engines.engines[engine])
        logger.warning(
            f"vLLM engine {engine} gave no result for {engines.no_progress_timeout:g} s "
            f"(--vllm.no_progress_timeout) and was ended; {len(places)} requests go to others"
        )
    return hung


def _describe(prompt: Prompt) -> str:
    return f"prompt {prompt.number}: {prompt.text[:200]!r}"


def _note_failure(error: RayError, engines: EngineGroup, engine: int, item: str, failures: int) -> None:
    """Count out a dead engine, and an item that fails again and again."""
    died = is_death(error)
    engines.lose(engine) if died else engines.finish(engine)
    cause = getattr(error, "cause", None) or error
    reason = f"{type(cause).__name__}: {' '.join(str(cause).split())[:300]}"
    logger.warning(f"vLLM engine {engine} {'died' if died else 'failed'} (attempt {failures}): {reason}; {item}")
    if failures >= MAX_ATTEMPTS:
        raise RunStopped(f"a request failed {failures} times ({reason}); {item}") from error
