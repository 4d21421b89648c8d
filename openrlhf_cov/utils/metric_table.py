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
    # How micro-batches and ranks add up, a class of ``utils.metrics`` in small letters; "" where one process knows.
    reduction: str = ""
    expected: str = ""
    # A run without it does not log this.
    only_with: str = ""
    # A value above it is worth an alert.
    limit: float | None = None


SOURCES = "rows that name a data source"
PROCESS_REWARD = "a process reward model"
DYNAMIC = "`--algo.dynamic_filtering_enable`"
NATS = "nats"
SHARE = "share"
TOKENS = "tokens"
SECONDS = "s"

# fmt: off
# Table of docs/metrics.md -> its rows.
TABLE: dict[str, tuple[Definition, ...]] = {
    "rollout": (
        Definition({ENTROPY: "entropy"}, "mean entropy of all tokens", unit=NATS, reduction="mean", expected="0 to ln V; falls as the policy sharpens"),
        Definition({"entropy/response_mean": "entropy, mean of responses"}, "mean entropy of the tokens of a response, averaged over the responses: H of paper eq. 5; long responses weigh no more than short ones", unit=NATS, reduction="mean"),
        Definition({"entropy/p10": "entropy, quantile 10 %", "entropy/p50": "entropy, quantile 50 %", "entropy/p90": "entropy, quantile 90 %"}, "quantiles of the entropy of all tokens, to 0.2 %; below 1.1e-7 reads as 1.1e-7", unit=NATS, reduction="distribution", expected="most tokens of a language model are near 0, so p10 and p50 lie far below the mean"),
        Definition({"entropy/correct": "entropy, correct", "entropy/wrong": "entropy, wrong"}, "mean entropy of the tokens of correct responses, of the others; null without any, or without scores", unit=NATS, reduction="mean", expected="wrong above correct"),
        Definition({"entropy/selected": "entropy, selected", "entropy/unselected": "entropy, not selected"}, "mean entropy, before the updates, of the tokens that an update of this step then selected, and of all other tokens; a token counts once, however many updates select it", unit=NATS, reduction="mean"),
        Definition({f"entropy/position_{place}": f"entropy of token {place + 1}" for place in range(POSITIONS)}, "mean entropy of the first, second, ... eighth token of the responses, which are 0 to 7: where a task is decided at once, the mean over all tokens hides it. Evaluations of the lab have all places; null where no response is as long", unit=NATS, reduction="mean"),
        Definition({"cov/mean": "covariance, all tokens"}, "mean of `cov` over all tokens, i.e. Cov(log π, A)", unit=NATS, reduction="mean", expected="small and positive while entropy falls; paper, first step: 0.003"),
        Definition({"cov/prob_weighted_mean": "covariance, weighted by π"}, "Cov(log π, π A) over all tokens", unit=NATS, reduction="mean"),
        Definition({"cov/group_mean": "covariance within a prompt"}, "covariance, over the K responses of a prompt, of length-normalised log-prob (paper eq. 9) and mean advantage, averaged over all prompts: Theorem 2 response by response; null with one sample per prompt", unit=NATS, reduction="mean"),
        Definition({"cov/group_weighted_mean": "covariance within a prompt, weighted by π"}, "the same of log π(y\\|x) and π(y\\|x) A(y\\|x), π being exp of the length-normalised log-prob: paper eq. 8, Theorem 1", unit=NATS, reduction="mean", expected="paper Fig. 8: positive, of the shape of −ΔH where a rollout makes one update"),
        Definition({"cov/positive_frac": "covariance above 0"}, "share of all tokens with `cov` above 0", unit=SHARE, reduction="mean", expected="about one half"),
        Definition({"cov/top_2e-4": "top 0.02 %", "cov/top_2e-3": "top 0.2 %", "cov/top_2e-2": "top 2 %", "cov/top_0.2": "top 20 %", "cov/top_0.5": "top 50 %"}, "mean of the largest `cov`: of the top 0.02 %, 0.2 %, 2 %, 20 % and 50 % of the tokens of all ranks, at least one. From a histogram with sums per bin: right to 0.8 % of the smallest value among them, exact where no bin is cut", unit=NATS, reduction="distribution", expected="paper table 1 (7B, first step): 5.654, 3.112, 1.385, 0.351, 0.152"),
        Definition({"cov/acc_low": "hard (about 1 of 8 correct)", "cov/acc_mid": "medium (about half)", "cov/acc_high": "easy (about 7 of 8)"}, "`cov/group_mean` over the prompts with a share of correct responses next to 0.125, 0.5 and 0.875 (K = 8: 1, 4 and 7 correct). All correct and all wrong are never among them; null without any such prompt, or without scores", unit=NATS, reduction="mean", expected="positive, and larger for easier prompts"),
        Definition({"cov/group_weighted_acc_low": "hard (about 1 of 8 correct)", "cov/group_weighted_acc_mid": "medium (about half)", "cov/group_weighted_acc_high": "easy (about 7 of 8)"}, "`cov/group_weighted_mean` over the same prompts", unit=NATS, reduction="mean", expected="paper Fig. 8: positive, and larger for easier prompts"),
        Definition({"cov/token_acc_low": "hard (about 1 of 8 correct)", "cov/token_acc_mid": "medium (about half)", "cov/token_acc_high": "easy (about 7 of 8)"}, "mean of `cov` over the tokens of the same prompts", unit=NATS, reduction="mean"),
    ),
    "theory": (
        Definition({"entropy/delta": "change of entropy"}, "`entropy/mean` of this step minus that of the step before: what the updates of the step before did, plus the change of prompts", unit=NATS, expected="negative while entropy falls; null in the first step of a run"),
        Definition({"entropy/delta_theorem1": "predicted change of entropy, theorem 1", "entropy/delta_theorem2": "predicted change of entropy, theorem 2"}, "−η `cov/prob_weighted_mean` and −η `cov/mean`: the prediction of the next step's `entropy/delta`, up to a constant", expected="negative while entropy falls"),
        Definition({"entropy/corr_theorem1": "rank correlation with theorem 1", "entropy/corr_theorem2": "rank correlation with theorem 2"}, "Spearman rank correlation of the prediction of step t with `entropy/delta` of step t + 1, over the last 200 such pairs", expected="above 0 where the theory orders the steps; null before there are 5 pairs"),
    ),
    "law": (
        Definition({"law/ceiling": "ceiling of the law"}, "b − a, the reward that the fit gives an entropy of 0", expected="settles early, where the law holds"),
        Definition({"law/r2": "R² of the law"}, "share of the variance of `reward` that the fit describes", unit=SHARE, expected="near 1 where the law holds"),
    ),
    "updates": (
        Definition({"cov/selected_count": "selected"}, "number of selected tokens: those that a method drops, weights, adds to or penalises; of several such methods those of the first in the table of docs/methods/index.md, in whatever order they are given", unit=TOKENS, reduction="sum", expected="0 without such a method"),
        Definition({"cov/selected_frac": "selected, of all trained tokens"}, "share of trained tokens selected", unit=SHARE, reduction="mean", expected="at most the method's fraction, unless that is less than one token per quota; with 80/20 alone what it drops, 0.8"),
        Definition({"cov/selected_mean": "covariance, selected tokens"}, "mean of `cov` over selected tokens, with the log-probs of the moment and centred over the micro-batch", unit=NATS, reduction="mean", expected="far above `cov/mean` for KL-Cov; near the band for Clip-Cov; null if none"),
        Definition({"cov/selected_ppo_kl": "KL to the old policy on selected tokens"}, "mean of log π_old − log π over selected tokens", unit=NATS, reduction="mean", expected="rounding in the first update after a rollout; null if none"),
        Definition({"cov/selected_abs_log_ratio": "|log π − log π old| on selected tokens"}, "mean of \\|log π − log π_old\\| over selected tokens: KL-Cov's penalty without its coefficient", unit=NATS, reduction="mean", expected="where a step makes one update it is rounding, 5e-7 in float32 and up to 1e-2 in bfloat16, and the penalty's gradient is the sign of the rounding: the run warns once, as it does below 1e-5"),
        Definition({"cov/old_overlap": "selected by old log-probs, too"}, "of the tokens that the log-probs of the policy before each update select, the share that those of the rollout select as well: of Clip-Cov and KL-Cov, in updates after the first of a rollout, in global step 1 and every 50 after it", unit=SHARE, reduction="mean", expected="null in other steps, without such a method, with `--cov_scope micro_batch` and where a rollout gives one update; at 0.97 or above `--cov_log_probs old` selects nearly the same without another forward pass"),
        Definition({"cov/empty_update_frac": "updates without a selected token"}, "share of the updates in which no token of any rank was selected", unit=SHARE, expected="0; above 0 with Clip-Cov no token was in the band: the run warns once; 1 without a method that selects", limit=0.5),
        Definition({"ppo/clip_frac": "clipped by PPO"}, "share of trained tokens whose gradient the PPO clip removes, those that a method drops or penalises not counted; with `--actor.policy_loss_type gspo` by the ratio of their sequence; with a method in place of PPO's surrogate, share whose gradient that one takes", unit=SHARE, reduction="mean", expected="0 where the clip is open"),
        Definition({"gradient/coefficient_mean": "coefficient k"}, "mean, over trained tokens, of what a token's advantage is multiplied with in the gradient: ratio (or what replaces it) × weight, 0 where it is clipped, dropped or cut at ±20", reduction="mean", expected="about 1 less `gradient/zero_frac`; above 1 the method takes larger steps"),
        Definition({"gradient/effective_frac": "effective share of tokens"}, "effective sample size of the weights that methods give tokens (0 where dropped), as a share of trained tokens: (Σ w)² / (n Σ w²)", unit=SHARE, reduction="effectiveshare", expected="1 without a method that weighs or drops"),
        Definition({"gradient/norm": "norm of the gradient"}, "norm of the gradient before it is clipped, mean over the updates of the step; upstream's `actor_grad_norm` is that of the last one", expected="steady; a method that weighs or drops tokens changes the size of steps by it, Adam hides that, gradient clipping and weight decay do not"),
        Definition({"gradient/zero_frac": "tokens with k = 0"}, "share of trained tokens whose coefficient k is 0: dropped by a method or weighed by 0, clipped, by the dual clip, too, or with a log ratio beyond ±20; penalties and rollout correction aside", unit=SHARE, reduction="mean", expected="what the method takes; 0 in the only update of a rollout without one"),
        Definition({"gradient/untrained_frac": "tokens without a gradient"}, "share of trained tokens with k = 0 or an advantage of 0", unit=SHARE, reduction="mean", expected="at least `gradient/zero_frac`; groups of one reward add theirs"),
        Definition({"gradient/positive_mass": "push up", "gradient/negative_mass": "push down"}, "mean, over trained tokens, of the weight with which a token's log-probability is pushed up, and down: ratio (or what replaces it) × advantage × weight, where there is a gradient", reduction="mean", expected="of one size; a negative mass that grows alone pushes the policy apart"),
        Definition({"ppo/ratio_p99": "ratio, quantile 99 %"}, "99th percentile of the ratio π/π_old of trained tokens, to 0.2 %", reduction="distribution", expected="near 1; above 2 one token in a hundred has more than doubled its probability since the rollout: the run warns", limit=2.0),
        Definition({"ppo/ratio_max": "largest ratio"}, "largest ratio π/π_old; the log ratio is cut at 20, so 4.9e8 means that or more", reduction="max", expected="at least 1"),
        Definition({"ppo/skipped_updates": "skipped updates"}, "updates of the step that were skipped because their gradient was NaN or infinite (`--train.on_nan`)", expected="0", limit=0.0),
    ),
    "methods": (
        Definition({"control/value": "value of what is controlled"}, "the setting that `--entropy_target` moves, as it was in the updates of this step", expected="between `--entropy_low` and `--entropy_high`; at a bound the target is out of reach", only_with="`--entropy_target`"),
        Definition({"control/gap": "entropy missing to the target"}, "`--entropy_target` less the entropy of this step's rollouts, which moves the value for the next", unit=NATS, expected="small, of changing sign", only_with="`--entropy_target`"),
        Definition({"method/*/*": "number of one method"}, "a number that only this method has, mean over trained tokens; its page says what it is", reduction="mean", only_with="a method that has any"),
    ),
    "rewards": (
        Definition({"reward/no_answer_frac": "no answer"}, "share of responses without an answer in the format asked for", unit=SHARE, expected="falls", only_with="the reward function of the embedded task or `rewards/reward_func.py`"),
        Definition({"reward/unparsable_frac": "unparsable"}, "share of responses whose answer does not have the form of its label", unit=SHARE, expected="near 0", only_with="`rewards/reward_func.py`", limit=0.3),
        Definition({"reward/timeout_frac": "timeout"}, "share of responses whose grading took too long", unit=SHARE, expected="near 0", only_with="`rewards/reward_func.py`", limit=0.01),
        Definition({"reward/error_frac": "error"}, "share of responses whose reward failed; above `--reward_max_error_frac` the run stops", unit=SHARE, expected="0", only_with="a reward function or server", limit=0.0),
        Definition({"reward/abstained_frac": "abstained"}, "share of responses whose reward function abstained by a reward of None: they leave the statistics of their group and have no advantage", unit=SHARE, only_with="an abstention of the reward function or server in this step"),
        Definition({"reward/code_test_share": "tests passed"}, "share of its tests that a program passes; with `--code_reward all` those up to the first that fails", unit=SHARE, expected="rises", only_with="programs, `--reward_source code` or rows of it"),
        Definition({"reward/code_wrong_frac": "wrong output", "reward/code_error_frac": "runtime error", "reward/code_memory_frac": "out of memory", "reward/code_output_frac": "too much output"}, "share of responses whose program fails a test this way first; what cannot be compiled is in `reward/unparsable_frac`, what takes too long in `reward/timeout_frac`", unit=SHARE, only_with="programs, `--reward_source code` or rows of it"),
        Definition({"reward/code_cached_frac": "judged before"}, "share of responses with a program that this engine has judged by the same tests", unit=SHARE, expected="rises as entropy falls", only_with="programs, `--reward_source code` or rows of it"),
        Definition({"reward/code_seconds": "seconds to judge"}, "wall clock of judging a program, 0 for one that was judged before", only_with="programs, `--reward_source code` or rows of it"),
        Definition({"reward/unfinished_frac": "unfinished"}, "share of responses without an end token", unit=SHARE, only_with="the reward function of the embedded task"),
        Definition({"sampling/kept_frac": "groups kept"}, "groups whose mean score is inside `--algo.dynamic_filtering_range`, of the groups tried since the batch before", unit=SHARE, only_with=DYNAMIC),
        Definition({"sampling/all_right_frac": "all right", "sampling/all_wrong_frac": "all wrong"}, "groups of right responses alone, of wrong ones alone, of the groups tried", unit=SHARE, expected="the first rises", only_with=DYNAMIC),
        Definition({"sampling/rounds": "rounds"}, "rounds of generation for this batch; the next one consists of what was asked for while it ran", expected="1 or 2, more where `--sampling_oversample_max` is below what `sampling/kept_frac` needs; 0 where the buffer held a batch", only_with=DYNAMIC),
        Definition({"sampling/oversample": "groups tried for one missing"}, "groups tried for each group that was missing", expected="about 1 / `sampling/kept_frac`", only_with=DYNAMIC),
        Definition({"sampling/wasted_token_frac": "wasted tokens"}, "response tokens of groups that were filtered out or dropped as stale, of all generated", unit=SHARE, only_with=DYNAMIC),
        Definition({"sampling/groups": "groups", "sampling/buffer_groups": "groups that wait"}, "groups of this batch; kept groups that wait for the next", expected="`--rollout.batch_size`; small", only_with=DYNAMIC),
        Definition({"sampling/staleness_mean": "staleness"}, "versions of the weights, one per step, between those that sampled a group and those that train on it, mean over the batch", expected="below 1; up to `--train.async_queue_size` more with `--train.async_enable`, and more where `--rollout.vllm_generate_batch_size` asks for several batches at once", only_with=f"`--train.async_enable` or {DYNAMIC}"),
    ),
    "sources": (
        Definition({"source/*/reward": "reward"}, "mean reward of the source's responses, without those from which the reward function abstained", only_with=SOURCES),
        Definition({"source/*/pass_rate": "pass rate"}, "share of the source's responses with a score above 0.5", unit=SHARE, only_with=f"{SOURCES} and scores"),
        Definition({"source/*/response_length": "response length"}, "mean number of response tokens", unit=TOKENS, only_with=SOURCES),
        Definition({"source/*/entropy": "entropy"}, "mean entropy of the tokens, under the policy before the updates", unit=NATS, only_with=SOURCES),
        Definition({"source/*/cov": "covariance"}, "mean of `cov` over the tokens, centred by the means of the whole step: weighted by tokens, the sources average to `cov/mean`", unit=NATS, only_with=SOURCES),
        Definition({"source/*/samples": "responses"}, "number of the source's responses in the step", only_with=SOURCES),
    ),
    "line": (
        Definition({STEP: "step"}, "number of the global step, from 1"),
        Definition({TIME: "time"}, "Unix time when the step's line was written", unit=SECONDS),
    ),
    "upstream": (
        Definition({"policy_loss": "policy loss", "ppo_kl": "KL to the old policy", "ppo_clip_ratio": "clipped"}, "loss, mean of log π_old − log π, clipped share as upstream's loss reports it"),
        Definition({"entropy_loss": "entropy during the updates"}, "upstream's entropy during the updates; weighted by micro-batch, so it differs from `entropy/mean`", unit=NATS, only_with="`--actor.entropy_coef`"),
        Definition({"kl": "KL to the reference", "logprobs_diff": "log ratio to the reference"}, "KL estimate to the reference model and mean log ratio to it", unit=NATS),
        Definition({"vllm_kl": "KL of vLLM to the trained policy"}, "mean, over trained tokens, of the log-prob that vLLM sampled a token with less the one that training gives it before any update: an estimate of KL(vLLM ‖ policy) between two programs with the same weights; groups that waited, and `--train.async_enable`, add the steps between", unit=NATS, expected="rounding: about 1e-6 in float32, 1e-4 to 1e-2 in bfloat16; growth is a mismatch of weights, sampling or kernels", only_with="log-probs of the engine, which an agent may leave out"),
        Definition({"is_filter_ratio": "filtered by rollout correction"}, "share of tokens or sequences that rollout correction filters", unit=SHARE, only_with="rollout correction"),
        Definition({"actor_lr": "learning rate", "actor_grad_norm": "gradient norm"}, "learning rate and gradient norm of the last update"),
        Definition({"critic_loss": "critic: loss", "critic_lr": "critic: learning rate", "critic_grad_norm": "critic: gradient norm", "values": "critic: value"}, "loss, learning rate, gradient norm and mean value of the critic", only_with="a critic"),
        Definition({"prm/loss": "process reward model: loss"}, "cross-entropy of the correctness of a response, mean over the responses and updates of the step, each before the update that it leads to", unit=NATS, expected="ln 2 = 0.693 in the first step, then below", only_with=PROCESS_REWARD),
        Definition({"prm/accuracy": "process reward model: pairs in order"}, "of all pairs of a correct and an incorrect response to one prompt, the share whose correct response has the higher sum of log ratios, ties counting one half; after the update of the step, on its responses", unit=SHARE, expected="above 0.5; null in a step without such a pair", only_with=PROCESS_REWARD),
        Definition({"prm/reward_mean": "process reward model: log-odds of correctness"}, "mean over responses of beta times the sum of their log ratios, after the update of the step: the log-odds with which the model takes a response for correct", expected="0 before training", only_with=PROCESS_REWARD),
        Definition({"prm/grad_norm": "process reward model: gradient norm", "prm/lr": "process reward model: learning rate"}, "norm of the gradient before it is clipped, mean over the updates of the step; and learning rate", expected="steady", only_with=PROCESS_REWARD),
        Definition({"prm/skipped_updates": "process reward model: skipped updates"}, "updates of the process reward model that were skipped because their gradient was NaN or infinite (`--train.on_nan`)", expected="0", only_with=PROCESS_REWARD, limit=0.0),
        Definition({"critic_skipped_updates": "critic: skipped updates"}, "updates of the critic that were skipped because their gradient was NaN or infinite (`--train.on_nan`)", expected="0", only_with="a critic", limit=0.0),
        Definition({"reward": "reward", "return": "return"}, "means over the samples of the step"),
        Definition({"score": "score"}, "mean of the scores", only_with="scores from the reward function"),
        Definition({"group_reward_std": "deviation of rewards within a group"}, "standard deviation of a prompt's rewards, mean over the samples", only_with="several samples per prompt"),
        Definition({"response_length": "response length", "total_length": "total length"}, "mean lengths", unit=TOKENS),
        Definition({"truncated": "cut at the limit", "response_clip_ratio": "fills the context"}, "share of responses cut by the token limit, share that fill the context", unit=SHARE),
        Definition({"rollout/reward_mean": "reward of the rollout", "rollout/reward_std": "deviation of rewards of the rollout", "rollout/response_length_mean": "response length of the rollout", "rollout/truncated_rate": "cut at the limit in the rollout", "rollout/num_samples": "samples of the rollout"}, "the same over the rollout as it was generated"),
        Definition({CPU_TIME: "CPU time of a step"}, "seconds that a step and its evaluation kept the processor busy: others on the machine disturb it less than those of a clock", unit=SECONDS, only_with="the lab"),
        Definition({"timing/generation": "generation", "timing/make_experience": "scoring", "timing/ppo_train": "updates", "timing/broadcast": "weight transfer", STEP_TOTAL: "step"}, "seconds per phase; `broadcast` is the weight transfer to vLLM", unit=SECONDS),
        Definition({"dynamic_filtering_pass_rate": "groups kept in four rounds"}, "percent of groups kept in the last four rounds", unit="%", only_with=DYNAMIC),
    ),
    "evaluation": (
        Definition({"eval/*/avg@*": "avg@K"}, "share of correct responses", unit=SHARE, only_with="benchmarks"),
        Definition({"eval/mean/avg": "avg@K, mean"}, "mean of avg@K over the benchmarks of the evaluation, each of the same weight: R of the paper's law with `bench:law`", unit=SHARE, only_with="benchmarks"),
        Definition({"eval/*/pass@*": "pass@K"}, "share of problems with a correct response", unit=SHARE, only_with="benchmarks and K above 1"),
        Definition({"eval/*/response_length_mean": "response length"}, "tokens per response", unit=TOKENS, only_with="benchmarks"),
        Definition({"eval/*/truncated_frac": "cut at the limit", "eval/*/no_answer_frac": "no answer"}, "shares of responses that were cut at the token limit, that have no answer in the form asked for", unit=SHARE, only_with="benchmarks"),
    ),
}
# fmt: on

