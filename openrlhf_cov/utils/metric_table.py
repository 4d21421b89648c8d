"""Every metric that a run logs, in one place: its title, unit, meaning and limit. docs/metrics.md prints this table."""

# ruff: noqa: E501  a metric is a line

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

# Before the numbers that one method has for itself.
OF_METHODS = "method/"
# Before the metrics of one data source: ``source/NAME/reward`` and others.
OF_SOURCES = "source/"
# Families of numbers that methods have for themselves, whichever they are.
OWN = ("control/", OF_METHODS)
# Places at the beginning of a response whose entropy is followed: what decides often stands there, and the mean over
# all tokens hides it.
POSITIONS = 8
STEP = "step"
TIME = "time"
ENTROPY = "entropy/mean"
STEP_TOTAL = "timing/step_total"
CPU_TIME = "timing/cpu"


@dataclass(frozen=True)
class Definition:
    """The metrics of a row. A name may be a pattern, such as ``eval/*/pass@*``."""

    # Name -> title.
    titles: Mapping[str, str]
    text: str
    unit: str = ""
    # How micro-batches and ranks add up, a class of ``openrlhf_cov.utils.metrics`` in small letters; "" where one
    # process knows.
    reduction: str = ""
    expected: str = ""
    # A run without it does not log this.
    only_with: str = ""
    # A value above it is worth an alert.
    limit: float | None = None


SOURCES = "rows that name a data source"
PROCESS_REWARD = "a process reward model ([PRIME](methods/prime.md))"
PROGRAMS = "[programs as rewards](code.md)"
BENCHMARKS = "benchmarks"
DYNAMIC = "`--algo.dynamic_filtering_enable`"
NATS = "nats"
SHARE = "share"
TOKENS = "tokens"
SECONDS = "s"
# Accuracies of a prompt whose covariance is followed, with the titles of their curves.
ACCURACIES = {"low": "hard (about 1 of 8 correct)", "mid": "medium (about half)", "high": "easy (about 7 of 8)"}

