"""Expected gain of asynchronous training for a 7B model with responses of up to 8,192 tokens; prints Markdown.

    python benchmarks/staleness_plan.py                        # seconds, needs neither Ray nor a model
    python benchmarks/staleness_plan.py --gpus 64 --staleness 0 1

A simulation, not a measurement. It follows the rules of ``openrlhf_cov/trainer/rollout/batch_stream.py``: the rollout
of step n begins when the engines have the weights of step n - staleness, one rollout is generated at a time, and new
weights wait for the rollout that is being generated. Synchronous training generates and trains on all GPUs in turns.
Asynchronous training divides them between engines and policy, and the table has the best division in eighths. Lengths
are those of ``controller.py``.

The constants: a decoding step takes 5 ms and, with 256 sequences, 20 ms more, as weights and cache of a 7B model are
read from the memory of an H100. Training and scoring take 8 FLOPs for each parameter and token at 40 % of 989 TFLOP/s.
Nothing is counted for the change between generation and training on shared GPUs.
"""

import argparse
import heapq
import random
import statistics
from dataclasses import dataclass

LONGEST = 8192
SAMPLES = 8
PROMPTS = 256
PROMPT_TOKENS = 200
SLOTS = 256
PARAMETERS = 7.6e9
FLOPS_PER_SECOND = 0.4 * 989e12
TRANSFER_SECONDS = 2.0


@dataclass
class Step:
    """When the parts of a step begin and end, in seconds."""

    generation_began: float
    generation_ended: float
    training_ended: float


def main() -> None:
    """Print a table with a row for each number of GPUs and staleness."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    print("| GPUs | staleness | engines + policy | generation, s | training, s | a step, s | gain |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for gpus in args.gpus:
        rollouts = [lengths_of_rollout(step) for step in range(args.steps)]
        synchronous = seconds_of_step(simulate(rollouts, gpus, gpus, staleness=0))
        for staleness in args.staleness:
            division, steps = best_division(rollouts, gpus, staleness)
            generation = statistics.mean(step.generation_ended - step.generation_began for step in steps)
            training = statistics.mean(training_seconds(lengths, division[1]) for lengths in rollouts)
            seconds = seconds_of_step(steps)
            names = "all in turns" if staleness == 0 else f"{division[0]} + {division[1]}"
            print(
                f"| {gpus} | {staleness} | {names} | {generation:.0f} | {training:.0f} | {seconds:.0f} | "
                f"{synchronous / seconds:.2f} |"
            )


def lengths_of_rollout(step: int) -> list[int]:
    """Return the lengths of the responses of a rollout: log-normal around 1,800 tokens, one in twenty cut off."""
    chance = random.Random(step)
    return [min(LONGEST, 1 + int(chance.lognormvariate(7.5, 0.9))) for _ in range(PROMPTS * SAMPLES)]


def generation_seconds(lengths: list[int], engines: int) -> float:
    """Return the time of a rollout whose responses are dealt to engines in turn."""
    return max(seconds_of_engine(lengths[first::engines]) for first in range(engines))


def seconds_of_engine(lengths: list[int]) -> float:
    """Return the time in which one engine decodes these responses, at most ``SLOTS`` at once."""
    waiting = list(reversed(lengths))
    # Decoding steps that were made so far, and for each running response the step at which it ends.
    made = 0
    running: list[int] = []
    seconds = 0.0
    while waiting or running:
        while waiting and len(running) < SLOTS:
            heapq.heappush(running, made + waiting.pop())
        until = running[0]
        seconds += (until - made) * (0.005 + 0.020 * len(running) / SLOTS)
        made = until
        while running and running[0] == made:
            heapq.heappop(running)
    return seconds


def training_seconds(lengths: list[int], gpus: int) -> float:
    """Return the time in which the policy scores the responses and trains on them."""
    tokens = sum(lengths) + len(lengths) * PROMPT_TOKENS
    return 8 * PARAMETERS * tokens / (gpus * FLOPS_PER_SECOND)


def simulate(rollouts: list[list[int]], engines: int, policy_gpus: int, staleness: int) -> list[Step]:
    """Return the steps of a run."""
    steps: list[Step] = []
    # When the engines get the weights of step n; those of step 0 they have from the start.
    delivered = [0.0]
    generator_free = 0.0
    number_begun = 0
    ends: list[tuple[float, float]] = []

    def begin_rollouts(until: float) -> None:
        """Begin every rollout that may begin before ``until``, with the weights that are delivered so far."""
        nonlocal number_begun, generator_free
        while number_begun < len(rollouts):
            needed = max(0, number_begun - staleness)
            if needed >= len(delivered):
                return
            began = max(generator_free, delivered[needed])
            if began >= until:
                return
            generator_free = began + generation_seconds(rollouts[number_begun], engines)
            ends.append((began, generator_free))
            number_begun += 1

    policy_free = 0.0
    for number, lengths in enumerate(rollouts):
        begin_rollouts(until=float("inf") if number >= len(ends) else policy_free)
        began, ended = ends[number]
        trained = max(policy_free, ended) + training_seconds(lengths, policy_gpus)
        begin_rollouts(until=trained)
        # The transfer waits for the rollout that is being generated, and no other one begins before it.
        transferred = max(trained, generator_free) + TRANSFER_SECONDS
        generator_free = transferred
        delivered.append(transferred)
        policy_free = transferred
        steps.append(Step(began, ended, trained))
    return steps


def best_division(rollouts: list[list[int]], gpus: int, staleness: int) -> tuple[tuple[int, int], list[Step]]:
    """Return the numbers of engines and of GPUs of the policy with the shortest run, and its steps."""
    if staleness == 0:
        return (gpus, gpus), simulate(rollouts, gpus, gpus, staleness)
    eighth = max(1, gpus // 8)
    divisions = [(engines, gpus - engines) for engines in range(eighth, gpus, eighth)]
    runs = {division: simulate(rollouts, *division, staleness) for division in divisions}
    best = min(runs, key=lambda division: seconds_of_step(runs[division]))
    return best, runs[best]


def seconds_of_step(steps: list[Step]) -> float:
    """Return the time of a step over the middle half of the run, without the begin and the end of the stream."""
    first = len(steps) // 4
    last = 3 * len(steps) // 4
    return (steps[last].training_ended - steps[first].training_ended) / (last - first)


if __name__ == "__main__":
    main()
