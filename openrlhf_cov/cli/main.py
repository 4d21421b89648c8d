"""``openrlhf-cov COMMAND …``: every command of the package under one name, beside ``python -m openrlhf_cov.cli.…``."""

import difflib
import sys
from importlib import import_module
from importlib.metadata import version

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.utils.terminal import refuse, say, typed_as

# Command -> (module of ``openrlhf_cov.cli``, what it does).
COMMANDS = {
    "train": ("train_ppo_ray", "train a policy: upstream's command line with our losses, sampling and rewards"),
    "evaluate": ("evaluate", "score a model on AIME, AMC, MATH-500 and other benchmarks"),
    "compare": ("compare", "compare evaluations with each other and with the paper"),
    "report": ("report", "curves, figures and report.html of training runs"),
    "watch": ("watch", "a live dashboard of training runs in the terminal"),
    "grade": ("grade", "grade a file of responses with the rule-based reward"),
    "prepare": ("prepare_data", "make a training set: prompts, checked labels, no overlap with the benchmarks"),
    "doctor": ("doctor", "what this host lacks, and the commands that mend it"),
    "serve-reward": ("serve_reward", "the rule-based reward as a service"),
    "demo": ("demo", "train a small model on this machine, from nothing to a table"),
    "lab": ("lab", "train an embedded task in one process: a minute for a method"),
    "reproduce": ("reproduce", "the paper's figures and tables as commands, at its scale or on this machine"),
    "study": ("study", "methods, settings and seeds as one resumable command: table, intervals, figures, a page"),
    "base-policies": ("base_policies", "make and publish the base policies of embedded tasks"),
    "methods": ("methods", "what each method does, its flags and its paper: a table, or one by name"),
    "tiny-task": ("make_tiny_task", "make the embedded task: a small model and its problems"),
}


@program("openrlhf-cov")
def main() -> int:
    """Exit status of the command that the first argument names; 2 with one line on stderr if there is none such."""
    name, rest = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("--help", [])
    if name in ("-h", "--help"):
        say(usage())
    elif name == "--version":
        say(f"openrlhf-cov {version('openrlhf-cov')}\n")
    elif name in COMMANDS:
        sys.argv = [f"openrlhf-cov {name}", *rest]
        module = COMMANDS[name][0]
        with typed_as(module, f"openrlhf-cov {name}"):
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
