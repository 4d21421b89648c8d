"""The command lines without their work: upstream's flags and checks, our parser, good inputs."""

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from texts import refusal_of

from openrlhf_cov.cli import train_ppo_ray
from openrlhf_cov.cli.main import main
from openrlhf_cov.cluster import cpu_host, packages
from openrlhf_cov.trainer.flags.parser import CovArgumentParser
from openrlhf_cov.trainer.preflight import dry_run

cpu_host.install()

# A command line without a reward or an engine is refused; later flags win over earlier ones.
REQUIRED = ("--reward.remote_url", "reward.py", "--vllm.num_engines", "1")

REWARD = """
def reward_func(queries, prompts, labels):
    return {"rewards": [0.0 for _ in queries]}

def check_label(label):
    if not label.isdigit():
        raise ValueError("a label is a string of digits")
"""

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 21,
    "max_position_embeddings": 96,
    "tie_word_embeddings": True,
}


@pytest.fixture
def parse() -> Callable[..., argparse.Namespace]:
    """Function (flags...) -> the flat namespace of our parser: ``getattr(args, "actor.eps_clip")``."""

    def run(*flags: str) -> argparse.Namespace:
        return CovArgumentParser().parse_args([*REQUIRED, *flags])

    return run


@pytest.fixture
def parse_nested(monkeypatch) -> Callable[..., SimpleNamespace]:
    """Function (flags...) -> what ``train(args)`` gets, after upstream's checks: ``args.actor.eps_clip``."""

    def run(*flags: str) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *flags])
        return train_ppo_ray.parse_args()

    return run


@pytest.fixture
def refused(capsys) -> Callable[..., str]:
    """Function (callable, arguments...) -> the one line with which it exits, status 2, behind ``error: ``."""

    def run(function: Callable, *arguments: str) -> str:
        with pytest.raises(SystemExit) as stop:
            sys.exit(function(*arguments))
        assert stop.value.code == 2
        line = capsys.readouterr().err
        assert line.endswith("\n")
        assert len(line.splitlines()) == 1
        _, error, reason = line.partition(": error: ")
        assert error
        return reason

    return run


@pytest.fixture
def write_rows() -> Callable[[Path, list[dict]], Path]:
    """Function (path, rows) -> path of a JSON Lines file with these rows."""

    def write(path: Path, rows: list[dict]) -> Path:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


@pytest.fixture
def make_model() -> Callable[..., Path]:
    """Function (folder, names of its files) -> the new folder of a model; the files are what a check reads of them."""
    chat = json.dumps({"chat_template": "{{ messages[0]['content'] }}"})
    content = {"config.json": json.dumps({"model_type": "qwen2"}), "tokenizer_config.json": chat}

    def make(folder: Path, files=("config.json", "tokenizer_config.json", "model.safetensors")) -> Path:
        folder.mkdir()
        for name in files:
            (folder / name).write_text(content.get(name, "weights"))
        return folder

    return make