_ROWS = {name: row for rows in TABLE.values() for row in rows for name in row.titles}
# What a step spends its time on.
PHASES = tuple(name for name in _ROWS if name.startswith("timing/") and name not in (STEP_TOTAL, CPU_TIME))


def family(prefix: str) -> tuple[str, ...]:
    """The metrics whose names begin like this, in order."""
    return tuple(name for name in _ROWS if name.startswith(prefix))


def is_known(name: str) -> bool:
    """True for a metric of the table; a log of somebody else may have others."""
    return _key(name) in _ROWS


def definition(name: str) -> Definition:
    """The row of a metric; KeyError for one that is not in the table."""
    return _ROWS[_key(name)]


def title(name: str) -> str:
    """Return the name of a metric in figures and panels; a number of one method is named after it."""
    if name.startswith(OF_METHODS):
        return name.removeprefix(OF_METHODS)
    found = definition(name).titles[_key(name)]
    source = name.removeprefix(OF_SOURCES).rpartition("/")[0]
    return f"{found}, {source}" if name.startswith(OF_SOURCES) else found


def title_and_unit(name: str) -> str:
    """The title with the unit in brackets; a share has none."""
    unit = definition(name).unit
    return title(name) + (f" ({unit})" if unit not in ("", SHARE) else "")


def limit(name: str) -> float:
    """The value above which a metric is worth an alert."""
    found = definition(name).limit
    assert found is not None, name
    return found


def _key(name: str) -> str:
    return name if name in _ROWS else next((each for each in _ROWS if fnmatchcase(name, each)), name)
