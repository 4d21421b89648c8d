"""Every setting beside those of the policy loss (``models/cov_config.py``), with its default and its valid range."""

import json
import math
import reprlib
from dataclasses import dataclass
from typing import Any

from openrlhf_cov.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class RewardConfig(Settings):
    """Settings of the rule-based rewards. Raises ValueError, naming the flag, when a value is out of range."""

    thinking_markers: tuple[str, str] = setting(
        ("<think>", "</think>"),
        "the markers that open and close a model's thinking; answers are read after the last closing marker "
        "only, and thinking that is not closed has no answer",
    )
    thinking_opened: bool = setting(
        False,
        "every response begins inside the thinking, because the prompt ends with the opening marker; needed only "
        "if the grader cannot see the prompt: with a server that applies its own chat template, or a file "
        "without prompts",
    )

    reward_format: str = setting(
        "boxed",
        "form of the answer in a response\n"
        "boxed: the last \\boxed{}\n"
        "answer_tag: inside <answer>…</answer>\n"
        "answer_line: after 'Answer:' or 'the answer is'\n"
        "gsm8k: after ####\n"
        "any: the first of these forms that occurs",
        choices=("boxed", "answer_tag", "answer_line", "gsm8k", "any"),
    )
    reward_source: str = setting(
        "math",
        "rule that grades a response\n"
        "math: mathematical equality\n"
        "gsm8k: equality of plain numbers\n"
        "choice: a letter\n"
        "code: a program, by its tests\n"
        "tiny_addition: the embedded addition task\n"
        "row: the rule that the field source of a row names, math if it names none",
        choices=("math", "gsm8k", "choice", "code", "tiny_addition", "row"),
    )
    reward_grader: str = setting(
        "strict",
        "grader of the rule math\n"
        "strict: the grader of this package\n"
        "published: correct if strict or Math-Verify accepts the answer, to compare with published scores",
        choices=("strict", "published"),
    )
    reward_incorrect: float = setting(0.0, "reward of an incorrect response (DAPO: -1); a correct one gets 1")
    reward_format_bonus: float = setting(0.0, "added to the reward of a response that has an answer in the format")
    reward_keep_truncated: bool = setting(
        False, "grade truncated responses like all others; otherwise they are incorrect"
    )
    reward_timeout: float = setting(3.0, "seconds (wall clock) after which the grading of one answer stops")
    reward_workers: int = setting(2, "grading processes per vLLM engine")
    reward_skip_bad_labels: bool = setting(False, "drop rows whose label cannot be graded instead of stopping")
    reward_max_error_frac: float = setting(0.05, "share of a step's rewards that may fail before the run stops")
    code_sandbox: str = setting(
        "bubblewrap",
        "where programs run: bubblewrap (on this machine), or url:http://HOST:PORT (a SandboxFusion service)",
    )
    code_extract: str = setting(
        "fence",
        "where a response has its program\nfence: in the last closed code block\nwhole: the whole response",
        choices=("fence", "whole"),
    )
    code_reward: str = setting(
        "all",
        "reward of a program that fails a test\n"
        "all: that of an incorrect response\n"
        "share: between that and 1, by the share of passed tests",
        choices=("all", "share"),
    )
    code_timeout: float = setting(
        6.0, "seconds of CPU time for one test; the limit of wall-clock time is twice that plus one second"
    )
    code_budget: float = setting(
        60.0, "seconds (wall clock) for all tests of a response, without the time spent waiting for a busy machine"
    )
    code_memory_mb: int = setting(1024, "limit of a program's address space, in MiB")
    code_output_mb: int = setting(4, "limit of a test's output, in MiB")
    code_judge: str = setting(
        "label",
        "how outputs are compared, and which modules are imported for the program (docs/code.md)\n"
        "label: by the published judge of the label's data set\n"
        "exact: equal lines\n"
        "plain: equal words and numbers\n"
        "livecodebench, apps, prime: by that judge for all labels",
        choices=("label", "exact", "plain", "livecodebench", "apps", "prime"),
    )
    code_float_tolerance: float = setting(
        0.0,
        "tolerance of numbers in outputs, absolute below 1 and relative above; a row's own tolerance takes "
        "precedence; 0: the judge's",
    )

    def check(self) -> None:
        """Check the values, as ``Settings`` describes it.

        Raises:
            ValueError: The markers of the thinking are empty or equal, the sandbox is neither ``bubblewrap`` nor a
                URL, or a number is out of range.
        """
        object.__setattr__(self, "thinking_markers", tuple(self.thinking_markers))  # a parsed flag is a list
        opening, closing = (marker.strip().lower() for marker in self.thinking_markers)
        if not opening or not closing or opening == closing:
            raise ValueError(
                f"--thinking_markers {' '.join(map(repr, self.thinking_markers))}: the two markers must be different "
                "texts that are not empty; give the opening one first, such as '<think>' '</think>'"
            )
        if self.code_sandbox != "bubblewrap" and not self.code_sandbox.startswith(("url:http://", "url:https://")):
            raise ValueError(f"--code_sandbox {self.code_sandbox}: must be bubblewrap or url:http://HOST:PORT")
        for name in ("code_timeout", "code_budget"):
            self.require(name, lambda seconds: 0.0 < seconds <= 3600.0, "must be a number of seconds in (0, 3600]")
        self.require("code_memory_mb", lambda mib: 128 <= mib <= 1 << 20, "must be at least 128, what Python needs")
        self.require("code_output_mb", lambda mib: 1 <= mib <= 1024, "must lie between 1 and 1024")
        self.require("code_float_tolerance", lambda part: 0.0 <= part < 1.0, "must be a number in [0, 1)")
        self.require(
            "reward_timeout", lambda seconds: 0.0 < seconds <= 86400.0, "must be a number of seconds in (0, 86400]"
        )
        self.require("reward_workers", lambda count: 1 <= count <= 1024, "must lie between 1 and 1024")
        self.require("reward_max_error_frac", lambda share: 0.0 <= share <= 1.0, "must be a fraction in [0, 1]")
        for name in ("reward_incorrect", "reward_format_bonus"):
            self.require(name, math.isfinite, "must be a finite number")
        self.require(
            "reward_incorrect", lambda reward: reward < 1.0, "must lie below 1, the reward of a correct response"
        )


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Settings):
    """Settings of rollouts and dynamic sampling. Raises ValueError, naming the flag, when a value is out of range."""

    sampling_oversample_max: float = setting(
        2.0, "most groups that a round of dynamic sampling generates for each missing group"
    )
    sampling_max_staleness: int = setting(
        1, "global steps that a kept group beyond the batch may wait before it is dropped"
    )
    sampling_max_rounds: int = setting(10, "most rounds of dynamic sampling for one batch")
    sampling_on_exhausted: str = setting(
        "fallback",
        "what to do after the last round if the batch is not full\n"
        "fallback: train on the groups that were kept\n"
        "stop: end the run",
        choices=("fallback", "stop"),
    )
    rollout_limit: int = setting(0, "end the run after this many rollouts; 0: at the end of the data")
    rollout_seeded: bool = setting(
        False,
        "seed every sample by run, prompt and number, so that rollouts do not depend on the engine that "
        "generates them",
    )
    rollout_dump_dir: str = setting(
        "", "folder for the samples of every step, one file per step (docs/replay.md)", flag="rollout.dump_dir"
    )
    rollout_replay_dir: str = setting(
        "",
        "train on the samples that --rollout.dump_dir wrote instead of generating; no vLLM engine starts, except "
        "for --eval.dataset",
        flag="rollout.replay_dir",
    )

    def check(self) -> None:
        self.require("sampling_oversample_max", lambda factor: 1.0 <= factor < math.inf, "must be at least 1")
        self.require("sampling_max_staleness", lambda steps: steps >= 0, "must be at least 0")
        self.require("rollout_limit", lambda rollouts: rollouts >= 0, "must be at least 0")
        self.require("sampling_max_rounds", lambda rounds: rounds >= 1, "must be at least 1")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Settings):
    """Settings of ``--eval.dataset bench:NAMES``. Raises ValueError, naming the flag, when a value is out of range."""

    eval_protocol: str = setting(
        "paper",
        "how benchmarks are sampled and prompted; --eval.n_samples_per_prompt and --eval.temperature replace its "
        "values\n"
        "paper: 32 samples on AIME and AMC, greedy on the others\n"
        "quick: 4 samples (docs/evaluation.md)",
        choices=("paper", "quick"),
        flag="eval.protocol",
    )
    eval_template: str = setting(
        "",
        "prompt template of the benchmarks: qwen-boxed, qwen-code, chat, plain, plain-code or none; empty: the "
        "protocol's",
        flag="eval.template",
    )
    eval_data_dir: str = setting("", "folder with NAME.jsonl of every benchmark; empty: the hub", flag="eval.data_dir")
    eval_max_tokens: int = setting(0, "limit of a response in tokens; 0: the protocol's", flag="eval.max_tokens")
    eval_limit: int = setting(0, "evaluate only the first N problems of each benchmark; 0: all", flag="eval.limit")
    eval_at_start: bool = setting(
        False,
        "also evaluate before the first step, as step 0; works with any --eval.dataset",
        flag="eval.at_start",
    )

    def check(self) -> None:
        self.require("eval_max_tokens", lambda tokens: tokens >= 0, "must be at least 0")
        self.require("eval_limit", lambda problems: problems >= 0, "must be at least 0")