# fmt: off
# Table of docs/metrics.md -> its rows.
TABLE: dict[str, tuple[Definition, ...]] = {
    "rollout": (
        Definition({ENTROPY: "entropy"}, "mean entropy of all tokens of graded responses", unit=NATS, reduction="mean", expected="0 to ln V; falls as the policy sharpens"),
        Definition({"entropy/response_mean": "entropy, mean of responses"}, "mean entropy of a response, averaged over responses (paper eq. 5)", unit=NATS, reduction="mean"),
        Definition({"entropy/p10": "entropy, quantile 10 %", "entropy/p50": "entropy, quantile 50 %", "entropy/p90": "entropy, quantile 90 %"}, "quantiles of the entropy of all tokens", unit=NATS, reduction="distribution", expected="p10 and p50 far below the mean"),
        Definition({"entropy/correct": "entropy, correct", "entropy/wrong": "entropy, wrong"}, "mean entropy in correct and in incorrect responses", unit=NATS, reduction="mean", expected="wrong above correct"),
        Definition({"entropy/selected": "entropy, selected", "entropy/unselected": "entropy, not selected"}, "mean entropy of the tokens that updates of this step select, and of all others", unit=NATS, reduction="mean"),
        Definition({f"entropy/position_{place}": f"entropy of token {place + 1}" for place in range(POSITIONS)}, "mean entropy of the first eight tokens of the responses", unit=NATS, reduction="mean"),
        Definition({"cov/mean": "covariance, all tokens"}, "Cov(log π, A), the mean of `cov`", unit=NATS, reduction="mean", expected="positive while entropy falls"),
        Definition({"cov/prob_weighted_mean": "covariance, weighted by π"}, "Cov(log π, π A)", unit=NATS, reduction="mean"),
        Definition({"cov/group_mean": "covariance within a prompt"}, "covariance of length-normalised log-prob (paper eq. 9) and advantage over the responses of a prompt", unit=NATS, reduction="mean"),
        Definition({"cov/group_weighted_mean": "covariance within a prompt, weighted by π"}, "the same, with advantages weighted by the length-normalised probability (paper eq. 8)", unit=NATS, reduction="mean", expected="positive (paper Fig. 8)"),
        Definition({"cov/positive_frac": "covariance above 0"}, "tokens with `cov` above 0", unit=SHARE, reduction="mean", expected="about one half"),
        Definition({"cov/top_2e-4": "top 0.02 %", "cov/top_2e-3": "top 0.2 %", "cov/top_2e-2": "top 2 %", "cov/top_0.2": "top 20 %", "cov/top_0.5": "top 50 %"}, "mean of the largest values of `cov`; the name has their share", unit=NATS, reduction="distribution", expected="paper, Table 1"),
        Definition({f"cov/{kind}acc_{level}": title for kind in ("", "group_weighted_", "token_") for level, title in ACCURACIES.items()}, "`cov/group_mean`, `cov/group_weighted_mean` and `cov/mean` over prompts with about 1, 4 and 7 of 8 responses correct", unit=NATS, reduction="mean", expected="larger for easier prompts"),
    ),
    "theory": (
        Definition({"entropy/delta": "change of entropy"}, "`entropy/mean` minus that of the step before", unit=NATS),
        Definition({"entropy/delta_theorem1": "predicted change of entropy, theorem 1", "entropy/delta_theorem2": "predicted change of entropy, theorem 2"}, "−η `cov/prob_weighted_mean` and −η `cov/mean`, which predict the next `entropy/delta`"),
        Definition({"entropy/corr_theorem1": "rank correlation with theorem 1", "entropy/corr_theorem2": "rank correlation with theorem 2"}, "rank correlation (Spearman) of prediction and change over the last 200 steps", expected="above 0 where the theory holds"),
    ),
    "law": (
        Definition({"law/ceiling": "ceiling of the law"}, "b − a, the fitted reward at an entropy of 0", expected="constant early"),
        Definition({"law/r2": "R² of the law"}, "variance of `reward` that the fit explains", unit=SHARE, expected="near 1"),
    ),
    "updates": (
        Definition({"cov/selected_count": "selected"}, "selected tokens", unit=TOKENS, reduction="sum"),
        Definition({"cov/selected_frac": "selected, of all trained tokens"}, "selected tokens", unit=SHARE, reduction="mean", expected="at most the method's fraction, or one token of each update if that is more"),
        Definition({"cov/selected_mean": "covariance, selected tokens"}, "mean of `cov` over selected tokens, centred over the micro-batch", unit=NATS, reduction="mean", expected="KL-Cov: far above `cov/mean`; Clip-Cov: near the band"),
        Definition({"cov/selected_ppo_kl": "KL to the old policy on selected tokens", "cov/selected_abs_log_ratio": "|log π − log π old| on selected tokens"}, "mean of log π_old − log π, and of its absolute value, over selected tokens", unit=NATS, reduction="mean", expected="KL-Cov has no effect while the second is below 1e-5"),
        Definition({"cov/old_overlap": "selected by old log-probs, too"}, "tokens selected by Clip-Cov or KL-Cov that `--cov_log_probs old` also selects; every 50 steps", unit=SHARE, reduction="mean", expected="from 0.97 on, use [`old`](selection.md)"),
        Definition({"cov/empty_update_frac": "updates without a selected token"}, "updates without a selected token", unit=SHARE, expected="0; without a method 1", limit=0.5),
        Definition({"ppo/clip_frac": "clipped by PPO"}, "tokens whose gradient the clip, or the surrogate of a method, removes; masked and penalised tokens do not count", unit=SHARE, reduction="mean"),
        Definition({"gradient/coefficient_mean": "coefficient k"}, "mean of k", reduction="mean", expected="about 1 − `gradient/zero_frac`"),
        Definition({"gradient/effective_frac": "effective share of tokens"}, "effective sample size of the weights of the method: (Σ w)² / (n Σ w²)", unit=SHARE, reduction="effectiveshare", expected="1 without weights or masks"),
        Definition({"gradient/norm": "norm of the gradient"}, "gradient norm before clipping, mean over the updates", expected="steady"),
        Definition({"gradient/zero_frac": "tokens with k = 0", "gradient/untrained_frac": "tokens without a gradient"}, "tokens with k = 0; tokens with k = 0 or an advantage of 0", unit=SHARE, reduction="mean", expected="the first: what the method masks"),
        Definition({"gradient/positive_mass": "push up", "gradient/negative_mass": "push down"}, "mean of the positive, and of the negative k × advantage", reduction="mean", expected="of one size"),
        Definition({"ppo/ratio_p99": "ratio, quantile 99 %"}, "99th percentile of π/π_old", reduction="distribution", expected="near 1", limit=2.0),
        Definition({"ppo/ratio_max": "largest ratio"}, "largest π/π_old, at most 4.9e8", reduction="max"),
        Definition({"ppo/skipped_updates": "skipped updates"}, "updates skipped for a gradient that is not finite (`--train.on_nan`)", limit=0.0),
    ),
    "methods": (
        Definition({"control/value": "value of what is controlled"}, "value of the [controlled](methods/control.md) setting in this step", expected="between `--entropy_low` and `--entropy_high`", only_with="`--entropy_target`"),
        Definition({"control/gap": "entropy missing to the target"}, "target minus entropy", unit=NATS, expected="small, of changing sign", only_with="`--entropy_target`"),
        Definition({"method/*/*": "number of one method"}, "a number of one method, explained on its page; mean over trained tokens", reduction="mean", only_with="a method that has any"),
    ),
    "rewards": (
        Definition({"reward/no_answer_frac": "no answer"}, "responses without an answer", unit=SHARE, expected="falls", only_with="the reward function of the embedded task or `rewards/reward_func.py`"),
        Definition({"reward/unparsable_frac": "unparsable"}, "answers not in the form of their label, programs that do not compile", unit=SHARE, expected="near 0", only_with="`rewards/reward_func.py`", limit=0.3),
        Definition({"reward/timeout_frac": "timeout"}, "responses whose grading took too long", unit=SHARE, expected="near 0", only_with="`rewards/reward_func.py`", limit=0.01),
        Definition({"reward/error_frac": "error"}, "responses whose reward failed (`--reward_max_error_frac`)", unit=SHARE, only_with="a reward function or server", limit=0.0),
        Definition({"reward/abstained_frac": "abstained"}, "responses whose reward was None", unit=SHARE, only_with="an abstention in this step"),
        Definition({"reward/unfinished_frac": "unfinished"}, "responses without an end token", unit=SHARE, only_with="the reward function of the embedded task"),
        Definition({"sampling/staleness_mean": "staleness"}, "weight versions between sampling and training, mean over the groups", expected="below 1 in synchronous training", only_with=f"`--train.async_enable` or {DYNAMIC}"),
    ),
    "programs": (
        Definition({"reward/code_test_share": "tests passed"}, "tests that a program passes, up to the first failure with `--code_reward all`", unit=SHARE, expected="rises", only_with=PROGRAMS),
        Definition({"reward/code_wrong_frac": "wrong output", "reward/code_error_frac": "runtime error", "reward/code_memory_frac": "out of memory", "reward/code_output_frac": "too much output"}, "responses by the first failure of their program", unit=SHARE, only_with=PROGRAMS),
        Definition({"reward/code_cached_frac": "judged before"}, "responses whose program was judged before", unit=SHARE, expected="rises as entropy falls", only_with=PROGRAMS),
        Definition({"reward/code_seconds": "seconds to judge"}, "seconds to judge a program, 0 from the cache", only_with=PROGRAMS),
    ),
    "sampling": (
        Definition({"sampling/kept_frac": "groups kept"}, "groups with a mean score inside the range", unit=SHARE, only_with=DYNAMIC),
        Definition({"sampling/all_right_frac": "all correct", "sampling/all_wrong_frac": "all incorrect"}, "groups with only correct, and with only incorrect responses", unit=SHARE, expected="the first rises", only_with=DYNAMIC),
        Definition({"sampling/rounds": "rounds"}, "rounds of generation for this batch", expected="1 or 2", only_with=DYNAMIC),
        Definition({"sampling/oversample": "groups tried for one missing"}, "groups tried for each missing group", expected="about 1 / `sampling/kept_frac`", only_with=DYNAMIC),
        Definition({"sampling/wasted_token_frac": "wasted tokens"}, "tokens of discarded groups", unit=SHARE, only_with=DYNAMIC),
        Definition({"sampling/groups": "groups", "sampling/buffer_groups": "groups that wait"}, "groups of this batch, and kept groups that wait for the next", only_with=DYNAMIC),
    ),
    "sources": (
        Definition({"source/*/reward": "reward"}, "mean reward", only_with=SOURCES),
        Definition({"source/*/pass_rate": "pass rate"}, "correct responses", unit=SHARE, only_with=SOURCES),
        Definition({"source/*/response_length": "response length"}, "mean response length", unit=TOKENS, only_with=SOURCES),
        Definition({"source/*/entropy": "entropy"}, "mean entropy of the tokens", unit=NATS, only_with=SOURCES),
        Definition({"source/*/cov": "covariance"}, "mean of `cov`, centred over the whole step", unit=NATS, only_with=SOURCES),
        Definition({"source/*/samples": "responses"}, "number of responses", only_with=SOURCES),
    ),
    "process_reward": (
        Definition({"prm/loss": "process reward model: loss"}, "cross-entropy of correctness, before each update", unit=NATS, expected="0.693 in the first step, then below", only_with=PROCESS_REWARD),
        Definition({"prm/accuracy": "process reward model: pairs in order"}, "pairs of a correct and an incorrect response to one prompt that the model orders correctly", unit=SHARE, expected="above 0.5", only_with=PROCESS_REWARD),
        Definition({"prm/reward_mean": "process reward model: log-odds of correctness"}, "mean log-odds of correctness that the model gives the responses", expected="0 before training", only_with=PROCESS_REWARD),
        Definition({"prm/grad_norm": "process reward model: gradient norm", "prm/lr": "process reward model: learning rate"}, "gradient norm before clipping, and learning rate", expected="steady", only_with=PROCESS_REWARD),
        Definition({"prm/skipped_updates": "process reward model: skipped updates"}, "as `ppo/skipped_updates`", only_with=PROCESS_REWARD, limit=0.0),
    ),
    "upstream": (
        Definition({STEP: "step"}, "number of the global step"),
        Definition({TIME: "time"}, "Unix time when the line was written", unit=SECONDS),
        Definition({"policy_loss": "policy loss", "ppo_kl": "KL to the old policy", "ppo_clip_ratio": "clipped"}, "mean loss of the updates, mean of log π_old − log π, and clipped share"),
        Definition({"entropy_loss": "entropy during the updates"}, "entropy during the updates", unit=NATS, only_with="`--actor.entropy_coef`"),
        Definition({"kl": "KL to the reference", "logprobs_diff": "log ratio to the reference"}, "KL estimate and mean log ratio to the reference model", unit=NATS),
        Definition({"vllm_kl": "KL of vLLM to the trained policy"}, "mean log-prob in vLLM minus that in training", unit=NATS, expected="about 1e-6 in float32, up to 1e-2 in bfloat16; does not grow", only_with="log-probs of the engine"),
        Definition({"is_filter_ratio": "filtered by rollout correction"}, "tokens or sequences that it filters", unit=SHARE, only_with="rollout correction"),
        Definition({"actor_lr": "learning rate", "actor_grad_norm": "gradient norm"}, "learning rate of the next update, and gradient norm of the last one"),
        Definition({"critic_loss": "critic: loss", "critic_lr": "critic: learning rate", "critic_grad_norm": "critic: gradient norm", "values": "critic: value"}, "loss, learning rate, gradient norm and mean value", only_with="a critic"),
        Definition({"critic_skipped_updates": "critic: skipped updates"}, "as `ppo/skipped_updates`", only_with="a critic", limit=0.0),
        Definition({"reward": "reward", "return": "return"}, "means over the samples of the step"),
        Definition({"score": "score"}, "mean score", only_with="scores from the reward function"),
        Definition({"group_reward_std": "deviation of rewards within a group"}, "mean standard deviation of a prompt's rewards", only_with="several samples per prompt"),
        Definition({"response_length": "response length", "total_length": "total length"}, "mean lengths", unit=TOKENS),
        Definition({"truncated": "cut at the limit", "response_clip_ratio": "fills the context"}, "responses cut by the token limit; responses that fill the context", unit=SHARE),
        Definition({"rollout/reward_mean": "reward of the rollout", "rollout/reward_std": "deviation of rewards of the rollout", "rollout/response_length_mean": "response length of the rollout", "rollout/truncated_rate": "cut at the limit in the rollout", "rollout/num_samples": "samples of the rollout"}, "the same over the rollout as it was generated"),
        Definition({CPU_TIME: "CPU time of a step"}, "CPU time of a step and its evaluation", unit=SECONDS, only_with="the lab"),
        Definition({"timing/generation": "generation", "timing/make_experience": "scoring", "timing/ppo_train": "updates", "timing/broadcast": "weight transfer", STEP_TOTAL: "step"}, "time of each phase: generation, with the scoring that is done meanwhile; the rest of the scoring, and advantages; all updates; the weight transfer to vLLM", unit=SECONDS),
        Definition({"dynamic_filtering_pass_rate": "groups kept in four rounds"}, "groups kept in the last four rounds", unit="%", only_with=DYNAMIC),
    ),
    "evaluation": (
        Definition({"eval/*/avg@*": "avg@K"}, "correct responses", unit=SHARE, only_with=BENCHMARKS),
        Definition({"eval/mean/avg": "avg@K, mean"}, "mean of avg@K over the benchmarks", unit=SHARE, only_with=BENCHMARKS),
        Definition({"eval/*/pass@*": "pass@K"}, "problems with a correct response, for K above 1", unit=SHARE, only_with=BENCHMARKS),
        Definition({"eval/*/response_length_mean": "response length"}, "mean response length", unit=TOKENS, only_with=BENCHMARKS),
        Definition({"eval/*/truncated_frac": "cut at the limit", "eval/*/no_answer_frac": "no answer"}, "responses cut at the token limit, and responses without an answer", unit=SHARE, only_with=BENCHMARKS),
    ),
}
# fmt: on

