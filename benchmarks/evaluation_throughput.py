"""Compare tokens per second of the evaluation harness with those of ``vllm.LLM.generate`` alone.

The same prompts, seeds and engine settings; the two take turns in one process. The harness grades and writes every
response, through its Ray actor. Prints Markdown.

    openrlhf-cov fetch-smollm2 --output /tmp/smollm2
    python benchmarks/evaluation_throughput.py /tmp/smollm2 /data/eval/gsm8k.jsonl --problems 48 --rounds 5
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import ray

from openrlhf_cov.cluster import connection, cpu_host
from openrlhf_cov.config import RewardConfig
from openrlhf_cov.evaluation import benchmarks, runner
from openrlhf_cov.evaluation.plan import EvaluationPlan, Request, make_plan
from openrlhf_cov.trainer.ray import completions, engines
from openrlhf_cov.trainer.ray.engines import VLLM_DTYPES
from openrlhf_cov.trainer.rollout.generation import EngineGroup
from openrlhf_cov.utils.engine_limits import engine_limits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("benchmark", type=Path, help="a file of problems, as for --benchmarks FILE.jsonl")
    parser.add_argument("--problems", type=int, default=48)
    parser.add_argument("--template", default="chat", help="prompt template; responses to chat are longer")
    parser.add_argument("--max_tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each, the first not counted")
    parser.add_argument("--dtype", default="fp32" if cpu_host.is_cpu_host() else "bf16", choices=VLLM_DTYPES)
    parser.add_argument("--gpu_memory_utilization", type=float, default=0.4, help="of each of the two engines")
    args = parser.parse_args()
    cpu_host.install()
    plan = make_the_plan(args)
    longest = plan.longest_prompt + args.max_tokens
    alone = start_alone(args, longest)
    needs = engines.needs_of_engines(1, 1)
    connection.connect(needs)
    try:
        handles = engines.start_evaluation_engines(
            str(args.model),
            num_engines=1,
            tensor_parallel_size=1,
            max_model_len=longest,
            dtype=args.dtype,
            gpu_memory_utilization=args.gpu_memory_utilization,
            enforce_eager=True,
            trust_remote_code=False,
            seed=0,
        )
        rates: dict[str, list[float]] = {"harness": [], "alone": []}
        for turn in range(args.rounds + 1):
            # other seeds in every turn: neither engine may answer from its cache of the turn before
            requests = list(plan.requests(seed=turn, max_model_len=longest))
            takers = {"harness": lambda r: in_harness(plan, handles, r), "alone": lambda r: by_llm(alone, r)}
            for name in sorted(takers, reverse=bool(turn % 2)):
                started = time.perf_counter()
                tokens = takers[name](requests)
                rates[name].append(tokens / (time.perf_counter() - started))
        sys.stdout.write(report(rates, len(requests)))
    finally:
        ray.shutdown()


def make_the_plan(args: argparse.Namespace) -> EvaluationPlan:
    """All problems sampled once at temperature 1."""
    from transformers import AutoTokenizer

    benchmark = benchmarks.own_benchmark(args.benchmark)
    sampling = replace(benchmark.sampling, temperature=1.0, max_tokens=args.max_tokens)
    return make_plan(
        [replace(benchmark, sampling=sampling)],
        benchmarks.get_protocol("paper"),
        {},
        data_dir=None,
        limit=args.problems,
        template=args.template,
        tokenizer=AutoTokenizer.from_pretrained(args.model),
    )


def start_alone(args: argparse.Namespace, max_model_len: int):
    """vLLM's own offline engine."""
    from vllm import LLM

    return LLM(
        str(args.model),
        dtype=VLLM_DTYPES[args.dtype],
        max_model_len=max_model_len,
        enforce_eager=True,
        enable_prefix_caching=True,
        gpu_memory_utilization=args.gpu_memory_utilization,
    )


def in_harness(plan: EvaluationPlan, engines: list, requests: list[Request]) -> int:
    """Tokens that the harness generated, graded and wrote."""
    config = RewardConfig()
    limits = engine_limits(0, 0, on_gpus=not cpu_host.is_cpu_host())
    with tempfile.TemporaryDirectory() as folder:
        tokens: list[int] = []
        runner.run(
            Path(folder),
            requests,
            [],
            runner.Grader.of(plan, config),
            lambda missing: completions.generate(EngineGroup(engines), missing, limits.sequences),
            workers=config.reward_workers,
            on_response=lambda response: tokens.append(response.tokens),
        )
    return sum(tokens)


def by_llm(llm, requests: list[Request]) -> int:
    """Tokens that ``LLM.generate`` returned."""
    prompts = [{"prompt_token_ids": list(request.prompt_ids)} for request in requests]
    outputs = llm.generate(prompts, [completions.sampling_params(each) for each in requests], use_tqdm=False)
    return sum(len(output.outputs[0].token_ids) for output in outputs)


def report(rates: dict[str, list[float]], requests: int) -> str:
    """A table of medians and the ratio of each turn, the first turn left out."""
    harness, alone = (rates[name][1:] for name in ("harness", "alone"))
    ratios = sorted(one / other for one, other in zip(harness, alone, strict=True))
    return (
        f"| {requests} responses | tokens/s, median of {len(harness)} |\n|---|---|\n"
        f"| `vllm.LLM.generate` | {statistics.median(alone):.0f} |\n| harness | {statistics.median(harness):.0f} |\n\n"
        f"harness / alone, turn by turn: {', '.join(f'{ratio:.3f}' for ratio in ratios)}; "
        f"median {statistics.median(ratios):.3f}\n"
    )


if __name__ == "__main__":
    main()
