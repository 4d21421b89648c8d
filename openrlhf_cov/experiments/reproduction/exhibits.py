"""The figures and tables of arXiv 2505.22617v1, each with its runs, at the paper's scale and on one host (pure).

At the paper's scale a run is a recipe of ``scripts/`` with variables and flags. The tiny scale is that of the embedded
tasks: a run of ``openrlhf-cov lab``, or of the whole trainer where the lab lacks what the figure is about. Its numbers
are not the paper's; its commands, metrics and figures are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

# Training sets, names of ``openrlhf-cov prepare --dataset``.
EURUS = "eurus-2-rl-math"
GSM8K = "gsm8k"
DAPO = "dapo-math-17k"
# All three whole: the paper does not say which of their programs it kept.
CODE = "eurus-2-code,acecode,kodcode"
# Files that the reader has to bring: the paper says neither which rows of Eurus are difficult, nor which programs it
# held out.
DIFFICULT = "/data/eurus-difficult.jsonl"
HELD_OUT = "/data/eval/code.jsonl"
# R of the paper: the mean over the benchmarks of an evaluation.
MEAN = ("--metric", "eval/mean/avg")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A script of ``scripts/`` and what it is given; ``data`` is a training set prepared with ``template``.

    ``arguments`` (model and method) come before the flags of the trainer.
    """

    script: str
    arguments: tuple[str, ...] = ()
    data: str
    template: str = "qwen-boxed"
    variables: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    # Layout in ``scripts/layouts``: 7b is one node of 8 GPUs, 32b four.
    size: str = "7b"

    @property
    def benchmarks(self) -> str:
        """The group that the script evaluates on."""
        return "law" if self.script == "train_law.sh" else "paper"

    @property
    def nodes(self) -> int:
        """The number of nodes with 8 GPUs."""
        return 4 if self.size == "32b" else 1


@dataclass(frozen=True, kw_only=True)
class PaperRun:
    """A training run; ``name`` is that of its folder, the same in every exhibit that shows it.

    ``lab`` are the lab's flags at the tiny scale, ``trainer`` those of a small run through Ray; None: the run
    has no meaning there. ``tiny`` is the folder's name at that scale where it is not ``name`` without the model.
    """

    name: str
    recipe: Recipe | None = None
    lab: tuple[str, ...] | None = None
    trainer: tuple[str, ...] | None = None
    tiny: str = ""

    @property
    def is_tiny(self) -> bool:
        return self.lab is not None or self.trainer is not None

    @property
    def tiny_name(self) -> str:
        """The folder name at the tiny scale, where no Qwen model trains."""
        return self.tiny or self.name.replace("qwen2.5_7b_", "").replace("-qwen2.5-7b", "")


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """A figure or table of the paper: its title, its runs, and the pictures of the report that draw it.

    ``report`` are flags of the report; ``tables`` halves of Table 2 that the evaluated runs stand beside. ``steps`` is
    the length of a run at the tiny scale unless a flag says otherwise, ``not_tiny`` says why there is no such scale.
    """

    title: str
    runs: tuple[PaperRun, ...]
    pictures: tuple[str, ...]
    report: tuple[str, ...] = ()
    with_sizes: bool = False
    tables: tuple[str, ...] = ()
    steps: int = 200
    not_tiny: str = ""


def _law(
    name: str, model: str, data: str = EURUS, template: str = "qwen-boxed", size: str = "7b", **of_run
) -> PaperRun:
    """Return a run of GRPO without intervention. ``of_run`` are the fields of its tiny scale."""
    variables = {"MODEL": model, "TEMPLATE": template, "SIZE": size}
    return PaperRun(
        name=f"law-{name}",
        recipe=Recipe(script="train_law.sh", data=data, template=template, variables=variables, size=size),
        **of_run,
    )


def _with(run: PaperRun, name: str, *flags: str, **tiny) -> PaperRun:
    """Return the same recipe with more flags."""
    recipe = run.recipe
    assert recipe is not None
    return PaperRun(name=name, recipe=replace(recipe, flags=(*recipe.flags, *flags)), **tiny)