_ROWS = {name: row for rows in TABLE.values() for row in rows for name in row.titles}
# What a step spends its time on.
PHASES = tuple(name for name in _ROWS if name.startswith("timing/") and name not in (STEP_TOTAL, CPU_TIME))


def family(prefix: str) -> tuple[str, ...]:
    """Return the metrics whose names begin like this, in order."""
    return tuple(name for name in _ROWS if name.startswith(prefix))


def is_known(name: str) -> bool:
    """Return True for a metric of the table; a log of somebody else may have others."""
    return _key(name) in _ROWS


def definition(name: str) -> Definition:
    """Return the row of a metric.

    Raises:
        KeyError: The metric is not in the table.
    """
    return _ROWS[_key(name)]


def title(name: str) -> str:
    """Return the name of a metric in figures and panels; a number of one method is named after it."""
    if name.startswith(OF_METHODS):
        return name.removeprefix(OF_METHODS)
    found = definition(name).titles[_key(name)]
    source = name.removeprefix(OF_SOURCES).rpartition("/")[0]
    return f"{found}, {source}" if name.startswith(OF_SOURCES) else found


def title_and_unit(name: str) -> str:
    """Return the title with the unit in brackets; a share has none."""
    unit = definition(name).unit
    return title(name) + (f" ({unit})" if unit not in ("", SHARE) else "")


def limit(name: str) -> float:
    """Return the value above which a metric is worth an alert."""
    found = definition(name).limit
    assert found is not None, name
    return found


def _key(name: str) -> str:
    return name if name in _ROWS else next((each for each in _ROWS if fnmatchcase(name, each)), name)
