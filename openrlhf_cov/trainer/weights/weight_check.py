"""Check that the vLLM engines received the weights that the policy learned (``--train.check_weight_update``).

Agreement of policy and engine proves nothing while the weights are still the initial ones: an engine that never
receives weights agrees as well. The check therefore compares changes. It scores the same tokens with the policy and
with every engine, before the policy trains and after the transfer of its new weights. An engine that received the
weights changes its log-probs as the policy does. An engine that kept old weights does not.

In bfloat16 a small update changes log-probs by less than the rounding of two programs. The check then gives no
verdict and keeps the scores from before, so that the change adds up until a later transfer can be judged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from openrlhf.utils.logging_utils import init_logger
from torch import Tensor

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.records import Sample

logger = init_logger(__name__)

# Token ids of each text.
Texts = list[list[int]]

TEXTS = 4
# vLLM computes the logits of all tokens of a prompt at once; 256 rows fit into the memory that it plans for sampling.
TEXT_TOKENS = 256

# A change is measurable if it is this many times the rounding between policy and engine. An engine with the new
# weights then lacks at most half of the change, even if all rounding of both measurements adds up.
MARGIN = 4.0
LACKING = 0.5
# Rounding in nats below which two programs are never trusted to agree.
LEAST_ROUNDING = 1e-6
# Tokens of which the policy must have changed before equal bits of an engine count as old weights.
LEAST_CHANGED = 16
# Mean difference in nats, with the same weights, that no rounding explains: the models are different.
SAME_MODEL = 0.5


def texts_of(samples: Sequence[Sample], max_len: int) -> Texts:
    """Return the beginnings of a few responses with their prompts, evenly spaced over a rollout.

    Args:
        samples: Samples of a rollout. Samples with images are left out.
        max_len: Tokens that an engine takes; vLLM always generates one more token.
    """
    # The engines score plain token ids; the places of images in them are no text.
    plain = [sample for sample in samples if sample.images is None and sample.image_inputs is None]
    # Responses to one prompt lie together, so neighbours would be nearly the same text.
    spacing = max(1, len(plain) // TEXTS)
    longest = min(TEXT_TOKENS, max_len - 1)
    texts = [sample.tokens[:longest].tolist() for sample in plain[::spacing][:TEXTS]]
    return [text for text in texts if len(text) > 1]


@dataclass(frozen=True)
class Change:
    """Log-probs (N,) of the same tokens before and after a transfer.

    ``policy_again`` are those of the policy before, computed a second time: they show if its program repeats itself.
    ``rounding`` is the difference of policy and engine before the transfer, in nats.
    """

    policy_before: Tensor
    policy_again: Tensor
    policy_after: Tensor
    engine_before: Tensor
    engine_after: Tensor
    rounding: float

    @property
    def of_policy(self) -> Tensor:
        """Change of the policy's log-probs, (N,)."""
        return self.policy_after - self.policy_before

    @property
    def of_engine(self) -> Tensor:
        """Change of the engine's log-probs, (N,)."""
        return self.engine_after - self.engine_before

    def was_received(self) -> bool | None:
        """Return True if the engine has the new weights, False if not, None if the change is too small to tell."""
        policy = self.of_policy
        engine = self.of_engine
        size = size_of(policy)
        repeat = size_of(self.policy_again - self.policy_before)
        if size > MARGIN * max(self.rounding, repeat, LEAST_ROUNDING):
            return size_of(engine - policy) < LACKING * size
        # Any change of the weights changes the last bits of nearly all log-probs. So equal bits are proof enough
        # where the change itself is lost in rounding, unless the policy's own bits change without new weights.
        changed = int((policy != 0).sum())
        mostly = changed >= LEAST_CHANGED and 2 * changed > len(policy)
        if mostly and repeat == 0.0 and not engine.any():
            return False
        return None


def size_of(values: Tensor) -> float:
    """Return the mean absolute value of values (N,).

    It is not the root mean square, to which one token can contribute more than all others: in a mixture of experts
    rounding sends a few tokens to other experts.
    """
    return float(values.abs().mean())


