"""The flags of ``openrlhf-cov evaluate``, which studies check as well."""

import argparse
from dataclasses import fields
from pathlib import Path

from openrlhf_cov.cluster.packages import ALLOW_OPENRLHF, OPENRLHF
from openrlhf_cov.config import EngineConfig, ModelConfig, RewardConfig
from openrlhf_cov.data.templates import TEMPLATES
from openrlhf_cov.evaluation.response_records import GRADED_BY
from openrlhf_cov.utils.config_flags import add_config_arguments
from openrlhf_cov.utils.terminal import Parser

ABOUT = "Score a model on AIME, AMC, MATH-500 and other benchmarks, with standard errors and intervals."

# Flags that replace a field of every benchmark's ``Sampling``.
SAMPLING_FLAGS = ("samples", "temperature", "top_p", "max_tokens")

# Settings of the rewards that grading takes: those of training that decide whether a response is correct.
GRADING_FLAGS = (
    *("reward_format", "reward_grader", "reward_timeout", "reward_workers", "thinking_markers", "thinking_opened"),
    *(entry.name for entry in fields(RewardConfig) if entry.name.startswith("code_") and entry.name != "code_reward"),
)


def build_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(prog="openrlhf-cov evaluate", about=ABOUT)
    parser.add_argument("--model", help="folder of a Hugging Face model, or its name on the hub or at --base_url")
    parser.add_argument(
        "--benchmarks", help="names from --list, groups (paper, all) or *.jsonl files, separated by commas"
    )
    parser.add_argument(
        "--output", type=Path, help="folder of the results; the same command resumes an interrupted evaluation"
    )
    parser.add_argument("--list", action="store_true", help="print benchmarks, groups and protocols, and stop")
    parser.add_argument(
        "--regrade", action="store_true", help="grade the responses in --output again, without a model"
    )

    parser.add_argument(
        "--write_data",
        type=Path,
        metavar="DIR",
        help="write the problems of --benchmarks as files for --data_dir, and stop",
    )

    asked = parser.add_argument_group("prompts and sampling")
    asked.add_argument(
        "--protocol", default="paper", help="how benchmarks are sampled: paper or quick (default: paper)"
    )
    asked.add_argument("--template", help=f"prompt template: {', '.join(TEMPLATES)} (default: the protocol's)")
    asked.add_argument(
        "--chat_template_kwargs",
        default="",
        metavar="JSON",
        help='arguments for --template chat as a JSON object, such as {"enable_thinking": false}',
    )
    asked.add_argument("--data_dir", type=Path, help="folder with NAME.jsonl for each benchmark (default: the hub)")
    asked.add_argument("--limit", type=int, help="evaluate the first N problems of each benchmark only")
    asked.add_argument("--samples", type=int, help="responses per problem (default: the protocol's)")
    asked.add_argument("--temperature", type=float, help="sampling temperature; 0: greedy (default: the protocol's)")
    asked.add_argument(
        "--top_p", type=float, help="nucleus sampling: share of the probability mass (default: the protocol's)"
    )
    asked.add_argument("--max_tokens", type=int, help="limit of a response in tokens (default: the protocol's)")
    asked.add_argument(
        "--seed", type=int, default=0, help="seed that the seeds of all samples derive from (default: 0)"
    )
    asked.add_argument("--log_probs", action="store_true", help="record the mean surprisal of every response")

    add_engine_arguments(parser)
    add_config_arguments(parser, "grading", RewardConfig, only=GRADING_FLAGS)
    parser.set_defaults(**dict.fromkeys(GRADED_BY))  # with --regrade they are those of the run
    # Without the flag, both graders grade where both can.
    (grader,) = (action for action in parser._actions if action.dest == "reward_grader")
    grader.default = None
    grader.help = (
        "grader of the rule math (default: both, if Math-Verify is installed)\n"
        "strict: the grader of this package alone\n"
        "published: both graders are required; published accepts what strict or Math-Verify accepts"
    )
    return parser


# Flags of engines that are started here; not with --base_url.
LOCAL_FLAGS = (
    *("num_engines", "tensor_parallel_size", "max_model_len", "gpu_memory_utilization", "enforce_eager", "dtype"),
    *("allow_openrlhf_version", "trust_remote_code", "max_num_seqs", "max_num_batched_tokens"),
)

# Flags of a server; not without --base_url.
SERVER_FLAGS = ("api_key_env", "concurrency", "max_retries")


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of engines that the command starts, and of a server."""
    engines = parser.add_argument_group("vLLM engines that the command starts")
    engines.add_argument("--num_engines", type=int, default=1, help="number of vLLM engines (default: 1)")
    engines.add_argument("--tensor_parallel_size", type=int, default=1, help="GPUs per engine (default: 1)")
    engines.add_argument(
        "--max_model_len", type=int, help="limit of prompt and response together, in tokens (default: what is needed)"
    )
    engines.add_argument(
        "--gpu_memory_utilization",
        type=float,
        default=0.9,
        help="share of a GPU's memory for an engine (default: 0.9)",
    )
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        (limit,) = (each for each in fields(EngineConfig) if each.name == f"vllm_{name}")
        engines.add_argument(f"--{name}", type=int, default=limit.default, help=limit.metadata["help"])
    engines.add_argument("--enforce_eager", action="store_true", help="do not use CUDA graphs")
    engines.add_argument(
        "--dtype",
        choices=("bf16", "fp16", "fp32"),
        help="type of the weights (default: bf16, or fp32 on hosts without an accelerator)",
    )
    engines.add_argument(ALLOW_OPENRLHF, action="store_true", help=f"accept another openrlhf than {OPENRLHF}")
    for setting in fields(ModelConfig):
        engines.add_argument(f"--{setting.name}", action="store_true", help=setting.metadata["help"])
    server = parser.add_argument_group("a running server instead of engines")
    server.add_argument("--base_url", help="URL of an OpenAI-compatible server, http://HOST:PORT/v1; no engine starts")
    server.add_argument(
        "--api_key_env",
        default="OPENAI_API_KEY",
        help="environment variable with the API key, if the server needs one (default: OPENAI_API_KEY)",
    )
    server.add_argument("--concurrency", type=int, default=64, help="number of requests at a time (default: 64)")
    server.add_argument("--max_retries", type=int, default=5, help="retries of a failed request (default: 5)")
