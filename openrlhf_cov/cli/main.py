"""Start every command of the package as ``openrlhf-cov COMMAND``."""

import difflib
import sys
from importlib import import_module
from importlib.metadata import version

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.utils.terminal import refuse, say

# Command -> (module of ``openrlhf_cov.cli``, what it does).
COMMANDS = {
    "train": ("train_ppo_ray", "train a policy with Ray, vLLM and DeepSpeed: every flag of OpenRLHF, and ours"),
    "evaluate": ("evaluate", "score a model on AIME, AMC, MATH-500 and other benchmarks"),
    "compare": ("compare", "compare evaluations with each other and with the paper"),
    "report": ("report", "draw curves, figures and report.html of training runs"),
    "watch": ("watch", "show a live dashboard of training runs in the terminal"),
    "grade": ("grade", "grade a file of responses with the rule-based reward"),
    "prepare": ("prepare_data", "make a training set: prompts, checked labels, no overlap with the benchmarks"),
    "doctor": ("doctor", "say what this host lacks, and the commands that mend it"),
    "serve-reward": ("serve_reward", "serve the rule-based reward over HTTP"),
    "demo": ("demo", "train a small model on this machine with Ray, from nothing to a table"),
    "lab": ("lab", "train an embedded task in one process, in about a minute"),
    "reproduce": ("reproduce", "reproduce a figure or table of the paper, at its scale or on this machine"),
    "study": ("study", "compare methods over settings and seeds: table, intervals, figures, a page"),
    "base-policies": ("base_policies", "make and publish the base policies of embedded tasks"),
    "methods": ("methods", "describe all methods, or one with its flags and an example"),
    "fetch-smollm2": (
        "fetch_smollm2",
        "write SmolLM2-135M-Instruct, a small language model, to a folder, without a hub",
    ),
    "tiny-task": ("make_tiny_task", "make the embedded task: a small model and its problems"),
}


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
    rows = "\n".join(f"  {name:<13} {summary}" for name, (_, summary) in COMMANDS.items())
    return f"usage: openrlhf-cov COMMAND [--help] ...\n\n{rows}\n\nopenrlhf-cov COMMAND --help lists its flags.\n"


if __name__ == "__main__":
    sys.exit(main())
