"""Measure what grading costs generation: seconds for the same rollouts with a reward and without.

Two vLLM engines on the embedded task take turns; one of them puts every answer into a box and grades it. All responses
have the same length. Prints Markdown.

    openrlhf-cov tiny-task --output /tmp/tiny_task
    python benchmarks/grading_in_rollouts.py /tmp/tiny_task --batches 12
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import ray

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.workers import prepare_worker
from openrlhf_cov.config import EngineConfig, ModelConfig, RewardConfig

SAMPLES = 8
# Tokens of the longest prompt.
LONGEST_PROMPT = 16
REWARD = """
from openrlhf_cov.config import RewardConfig
from openrlhf_cov.rewards.reward_func import make_reward_func as ours

ROOT = ROOT_FLAG

def make_reward_func(config):
    grade = ours(config)

    def reward_func(queries, prompts, labels):
        answers = [query[len(prompt):].replace("<eos>", "").rpartition(";")[2][-6:] or "1"
                   for query, prompt in zip(queries, prompts)]
        box = "\\\\boxed{\\\\sqrt{%s}}" if ROOT else "\\\\boxed{%s}"
        boxes = [prompt + box % answer for prompt, answer in zip(prompts, answers)]
        return grade(boxes, prompts, ["\\\\sqrt{%s}+0" % label if ROOT else label for label in labels])

    return reward_func

reward_func = make_reward_func(RewardConfig())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("task", type=Path, help="folder of openrlhf-cov tiny-task")
    parser.add_argument("--batches", type=int, default=12, help="batches of each engine, the first not counted")
    parser.add_argument("--root", action="store_true", help="put every answer under a root: none is decided early")
    parser.add_argument("--tokens", type=int, default=48, help="length of every response; real ones are longer")
    parser.add_argument("--model", type=Path, help="another model than that of the task, which is a very small one")
    parser.add_argument("--prompts", type=int, default=32, help=f"of a batch, {SAMPLES} responses each")
    args = parser.parse_args()
    cpu_host.install()
    hook = f"{prepare_worker.__module__}.{prepare_worker.__name__}"
    runtime_env = {"worker_process_setup_hook": hook, "env_vars": cpu_host.environment()}
    ray.init(num_gpus=2, num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env=runtime_env)
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".py") as reward:
            reward.write(REWARD.replace("ROOT_FLAG", str(args.root)))
            reward.flush()
            engines = {"without": start_engine(args, None), "with": start_engine(args, reward.name)}
            seconds = take_turns(args, engines)
        sys.stdout.write(report(seconds))
    finally:
        ray.shutdown()


def model_of(args: argparse.Namespace) -> str:
    """Folder of the model."""
    return str(args.model or args.task / "model")


def start_engine(args: argparse.Namespace, reward: str | None):
    """One engine."""
    from openrlhf_cov.trainer.ray.engines import start_engines

    flags = SimpleNamespace(
        actor=SimpleNamespace(model_name_or_path=model_of(args)),
        data=SimpleNamespace(max_len=LONGEST_PROMPT + args.tokens, max_images_per_prompt=0),
        ds=SimpleNamespace(param_dtype="fp32"),
        reward=SimpleNamespace(remote_url=reward),
        rollout_seeded=True,
        train=SimpleNamespace(
            seed=1, full_determinism_enable=False, agent_func_path=None, async_enable=False, colocate_all=False
        ),
        vllm=SimpleNamespace(
            num_engines=1, tensor_parallel_size=1, enable_sleep=False, sync_backend="gloo", enforce_eager=True,
            enable_prefix_caching=True, gpu_memory_utilization=0.2,
        ),
        **vars(RewardConfig()), **vars(ModelConfig()), **vars(EngineConfig()),
    )  # fmt: skip
    (engine,) = start_engines(flags, None)
    return engine


def take_turns(args: argparse.Namespace, engines: dict) -> dict[str, list[float]]:
    """Seconds of every batch of every engine; both get the same prompts and seeds."""
    from transformers import AutoTokenizer
    from vllm import SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(model_of(args))
    rows = [json.loads(line) for line in (args.task / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for batch in range(args.batches + 1):
        for name, engine in sorted(engines.items(), reverse=bool(batch % 2)):
            started = time.perf_counter()
            groups = [
                engine.generate_responses.remote(
                    prompt=row["input"], label=row["label"],
                    sampling_params=SamplingParams(max_tokens=args.tokens, ignore_eos=True),
                    max_length=LONGEST_PROMPT + args.tokens, hf_tokenizer=tokenizer, num_samples=SAMPLES,
                    seeds=[batch * 1000 + place * SAMPLES + sample for sample in range(SAMPLES)],
                )
                for place, row in enumerate(rows[batch * args.prompts : (batch + 1) * args.prompts])
            ]  # fmt: skip
            responses = [response for group in ray.get(groups) for response in group]
            if batch:
                seconds[name].append(time.perf_counter() - started)
            if name == "with":
                assert all(response["extra_logs"]["reward/error_frac"] == 0.0 for response in responses)
                assert any(response["extra_logs"]["reward/no_answer_frac"] == 0.0 for response in responses)
    return seconds


def report(seconds: dict[str, list[float]]) -> str:
    """A Markdown table; the ratio is the median over the pairs."""
    ratios = [without / graded for without, graded in zip(seconds["without"], seconds["with"], strict=True)]
    lines = ["| rollouts | s per batch, median |", "|---|---:|"]
    lines += [f"| {name} grading | {statistics.median(times):.2f} |" for name, times in seconds.items()]
    lines += ["", f"throughput with grading / without, median of {len(ratios)} pairs: {statistics.median(ratios):.3f}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
