"""The flags of a run in the lab: what they ask for, and what they are as flags of the trainer."""

import math
from collections.abc import Sequence
from typing import NoReturn

from openrlhf_cov.errors import UsageError
from openrlhf_cov.experiments.lab.lab_settings import LabSettings
from openrlhf_cov.experiments.lab.request import LabRequest, build_parser
from openrlhf_cov.experiments.tiny_task.catalogue import PACKAGE, TINY_TASKS
from openrlhf_cov.utils.config_flags import add_config_arguments
from openrlhf_cov.utils.terminal import Parser

# Problems of an embedded task that are not in the file of those to train on.
HELD_OUT = 512
# One engine and one actor, and rollouts by the seed.
EVERY_RUN = (
    *("--vllm.num_engines", "1", "--vllm.gpu_memory_utilization", "0.2", "--actor.num_gpus_per_node", "1"),
    *("--actor.lr_scheduler", "constant", "--ds.zero_stage", "2", "--rollout_seeded"),
)
# Flags of the lab beside its settings and those of methods.
OF_THE_LAB = ("--output", "--base_policies", "--task", "--base_seed", "--threads")
COIN = ("--reward.remote_url", str(PACKAGE / "experiments" / "tiny_task" / "coin_reward_func.py"))


def lab_request(words: Sequence[str]) -> LabRequest:
    """Return the request that the flags of ``openrlhf-cov lab`` make.

    Raises:
        UsageError: The lab refuses a flag or a setting.
    """
    try:
        return LabRequest.of(build_parser(_Strict), words)
    except ValueError as error:
        raise UsageError(str(error)) from error


def trainer_flags(request: LabRequest) -> list[str]:
    """Return the flags of ``openrlhf-cov train`` for a run of the lab, without those of its task.

    Flags of methods are the same. The lab's flags of evaluations and of threads have no counterpart.

    Raises:
        UsageError: The run has another base policy than the first, or a task that only the lab has.
    """
    if request.args.base_seed:
        raise UsageError(f"--base_seed {request.args.base_seed} has no counterpart in the trainer; drop it")
    if request.args.task not in TINY_TASKS:
        raise UsageError(
            f"--task {request.args.task} exists in the lab only; with the trainer use one of {', '.join(TINY_TASKS)}"
        )
    settings = request.settings
    task = TINY_TASKS[request.args.task]
    update = settings.prompts * settings.group // settings.updates
    part = settings.micro_batch or update
    whole = (task.problems - HELD_OUT) // settings.prompts  # rollouts of an episode
    flags = {
        "--rollout_limit": settings.steps,
        "--data.max_samples": settings.steps * settings.prompts,
        # The lab samples problems with replacement; the trainer passes over its file as often as the steps need.
        "--train.num_episodes": math.ceil(settings.steps / max(1, whole)),
        "--rollout.batch_size": settings.prompts,
        "--rollout.n_samples_per_prompt": settings.group,
        "--rollout.micro_batch_size": part,
        "--train.batch_size": update,
        "--train.micro_batch_size": part,
        "--actor.adam.lr": settings.learning_rate,
        "--algo.kl.init_coef": settings.kl_coef,
        "--train.seed": settings.seed,
    }
    found = [*EVERY_RUN, *(str(word) for pair in flags.items() for word in pair)]
    if request.config.estimator is None:  # else the method names upstream's
        found += ["--algo.advantage.estimator", "group_norm"]
    if settings.kl_coef:  # in the loss, by k3, with the reference beside the actor
        found += ["--algo.kl.use_loss", "--algo.kl.estimator", "k3"]
        found += ["--ref.num_gpus_per_node", "1", "--train.colocate_actor_ref"]
    if settings.entropy_coef:
        found += ["--actor.entropy_coef", str(settings.entropy_coef)]
    if any(settings.clip):
        found += ["--actor.eps_clip_low_high", *map(str, settings.clip)]
    return [*found, *(COIN if settings.random_reward else ()), *_of_methods(request.words)]


def _of_methods(words: Sequence[str]) -> list[str]:
    """Return the words that are neither settings of the lab nor flags of folders, task and threads."""
    others = _Strict(prog="lab", add_help=False)
    for flag in OF_THE_LAB:
        others.add_argument(flag)
    add_config_arguments(others, "the run", LabSettings)
    return others.parse_known_args(list(words))[1]


class _Strict(Parser):
    """A parser that raises UsageError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(self.explained(message))
