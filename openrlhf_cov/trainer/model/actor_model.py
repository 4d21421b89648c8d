"""The language model of policy and reference: upstream's, without the matrix of tokens x vocabulary."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import torch
from openrlhf.models import Actor
from openrlhf.models.ring_attn_utils import unpad_and_slice_tensor
from openrlhf.utils.logging_utils import init_logger
from torch import Tensor, nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel

from openrlhf_cov.models.shared_prefixes import SharedLayout, shared_layout
from openrlhf_cov.models.token_head import discriminator_means, min_p_scores, token_scores

logger = init_logger(__name__)

# Implementations of attention that take a mask of any pattern.
ANY_MASK = ("sdpa", "eager")
# In the names of settings that count tokens by their place in a row and not by their position.
BY_PLACE = ("window", "chunk", "floor_scale")
# In the names of settings that count layers (``max_window_layers``, ``sliding_window_pattern``).
OF_LAYERS = ("layers", "pattern")
# Rotary embeddings whose frequencies follow the longest sequence of a batch.
BY_LONGEST = {"dynamic", "longrope", "su"}
# The same of settings up to which an implementation of attention without a kernel of its own may keep its masks.
PLACES = ("max_position", "n_positions")
# Difference of logits, of the largest one, up to which two ways of computing them in fp32 count as one.
ROUNDING = 1e-4


class CovActor(Actor):
    """Upstream's actor, whose output head returns log-probs and entropies of the action tokens instead of logits.

    The head does so inside of its own call, where ZeRO-3 has gathered its weight. Prompts and padding do not reach it.
    Upstream's forward pass runs where that is not possible or may change the result: images, ring attention, compiled
    models, heads other than a plain ``nn.Linear`` (LoRA on the head, quantized, split by tensor parallelism), and
    models that change their logits after the head (``final_logit_softcapping``, ``logit_scale`` and the like). The
    last are known by a trial: what comes back is not what the head gave.
    """

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
        *,
        proxy_min_p: float | None = None,
        with_discriminator_mean: bool = False,
        **mm_inputs: Any,
    ) -> Any:
        """Return the log-probs of the action tokens, and with ``return_output`` the output of the model, too.

        Upstream's forward pass runs without ``action_mask`` or ``attention_mask``, with ring attention, and for the
        models that the class names. ``proxy_min_p`` and ``with_discriminator_mean`` then have no effect.

        Args:
            sequences: Token ids, int64 (B, T).
            action_mask: True where a token is an action, (B, A). The columns are about the last A tokens.
            attention_mask: 1 where a token is no padding, (B, T).
            return_output: True to return the pair of log-probs and output.
            allgather_logits: Upstream's: gather the logits of packed samples when no log-probs are requested.
            return_logprobs: Upstream's: return the log-probs of all tokens when there is no ``action_mask``.
            ring_attn_group: The ranks that share the tokens of a sample; None without ring attention.
            packed_seq_lens: Part of upstream's signature, which does not use it.
            return_entropy: True to compute entropies as well. Upstream's forward pass then requires ``return_output``.
            proxy_min_p: The p of ``min_p_scores``; None to compute no such log-probs.
            with_discriminator_mean: True to compute ``discriminator_means``.
            mm_inputs: Upstream's inputs of a vision-language model.

        Returns:
            Log-probs (B, A), 0 where a token is no action; with ``return_output`` also the output of the model. The
            output has no logits. It has ``entropy`` in nats, the log-probs ``proxy`` and ``discriminator_mean``, each
            (B, A) and 0 where a token is no action, as far as the arguments request them. Upstream's ``entropy`` is
            (B, T - 1), of all tokens, and its output lacks the other two.
        """
        if action_mask is not None and attention_mask is not None and ring_attn_group is None:
            head = self._plain_head()
            if head is not None:
                result = self._with_scores(
                    head,
                    sequences,
                    action_mask,
                    attention_mask,
                    return_entropy,
                    proxy_min_p,
                    with_discriminator_mean,
                )
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

    def _layout(self, sequences: Tensor, attention_mask: Tensor, before: Tensor) -> SharedLayout | None:
        """Return samples with common prefixes side by side if the model allows it and it is cheaper; else None."""
        sharing = self._sharing  # whatever the samples are: with ZeRO-3 all ranks must call the model together
        if sharing is None or (self.training and sharing.draws):
            return None
        return shared_layout(sequences, attention_mask, before, sharing.token_cost, sharing.longest)

    @property
    def shares_prefixes(self) -> bool:
        """True if samples with common prefixes may be read side by side in training."""
        sharing = self._sharing if self._plain_head() is not None else None
        return sharing is not None and not sharing.draws

    @cached_property
    def _sharing(self) -> "Sharing | None":
        """Return the limits within which samples share prefixes, None where they cannot.

        They cannot where attention takes no mask of tokens, where rotary frequencies follow the longest sequence,
        where the model has experts (how many tokens each of them reads changes rounding, and their balance), and where
        a trial shows that the model reads shared prefixes otherwise.
        """
        config = next(each for each in self.model.modules() if isinstance(each, PreTrainedModel)).config
        config = config.get_text_config()
        numbers = {name: value for name, value in config.to_dict().items() if type(value) is int and value > 0}
        numbers = {name: value for name, value in numbers.items() if not any(word in name for word in OF_LAYERS)}
        experts = any("expert" in name for name in numbers)
        takes_masks = config._attn_implementation in ANY_MASK and not self.packing_samples
        by_longest = not BY_LONGEST.isdisjoint(_rope_types(config.to_dict()))
        if not takes_masks or experts or by_longest or not self._reads_alike():
            return None
        words = BY_PLACE if config._attn_implementation == "sdpa" else BY_PLACE + PLACES
        by_place = [value for name, value in numbers.items() if any(word in name for word in words)]
        width = self.model.get_input_embeddings().embedding_dim
        inner = numbers.get("intermediate_size") or 4 * width
        return Sharing(
            longest=min(by_place, default=math.inf),
            token_cost=2 * width + 1.5 * inner,
            draws=draws_in_training(self.model),
        )

    @torch.no_grad()
    def _reads_alike(self) -> bool:
        """Return True if two samples side by side behind one prompt get the logits of separate rows.

        Nothing of one sample may reach the other, and the model must tell places by their positions.
        """
        weight = next(self.model.parameters())
        # Two short samples that begin with the same tokens; the ids exist in any vocabulary.
        sequences = torch.tensor([[2, 1, 3, 4, 0, 1], [2, 1, 3, 0, 2, 4]], device=self.model.device)
        attention_mask = torch.ones_like(sequences)
        asked = torch.zeros_like(sequences, dtype=torch.bool)
        asked[:, 2:5] = True
        layout = shared_layout(sequences, attention_mask, asked, token_cost=1e9)
        assert layout is not None  # at such a cost of a token, sharing always pays
        positions = attention_mask.cumsum(1) - 1
        responses = [places[1:] for places in layout.places.chunk(2)]  # without the prompt's
        left, right = sorted(responses, key=lambda places: int(places[0]))  # in the row
        changed = layout.tokens.clone()
        # Other tokens in the left response. If the right response sees them, its logits change.
        changed.view(-1)[left] = 3 - layout.tokens.view(-1)[left].clamp(max=3)
        mask = layout.additive(weight.dtype)
        in_a_row = torch.arange(layout.tokens.shape[1], device=sequences.device).expand_as(layout.positions)
        tries = ((layout.tokens, layout.positions), (changed, layout.positions), (layout.tokens, in_a_row))
        try:
            with _evaluating(self):
                apart = self.model(sequences, attention_mask=attention_mask, position_ids=positions)["logits"][asked]
                logits, others, misplaced = (
                    self.model(tokens, attention_mask=mask, position_ids=at)["logits"][0] for tokens, at in tries
                )
        except Exception as error:  # whatever a model makes of a mask that it does not know
            logger.info(f"samples do not share prefixes, as this model takes no mask of tokens: {error}")
            return False
        error = float((logits[layout.places] - apart).abs().max() / apart.abs().max())
        # where positions change nothing, places may count instead: what is off then is not taken for rounding
        rounding = 0.0 if logits.equal(misplaced) else 8 * torch.finfo(weight.dtype).eps
        if error > max(ROUNDING, rounding) or not logits[right].equal(others[right]):
            logger.info("samples do not share prefixes, as this model would give them other logits then")
            return False
        return True

    @cached_property
    @torch.no_grad()
    def _ends_with_its_head(self) -> bool:
        """True if the model returns what its output head gives, untouched: the same memory, not written to.

        Tried once, on the same tokens on every rank: with ZeRO-3 all must go on with the same calls of the model.
        """
        tokens = torch.tensor([[2, 1, 3]], device=self.model.device)
        mask = None if self.packing_samples else torch.ones_like(tokens)
        answers: list[Tensor] = []

        def answer(hidden: Tensor) -> Tensor:
            answers.append(hidden.new_ones(3, dtype=torch.float32))  # as log-probs are
            return answers[-1]

        try:
            with _evaluating(self), answering(self.model.get_output_embeddings(), answer):
                logits = self.model(tokens, attention_mask=mask, position_ids=tokens.new_tensor([[0, 1, 2]]))["logits"]
        except Exception as error:  # whatever a model makes of an answer that it does not expect
            logger.info(f"log-probs are computed as upstream does: {error}")
            return False
        given = answers[0] if len(answers) == 1 else None  # it may use the weight without a call, or call twice
        # The memory of the answer, not its value: a model may change it in place.
        is_untouched = (
            given is not None
            and isinstance(logits, Tensor)
            and (logits.shape, logits.dtype) == (given.shape, given.dtype)
            and logits.data_ptr() == given.data_ptr()
            and not given._version
        )
        if not is_untouched:
            logger.info("this model changes its logits after the output head: log-probs are computed as upstream does")
            return False
        return True

    def _plain_head(self) -> nn.Linear | None:
        """Return the output head if it can answer for the model; else None."""
        if self.is_vlm or getattr(self.model, "is_compiled", False):
            return None
        head = self.model.get_output_embeddings()
        plain = type(head) is nn.Linear and "forward" not in vars(head)
        return head if plain and self._ends_with_its_head else None

    def _with_scores(
        self,
        head: nn.Linear,
        sequences: Tensor,
        action_mask: Tensor,
        attention_mask: Tensor,
        with_entropy: bool,
        proxy_min_p: float | None,
        with_discriminator_mean: bool,
    ) -> tuple[Tensor, Any]:
        """Return the output of ``forward``."""
        width = action_mask.shape[1]
        # (B, A). An action is predicted by the token before it, so the columns are the last A but one of the T.
        acting = action_mask.bool() & attention_mask[:, -1 - width : -1].bool()
        before = torch.zeros_like(sequences, dtype=torch.bool)  # the tokens from which action tokens are predicted
        before[:, -1 - width : -1] = acting
        layout = self._layout(sequences, attention_mask, before)
        # (N,): the token that follows each of these places.
        targets = sequences.roll(-1, 1)[before]
        if layout:
            tokens = layout.tokens
            positions = layout.positions
            rows = layout.places
            mask = layout.additive(next(self.model.parameters()).dtype)
        elif self.packing_samples:
            tokens, positions, _, _, places = unpad_and_slice_tensor(sequences, attention_mask, None)
            rows = before.flatten()[places].nonzero().squeeze(1)
            mask = None
        else:
            tokens = sequences
            rows = before.flatten().nonzero().squeeze(1)
            mask = attention_mask
            positions = (attention_mask.long().cumsum(1) - 1).masked_fill(attention_mask == 0, 1)
        scores = HeadScores(head, rows, targets, self.temperature, with_entropy, proxy_min_p, with_discriminator_mean)
        with answering(head, scores.answer):
            output = self.model(tokens, attention_mask=mask, position_ids=positions)

        def placed(values: Tensor) -> Tensor:
            return values.new_zeros(acting.shape).masked_scatter(acting, values)

        log_probs = placed(output["logits"])
        output["logits"] = None
        if with_entropy:
            output.entropy = placed(scores.entropy)
        if proxy_min_p is not None:
            output.proxy = placed(scores.proxy)
        if with_discriminator_mean:
            output.discriminator_mean = placed(scores.discriminator_mean)
        return log_probs, output


class Sharing(NamedTuple):
    """The limits within which samples with a common prefix share its computation."""

    # Tokens of a row, at most.
    longest: float
    # As ``shared_layout`` takes it: products with the weights of a layer for a token, by 2 x width.
    token_cost: float
    # In training the model draws random numbers, which samples would share, too.
    draws: bool


def draws_in_training(model: nn.Module) -> bool:
    """Return True if the model or its config has dropout or noise, by which a training pass gives other log-probs."""
    rates: list[Any] = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    for config in (getattr(module, "config", None) for module in model.modules()):
        if isinstance(config, PretrainedConfig):
            rates += [value for name, value in config.to_dict().items() if re.search("drop|noise|jitter", name)]
    return any(isinstance(rate, int | float) and rate > 0 for rate in rates)


def _rope_types(config: Mapping[str, Any]) -> set[str]:
    """Return the RoPE types of a config and of all configs inside it."""
    inner = [_rope_types(each) for each in config.values() if isinstance(each, dict)]
    return {str(config.get(name)) for name in ("rope_type", "type")}.union(*inner)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode while the body runs."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def answering(head: nn.Module, answer: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Replace the output of a head by ``answer`` of its input while the body runs.

    Args:
        head: The output head, whose ``forward`` is replaced.
        answer: Takes the input of the head, (..., width), and returns the output that the model then sees.
    """
    head.forward = answer
    try:
        yield
    finally:
        del head.forward


