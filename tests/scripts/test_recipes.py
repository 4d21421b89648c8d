"""Every recipe is submitted to a stand-in for Ray, which notes the command; its flags then go through the dry run,
those of an evaluation through its parser."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from openrlhf_cov.cli import evaluate, train_ppo_ray
from openrlhf_cov.evaluation.benchmarks import BENCHMARKS, GROUPS, get_protocol, select
from openrlhf_cov.trainer import cpu_host

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
METHODS = ("grpo", "clip_higher", "clip_cov", "kl_cov")
QWEN = [(size, method) for size in ("7b", "32b") for method in METHODS]
NODES = {"7b": 1, "32b": 4}
RAY = """#!{python}
import json, sys
words = sys.argv[1:]
assert words[:3] == ["job", "submit", "--address"], words
json.loads(words[words.index("--runtime-env-json") + 1])
command = words[words.index("--") + 1:]
assert command[1] == "-m", command
open({output!r}, "w").write(json.dumps(command[2:]))
"""

cpu_host.install()


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A prepared training set."""
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    rows = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1), "source": "math"} for n in range(400)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def eval_data(tmp_path_factory) -> Path:
    """A folder with made-up problems, as many as each benchmark of the paper has."""
    folder = tmp_path_factory.mktemp("eval")
    for name in GROUPS["paper"]:
        rows = [
            {"id": f"{name}-{n}", "problem": f"What is {n} + 1?", "answer": str(n + 1), "source": "math"}
            for n in range(BENCHMARKS[name].rows)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def flags_of(tmp_path, data, eval_data):
    """Function (script, words, variables) -> the flags it gives ``program`` (default: the trainer)."""
    noted = tmp_path / "flags.json"
    ray = tmp_path / "bin" / "ray"
    ray.parent.mkdir()
    ray.write_text(RAY.format(python=sys.executable, output=str(noted)))
    ray.chmod(0o755)

    def run(script: str, *words: str, program: str = "train_ppo_ray", **variables: str) -> list[str]:
        known = {"DATA": str(data), "EVAL_DATA": str(eval_data), "OUTPUT": str(tmp_path / "run")}
        known |= {"PATH": f"{ray.parent}:{os.environ['PATH']}"}
        environment = {
            name: value for name, value in os.environ.items() if name not in ("MODEL", "LAYOUT", "BENCHMARKS")
        }
        subprocess.run(
            [str(SCRIPTS / script), *words], check=True, timeout=60, cwd=tmp_path, env=environment | known | variables
        )
        module, *flags = json.loads(noted.read_text())
        assert module == f"openrlhf_cov.cli.{program}"
        return flags

    return run


def dry_run(monkeypatch, flags: list[str]) -> int | None:
    monkeypatch.chdir(SCRIPTS.parent)
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *flags])
    with pytest.raises(SystemExit) as end:
        train_ppo_ray.main()
    return end.value.code


def value(flags: list[str], flag: str, count: int = 1) -> list[str]:
    place = flags.index(flag)
    return flags[place + 1 : place + 1 + count]


@pytest.mark.parametrize("layout", ["colocated", "split"])
@pytest.mark.parametrize(("size", "method"), QWEN)
def test_a_recipe_would_run_on_its_cluster(monkeypatch, capfd, flags_of, size, method, layout):
    cluster = ["--dry_run", "--dry_run_nodes", str(NODES[size]), "--dry_run_gpus", "8", "--dry_run_gpu_memory", "80"]
    flags = flags_of(f"train_qwen2.5_{size}_{method}.sh", *cluster, LAYOUT=layout)
    assert (dry_run(monkeypatch, flags), value(flags, "--eval.dataset")) == (0, ["bench:paper"])
    printed = capfd.readouterr().out
    assert "dry run: it would run" in printed
    assert "2,048 samples, updates: 8" in printed


def test_half_the_cluster_is_too_small(monkeypatch, capfd, flags_of):
    cluster = ["--dry_run", "--dry_run_nodes", "1", "--dry_run_gpus", "4", "--dry_run_gpu_memory", "80"]
    assert dry_run(monkeypatch, flags_of("train_qwen2.5_7b_kl_cov.sh", *cluster)) == 2
    assert "no room for 8 GPUs" in capfd.readouterr().err


def test_a_recipe_without_its_benchmarks_would_not_run(monkeypatch, capfd, flags_of, tmp_path):
    cluster = ["--dry_run", "--dry_run_nodes", "1", "--dry_run_gpus", "8", "--dry_run_gpu_memory", "80"]
    assert dry_run(monkeypatch, flags_of("train_qwen2.5_7b_grpo.sh", *cluster, EVAL_DATA=str(tmp_path))) == 2
    missing = [line for line in capfd.readouterr().err.splitlines() if f"--eval.data_dir {tmp_path}: no file" in line]
    assert len(missing) == len(GROUPS["paper"])


