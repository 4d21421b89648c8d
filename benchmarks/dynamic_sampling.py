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
from pathlib import Path
from types import SimpleNamespace

import ray

from openrlhf_cov.config import EngineConfig, ModelConfig, RewardConfig, SamplingConfig
from openrlhf_cov.trainer import cpu_host
from openrlhf_cov.trainer.ray.workers import prepare_worker

FLAGS = {"max_len": 64, "max_new_tokens": 40, "temperature": 1.0, "top_p": 1.0}


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
        generators = {
            name: build(name, settings, args.task, tokenizer, engines)
            for name in (("ours", "seeded") if args.seeded else ("upstream", "ours"))
        }
        results: dict[str, list[dict]] = {name: [] for name in generators}
        for batch in range(args.batches + 1):
            for name, generator in generators.items():
                result = measure(generator)
                if batch:
                    results[name].append(result)
        sys.stdout.write(report(results))
    finally:
        ray.shutdown()


def flags(score_range: tuple[float, float], filtering: bool) -> SimpleNamespace:
    """The flags that the two generators read; prompts and samples are those of the demo."""
    return SimpleNamespace(
        **vars(SamplingConfig()),
        rollout=SimpleNamespace(batch_size=32, n_samples_per_prompt=8, vllm_generate_batch_size=None),
        algo=SimpleNamespace(
            dynamic_filtering_enable=filtering,
            dynamic_filtering_range=tuple(score_range),
            advantage=SimpleNamespace(is_correction_level="off"),
        ),
        train=SimpleNamespace(
            seed=1, num_episodes=1, full_determinism_enable=False, agent_func_path=None, async_enable=False,
            colocate_all=False,
        ),
        data=SimpleNamespace(max_len=FLAGS["max_len"], max_images_per_prompt=0),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=1),
        vllm=SimpleNamespace(
            num_engines=1, tensor_parallel_size=1, enable_sleep=False, sync_backend="gloo", enforce_eager=True,
            enable_prefix_caching=True, gpu_memory_utilization=0.2,
        ),
        ds=SimpleNamespace(param_dtype="fp32"),
        **vars(RewardConfig()),
        **vars(ModelConfig()),
        **vars(EngineConfig()),
    )  # fmt: skip


def start_engine(task: Path, settings: SimpleNamespace) -> list:
    """One engine on the model of the task, with the task's reward."""
    from openrlhf_cov.tiny_task import reward_func
    from openrlhf_cov.trainer.ray.engines import start_engines

    settings.actor.model_name_or_path = str(task / "model")
    settings.reward = SimpleNamespace(remote_url=reward_func.__file__)
    return start_engines(settings, None)


def load_tokenizer(task: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(task / "model")


def build(name: str, settings: SimpleNamespace, task: Path, tokenizer, engines: list):
    """One of the two generators over the training prompts, in the same order."""
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    from openrlhf_cov.trainer.samples_generator import CovSamplesGenerator

    rows = [json.loads(line) for line in (task / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    loader = [(["default"], [row["input"]], [row["label"]], [None]) for row in rows]
    generator_class = SamplesGenerator if name == "upstream" else CovSamplesGenerator
    settings = SimpleNamespace(**vars(settings) | {"rollout_seeded": name == "seeded"})
    return generator_class(SimpleNamespace(args=settings), loader, None, tokenizer, engines)


def measure(generator) -> dict[str, float]:
    """Seconds, prompts and tokens of one batch."""
    generated: list[int] = []
    process = generator._process_response_into_experience

    def counted(response, **kwargs):
        generated.append(sum(end - start for start, end in response["action_ranges"]))
        return process(response, **kwargs)

    generator._process_response_into_experience = counted
    started = time.perf_counter()
    samples, _, prompts, _ = generator.generate_samples(**FLAGS)
    seconds = time.perf_counter() - started
    generator._process_response_into_experience = process
    groups = len(samples) // 8
    metrics = getattr(samples, "metrics", {})
    return {"seconds": seconds, "groups": groups, "prompts": prompts, "tokens": sum(generated), **metrics}


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