QWEN = {size: f"Qwen/Qwen2.5-{size}" for size in ("0.5B", "1.5B", "3B", "7B", "32B")}
AS_THE_DEMO = ("--rollout.batch_size", "32", "--algo.kl.init_coef", "0", "--test_samples")
# The lab on the sums, as the demo asks them; entropy falls as learning goes on.
ADDITION = ("--task", "addition", *AS_THE_DEMO, "8")
BASE = (*ADDITION, "--cov_type", "none")
# Evaluated little: each response takes the sandbox some time, and R is the reward of training.
PROGRAMS = ("--task", "code", *AS_THE_DEMO, "1", "--eval.n_samples_per_prompt", "1", "--cov_type", "none")
IN_THE_LAB = {"7B": {"lab": BASE, "tiny": "grpo"}}
QWEN_LAW = tuple(
    _law(f"qwen2.5-{size.lower()}", model, size="32b" if size == "32B" else "7b", **IN_THE_LAB.get(size, {}))
    for size, model in QWEN.items()
)
OTHERS = (
    _law("mistral-7b-v0.3", "mistralai/Mistral-7B-v0.3", GSM8K, "plain"),
    _law("mistral-nemo", "mistralai/Mistral-Nemo-Base-2407", GSM8K, "plain"),
    _law("mistral-small-24b", "mistralai/Mistral-Small-24B-Base-2501", EURUS, "plain", "32b"),
    _law("llama-3.2-3b", "meta-llama/Llama-3.2-3B", GSM8K, "plain"),
    _law("llama-3.1-8b", "meta-llama/Llama-3.1-8B", GSM8K, "plain"),
    _law("deepseek-math-7b", "deepseek-ai/deepseek-math-7b-base", GSM8K, "plain"),
)


def _base_policies(name: str, flags: tuple[str, ...]) -> tuple[PaperRun, ...]:
    """At the tiny scale other base policies stand for other models."""
    return tuple(
        PaperRun(name=f"{name}-base-policy-{seed}", lab=(*flags, "--base_seed", str(seed), "--train.seed", str(seed)))
        for seed in (1, 2)
    )


BASE_POLICIES = _base_policies("law", BASE)
LAW_7B = next(run for run in QWEN_LAW if run.name == "law-qwen2.5-7b")


def _programs(run: PaperRun) -> PaperRun:
    """Return the same model on programs, scored on held-out programs."""
    recipe = run.recipe
    assert recipe is not None
    template = {"qwen-boxed": "qwen-code", "plain": "plain-code"}[recipe.template]
    variables = {**recipe.variables, "TEMPLATE": template, "BENCHMARKS": HELD_OUT}
    recipe = replace(recipe, data=CODE, template=template, variables=variables)
    return PaperRun(name=run.name.replace("law-", "law-code-"), recipe=recipe, lab=PROGRAMS if run is LAW_7B else None)


CODE_LAW = tuple(map(_programs, (*QWEN_LAW, *OTHERS)))
# Beside the runs on mathematics, at the paper's scale alone: they have reports of their own.
QWEN_CODE = tuple(replace(run, lab=None) for run in CODE_LAW[: len(QWEN_LAW)])


def _method(size: str, method: str, **tiny) -> PaperRun:
    recipe = Recipe(script="train_qwen2.5.sh", arguments=(size, method), data=DAPO, size=size)
    return PaperRun(name=f"qwen2.5_{size}_{method}", recipe=recipe, **tiny)