@pytest.mark.parametrize(("size", "engines", "gpus_each"), [("7b", 8, 1), ("32b", 2, 4)])
def test_an_evaluation_is_understood(flags_of, eval_data, tmp_path, size, engines, gpus_each):
    flags = flags_of(f"eval_qwen2.5_{size}.sh", program="evaluate", DATA_DIR=str(eval_data), OUTPUT=str(tmp_path))
    args = evaluate.build_parser().parse_args(flags)
    assert (args.num_engines, args.tensor_parallel_size) == (engines, gpus_each)
    assert [each.name for each in select(args.benchmarks)] == [*GROUPS["paper"]]
    assert get_protocol(args.protocol).name == "paper"
    assert (args.model, args.data_dir, args.output) == (f"Qwen/Qwen2.5-{size.upper()}", eval_data, tmp_path)


@pytest.mark.parametrize("method", ["grpo", "kl_cov"])
def test_the_recipes_for_a_cpu_host_would_run(monkeypatch, capfd, flags_of, method):
    cluster = ["--dry_run", "--dry_run_nodes", "1", "--dry_run_gpus", "2", "--dry_run_node_memory", "16"]
    flags = flags_of(f"train_smollm2_135m_{method}.sh", *cluster, MODEL="HuggingFaceTB/SmolLM2-135M-Instruct")
    assert dry_run(monkeypatch, flags) == 0
    assert "dry run: it would run" in capfd.readouterr().out


@pytest.mark.parametrize(("size", "method"), QWEN)
def test_settings_are_those_of_the_paper(flags_of, size, method):
    flags = flags_of(f"train_qwen2.5_{size}_{method}.sh")
    # section 4.3 and the authors' scripts: 256 prompts x 8, 8 updates of 32 prompts each, T = 1, 2,048 + 8,192 tokens
    assert value(flags, "--rollout.batch_size") + value(flags, "--rollout.n_samples_per_prompt") == ["256", "8"]
    assert int(*value(flags, "--train.batch_size")) * 8 == 256 * 8
    assert value(flags, "--rollout.temperature") == ["1"]
    assert int(*value(flags, "--data.max_len")) - int(*value(flags, "--rollout.max_new_tokens")) == 2048
    assert value(flags, "--rollout.max_new_tokens") == ["8192"]
    assert value(flags, "--actor.adam.lr") == [{"7b": "5e-7", "32b": "1e-6"}[size]]
    assert value(flags, "--actor.lr_scheduler") == ["constant"]
    assert value(flags, "--algo.kl.init_coef") == ["0"]
    assert value(flags, "--actor.loss_agg_mode") == ["token-mean"]
    assert value(flags, "--eval.steps") == ["4"]
    assert "--algo.dynamic_filtering_enable" in flags
    clip = {"grpo": ["0.2", "0.2"], "clip_higher": ["0.2", "0.28"], "clip_cov": ["1", "1"]}.get(method)
    assert clip is None or value(flags, "--actor.eps_clip_low_high", 2) == clip
    assert (clip is None) == ("--actor.eps_clip_low_high" not in flags)
    if method == "clip_cov":
        names = ("--clip_cov_ratio", "--clip_cov_lb", "--clip_cov_ub")
        assert [value(flags, name)[0] for name in names] == ["2e-4", "1", "5"]
    if method == "kl_cov":
        assert value(flags, "--kl_cov_ratio") == [{"7b": "2e-3", "32b": "2e-4"}[size]]
        assert value(flags, "--ppo_kl_coef") == ["1"]


@pytest.mark.parametrize("size", ["7b", "32b"])
def test_recipes_of_a_size_differ_in_the_method_alone(size):
    scripts = {m: (SCRIPTS / f"train_qwen2.5_{size}_{m}.sh").read_text().splitlines() for m in METHODS}
    for method, lines in scripts.items():
        common = [line.replace(f"_{method}", "") for line in lines if "--cov_type" not in line][2:]
        first = [line.replace("_grpo", "") for line in scripts["grpo"] if "--cov_type" not in line][2:]
        assert common == first, method


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.sh")) + sorted(SCRIPTS.glob("*.sbatch")), ids=lambda p: p.name)
def test_every_script_is_readable_by_bash_and_may_be_started(path):
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_a_recipe_passes_on_what_is_added(flags_of):
    assert flags_of("train_qwen2.5_7b_grpo.sh", "--train.seed", "7")[-2:] == ["--train.seed", "7"]


def test_the_kubernetes_manifest_asks_for_what_the_recipe_needs():
    job = yaml.safe_load((SCRIPTS / "kuberay_train.yaml").read_text())
    (workers,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (worker,) = workers["template"]["spec"]["containers"]
    assert workers["replicas"] * int(worker["resources"]["limits"]["nvidia.com/gpu"]) == 32
    recipe = next(word for word in job["spec"]["entrypoint"].split() if word.startswith("scripts/"))
    assert (SCRIPTS.parent / recipe).exists()
    pins = (SCRIPTS.parent / "requirements.txt").read_text()
    assert f"ray[default]=={job['spec']['rayClusterSpec']['rayVersion']}" in pins
