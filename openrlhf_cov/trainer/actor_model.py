"""The language model of policy and reference: upstream's, without the matrix of tokens x vocabulary."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from openrlhf.models import Actor
from openrlhf.models.ring_attn_utils import unpad_and_slice_tensor
from openrlhf.utils.logging_utils import init_logger
from torch import Tensor, nn

from openrlhf_cov.models.token_head import min_p_scores, token_scores

logger = init_logger(__name__)


class CovActor(Actor):
    """Upstream's, whose output head answers with log-probs and entropies of the action tokens instead of logits.

    The head does so inside of its own call, where ZeRO-3 has gathered its weight. Prompts and padding do not reach it.
    Upstream's forward pass runs where that is not possible or may change the result: images, ring attention, compiled
    models, heads other than a plain ``nn.Linear`` (LoRA on the head, quantized, split by tensor parallelism), and
    models that change their logits after the head (``final_logit_softcapping``, ``logit_scale`` and the like). The
    last are known by what comes back: it is not what the head gave.
    """

    head_ends_the_model = True
    """False once the model has been seen to change what its head gives."""
    proxy_min_p: float | None = None
    """With a number, the output of ``forward`` has log-probs by ``min_p_scores`` as ``proxy`` (B, A), too."""

    def forward(
        self,
        sequences: Tensor,
        action_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_output: bool = False,
        allgather_logits: bool = False,
        return_logprobs: bool = False,
        ring_attn_group: Any = None,
        packed_seq_lens: list[int] | None = None,
        return_entropy: bool = False,
        **mm_inputs: Any,
    ) -> Any:
        """Upstream's log-probs (B, A) of the action tokens, 0 elsewhere; with ``return_output`` the output, too.

        That has no logits, and the entropies (B, A) as ``entropy`` if ``return_entropy`` asks for them, 0 where there
        is no action; upstream's are (B, T - 1), of all tokens. Without ``action_mask`` it is upstream's result.
        """
        head = None if action_mask is None or ring_attn_group is not None else self._plain_head()
        if head is not None:
            result = self._with_scores(head, sequences, action_mask, attention_mask, return_entropy)
            if result is not None:
                return result if return_output else result[0]
        return super().forward(
            sequences,
            action_mask,
            attention_mask,
            return_output,
            allgather_logits,
            return_logprobs,
            ring_attn_group,
            packed_seq_lens,
            return_entropy,
            **mm_inputs,
        )

    def _plain_head(self) -> nn.Linear | None:
        """The output head, if it can answer for the model."""
        if self.is_vlm or not self.head_ends_the_model or getattr(self.model, "is_compiled", False):
            return None
        head = self.model.get_output_embeddings()
        return head if type(head) is nn.Linear and "forward" not in vars(head) else None

    def _with_scores(
        self, head: nn.Linear, sequences: Tensor, action_mask: Tensor, attention_mask: Tensor, with_entropy: bool
    ) -> tuple[Tensor, Any] | None:
        """What ``forward`` returns; None, and ``head_ends_the_model`` False, if the model does more after its head."""
        width = action_mask.shape[1]
        acting = action_mask.bool() & attention_mask[:, -1 - width : -1].bool()
        before = torch.zeros_like(sequences, dtype=torch.bool)  # the tokens from which action tokens are predicted
        before[:, -1 - width : -1] = acting
        if self.packing_samples:
            tokens, positions, targets, _, places = unpad_and_slice_tensor(sequences, attention_mask, None)
            rows, mask = before.flatten()[places], None
        else:
            tokens, targets, rows, mask = sequences, sequences.roll(-1, 1), before.flatten(), attention_mask
            positions = (attention_mask.long().cumsum(1) - 1).masked_fill(attention_mask == 0, 1)
        rows = rows.nonzero().squeeze(1)
        scores = HeadScores(head, rows, targets.flatten()[rows], self.temperature, with_entropy, self.proxy_min_p)
        with scores.asked():
            output = self.model(tokens, attention_mask=mask, position_ids=positions)
        if not scores.came_back(output["logits"]):
            self.head_ends_the_model = False
            logger.info("this model changes its logits after the output head: log-probs are computed as upstream does")
            return None

        def placed(values: Tensor) -> Tensor:
            return values.new_zeros(acting.shape).masked_scatter(acting, values)

        log_probs = placed(output["logits"])
        output["logits"] = None
        if with_entropy:
            output.entropy = placed(scores.entropy)
        if self.proxy_min_p is not None:
            output.proxy = placed(scores.proxy)
        return log_probs, output


class HeadScores:
    """Log-probs (N,) of ``targets`` (N,) that an output head gives in place of logits, for ``rows`` (N,) of its input.

    ``entropy`` and ``proxy`` (N,) are there after the call if they were asked for.
    """

    log_probs: Tensor | None = None
    entropy: Tensor
    proxy: Tensor

    def __init__(
        self,
        head: nn.Linear,
        rows: Tensor,
        targets: Tensor,
        temperature: float,
        with_entropy: bool,
        min_p: float | None = None,
    ) -> None:
        self.head, self.rows, self.targets = head, rows, targets
        self.temperature, self.with_entropy, self.min_p = temperature, with_entropy, min_p

    @contextmanager
    def asked(self) -> Iterator[None]:
        """While the body runs, the head answers with log-probs."""
        self.head.forward = self._answer
        try:
            yield
        finally:
            del self.head.forward

    def came_back(self, logits: Any) -> bool:
        """True if the model returns what the head answered, untouched: the same memory, not written to."""
        answer = self.log_probs
        return (
            answer is not None
            and isinstance(logits, Tensor)
            and logits.shape == answer.shape
            and logits.dtype == answer.dtype
            and logits.data_ptr() == answer.data_ptr()
            and logits._version == self._version
        )

    def _answer(self, hidden: Tensor) -> Tensor:
        head = self.head
        of_tokens = hidden.flatten(0, -2)[self.rows], head.weight, head.bias, self.targets, self.temperature
        self.log_probs, entropy = token_scores(*of_tokens, self.with_entropy)
        if self.min_p is not None:
            self.proxy = min_p_scores(*of_tokens, self.min_p)
        if entropy is not None:
            self.entropy = entropy
        self._version = self.log_probs._version
        return self.log_probs
