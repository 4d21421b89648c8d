"""Every recipe is submitted to a stand-in for Ray, which notes the command; its flags then go through the dry run,
those of an evaluation through its parser."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_cov.cli import evaluate, train_ppo_ray
from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.evaluation.benchmarks import BENCHMARKS, GROUPS, get_protocol, select

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
METHODS = ("grpo", "clip_higher", "clip_cov", "kl_cov")
QWEN = [(size, method) for size in ("7b", "32b") for method in METHODS]
NODES = {"7b": 1, "32b": 4}
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
    for name in dict.fromkeys((*GROUPS["paper"], *GROUPS["law"])):
        rows = [
            {"id": f"{name}-{n}", "problem": f"What is {n} + 1?", "answer": str(n + 1), "source": "math"}
            for n in range(BENCHMARKS[name].rows)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def flags_of(tmp_path, data, eval_data, submitted):
    """Function (recipe, words, variables) -> the flags it gives ``program`` (default: the trainer)."""

    def run(recipe: str, *words: str, program: str = "train_ppo_ray", **variables: str) -> list[str]:
        known = {"DATA": str(data), "EVAL_DATA": str(eval_data), "OUTPUT": str(tmp_path / "run")}
        more = words if "--dry_run" in words else ()  # with it nothing is submitted
        rest = () if more else words
        module, *flags = submitted(recipe, *rest, folder=tmp_path, **(known | variables))
        assert module == f"openrlhf_cov.cli.{program}"
        return [*flags, *more]

    return run


def dry_run(monkeypatch, flags: list[str]) -> int | None:
    monkeypatch.chdir(SCRIPTS.parent)
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *flags])
    return train_ppo_ray.main()


def value(flags: list[str], flag: str, count: int = 1) -> list[str]:
    place = flags.index(flag)
    return flags[place + 1 : place + 1 + count]


def continues(flags: list[str]) -> bool:
    """Return True if a recipe continues a run when its command is given again."""
    kept = value(flags, "--ckpt.save_steps"), value(flags, "--ckpt.max_num")
    return kept == (["10"], ["2"]) and "--ckpt.load_enable" in flags and "--ckpt.best_metric_key" not in flags


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "method", "layout"),
    [*((*each, "colocated") for each in QWEN), *((size, "kl_cov", "split") for size in NODES)],
)
def test_a_recipe_would_run_on_its_cluster(monkeypatch, capfd, flags_of, size, method, layout):
    cluster = ["--dry_run", "--dry_run_nodes", str(NODES[size]), "--dry_run_gpus", "8", "--dry_run_gpu_memory", "80"]
    flags = flags_of(f"train_qwen2.5.sh {size} {method}", *cluster, LAYOUT=layout)
    assert (dry_run(monkeypatch, flags), value(flags, "--eval.dataset")) == (0, ["bench:aime24,math500"])
    printed = capfd.readouterr().out
    assert "dry run: it would run" in printed
    assert "2,048 samples, updates: 8" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "words", "status", "said"),
    [
        ("train_qwen2.5.sh 32b grpo", [], 0, "cluster: 4 nodes x 8 GPUs of 80 GiB"),
        (
            "train_qwen2.5_7b_kl_cov.sh",
            ["--dry_run_nodes", "1", "--dry_run_gpus", "4", "--dry_run_gpu_memory", "80"],
            2,
            "cluster: 1 node x 4 GPUs of 80 GiB",
        ),
    ],
)
def test_a_dry_run_needs_neither_ray_nor_gpus(data, eval_data, tmp_path, recipe, words, status, said):
    known = {
        name: value for name, value in os.environ.items() if name not in ("MODEL", "LAYOUT", "RAY_ADDRESS", "SIZE")
    }
    # no ray on the PATH
    variables = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "DATA": str(data), "EVAL_DATA": str(eval_data)}
    variables |= {"OUTPUT": str(tmp_path / "run"), "BENCHMARKS": "paper"}
    script, *arguments = recipe.split()
    command = [str(SCRIPTS / script), *arguments, "--dry_run", *words]
    done = subprocess.run(command, env=known | variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == status, done.stderr
    assert said in done.stdout
    assert ("dry run: it would run" in done.stdout) == (status == 0)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_recipe_without_its_benchmarks_would_not_run(monkeypatch, capfd, flags_of, tmp_path):
    cluster = ["--dry_run", "--dry_run_nodes", "1", "--dry_run_gpus", "8", "--dry_run_gpu_memory", "80"]
    assert dry_run(monkeypatch, flags_of("train_qwen2.5.sh 7b grpo", *cluster, EVAL_DATA=str(tmp_path))) == 2
    missing = [line for line in capfd.readouterr().err.splitlines() if f"--eval.data_dir {tmp_path}: no file" in line]
    assert len(missing) == 2  # AIME 2024 and MATH-500


@pytest.mark.parametrize(("size", "engines", "gpus_each"), [("7b", 8, 1), ("32b", 2, 4)])
def test_an_evaluation_is_understood(flags_of, eval_data, tmp_path, size, engines, gpus_each):
    flags = flags_of(f"eval_qwen2.5.sh {size}", program="evaluate", DATA_DIR=str(eval_data), OUTPUT=str(tmp_path))
    args = evaluate.build_parser().parse_args(flags)
    assert (args.num_engines, args.tensor_parallel_size) == (engines, gpus_each)
    assert [each.name for each in select(args.benchmarks)] == [*GROUPS["paper"]]
    assert get_protocol(args.protocol).name == "paper"
    assert (args.model, args.data_dir, args.output) == (f"Qwen/Qwen2.5-{size.upper()}", eval_data, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "kl_cov"])
def test_the_recipes_for_a_cpu_host_would_run(monkeypatch, capfd, flags_of, method):
    cluster = ["--dry_run", "--dry_run_nodes", "1", "--dry_run_gpus", "2", "--dry_run_node_memory", "16"]
    flags = flags_of(f"train_smollm2_135m.sh {method}", *cluster, MODEL="HuggingFaceTB/SmolLM2-135M-Instruct")
    assert continues(flags)
    assert dry_run(monkeypatch, flags) == 0
    assert "dry run: it would run" in capfd.readouterr().out


SETTINGS = {
    # section 4.3: 256 prompts x 8 responses of up to 8,192 tokens to prompts of up to 2,048, 8 updates, T = 1
    "--rollout.batch_size": "256",
    "--rollout.n_samples_per_prompt": "8",
    "--train.batch_size": "256",  # samples: 256 x 8 / 8
    "--train.max_epochs": "1",
    "--data.max_len": "10240",
    "--rollout.max_new_tokens": "8192",
    "--rollout.temperature": "1",
    "--rollout.top_p": "1",
    # no critic, no reference, advantages of a group by its standard deviation, every token alike
    "--algo.advantage.estimator": "group_norm",
    "--algo.kl.init_coef": "0",
    "--actor.loss_agg_mode": "token-mean",
    "--algo.dynamic_filtering_range": "0 1",
    "--sampling_max_rounds": "10",
    "--sampling_oversample_max": "6",  # (256 + 2 sqrt(256 * 0.8)) / 0.2 = 5.6 * 256 where a fifth passes
    "--reward_format": "boxed",
    "--reward_source": "row",
    # the optimizer of the authors' scripts
    "--actor.lr_scheduler": "constant",
    "--actor.adam.betas": "0.9 0.999",
    "--actor.adam.weight_decay": "0",
    "--actor.max_norm": "1",
    "--ds.zero_stage": "3",
    "--eval.steps": "20",
    "--eval.template": "qwen-boxed",  # the paper's prompts, whatever chat template the model brings
    "--eval.dataset": "bench:aime24,math500",
    "--train.num_episodes": "10",
}
LEARNING_RATES = {"7b": "5e-7", "32b": "1e-6"}
SWITCHES = [
    *("--algo.dynamic_filtering_enable", "--actor.gradient_checkpointing_enable", "--ds.packing_samples"),
    "--eval.at_start",
]
DUAL_CLIP = {"--actor.dual_clip": "10"}
METHOD_SETTINGS = {
    "grpo": DUAL_CLIP | {"--actor.eps_clip_low_high": "0.2 0.2"},
    "clip_higher": DUAL_CLIP | {"--actor.eps_clip_low_high": "0.2 0.28"},
    "clip_cov": {
        "--clip_cov_ratio": "2e-4",
        "--clip_cov_lb": "1",
        "--clip_cov_ub": "5",
        "--actor.eps_clip_low_high": "1 1",
    },
    "kl_cov": {"--ppo_kl_coef": "1"},
}
KL_COV_RATIOS = {"7b": "2e-3", "32b": "2e-4"}


@pytest.mark.parametrize(("size", "method"), QWEN)
def test_settings_are_those_of_the_paper(flags_of, size, method):
    flags = flags_of(f"train_qwen2.5.sh {size} {method}")
    expected = SETTINGS | METHOD_SETTINGS[method] | {"--actor.adam.lr": LEARNING_RATES[size]}
    expected |= {"--cov_type": method if method.endswith("_cov") else "none"}
    if method == "kl_cov":
        expected["--kl_cov_ratio"] = KL_COV_RATIOS[size]
    assert {flag: " ".join(value(flags, flag, len(each.split()))) for flag, each in expected.items()} == expected
    assert all(switch in flags for switch in SWITCHES)
    assert continues(flags)
    others = {flag for each in METHOD_SETTINGS.values() for flag in each} | {"--kl_cov_ratio"}
    assert not (others - expected.keys()) & set(flags)  # of another method


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "engines"), [("colocated", "16"), ("split", "4")])
def test_nodes_and_engines_can_be_named(monkeypatch, capfd, flags_of, layout, engines):
    # colocated: 2 x 8 GPUs train and hold 16 engines; split: 2 x 4 train, 4 more hold engines
    cluster = ["--dry_run", "--dry_run_nodes", "2", "--dry_run_gpus", "8", "--dry_run_gpu_memory", "80"]
    flags = flags_of("train_qwen2.5_7b_kl_cov.sh", *cluster, LAYOUT=layout, NODES="2", ENGINES=engines)
    assert flags[-len(cluster) :] == cluster
    assert dry_run(monkeypatch, flags) == 0
    printed = " ".join(capfd.readouterr().out.split())
    places = {
        "colocated": ("node 0 GPU 0-7 actor 0-7, engine 0-7", "node 1 GPU 0-7 actor 8-15, engine 8-15"),
        "split": ("node 0 GPU 0-3 engine 0-3", "node 1 GPU 0-7 actor 0-7"),
    }
    assert all(place in printed for place in places[layout]), printed


@pytest.mark.slow
def test_a_dry_run_plans_for_the_nodes_that_are_asked_for(data, eval_data, tmp_path):
    variables = {"DATA": data, "EVAL_DATA": eval_data, "OUTPUT": tmp_path / "run", "NODES": 16, "ENGINES": 32}
    environment = {name: value for name, value in os.environ.items() if name not in ("LAYOUT", "RAY_ADDRESS")}
    found = subprocess.run(
        [str(SCRIPTS / "train_qwen2.5.sh"), "32b", "kl_cov", "--dry_run"],
        env=environment | {name: str(value) for name, value in variables.items()} | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert "cluster: 16 nodes x 8 GPUs of 80 GiB" in found.stdout, found.stdout + found.stderr


def test_a_job_gets_the_words_as_they_are_written(flags_of):
    """Ray's line is read by a shell, for which these are redirections, patterns, variables and more."""
    words = ["<|im_end|>", "*", "~", "a b", "$HOME", "$HOME and `id`", "(1;2)&", "it's", "#1", "", "a\\b", "a\\b c"]
    words += ['{"thinking":false,"effort":"low"}', '{"thinking": false, "cost": "$5"}', "[0-9]?", "a\tb", "{a,b}"]
    assert flags_of("train_qwen2.5.sh 7b grpo", *words)[-len(words) :] == words


