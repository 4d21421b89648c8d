"""Write an embedded task to a folder: a base policy, training and test problems, and the accuracy of the policy."""

import logging
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.cluster.packages import require
from openrlhf_cov.errors import UsageError
from openrlhf_cov.experiments.tiny_task.catalogue import TINY_TASKS
from openrlhf_cov.experiments.tiny_task.task_files import (
    TaskSettings,
    is_occupied,
    read_task,
    recorded_settings,
    settings_difference,
    write_task,
)
from openrlhf_cov.settings import help_with_default
from openrlhf_cov.utils.output_folders import check_folder
from openrlhf_cov.utils.terminal import Parser, say

logger = logging.getLogger(__name__)


HELP = {
    "task": "embedded task\n" + "\n".join(f"{name}: {task.about}" for name, task in TINY_TASKS.items()),
    "seed": "seed of the data, of the base policy's weights and of the sampled evaluation",
    "train_rows": "problems in train.jsonl",
    "test_rows": "problems in test.jsonl; none of them is in train.jsonl or was seen by the base policy",
}


def build_parser() -> Parser:
    """Return the parser of this command; its defaults are those of ``TaskSettings``."""
    parser = Parser(
        prog="openrlhf-cov tiny-task",
        description="Write an embedded task to a folder: training and test problems, and a base policy.",
    )
    parser.add_argument("--output", required=True, metavar="DIR", type=Path, help="new or empty folder")
    for setting in fields(TaskSettings):
        text = help_with_default(HELP[setting.name], setting.default)
        values: dict[str, Any] = {"type": int, "metavar": "N"}
        if setting.name == "task":
            values = {"choices": tuple(TINY_TASKS)}
        parser.add_argument(f"--{setting.name}", default=setting.default, help=text, **values)
    return parser


@program("openrlhf-cov tiny-task", "nothing was written")
def main(argv: list[str] | None = None) -> None:
    """Write the task, unless the folder holds it; exit status 2 for a refused request, 130 or 143 if interrupted."""
    args = build_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    settings = TaskSettings(**{field.name: getattr(args, field.name) for field in fields(TaskSettings)})
    output = args.output.resolve()
    check_folder(output)
    found = read_task(output, settings.task)
    if found is None and is_occupied(output):
        raise UsageError(f"{output} is not empty and holds no finished task; choose another --output")

    made = TINY_TASKS[settings.task]
    require()
    made.check_ready()
    from transformers.utils.logging import disable_progress_bar

    policy = made.policy()
    if found is not None:
        difference = settings_difference(found.settings, recorded_settings(settings, policy))
        if difference:
            raise UsageError(f"{output} holds a task with other settings ({difference}); choose another --output")
        say(f"{output} already holds this task; nothing to do\n")
        return
    disable_progress_bar()
    task = write_task(output, settings, policy)
    say(
        f"{output}: {task['parameters']:,} parameters, accuracy {task['accuracy_greedy']:.3f} greedy and "
        f"{task['accuracy_sampled']:.3f} at temperature 1, entropy {task['entropy']:.3f} nats, {task['seconds']} s\n"
    )


if __name__ == "__main__":
    sys.exit(main())
