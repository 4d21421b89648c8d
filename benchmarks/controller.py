"""The controller at the paper's size: 256 prompts x 8 responses of up to 8,192 tokens, 8 and 32 ranks, no model.

Upstream's PPOTrainer and ours run as they are, each in a Ray actor of its own, step by step in turns, with the flags
of our recipes. Ranks and engines hold no model: they take what the controller sends and answer with tensors and
token lists of the right sizes, whose lengths have a heavy tail. Two processes stand for all ranks. Prints Markdown.

    python benchmarks/controller.py steps --ranks 8       # whole steps, engines answer at once; minutes, upstream's
    python benchmarks/controller.py sampling              # dynamic sampling, engines take their time; minutes, too
    python benchmarks/controller.py steps --prompts 32    # about a minute
"""

import argparse
import asyncio
import importlib
import inspect
import json
import logging
import pickle
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray

LONGEST = 8192
SAMPLES = 8
ENGINES = 8
# Seconds per token of a sequence in a full batch of a 7B model: the longest response takes 205 s.
SECONDS_PER_TOKEN = 0.025
# Sequences that an engine works on at once.
SLOTS = 256
FLAGS = """
--algo.advantage.estimator group_norm --algo.kl.init_coef 0 --actor.loss_agg_mode token-mean --train.batch_size 256
--rollout.n_samples_per_prompt 8 --train.num_episodes 10 --data.max_len 10240 --rollout.max_new_tokens 8192
--ds.zero_stage 3 --ds.packing_samples --train.dynamic_batch_enable --train.max_tokens_per_gpu 20480
--rollout.max_tokens_per_gpu 20480 --train.colocate_all --vllm.enable_sleep --ds.enable_sleep --vllm.num_engines 8
--actor.num_gpus_per_node 8 --ckpt.save_steps 1 --data.input_key prompt --data.label_key answer
--reward.remote_url openrlhf_cov/rewards/reward_func.py --train.check_weight_update off
"""
DYNAMIC = """--algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0 1
--sampling_max_rounds 10 --sampling_oversample_max 6"""
GENERATION = "other work while engines generate"
TRAINING = "other work after it"
TRAINER = "openrlhf_cov.trainer"
# Phase -> what counts for it. Of upstream's controller: names of functions of its generator, experience maker,
# trainer, module and group of ranks. Of ours: "module:function" or "module:Class.method" in the package's trainer.
PHASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "prompts to the engines": (("_dispatch_prompts_to_vllm",), ("rollout.requests:RolloutRequests._send",)),
    "responses to tensors": (("_process_response_into_experience",), ("rollout.requests:sample_of",)),
    GENERATION: (("generate_samples",), ("rollout.sampler:Sampler.next_batch",)),
    "checked and numbered samples": ((), ("loop:checked_samples",)),
    "batches for scoring": (("split_rollout_samples",), ("scoring:scoring_batches", "scoring:ScoringBatch.of")),
    "scores by sample": ((), ("loop:score",)),
    "returns": (("get_cumulative_returns",), ()),
    "advantages": (("compute_advantages_and_returns",), ("loop:estimate_advantages",)),
    "metrics": ((), ("loop:sample_means", "loop:rollout_statistics", "loop:source_metrics")),
    "balance over ranks": (("balance_experiences",), ("model_groups:shares_of_ranks",)),
    "tensors to the ranks": (
        ("async_run_method_batch",),
        ("model_groups:ModelGroups._shares", "model_groups:_update", "launcher:RayActorGroup.async_run_method_batch"),
    ),
    "checkpoint": (("save_logs_and_checkpoints",), ("loop:TrainingLoop.save_checkpoint",)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("steps", "sampling"))
    parser.add_argument("--ranks", type=int, default=8, help="data-parallel ranks")
    parser.add_argument("--steps", type=int, default=1, help="steps of each controller, after a small one")
    parser.add_argument("--prompts", type=int, default=256, help="of a step, 8 responses each")
    parser.add_argument("--vocabulary", type=int, default=151_000, help="entries of the tokenizer, as Qwen2.5's")
    parser.add_argument("--pass_rates", type=float, nargs="+", default=(0.2, 0.5, 0.8), help="sampling: groups kept")
    parser.add_argument("--scale", type=int, default=32, help="sampling: so many times fewer tokens in less time")
    parser.add_argument("--only", choices=("upstream", "ours"), help="one of the two controllers")
    args = parser.parse_args()
    ray.init(
        "local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=6 * 2**30,
        runtime_env={"env_vars": {"RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1"}},  # as upstream's and ours
    )  # fmt: skip
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_inputs(Path(folder), args.vocabulary if args.what == "steps" else 1000)
            (whole_steps if args.what == "steps" else sampling)(args, folder)
    finally:
        ray.shutdown()