CLIP_COV = (*ADDITION, "--cov_type", "clip_cov", "--clip_cov_lb", "0.5", "--clip_cov_ratio")
KL_COV = (*ADDITION, "--cov_type", "kl_cov", "--kl_cov_ratio", "2e-2", "--ppo_kl_coef")
# Fifty times the paper's share of Clip-Cov and ten times 7B's of KL-Cov: of a batch of some thousand tokens the
# paper's would be less than one. The names say the share of Clip-Cov, and the coefficient of KL-Cov.
TINY_METHODS = {
    "grpo": {"lab": BASE},
    "clip_higher": {"lab": (*BASE, "--actor.eps_clip_low_high", "0.2", "0.28")},
    "clip_cov": {"lab": (*CLIP_COV, "0.01"), "tiny": "clip_cov_0.01"},
    "kl_cov": {"lab": (*KL_COV, "1"), "tiny": "kl_cov_1"},
}
METHODS = {
    "7b": {method: _method("7b", method, **tiny) for method, tiny in TINY_METHODS.items()},
    "32b": {method: _method("32b", method) for method in TINY_METHODS},
}
ALL_METHODS = tuple(run for of_size in METHODS.values() for run in of_size.values())
GRPO = METHODS["7b"]["grpo"]
ON_POLICY = _method("7b", "on_policy", lab=(*BASE, "--updates", "1"))
ENTROPY_COEFS = ("1e-4", "1e-3", "5e-3", "1e-2")
KL_COEFS = ("1e-3", "1e-2", "5e-2", "1e-1")
# Figs. 9, 10, 12; coefficient 0 of the first two, ratio 2 and coefficient 1 of Fig. 12 are runs of Fig. 11. Fig. 12
# says "ratio" 2 to 7: parts of ten thousand, at the tiny scale fifty times that.
CLIP_RATIOS = ("4", "5", "7")
KL_PENALTIES = ("0", "0.05", "0.1", "0.5")
# k3: as a loss, k1 has a gradient of 0 in expectation.
REFERENCE = ("--algo.kl.use_loss", "--algo.kl.estimator", "k3", "--ref.num_nodes", "1", "--ref.num_gpus_per_node", "8")


def _entropy(coef: str) -> PaperRun:
    flags = ("--actor.entropy_coef", coef)
    return _with(GRPO, f"qwen2.5_7b_entropy_{coef}", *flags, lab=(*BASE, *flags))


def _reference(coef: str) -> PaperRun:
    flags = ("--algo.kl.init_coef", coef)
    return _with(GRPO, f"qwen2.5_7b_reference_{coef}", *REFERENCE, *flags, lab=(*BASE, *flags))


def _ratio(parts: str) -> PaperRun:
    run = METHODS["7b"]["clip_cov"]
    share = f"{50 * int(parts) / 10_000:g}"
    tiny = {"lab": (*CLIP_COV, share), "tiny": f"clip_cov_{share}"}
    return _with(run, f"qwen2.5_7b_clip_cov_{parts}e-4", "--clip_cov_ratio", f"{parts}e-4", **tiny)


def _penalty(coef: str) -> PaperRun:
    run = METHODS["7b"]["kl_cov"]
    return _with(run, f"qwen2.5_7b_kl_cov_{coef}", "--ppo_kl_coef", coef, lab=(*KL_COV, coef))


# The paper's name -> upstream's; upstream normalises the advantages of ``reinforce`` over the batch.
ESTIMATORS = {"rloo": "rloo", "reinforce++": "reinforce", "reinforce++-baseline": "reinforce_baseline"}
# GRPO, where the tiny scale needs the whole trainer.
THROUGH_RAY = replace(LAW_7B, lab=None, trainer=("--algo.advantage.estimator", "group_norm"), tiny="law-grpo")


def _estimator(name: str, estimator: str) -> PaperRun:
    flags = ("--algo.advantage.estimator", estimator)
    return _with(LAW_7B, f"law-qwen2.5-7b-{name}", *flags, trainer=flags)


# PRIME has a reference, on the GPUs of the policy. At the tiny scale its process reward model learns in 40 steps.
PRIME_FLAGS = ("--method", "prime", "--algo.advantage.estimator", "rloo")
PRIME = _with(
    LAW_7B,
    "law-qwen2.5-7b-prime",
    *PRIME_FLAGS,
    *("--ref.num_nodes", "1", "--ref.num_gpus_per_node", "8"),
    trainer=(*PRIME_FLAGS, "--prime_lr", "3e-5"),
)
LAW_PICTURES = ("law", "coefficients")
METHOD_PICTURES = ("reward_and_entropy", "response_length")