class WeightCheck:
    """The check of one run.

    Args:
        mode: ``first`` ends the check after the first proof, ``always`` repeats it for every transfer.
        score_policy: Returns the log-probs (N,) of all tokens of the texts under the policy.
        score_engines: Returns the same for every engine, or None if an engine died.
    """

    def __init__(
        self,
        mode: str,
        score_policy: Callable[[Texts], Tensor],
        score_engines: Callable[[Texts], list[Tensor] | None],
    ) -> None:
        self.flag = f"--train.check_weight_update {mode}"
        self.repeats = mode == "always"
        self.score_policy = score_policy
        self.score_engines = score_engines
        self.step = 0
        self.is_over = False
        self._texts: Texts = []
        self._policy: tuple[Tensor, Tensor] | None = None
        self._engines: list[Tensor] | None = None
        self._told: set[str] = set()

    def start_step(self, samples: Sequence[Sample], max_len: int, step: int) -> None:
        """Score the policy before it trains in a global step, unless scores are kept from an earlier step.

        Args:
            samples: The samples of the step; the beginnings of some of them are scored.
            max_len: Tokens that an engine takes (``--data.max_len``).
            step: Number of the global step, from 1.

        Raises:
            RunStopped: A log-prob of the policy is NaN or infinite.
        """
        self.step = step
        if self.is_over or self._policy is not None:
            return
        self._texts = texts_of(samples, max_len)
        if not self._texts:
            self._tell_once("images", f"{self.flag}: not checked, as all responses have images")
            return
        # Twice: a program that does not repeat its own bits cannot be compared bit by bit.
        self._policy = self.score_policy(self._texts), self.score_policy(self._texts)
        self._require_finite(self._policy[0], "the policy", "before")

    def before_transfer(self) -> None:
        """Score the engines with the weights that they have before the transfer.

        Raises:
            RunStopped: An engine does not have the weights of the policy, or log-probs are not finite.
        """
        if self._policy is None or self._engines is not None:
            return
        self._engines = self.score_engines(self._texts)
        for place, scores in enumerate(self._engines or []):
            self._require_finite(scores, f"vLLM engine {place}", "before")
            gap = size_of(scores - self._policy[0])
            if gap > SAME_MODEL:
                raise RunStopped(
                    f"{self.flag}: vLLM engine {place} does not have the policy's weights: before global step "
                    f"{self.step} their log-probs of {len(scores)} tokens differ by {gap:.2g} nats on average; "
                    "see docs/troubleshooting.md"
                )

    def after_transfer(self) -> None:
        """Compare the changes of log-probs of policy and engines.

        Raises:
            RunStopped: An engine did not get the new weights, or log-probs are not finite.
        """
        if self._policy is None or self._engines is None:
            return
        policy_after = self.score_policy(self._texts)
        self._require_finite(policy_after, "the policy", "after")
        if torch.equal(policy_after, self._policy[0]):
            return  # no update, or none that changes a log-prob
        engines_after = self.score_engines(self._texts)
        if engines_after is None:
            return
        for place, scores in enumerate(engines_after):
            self._require_finite(scores, f"vLLM engine {place}", "after")
        # The least difference of all engines: that of an engine with old weights is no rounding.
        before, again = self._policy
        rounding = min(size_of(scores - before) for scores in self._engines)
        pairs = zip(self._engines, engines_after, strict=True)
        changes = [Change(before, again, policy_after, *pair, rounding) for pair in pairs]
        verdicts = [change.was_received() for change in changes]
        if False in verdicts:
            raise self._failure(changes, verdicts)
        size = size_of(changes[0].of_policy)
        if None in verdicts:
            self._tell_once(
                "too little",
                f"{self.flag}: the log-probs of the policy have changed by {size:.2g} nats, too little beside the "
                f"rounding of {rounding:.2g} nats between policy and engines; the next transfer is checked as well",
            )
            return
        lacking = max(size_of(change.of_engine - change.of_policy) for change in changes)
        self._tell_once(
            "received",
            f"{self.flag}: {len(changes)} vLLM engine(s) received the new weights of global step {self.step}: the "
            f"log-probs of {len(policy_after)} tokens changed by {size:.2g} nats, and those of the engines alike, "
            f"to {lacking:.2g} nats",
        )
        self.is_over = not self.repeats
        self._policy = self._engines = None

    def _failure(self, changes: list[Change], verdicts: list[bool | None]) -> RunStopped:
        stale = [place for place, verdict in enumerate(verdicts) if verdict is False]
        change = changes[stale[0]]
        return RunStopped(
            f"{self.flag}: vLLM engine {', '.join(map(str, stale))} did not receive the new weights of global step "
            f"{self.step}: the log-probs of {len(change.of_policy)} tokens changed by {size_of(change.of_policy):.2g} "
            f"nats under the policy and by {size_of(change.of_engine):.2g} under the engine, and differ by "
            f"{size_of(change.engine_after - change.policy_after):.2g} now; see docs/troubleshooting.md"
        )

    def _require_finite(self, scores: Tensor, model: str, when: str) -> None:
        bad = int((~scores.isfinite()).sum())
        if bad:
            raise RunStopped(
                f"{self.flag}: {bad} of {len(scores)} log-probs of {model} are NaN or infinite {when} the update of "
                f"global step {self.step}; see docs/troubleshooting.md"
            )

    def _tell_once(self, kind: str, message: str) -> None:
        """Log the first message of a kind; with ``always`` every step has one."""
        if kind not in self._told:
            self._told.add(kind)
            logger.info(message)