# Ranks and engines without a model: plain Python and, for the ranks, torch; neither vLLM nor DeepSpeed.


def draw(prompt: str, pass_rate: float) -> tuple[list[int], list[float]]:
    """Lengths and scores of the responses to a prompt: log-normal around 1,800 tokens, one in twenty cut off."""
    chance = random.Random(prompt)
    lengths = [min(LONGEST, 1 + int(chance.lognormvariate(7.5, 0.9))) for _ in range(SAMPLES)]
    right = [1.0, *[0.0] * (SAMPLES - 1)] if chance.random() < pass_rate else [float(chance.random() < 0.5)] * SAMPLES
    return lengths, right


@ray.remote(num_cpus=0.01, max_concurrency=10_000)
class Engine:
    """Answers with token ids: at once, or with a ``scale`` after a fraction of the time, with a fraction of them."""

    def __init__(self, pass_rate: float, scale: int) -> None:
        self.pass_rate = pass_rate
        self.scale = scale
        self.ids = [random.randrange(150_000) for _ in range(3 * LONGEST)]
        self.slots = asyncio.Semaphore(SLOTS)
        self.busy: list[tuple[float, float]] = []
        self.begun: dict[str, asyncio.Task] = {}

    async def _sample(self, tokens: int) -> None:
        async with self.slots:
            started = time.time()
            await asyncio.sleep(tokens * SECONDS_PER_TOKEN / self.scale)
            self.busy.append((started, time.time()))

    async def generate_responses(self, prompt: str, label: str, num_samples: int, **others) -> list[dict]:
        lengths, scores = draw(prompt, self.pass_rate)
        if self.scale:
            await asyncio.gather(*map(self._sample, lengths))
            lengths = [max(1, length // self.scale) for length in lengths]
        read = len(prompt) // 4
        logs = {f"reward/{kind}_frac": 0.0 for kind in ("error", "no_answer", "timeout", "format")}
        return [
            dict(
                prompt=prompt, label=label, reward=score, scores=score, extra_logs=dict(logs), rollout_log_probs=None,
                observation_tokens=self.ids[length : read + 2 * length], action_ranges=[(read, read + length)],
                truncated=length == LONGEST,
            ) for length, score in zip(lengths, scores, strict=True)
        ]  # fmt: skip

    async def begin_groups(self, requests: dict[str, dict], **common) -> None:
        for key, request in requests.items():
            self.begun[key] = asyncio.create_task(self.generate_responses(**request, **common))

    async def group(self, key: str, begun: None) -> list[dict]:
        return await self.begun.pop(key)

    def take_busy(self) -> list[tuple[float, float]]:
        """When it worked on each sample since the last call."""
        taken = self.busy
        self.busy = []
        return taken

    def get_num_unfinished_requests(self) -> int:
        return 0

    def needs_weights(self) -> bool:
        """Return False: no run has used the engine."""
        return False

    def nothing(self, *args, **kwargs) -> None:
        pass

    wake_up = sleep = check_health = nothing


@ray.remote(num_cpus=0.01)
class Ranks:
    """Several neighbouring ranks of the policy, one after the other, with the methods of upstream's and of ours."""

    def __init__(self) -> None:
        self.entropy_bytes = 0

    def execute_batch(self, method_name: str, all_data: dict, start_idx: int, end_idx: int) -> list:
        rows = range(start_idx, end_idx)
        return [getattr(self, method_name)(**{key: value[row] for key, value in all_data.items()}) for row in rows]

    def forward(self, sequences, action_mask, **others):
        import torch

        return torch.zeros(action_mask.shape)

    def append(self, experience) -> None:
        pass

    def fit(self, **kwargs) -> dict[str, float]:
        return {"kl": 0.0, "reward": 0.5, "entropy/mean": 0.5}

    def score(self, tokens, action_mask, attention_mask, image_inputs):
        import torch

        entropy = torch.zeros(action_mask.shape)
        self.entropy_bytes += entropy.nbytes
        return torch.zeros(action_mask.shape), entropy, None

    def update(self, order, share):
        from openrlhf_cov.trainer.records import StepResult

        self.entropy_bytes += share.tensors["entropy"].nbytes
        metrics = {"entropy/mean": 0.5, "cov/mean": 0.0, "cov/prob_weighted_mean": 0.0}
        return StepResult(metrics, mean_entropy=0.5, updates=8, learning_rate=1e-6)

    def take_entropy_bytes(self) -> int:
        """Bytes of entropies that left and came since the last call."""
        taken = self.entropy_bytes
        self.entropy_bytes = 0
        return taken

    def nothing(self, *args, **kwargs) -> None:
        pass

    empty_cache = reload_states = offload_states = save_checkpoint = nothing
    broadcast_to_vllm = send_weights = nothing

    def get_master_addr_port(self) -> tuple[str, int]:
        """Return what a rank needs to join a process group, which these do not make."""
        return "", 0


class StartedRanks:
    """The actor class for upstream's ``RayActorGroup``: each rank that the group starts is one of these handles."""

    def __init__(self, handles: list) -> None:
        self.handles = iter(handles)

    def options(self, **_: Any) -> "StartedRanks":
        return self

    def remote(self, *_: Any) -> Any:
        return next(self.handles)


class EngineHandle:
    """The engine of upstream's dispatch; vLLM's sampling parameters stay here, since an engine would import vLLM."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.generate_responses = self._without_sampling_params(actor.generate_responses)
        self.begin_groups = self._without_sampling_params(actor.begin_groups)

    @staticmethod
    def _without_sampling_params(method: Any) -> Any:
        return SimpleNamespace(
            remote=lambda *arguments, sampling_params, **others: method.remote(*arguments, **others)
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.actor, name)


class SentAsBytes:
    """A tokenizer that is pickled as always but not built again where it arrives, which would take seconds there."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __reduce__(self) -> tuple:
        return bytes, (pickle.dumps(self.tokenizer),)


# The controllers and their runs.


class Clock:
    """CPU seconds of this process by phase; a phase inside another does not count for that."""

    def __init__(self) -> None:
        self.seconds = Counter[str]()
        self.stack = [TRAINING]
        self.since = time.process_time()

    def switch(self) -> None:
        """Count what has passed for the phase that is under way."""
        now = time.process_time()
        self.seconds[self.stack[-1]] += now - self.since
        self.since = now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count a block, or every call of a function that this decorates, for a phase."""
        self.switch()
        self.stack.append(name)
        try:
            yield
        finally:
            self.switch()
            self.stack.pop()


@ray.remote(num_cpus=0.01)
class Controller:
    """The controller of upstream or ours, as a training makes it, which makes step after step."""

    def __init__(self, name: str, flags: list[str], model: str, ranks: list, engines: list) -> None:
        logging.disable(logging.WARNING)
        from openrlhf_cov.cluster.workers import prepare_worker
        from openrlhf_cov.trainer.flags.parser import parse_args

        sys.argv = ["train_ppo_ray", *flags]
        self.args = parse_args()
        prepare_worker()
        from openrlhf.trainer.ray.launcher import RayActorGroup

        group = RayActorGroup(num_nodes=len(ranks), num_gpus_per_node=1, ray_actor_type=StartedRanks(ranks))
        self.clock = Clock()
        handles = [EngineHandle(engine) for engine in engines]
        run_class = OurRun if name == "ours" else UpstreamRun
        self.run = run_class(self.args, model, group, handles, self.clock)

    def step(self, prompts: int) -> dict[str, Any]:
        """Return CPU seconds by phase, when step and generation began and ended, peak memory in GB, and tokens."""
        self.args.rollout.batch_size = self.args.rollout.vllm_generate_batch_size = prompts
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        self.clock.switch()
        self.clock.seconds.clear()
        began = time.time()
        made = self.run.step()
        self.clock.switch()
        # with what it maps of Ray's shared memory
        peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1e6
        return dict(cpu=dict(self.clock.seconds), began=began, ended=time.time(), peak=peak, **made)


class UpstreamRun:
    """Upstream's trainer; its steps are those of ``PPOTrainer.fit``."""

    def __init__(self, args: SimpleNamespace, model: str, group: Any, engines: list, clock: Clock) -> None:
        import openrlhf.trainer.ppo_trainer as module
        from openrlhf.utils import get_strategy

        from openrlhf_cov.cluster.workers import plain_class

        generate = {"max_len": args.data.max_len, "max_new_tokens": LONGEST, "temperature": 1.0, "top_p": 1.0}
        trainer_class = plain_class(module.PPOTrainer)
        self.trainer = trainer_class(model, get_strategy(args), group, None, None, None, engines, **generate)
        self.generator = self.trainer.samples_generator
        self.generator.tokenizer = SentAsBytes(self.trainer.tokenizer)
        self.trainer.init_checkpoint_states()
        self.number = 0
        owners = [self.generator, self.trainer.experience_maker, self.trainer, group, module]
        for phase, (functions, _) in PHASES.items():
            for owner, function in [(o, f) for f in functions for o in owners if hasattr(o, f)]:
                setattr(owner, function, clock.phase(phase)(getattr(owner, function)))

    def step(self) -> dict[str, Any]:
        """Make a step."""
        samples, _, drawn, _ = self.generator.generate_samples(**self.trainer.generate_kwargs)
        generated = time.time()
        trained = sum(int(sample.response_length) for sample in samples)
        status, self.number = self.trainer.train_step(samples, self.number)
        states = {"episode": 0, "global_step": self.number, "total_consumed_prompts": 0}
        states["data_loader_state_dict"] = self.trainer.prompts_dataloader.state_dict()
        self.trainer.save_logs_and_checkpoints(self.number, status, states)
        return {"generated": generated, "drawn": drawn, "trained": trained, "waiting": 0}


class OurRun:
    """Our controller; its steps are those of ``TrainingLoop.run``."""

    def __init__(self, args: SimpleNamespace, model: str, group: Any, engines: list, clock: Clock) -> None:
        from openrlhf_cov.cluster.workers import plain_class
        from openrlhf_cov.trainer.controller import TrainingController
        from openrlhf_cov.trainer.model_groups import ModelGroups
        from openrlhf_cov.trainer.shared_argument import share

        for phase, (_, functions) in PHASES.items():
            for function in functions:
                count_calls(function, clock.phase(phase))
        controller = plain_class(TrainingController)(args, ModelGroups(args, policy=group), engines)
        self.loop = controller.loop
        self.sampler = controller.loop.sampler.source
        self.sampler.requests.tokenizer = share(SentAsBytes(self.loop.tokenizer))
        self.state = self.loop.start()

    def step(self) -> dict[str, Any]:
        """Make a step."""
        from openrlhf_cov.trainer.metrics.step_metrics import Clock as PhaseSeconds

        loop = self.loop
        state = self.state
        drawn = self.sampler.order.drawn
        seconds = PhaseSeconds()
        rollout = loop.stream.next(state.step)
        generated = time.time()
        metrics, example = loop.train_step(rollout, state, seconds)
        loop.logs.write_step(state.step, metrics, example)
        loop.save_checkpoint(rollout, state)
        return {
            "generated": generated,
            "drawn": self.sampler.order.drawn - drawn,
            "trained": sum(sample.response_length for sample in rollout.samples),
            "waiting": sum(group.tokens for group in self.sampler.buffer.groups),
        }


def count_calls(name: str, phase: Any) -> None:
    """Count every call of a function of our trainer, "module:function" or "module:Class.method", for a phase."""
    owner, function = owner_of(name)
    found = inspect.getattr_static(owner, function)
    if isinstance(found, classmethod):
        setattr(owner, function, classmethod(phase(found.__func__)))
    else:
        setattr(owner, function, phase(found))


def owner_of(name: str) -> tuple[Any, str]:
    """Return the module or class of a function that is named as in ``PHASES``, and its name there."""
    module, _, path = name.partition(":")
    where = "openrlhf.trainer.ray" if module == "launcher" else TRAINER
    owner = importlib.import_module(f"{where}.{module}")
    *outer, function = path.split(".")
    for each in outer:
        owner = getattr(owner, each)
    return owner, function


def write_inputs(folder: Path, vocabulary: int) -> None:
    """A tokenizer of so many entries, merged at random, and prompts of 150 to 250 tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    chance = random.Random(0)
    end = "<|endoftext|>"
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    places = {word: place for place, word in enumerate(words)}
    merges = []
    while len(places) < vocabulary:
        pair = chance.choice(words), chance.choice(words)
        if len(word := "".join(pair)) <= 12 and word not in places:
            places[word] = len(places)
            words.append(word)
            merges.append(pair)
    tokenizer = Tokenizer(models.BPE(places, merges))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, pad_token=end).save_pretrained(folder)
    rows = [{"prompt": f"{row} ".ljust(600 + row % 400, "x"), "answer": "1"} for row in range(20_000)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def start(args: argparse.Namespace, folder: str, pass_rate: float, scale: int, more: str) -> tuple[dict, list, list]:
    """The controllers by name, after a small step each, the engines, and the two processes of the ranks."""
    engines = [Engine.remote(pass_rate, scale) for _ in range(ENGINES)]
    ranks = [Ranks.remote() for _ in range(2)]
    nodes = args.ranks // 8
    flags = f"{FLAGS} {more} --actor.num_nodes {nodes} --vllm.tensor_parallel_size {nodes} --rollout.batch_size 32"
    flags += f" --actor.model_name_or_path {folder} --data.prompt_dataset {folder}/train.jsonl"
    made = {}
    for name in [args.only] if args.only else ["upstream", "ours"]:
        output = f"{folder}/{name}_{pass_rate}"
        own = f"{flags} --ckpt.output_dir {output} --ckpt.path {output}/state".split()
        handles = [process for process in ranks for _ in range(args.ranks // 2)]
        made[name] = Controller.remote(name, own, folder, handles, engines)
    for controller in made.values():
        ray.get(controller.step.remote(32))
    return made, engines, ranks


def stored_bytes() -> int:
    """Bytes that were ever put into Ray's object store; what is smaller than 100 KB travels beside it."""
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    state = get_state_from_address(ray.get_runtime_context().gcs_address)
    return get_memory_info_reply(state).store_stats.cumulative_created_bytes


def whole_steps(args: argparse.Namespace, folder: str) -> None:
    """Prints what the controller does in a step while engines and ranks answer at once."""
    made, _, ranks = start(args, folder, pass_rate=1.0, scale=0, more="")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in made}
    for name in list(made) * args.steps:
        ray.get([process.take_entropy_bytes.remote() for process in ranks])
        before = stored_bytes()
        step = ray.get(made[name].step.remote(args.prompts))
        row = {phase: step["cpu"].get(phase, 0.0) for phase in (*PHASES, TRAINING)}
        row["**CPU seconds of the controller**"] = sum(row.values())
        row["by the clock, with what ranks and engines take"] = step["ended"] - step["began"]
        row["peak memory of the controller, GB"] = step["peak"]
        row["through Ray's object store, GB"] = (stored_bytes() - before) / 1e9
        row["of these entropies, GB"] = sum(ray.get([process.take_entropy_bytes.remote() for process in ranks])) / 1e9
        found[name].append(row)
        sys.stderr.write(f"{name} {row}\n")
    print_table(f"{args.ranks} ranks, CPU seconds of a step", found)


def sampling(args: argparse.Namespace, folder: str) -> None:
    """Prints what dynamic sampling makes of engines that take their time."""
    for pass_rate in args.pass_rates:
        made, engines, ranks = start(args, folder, pass_rate, args.scale, DYNAMIC)
        found: dict[str, list[dict[str, float]]] = {name: [] for name in made}
        for name in list(made) * args.steps:
            ray.get([engine.take_busy.remote() for engine in engines])
            step = ray.get(made[name].step.remote(args.prompts))
            busy = ray.get([engine.take_busy.remote() for engine in engines])
            began = step["began"]
            ended = step["generated"]
            worked = sum(end - start for intervals in busy for start, end in intervals)
            found[name].append({
                "seconds of generation on the unscaled clock": (ended - began) * args.scale,
                "engines idle": statistics.mean(idle_share(intervals, began, ended) for intervals in busy),
                "slots of the engines empty": 1 - worked / (SLOTS * ENGINES * (ended - began)),
                "prompts": step["drawn"],
                "million tokens generated": worked * args.scale / SECONDS_PER_TOKEN / 1e6,
                "million tokens trained": step["trained"] * args.scale / 1e6,
                "million tokens waiting": step["waiting"] * args.scale / 1e6,
            })  # fmt: skip
            sys.stderr.write(f"{name} {found[name][-1]}\n")
        print_table(f"pass rate {pass_rate}", found)
        for actor in (*made.values(), *engines, *ranks):
            ray.kill(actor)


def idle_share(intervals: list[tuple[float, float]], began: float, ended: float) -> float:
    """Share of the time from ``began`` to ``ended`` in which none of the ``intervals`` ran."""
    busy = 0.0
    until = began
    for start, end in sorted(intervals):
        busy += max(0.0, min(end, ended) - max(start, until))
        until = max(until, end)
    return 1 - busy / (ended - began)


def print_table(title: str, found: dict[str, list[dict[str, float]]]) -> None:
    """Medians over the steps."""
    sys.stdout.write(f"\n| {title} | {' | '.join(found)} |\n|---|{'---:|' * len(found)}\n")
    for row in next(iter(found.values()))[0]:
        medians = [statistics.median(step[row] for step in steps) for steps in found.values()]
        sys.stdout.write(f"| {row} | {' | '.join(f'{median:.2f}' for median in medians)} |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