class HeadScores:
    """An output head that returns log-probs of chosen tokens in place of logits.

    ``entropy``, ``proxy`` and ``discriminator_mean``, each (N,), exist after the call if the arguments request them.

    Args:
        head: The output head.
        rows: Which rows of its flattened input are scored, (N,).
        targets: The token id of which each row gives the log-prob, (N,).
        temperature: Divides the logits.
        with_entropy: True to compute entropies, in nats.
        min_p: The p of ``min_p_scores``; None to compute no such log-probs.
        with_discriminator_mean: True to compute ``discriminator_means``.
    """

    entropy: Tensor
    proxy: Tensor
    discriminator_mean: Tensor

    def __init__(
        self,
        head: nn.Linear,
        rows: Tensor,
        targets: Tensor,
        temperature: float,
        with_entropy: bool,
        min_p: float | None = None,
        with_discriminator_mean: bool = False,
    ) -> None:
        self.with_discriminator_mean = with_discriminator_mean
        self.head = head
        self.rows = rows
        self.targets = targets
        self.temperature = temperature
        self.with_entropy = with_entropy
        self.min_p = min_p

    def answer(self, hidden: Tensor) -> Tensor:
        """Return the log-probs (N,) for the input of the head, (..., width)."""
        head = self.head
        asked = functional.embedding(self.rows, hidden.flatten(0, -2))  # indexing adds gradients of a row in any order
        of_tokens = asked, head.weight, head.bias, self.targets, self.temperature
        log_probs, entropy = token_scores(*of_tokens, self.with_entropy)
        if self.min_p is not None:
            self.proxy = min_p_scores(*of_tokens, self.min_p)
        if self.with_discriminator_mean:
            self.discriminator_mean = discriminator_means(asked, head.weight, head.bias, self.temperature)
        if entropy is not None:
            self.entropy = entropy
        return log_probs
