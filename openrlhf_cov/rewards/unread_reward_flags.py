"""Settings of the rewards that the rule of ``--reward_source`` does not read: refused instead of being ignored."""

from collections.abc import Collection, Iterator

from openrlhf_cov.config import RewardConfig

# Built-in rules that grade the text of an answer; ``row`` may name any rule, and so may rules of a user.
OF_ANSWERS = ("math", "gsm8k", "choice", "tiny_addition")

# Setting -> built-in rules that do not read it, and the rules that do.
UNREAD_BY = {
    "reward_format": (("code", "tiny_addition"), "math, gsm8k, choice or row"),
    "reward_grader": (("gsm8k", "choice", "code", "tiny_addition"), "math or row"),
}
OF_PROGRAMS = (OF_ANSWERS, "code or row")


def unread_reward_flags(config: RewardConfig, given: Collection[str]) -> Iterator[str]:
    """Yield one line for each given setting that the rule of ``config.reward_source`` does not read.

    Args:
        config: Settings of the rewards.
        given: Names of the settings on the command line.
    """
    source = config.reward_source
    for name in sorted(given):
        unread, rules = OF_PROGRAMS if name.startswith("code_") else UNREAD_BY.get(name, ((), ""))
        if source in unread:
            yield f"--{name} only applies to --reward_source {rules}, got {source}; drop it or set one"