@pytest.mark.slow
@pytest.mark.parametrize("size", ["7b", "32b"])
def test_the_short_names_are_the_recipes_of_kl_cov(flags_of, size):
    long_name = flags_of(f"train_qwen2.5.sh {size} kl_cov", "--train.seed", "7")
    assert flags_of(f"train_qwen2.5_{size}_kl_cov.sh", "--train.seed", "7") == long_name


@pytest.mark.parametrize(
    ("recipe", "variables", "said"),
    [
        ("train_qwen2.5.sh", {}, "MODEL and METHOD are required"),
        ("train_qwen2.5.sh 7b", {}, "MODEL and METHOD are required"),
        ("train_qwen2.5.sh 14b grpo", {}, "MODEL 14b: no such model; use 7b or 32b"),
        ("train_qwen2.5.sh 7b clipcov", {}, "METHOD clipcov: no such method; use grpo, clip_higher"),
        ("train_qwen2.5.sh 7b --dry_run", {}, "METHOD --dry_run: no such method"),
        ("train_qwen2.5.sh 32b on_policy", {}, "METHOD on_policy: only with MODEL 7b"),
        ("eval_qwen2.5.sh", {}, "SIZE is required"),
        ("eval_qwen2.5.sh 14b", {}, "SIZE 14b: no such model; use 7b or 32b"),
        ("train_qwen2.5.sh 7b grpo", {"LAYOUT": "spilt"}, "LAYOUT spilt: no such layout; use colocated or split"),
        ("train_smollm2_135m.sh", {}, "METHOD is required; use scripts/train_smollm2_135m.sh grpo|kl_cov"),
        ("train_smollm2_135m.sh clip_cov", {}, "METHOD clip_cov: no such method; use grpo or kl_cov"),
    ],
)
def test_a_wrong_argument_is_one_line(recipe, variables, said):
    script, *arguments = recipe.split()
    environment = {"PATH": "/usr/bin:/bin"} | variables
    done = subprocess.run([str(SCRIPTS / script), *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{script}: {said}")
    assert (done.stderr.count("\n"), done.stdout) == (1, "")


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.sh")) + sorted(SCRIPTS.glob("*.sbatch")), ids=lambda p: p.name)
def test_every_script_is_readable_by_bash_and_may_be_started(path):
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", str(path)], check=True)


LAW_SETTINGS = {
    # section 2.2: 512 prompts x 8 responses, updates of 256 prompts, lr 5e-7, epsilon 0.2, no reference
    "--rollout.batch_size": "512",
    "--rollout.n_samples_per_prompt": "8",
    "--train.batch_size": "2048",  # 256 prompts x 8
    "--actor.adam.lr": "5e-7",
    "--actor.eps_clip_low_high": "0.2 0.2",
    "--algo.kl.init_coef": "0",
    "--algo.dynamic_filtering_range": "0 1",
    "--cov_type": "none",
    "--eval.dataset": "bench:law",
    "--eval.steps": "4",
    # 2,400 gradient steps, two in a rollout of 512 prompts
    "--rollout_limit": "1200",
}


def test_the_data_of_the_law_lasts_for_its_rollouts(flags_of):
    # GSM8K, the smallest set, has 7,473 problems: of 300 passes, 2,241,900, 1,200 * 512 = 614,400 are trained, 27 %
    (episodes,) = value(flags_of("train_law.sh"), "--train.num_episodes")
    assert 0.27 < 1200 * 512 / (7473 * int(episodes)) < 0.28


@pytest.mark.slow
def test_the_runs_of_the_law_have_the_settings_of_section_2(flags_of):
    flags = flags_of("train_law.sh", TEMPLATE="plain", MODEL="meta-llama/Llama-3.2-3B")
    assert {
        flag: " ".join(value(flags, flag, len(each.split()))) for flag, each in LAW_SETTINGS.items()
    } == LAW_SETTINGS
    assert continues(flags)
    assert "--actor.entropy_coef" not in flags
    assert (value(flags, "--eval.template"), value(flags, "--actor.model_name_or_path")) == (
        ["plain"],
        ["meta-llama/Llama-3.2-3B"],
    )
    assert "--data.apply_chat_template" not in flags
    assert "--data.apply_chat_template" in flags_of("train_law.sh", TEMPLATE="chat")


@pytest.mark.slow
def test_on_policy_is_one_update_with_the_whole_rollout(monkeypatch, capfd, flags_of):
    cluster = ["--dry_run", "--dry_run_nodes", "1", "--dry_run_gpus", "8", "--dry_run_gpu_memory", "80"]
    flags = flags_of("train_qwen2.5.sh 7b on_policy", *cluster)
    assert dry_run(monkeypatch, flags) == 0
    # of a group that waits for the next step the policy is one update old
    assert value(flags, "--sampling_max_staleness") == ["0"]
    assert "2,048 samples, updates: 1" in capfd.readouterr().out
