"""Dynamic sampling against upstream's filtering: seconds and tokens for a full batch of groups that pass a filter.

One vLLM engine generates for both, in turns, batch by batch, from a policy that does not train. Prints Markdown. With
--seeded: ours without and with --rollout_seeded, neither of which filters.

    openrlhf-cov tiny-task --output /tmp/tiny_task
    python benchmarks/dynamic_sampling.py /tmp/tiny_task --batches 12 [--seeded]
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray

from openrlhf_cov.cli import train_ppo_ray
from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.workers import prepare_worker
from openrlhf_cov.experiments.tiny_task import tiny_reward_func

FLAGS = {"max_len": 64, "max_new_tokens": 40, "temperature": 1.0, "top_p": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("task", type=Path, help="folder of openrlhf-cov tiny-task")
    parser.add_argument("--batches", type=int, default=12, help="batches of each generator, the first not counted")
    parser.add_argument("--range", type=float, nargs=2, default=(0.2, 0.7), help="open range of mean scores that pass")
    parser.add_argument("--seeded", action="store_true", help="what a seed for every sample costs")
    args = parser.parse_args()
    cpu_host.install()
    hook = f"{prepare_worker.__module__}.{prepare_worker.__name__}"
    runtime_env = {"worker_process_setup_hook": hook, "env_vars": cpu_host.environment()}
    ray.init(num_gpus=1, num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env=runtime_env)
    try:
        from openrlhf_cov.trainer.ray.engines import start_engines

        names = ("ours", "seeded") if args.seeded else ("upstream", "ours")
        settings = {name: flags(args, seeded=name == "seeded") for name in names}
        engines = start_engines(settings["ours"], None)
        makers = {"upstream": Upstreams, "ours": Ours, "seeded": Ours}
        generators = {name: makers[name](settings[name], args.task, engines) for name in names}
        results: dict[str, list[dict]] = {name: [] for name in generators}
        for batch in range(args.batches + 1):
            for name, generator in generators.items():
                result = generator.measure()
                if batch:
                    results[name].append(result)
        sys.stdout.write(report(results))
    finally:
        ray.shutdown()


def flags(args: argparse.Namespace, seeded: bool) -> SimpleNamespace:
    """Return the parsed flags of the two generators; prompts and samples are those of the demo."""
    words = f"""
        --actor.model_name_or_path {args.task}/model --data.prompt_dataset {args.task}/train.jsonl
        --data.input_key input --data.label_key label --reward.remote_url {tiny_reward_func.__file__}
        --actor.num_gpus_per_node 1 --vllm.num_engines 1 --vllm.gpu_memory_utilization 0.2
        --algo.advantage.estimator group_norm --algo.kl.init_coef 0
        --rollout.batch_size 32 --rollout.n_samples_per_prompt 8 --train.batch_size 64 --train.micro_batch_size 32
        --data.max_len {FLAGS["max_len"]} --rollout.max_new_tokens {FLAGS["max_new_tokens"]} --train.seed 1
    """.split()
    if seeded:
        words.append("--rollout_seeded")
    if not args.seeded:
        words += ["--algo.dynamic_filtering_enable", "--algo.dynamic_filtering_range", *map(str, args.range)]
    sys.argv = ["train_ppo_ray", *words]
    return train_ppo_ray.parse_args()


def load_tokenizer(task: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(task / "model")


def load_rows(task: Path) -> list[dict]:
    """Return the training prompts."""
    return [json.loads(line) for line in (task / "train.jsonl").read_text(encoding="utf-8").splitlines()]


class Upstreams:
    """Upstream's generator."""

    def __init__(self, settings: SimpleNamespace, task: Path, engines: list) -> None:
        from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

        loader = [(["default"], [row["input"]], [row["label"]], [None]) for row in load_rows(task)]
        self.generator = SamplesGenerator(SimpleNamespace(args=settings), loader, None, load_tokenizer(task), engines)
        self.tokens = 0
        self.process = self.generator._process_response_into_experience
        self.generator._process_response_into_experience = self._counted

    def _counted(self, response: dict, **kwargs: Any) -> Any:
        self.tokens += sum(end - start for start, end in response["action_ranges"])
        return self.process(response, **kwargs)

    def measure(self) -> dict[str, float]:
        """Return seconds, groups, prompts and tokens of one batch."""
        self.tokens = 0
        started = time.perf_counter()
        samples, _, prompts, _ = self.generator.generate_samples(**FLAGS)
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "groups": len(samples) // 8, "prompts": prompts, "tokens": self.tokens}


class Ours:
    """Our sampler, over the same prompts in the order of the data."""

    def __init__(self, settings: SimpleNamespace, task: Path, engines: list) -> None:
        from openrlhf_cov.trainer.rollout.generation import EngineGroup
        from openrlhf_cov.trainer.rollout.prompts import Prompt
        from openrlhf_cov.trainer.rollout.requests import RolloutRequests
        from openrlhf_cov.trainer.rollout.sampler import Sampler
        from openrlhf_cov.trainer.shared_argument import share

        prompts = [Prompt(number, row["input"], row["label"]) for number, row in enumerate(load_rows(task))]
        requests = RolloutRequests(settings, share(load_tokenizer(task)))
        self.sampler = Sampler(settings, prompts, EngineGroup(engines), requests)
        self.tokens = 0
        self.groups = requests.groups
        requests.groups = self._counted

    def _counted(self, *args: Any, **kwargs: Any) -> Any:
        for place, samples in self.groups(*args, **kwargs):
            self.tokens += sum(sample.response_length for sample in samples)
            yield place, samples

    def measure(self) -> dict[str, float]:
        """Return seconds, groups, prompts and tokens of one batch."""
        self.tokens = 0
        drawn = self.sampler.order.drawn
        started = time.perf_counter()
        rollout = self.sampler.next_batch(version=0)
        seconds = time.perf_counter() - started
        return {
            "seconds": seconds,
            "groups": len(rollout.samples) // 8,
            "prompts": self.sampler.order.drawn - drawn,
            "tokens": self.tokens,
            **rollout.metrics,
        }


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
