"""What the laboratory asks of a small Llama: samples, log-probs and entropies, each of the policy at temperature 1."""

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM


@torch.no_grad()
def sample(
    model: LlamaForCausalLM, prompts: Tensor, tokens: int, generator: torch.Generator | None, eos: int, pad: int
) -> Tensor:
    """Responses (B, A) to prompts (B, P) of equal length, with ``pad`` behind their end; A is at most ``tokens``.

    Drawn from the full vocabulary; without a generator the most probable token is taken.
    """
    cache, ids, out = DynamicCache(config=model.config), prompts, []
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(tokens):
        logits = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        if generator is None:
            token = logits.argmax(-1)
        else:
            token = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
        out.append(token.masked_fill(ended, pad))
        ended |= token == eos
        if ended.all():
            break
        ids = token[:, None]
    return torch.stack(out, 1)


def log_probs_and_entropy(model: LlamaForCausalLM, prompts: Tensor, responses: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs of the responses (B, A) and entropies (B, A) in nats, with gradient where it is on.

    Padding stands behind what counts, so that no attention mask is needed.
    """
    ids = torch.cat([prompts, responses[:, :-1]], 1)
    log_p = model(ids, use_cache=False, logits_to_keep=responses.shape[1]).logits.log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(-1, responses[..., None])[..., 0], entropy