# Arguments of ``apply_chat_template`` that decide what is written and in which form. They are set by this package.
RESERVED_ARGUMENTS = (
    *("conversation", "messages", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message"),
    *("padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
    "tokenizer_kwargs",
)


def template_arguments(text: str, flag: str = "--data.chat_template_kwargs") -> dict[str, Any]:
    """Return the arguments for a chat template that a flag gives as a JSON object.

    Args:
        text: The value of the flag; empty for no arguments.
        flag: The flag, for messages.

    Raises:
        ValueError: The text is no JSON object, or names an argument that this package sets.
    """
    if not text:
        return {}
    try:
        arguments = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise ValueError(
            f"{flag} {reprlib.repr(text)}: it is not a JSON object; write '{{\"enable_thinking\": false}}'"
        )
    reserved = [name for name in arguments if name in RESERVED_ARGUMENTS]
    if reserved:
        raise ValueError(f"{flag}: {', '.join(reserved)} cannot be changed; give arguments of the template alone")
    return arguments


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


@dataclass(frozen=True, kw_only=True)
class PromptConfig(Settings):
    """Settings of prompts. Raises ValueError, naming the flag, when a value is out of range."""

    chat_template_kwargs: str = setting(
        "",
        'arguments for the chat template as a JSON object, such as {"enable_thinking": false}; for prompts with '
        "--data.apply_chat_template and benchmarks with --eval.template chat",
        flag="data.chat_template_kwargs",
    )

    def check(self) -> None:
        template_arguments(self.chat_template_kwargs)


@dataclass(frozen=True, kw_only=True)
class RunConfig(Settings):
    """Settings of a run as a whole. Raises ValueError, naming the flag, when a value is out of range."""

    on_signal: str = setting(
        "checkpoint",
        "what to do on SIGTERM or Ctrl-C; the run ends after the current step\n"
        "checkpoint: write a checkpoint to --ckpt.path before the end\n"
        "stop: write none",
        choices=("checkpoint", "stop"),
        flag="ckpt.on_signal",
    )
    on_nan: str = setting(
        "stop",
        "what to do with an update of the policy or critic whose gradient is NaN or infinite; it is skipped on "
        "all ranks\n"
        "skip: always continue\n"
        "stop: end the run after 3 such updates in a row",
        choices=("skip", "stop"),
        flag="train.on_nan",
    )
    train_shuffle: str = setting(
        "samples",
        "what is shuffled over the updates of a rollout\n"
        "samples: single samples, as OpenRLHF does\n"
        "groups: prompts with all their responses, which takes less time with static batches on a CPU host",
        choices=("samples", "groups"),
        flag="train.shuffle",
    )
    check_weight_update: str = setting(
        "first",
        "check that new weights reach every vLLM engine, by log-probs of a few tokens; the run ends if an engine "
        "kept old weights\n"
        "off: never\n"
        "first: until it is proved once\n"
        "always: in every step",
        choices=("off", "first", "always"),
        flag="train.check_weight_update",
    )
    allow_changed: str = setting(
        "",
        "settings, separated by commas, that may differ from those of the checkpoint of --ckpt.load_enable; a "
        "refused resume prints their names. data: begin with the first prompt of the new data",
        flag="ckpt.allow_changed",
    )
    log_to: str = setting(
        "",
        "trackers that also get every line of metrics.jsonl and eval.jsonl, separated by commas: tensorboard, "
        "wandb, mlflow, trackio, swanlab",
    )
    placement_timeout: float = setting(
        0.0,
        "seconds to wait for free resources in Ray; 0: 20, or 1800 with an autoscaler",
        flag="ray.placement_timeout",
    )
    allow_openrlhf_version: bool = setting(False, "accept another openrlhf than this package was made for")

    def check(self) -> None:
        self.require(
            "placement_timeout", lambda seconds: 0.0 <= seconds < math.inf, "must be a number of seconds of at least 0"
        )


@dataclass(frozen=True, kw_only=True)
class EngineConfig(Settings):
    """Settings of the vLLM engines. Raises ValueError, naming the flag, when a value is out of range."""

    vllm_max_num_seqs: int = setting(
        0,
        "sequences that an engine generates at once; 0: 1,024 on GPUs, vLLM's own default on CPU hosts",
        flag="vllm.max_num_seqs",
    )
    vllm_max_num_batched_tokens: int = setting(
        0,
        "tokens that an engine computes in one step; 0: 8,192 on GPUs, vLLM's own default on CPU hosts",
        flag="vllm.max_num_batched_tokens",
    )
    vllm_no_progress_timeout: float = setting(
        3600.0,
        "seconds without a result from the engines, or for one transfer of weights, after which busy engines are "
        "ended and count as dead; 0: no limit",
        flag="vllm.no_progress_timeout",
    )

    def check(self) -> None:
        """Check the values, as ``Settings`` describes it.

        Raises:
            ValueError: A number is out of range, or an engine computes fewer tokens in a step than it has sequences.
        """
        for name in ("vllm_max_num_seqs", "vllm_max_num_batched_tokens"):
            self.require(name, lambda count: 0 <= count <= 1 << 20, "must lie between 0 and 1,048,576")
        self.require(
            "vllm_no_progress_timeout",
            lambda seconds: 0.0 <= seconds < math.inf,
            "must be a finite number of at least 0",
        )
        seqs = self.vllm_max_num_seqs
        tokens = self.vllm_max_num_batched_tokens
        if seqs and tokens and tokens < seqs:
            raise ValueError(
                f"--vllm.max_num_batched_tokens {tokens} is less than --vllm.max_num_seqs {seqs}: each sequence takes "
                "one token of a step; raise the first or lower the second"
            )


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Settings):
    """Settings of how models are loaded on this host."""

    trust_remote_code: bool = setting(
        False, "run the Python code that a model contains (auto_map); without this flag, such a model is refused"
    )


# GPUs that a dry run plans for.
LARGEST_CLUSTER = 100_000


@dataclass(frozen=True, kw_only=True)
class DryRunConfig(Settings):
    """Settings of ``--dry_run``. Raises ValueError, naming the flag, when a value is out of range."""

    dry_run: bool = setting(
        False, "check everything, print the placement of all processes and the memory they need, and exit"
    )
    dry_run_nodes: int = setting(0, "plan for a cluster of N nodes; 0: the running Ray")
    dry_run_gpus: int = setting(0, "GPUs per node of the planned cluster")
    dry_run_gpu_memory: float = setting(
        0.0, "GiB per GPU of the planned cluster, with the defaults of a GPU host; 0: the GPUs of this host"
    )
    dry_run_node_memory: float = setting(
        0.0, "GiB of host memory per node of the planned cluster; 0: that of this host or of the running Ray"
    )

    def check(self) -> None:
        """Check the values, as ``Settings`` describes it.

        Raises:
            ValueError: A number is negative or infinite, is given without ``--dry_run``, or plans for too many GPUs;
                or nodes are given without GPUs, or GPUs without nodes.
        """
        for name in ("dry_run_nodes", "dry_run_gpus", "dry_run_gpu_memory", "dry_run_node_memory"):
            self.require(name, lambda value: 0 <= value < math.inf, "must be a finite number of at least 0")
            if (value := getattr(self, name)) and not self.dry_run:
                raise ValueError(f"--{name} {value:g} only applies with --dry_run; add --dry_run or drop it")
        if (gpus := self.dry_run_nodes * self.dry_run_gpus) > LARGEST_CLUSTER:
            raise ValueError(
                f"--dry_run_nodes {self.dry_run_nodes} of --dry_run_gpus {self.dry_run_gpus} are {gpus:,} GPUs; a dry "
                f"run plans for {LARGEST_CLUSTER:,} at most"
            )
        if bool(self.dry_run_nodes) != bool(self.dry_run_gpus):
            raise ValueError(
                f"--dry_run_nodes and --dry_run_gpus go together, got {self.dry_run_nodes} and {self.dry_run_gpus}"
            )
