"""Dynamic sampling against upstream's filtering: seconds and tokens for a full batch of groups that pass a filter.

One vLLM engine generates for both, in turns, batch by batch, from a policy that does not train. Prints Markdown. With
--seeded: ours without and with --rollout_seeded, neither of which filters.

    python -m openrlhf_cov.cli.make_tiny_task --output /tmp/tiny_task
    python benchmarks/dynamic_sampling.py /tmp/tiny_task --batches 12 [--seeded]
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import ray

from openrlhf_cov.config import EngineConfig, ModelConfig, RewardConfig, SamplingConfig
from openrlhf_cov.trainer import cpu_host
from openrlhf_cov.trainer.ray.seams import prepare_worker

MAX_LEN = 64
GENERATION = {"max_len": MAX_LEN, "max_new_tokens": 40, "temperature": 1.0, "top_p": 1.0}
SAMPLES = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("task", type=Path, help="folder of make_tiny_task")
    parser.add_argument("--batches", type=int, default=12, help="batches of each generator, the first not counted")
    parser.add_argument("--range", type=float, nargs=2, default=(0.2, 0.7), help="open range of mean scores that pass")
    parser.add_argument("--seeded", action="store_true", help="what a seed for every sample costs")
    args = parser.parse_args()
    cpu_host.install()
    hook = f"{prepare_worker.__module__}.{prepare_worker.__name__}"
    runtime_env = {"worker_process_setup_hook": hook, "env_vars": cpu_host.environment(training_processes=1)}
    ray.init(num_gpus=1, num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env=runtime_env)
    try:
        settings = flags(args.range, filtering=not args.seeded)
        engines, tokenizer = start_engine(args.task, settings), load_tokenizer(args.task)
        names = ("ours", "seeded") if args.seeded else ("upstream", "ours")
        measures = {name: build(name, settings, args.task, tokenizer, engines) for name in names}
        results: dict[str, list[dict]] = {name: [] for name in names}
        for batch in range(args.batches + 1):
            for name, measure in measures.items():
                result = measure()
                if batch:
                    results[name].append(result)
        sys.stdout.write(report(results))
    finally:
        ray.shutdown()


def flags(score_range: tuple[float, float], filtering: bool) -> SimpleNamespace:
    """The flags that the two generators read; prompts and samples are those of the demo."""
    return SimpleNamespace(
        **vars(SamplingConfig()),
        data=SimpleNamespace(max_len=MAX_LEN),
        rollout=SimpleNamespace(
            batch_size=32,
            n_samples_per_prompt=SAMPLES,
            vllm_generate_batch_size=None,
            micro_batch_size=SAMPLES,
            max_new_tokens=GENERATION["max_new_tokens"],
            temperature=GENERATION["temperature"],
            top_p=GENERATION["top_p"],
        ),
        algo=SimpleNamespace(
            dynamic_filtering_enable=filtering,
            dynamic_filtering_range=tuple(score_range),
            advantage=SimpleNamespace(is_correction_level="off"),
            kl=SimpleNamespace(init_coef=0.0),
        ),
        train=SimpleNamespace(
            seed=1, num_episodes=1, batch_size=SAMPLES, dynamic_batch_enable=False, async_enable=False
        ),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=1),
        critic=SimpleNamespace(model_name_or_path=None),
        vllm=SimpleNamespace(enable_sleep=False, sync_backend="gloo"),
        ds=SimpleNamespace(param_dtype="fp32", zero_stage=2, ring_attn_size=1, tensor_parallel_size=1),
        reward=SimpleNamespace(remote_url=["reward_func.py"]),
        **vars(RewardConfig()),
        **vars(ModelConfig()),
        **vars(EngineConfig()),
    )


def start_engine(task: Path, settings: SimpleNamespace) -> list:
    """One engine on the model of the task, with the task's reward."""
    import openrlhf.trainer.ray.vllm_engine as vllm_engine

    from openrlhf_cov.tiny_task import reward_func
    from openrlhf_cov.trainer.ray.rollout_actor import CovRolloutActor
    from openrlhf_cov.trainer.ray.seams import _with_engine_settings, engine_settings

    actor = ray.remote(CovRolloutActor)
    vllm_engine.RolloutRayActor = _with_engine_settings(actor, engine_settings(settings))
    return vllm_engine.create_vllm_engines(
        1, 1, str(task / "model"), 1, False, True, True, 64, gpu_memory_utilization=0.2,
        remote_rm_url=reward_func.__file__,
    )  # fmt: skip


