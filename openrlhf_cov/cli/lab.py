"""Train an embedded task in one process, in about a minute, without Ray, vLLM and DeepSpeed."""

import logging
import shlex
import sys
from pathlib import Path

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.errors import UsageError
from openrlhf_cov.experiments.lab.request import LabRequest, build_parser, train
from openrlhf_cov.utils.terminal import command_name, say


@program("openrlhf-cov lab")
def main(argv: list[str] | None = None) -> None:
    """Make a run, unless its folder holds it; exit status 2 for a refused request."""
    words = sys.argv[1:] if argv is None else argv
    request = LabRequest.of(build_parser(), words)
    request.check()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    output: Path = request.args.output
    if request.is_complete():
        if request.args.dump_dir is not None:
            raise UsageError(
                f"--dump_dir {request.args.dump_dir}: {output} already holds this run, which is not made again to be "
                "recorded; choose another --output"
            )
        say(f"{output} already holds this run; nothing to do\n")
        return
    # Imports and the first evaluation take seconds, and much longer on a busy host.
    watch = shlex.join([*command_name(), "watch", str(output)])
    say(f"{output}: {request.settings.steps} steps of {request.args.task}; follow them with {watch}\n")
    result = train(request)
    shown = {name: value for name, value in result.items() if "/" not in name or name.startswith("test/")}
    say(f"{output}: {', '.join(f'{name} {value:.3f}' for name, value in shown.items())}\n")


if __name__ == "__main__":
    sys.exit(main())