@pytest.fixture
def inputs(tmp_path, monkeypatch, write_rows, make_model) -> dict[str, object]:
    """Good inputs of a run, as flags; a test replaces the value that it makes bad."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    reward = tmp_path / "reward.py"
    reward.write_text(REWARD)
    rows = [{"input": f"{i}+{i}=", "label": str(2 * i)} for i in range(4)]
    return {
        "--ckpt.output_dir": tmp_path / "run",
        "--ckpt.path": tmp_path / "checkpoints",
        "--actor.model_name_or_path": make_model(tmp_path / "model"),
        "--reward.remote_url": reward,
        "--data.prompt_dataset": write_rows(tmp_path / "train.jsonl", rows),
        "--data.input_key": "input",
        "--data.label_key": "label",
        "--algo.advantage.estimator": "group_norm",
        "--rollout.batch_size": 4,
        "--rollout.n_samples_per_prompt": 2,
        "--rollout.micro_batch_size": 1,
        "--train.batch_size": 4,
        "--actor.num_gpus_per_node": 1,
        "--ref.num_gpus_per_node": 1,
        "--reward.num_gpus_per_node": 1,
        "--vllm.num_engines": 1,
    }


@pytest.fixture
def check(inputs, parse_nested) -> Callable[..., None]:
    """Function (changes, flags...): run all checks on the inputs with some of them changed."""
    from openrlhf_cov.trainer.preflight import preflight

    def run(changes=(), *extra: str) -> None:
        flags = [str(word) for pair in (inputs | dict(changes)).items() for word in pair]
        preflight.check(parse_nested(*flags, *extra))

    return run


@pytest.fixture
def refusal(check) -> Callable[..., str]:
    """Function (changes, flags...) -> the line with which the changed inputs are refused."""
    return partial(refusal_of, check)


@pytest.fixture
def loadable_model(inputs) -> Path:
    """The folder of the inputs' model, now with a config and a tokenizer that can be read; sequences fit into it."""
    from openrlhf_cov.experiments.tiny_task.tokenizer import build_tokenizer

    inputs |= {"--data.max_len": 48, "--rollout.max_new_tokens": 24}
    folder = inputs["--actor.model_name_or_path"]
    (folder / "config.json").write_text(json.dumps(CONFIG))
    build_tokenizer(96).save_pretrained(folder)
    return folder


@pytest.fixture
def run_flags(inputs, loadable_model) -> Callable[..., list[str]]:
    """Function (changes) -> the flags of a run on two GPUs."""
    inputs["--algo.kl.init_coef"] = 0

    def flags(changes=()) -> list[str]:
        return [str(word) for pair in (inputs | dict(changes)).items() if pair[1] is not None for word in pair]

    return flags


@pytest.fixture
def plan_run(run_flags, parse_nested, capsys) -> Callable[..., tuple[int, list[str], list[str]]]:
    """Function (changes, flags...) -> (exit status, lines, shortfalls) of a dry run on one node of two GPUs."""

    def run(changes=(), *extra: str) -> tuple[int, list[str], list[str]]:
        shortfalls: list[str] = []

        def complain(message: str) -> int:
            shortfalls.append(message)
            return 2

        one_node = ["--dry_run", "--dry_run_nodes", "1", "--dry_run_gpus", "2"]
        args = parse_nested(*run_flags(changes), *one_node, *extra)
        capsys.readouterr()
        return dry_run.run(args, complain), capsys.readouterr().out.splitlines(), shortfalls

    return run


@pytest.fixture
def no_math_verify(monkeypatch) -> None:
    """An environment without the library."""
    find_spec = packages.find_spec
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name == "math_verify" else find_spec(name))


@pytest.fixture
def problems() -> list[dict[str, str]]:
    """The rows of four problems, p0 to p3; the answer to all is 0."""
    return [{"id": f"p{n}", "problem": f"What is {n} - {n} ?", "answer": "0", "source": "math"} for n in range(4)]


@pytest.fixture
def problems_file(tmp_path, write_rows, problems) -> Path:
    return write_rows(tmp_path / "sums.jsonl", problems)


@pytest.fixture
def evaluate_flags(openai_server, problems_file, tmp_path) -> dict[str, object]:
    """A good command line of ``evaluate``: three samples of four problems from the server, into ``run``."""
    return {
        "--model": "tiny",
        "--base_url": openai_server.url,
        "--benchmarks": problems_file,
        "--output": tmp_path / "run",
        "--temperature": "0.6",
        "--samples": "3",
        "--max_tokens": "24",
    }


@pytest.fixture(scope="session")
def words() -> Callable[..., list[str]]:
    """Function (flags, words...) -> the command line."""

    def make(flags, *extra) -> list[str]:
        return [*(str(word) for pair in flags.items() for word in pair), *map(str, extra)]

    return make


@pytest.fixture
def run_command(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Function (words...) -> (exit status, stdout, stderr) of ``openrlhf-cov WORDS``, run in this process."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["openrlhf-cov", *map(str, arguments)])
        capsys.readouterr()
        try:
            status = main()
        except SystemExit as end:  # argparse
            status = end.code
        return status, *capsys.readouterr()

    return run