def load_tokenizer(task: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(task / "model")


def build(name: str, settings: SimpleNamespace, task: Path, tokenizer, engines: list) -> Callable[[], dict]:
    """Return the function that generates and measures one batch of one of the generators."""
    rows = [json.loads(line) for line in (task / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    settings = SimpleNamespace(**vars(settings) | {"rollout_seeded": name == "seeded"})
    if name == "upstream":
        return partial(measure_upstream, upstream_generator(settings, rows, tokenizer, engines))
    return partial(measure, sampler_of(settings, rows, tokenizer, engines))


def sampler_of(settings: SimpleNamespace, rows: list[dict], tokenizer, engines: list):
    """Return our sampler over the training prompts."""
    from openrlhf_cov.trainer.generation import EngineGroup
    from openrlhf_cov.trainer.prompts import Prompt
    from openrlhf_cov.trainer.requests import RolloutRequests
    from openrlhf_cov.trainer.sampler import Sampler
    from openrlhf_cov.trainer.shared_argument import share

    class CountedRequests(RolloutRequests):
        """Counts the tokens of all responses, also of those in groups that are left out."""

        tokens = 0

        def groups(self, *args, **kwargs):
            for place, samples in super().groups(*args, **kwargs):
                self.tokens += sum(sample.response_length for sample in samples)
                yield place, samples

    prompts = [Prompt(place, row["input"], row["label"]) for place, row in enumerate(rows)]
    return Sampler(settings, prompts, EngineGroup(engines), CountedRequests(settings, share(tokenizer)))


def upstream_generator(settings: SimpleNamespace, rows: list[dict], tokenizer, engines: list):
    """Return upstream's generator over the same prompts in the same order, which is that of our sampler."""
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    from openrlhf_cov.trainer.prompts import PromptOrder

    places = PromptOrder(len(rows), settings.train.seed).permutation(0)
    loader = [(["default"], [rows[place]["input"]], [rows[place]["label"]], [None]) for place in places]
    return SamplesGenerator(SimpleNamespace(args=settings), loader, None, tokenizer, engines)


def measure(sampler) -> dict[str, float]:
    """Return seconds, prompts and tokens of one batch of our sampler."""
    drawn = sampler.order.drawn
    tokens = sampler.requests.tokens
    started = time.perf_counter()
    rollout = sampler.next_batch(version=sampler.step)
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "groups": len(rollout.samples) // SAMPLES,
        "prompts": sampler.order.drawn - drawn,
        "tokens": sampler.requests.tokens - tokens,
    }


def measure_upstream(generator) -> dict[str, float]:
    """Return seconds, prompts and tokens of one batch of upstream's generator."""
    generated: list[int] = []
    process = generator._process_response_into_experience

    def counted(response, **kwargs):
        generated.append(sum(end - start for start, end in response["action_ranges"]))
        return process(response, **kwargs)

    generator._process_response_into_experience = counted
    started = time.perf_counter()
    samples, _, prompts, _ = generator.generate_samples(**GENERATION)
    seconds = time.perf_counter() - started
    generator._process_response_into_experience = process
    return {"seconds": seconds, "groups": len(samples) // SAMPLES, "prompts": prompts, "tokens": sum(generated)}


def report(results: dict[str, list[dict]]) -> str:
    """A Markdown table and the ratio of the medians."""
    lines = [
        "| generator | s per batch, median | prompts per kept group | tokens per kept group |",
        "|---|---:|---:|---:|",
    ]
    medians = {}
    for name, batches in results.items():
        groups = sum(batch["groups"] for batch in batches)
        medians[name] = statistics.median(batch["seconds"] for batch in batches)
        prompts, tokens = (sum(batch[key] for batch in batches) / groups for key in ("prompts", "tokens"))
        lines.append(f"| {name} | {medians[name]:.2f} | {prompts:.2f} | {tokens:.0f} |")
    first, second = results
    ratios = [b["seconds"] / a["seconds"] for a, b in zip(results[first], results[second], strict=True)]
    lines += [
        "",
        f"{second} / {first}, median over {len(ratios)} pairs: {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
