"""A command that trains with one method, for those who want to try it."""

from openrlhf_cov.experiments.lab.request import LabRequest, build_parser
from openrlhf_cov.models.method import Method, fills
from openrlhf_cov.models.slots import ProcessEstimator
from openrlhf_cov.utils.terminal import command_name

# A target that suits the embedded task of the example, whose policy starts from 0.14 nats per token.
EXAMPLE_TARGET = 0.1
# A method with a process reward model needs the trainer, of which the command is a dry run of this size.
TRAINING = (
    *("--actor.model_name_or_path", "Qwen/Qwen2.5-7B"),
    *("--data.prompt_dataset", "/data/train.jsonl", "--data.input_key", "prompt", "--data.label_key", "answer"),
    *("--reward.remote_url", "openrlhf_cov/rewards/reward_func.py"),
    *("--dry_run", "--dry_run_nodes", "1", "--dry_run_gpus", "8", "--dry_run_gpu_memory", "80"),
)


def example_command(method: Method) -> list[str]:
    """Return the words of a command that trains with a method.

    It is a run of the lab, of some minutes on any computer. A method with a process reward model needs the trainer;
    for such a method the command is a dry run, which says what a training needs.
    """
    if fills(method, ProcessEstimator):
        return [*command_name(), "train", "--preset", "grpo", *method.flag.split(), *TRAINING]
    flags = [*method.flag.split(), *needed_flags(method)]
    return [*command_name(), "lab", "--output", f"runs/lab/{method.name}", *flags]


def needed_flags(method: Method) -> list[str]:
    """Return the flags without which the lab refuses a method: those that make it act."""
    for flags in ([], ["--task", "shortcut"]):
        try:
            LabRequest.of(build_parser(), ["--output", "unused", *method.flag.split(), *flags])
        except ValueError:
            continue
        return flags
    return ["--entropy_target", str(EXAMPLE_TARGET)]