FIGURES: dict[int, Exhibit] = {
    1: Exhibit(
        title="entropy collapses early, and what is left of it says what reward is left",
        runs=(LAW_7B, *BASE_POLICIES), pictures=("reward_and_entropy", "law"), report=MEAN,
    ),
    2: Exhibit(
        title="shares of the fall of entropy and of the gain by 1/12 and 1/3 of a run",
        runs=(*QWEN_LAW, *OTHERS, *BASE_POLICIES), pictures=("reward_and_entropy",), report=MEAN,
    ),
    3: Exhibit(
        title="R = -a exp(H) + b of eleven base models, mathematics",
        runs=(*QWEN_LAW, *OTHERS, *BASE_POLICIES), pictures=LAW_PICTURES, report=MEAN,
    ),
    4: Exhibit(
        title="the same, programs", runs=(*CODE_LAW, *_base_policies("law-code", PROGRAMS)), pictures=LAW_PICTURES,
        report=MEAN,
    ),
    5: Exhibit(
        title="the law of the first 15 % forecasts the rest",
        runs=(*QWEN_LAW[1:], *QWEN_CODE[1:], *BASE_POLICIES), pictures=("law",), report=(*MEAN, "--forecast", "0.15"),
    ),
    6: Exhibit(
        title="one a and one b for GRPO, RLOO, REINFORCE++ and PRIME",
        runs=(THROUGH_RAY, *(_estimator(*each) for each in ESTIMATORS.items()), PRIME), pictures=LAW_PICTURES,
        report=MEAN, steps=40,
    ),
    7: Exhibit(
        title="a and b against model size", runs=(*QWEN_LAW, *QWEN_CODE), pictures=("model_size",), report=MEAN,
        with_sizes=True, not_tiny="the embedded tasks have one size of model",
    ),
    8: Exhibit(
        title="fall of entropy and covariance, and covariance by accuracy of the prompt",
        runs=(ON_POLICY,), pictures=("entropy_fall", "covariance_by_accuracy"),
    ),
    9: Exhibit(
        title="entropy loss", runs=(GRPO, *map(_entropy, ENTROPY_COEFS)), pictures=METHOD_PICTURES[:1], report=MEAN,
    ),
    10: Exhibit(
        title="KL penalty to a reference", runs=(GRPO, *map(_reference, KL_COEFS)), pictures=METHOD_PICTURES[:1],
        report=MEAN,
    ),
    11: Exhibit(
        title="entropy, length and score of GRPO, clip-higher, Clip-Cov and KL-Cov",
        runs=ALL_METHODS, pictures=METHOD_PICTURES, report=MEAN,
    ),
    12: Exhibit(
        title="entropy by ratio of Clip-Cov and coefficient of KL-Cov",
        runs=(
            *(METHODS["7b"][name] for name in ("grpo", "clip_cov")), *map(_ratio, CLIP_RATIOS),
            *map(_penalty, KL_PENALTIES), METHODS["7b"]["kl_cov"],
        ),
        pictures=METHOD_PICTURES[:1], report=MEAN,
    ),
    13: Exhibit(
        title="the law by training data",
        runs=(
            LAW_7B,
            _law("data-dapo", QWEN["7B"], DAPO),
            _law("data-gsm8k", QWEN["7B"], GSM8K),
            _law("data-eurus-difficult", QWEN["7B"], DIFFICULT),
        ),
        pictures=LAW_PICTURES, report=MEAN, not_tiny="an embedded task has one set of problems",
    ),
    14: Exhibit(
        title="the law of instruct models",
        runs=tuple(_law(f"{QWEN[size].split('/')[1].lower()}-instruct", f"{QWEN[size]}-Instruct", template="chat")
                   for size in ("1.5B", "3B", "7B")),
        pictures=LAW_PICTURES, report=MEAN, not_tiny="no embedded policy follows instructions",
    ),
}  # fmt: skip
TABLES: dict[int, Exhibit] = {
    1: Exhibit(title="mean covariance of the top tokens, first step", runs=(GRPO,), pictures=("covariance_bands",)),
    2: Exhibit(
        title="scores on seven benchmarks",
        runs=ALL_METHODS,
        pictures=METHOD_PICTURES,
        tables=("paper-7b", "paper-32b"),
    ),
}


def exhibit(figure: int | None, table: int | None) -> Exhibit:
    """The figure of this number, or the table."""
    return FIGURES[figure] if figure is not None else TABLES[table or 0]
