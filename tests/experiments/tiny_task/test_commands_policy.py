import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from openrlhf_cov.experiments.tiny_task.commands_policy import in_wider_heads

IDS = torch.randint(0, 9, (3, 7), generator=torch.Generator().manual_seed(0))


def small_model(**changes):
    settings = dict(
        vocab_size=9, hidden_size=16, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=16, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(LlamaConfig(**settings | changes)).eval()


@pytest.mark.parametrize("size", [16, 32])
def test_wider_heads_compute_the_same(size):
    model = small_model()
    for weights in model.parameters():
        weights.data.mul_(8)  # of 0.02 at first, at which attention is even and rotations do nothing
    wide = in_wider_heads(model, size)
    assert wide.config.head_dim == size
    assert wide.model.layers[0].self_attn.q_proj.weight.shape == (2 * size, 16)
    torch.testing.assert_close(wide(IDS).logits, model(IDS).logits, rtol=0, atol=1e-4)


def test_what_is_new_stays_0_in_training():
    wide = in_wider_heads(small_model(), 32)
    new = {name: values == 0 for name, values in wide.state_dict().items()}
    # heads of 8 numbers in heads of 32: 3 of 4 rows of q, k and v and columns of o
    assert [int(new[f"model.layers.0.self_attn.{name}_proj.weight"].sum()) for name in "qkvo"] == [48 * 16] * 4
    optimizer = torch.optim.AdamW(wide.parameters(), lr=0.1, weight_decay=0.0)
    wide(IDS, labels=IDS).loss.backward()
    optimizer.step()
    assert all((wide.state_dict()[name][zeros] == 0).all() for name, zeros in new.items())


def test_sizes_that_are_no_multiple_are_refused():
    with pytest.raises(ValueError, match="multiple, not 20"):
        in_wider_heads(small_model(), 20)
    with pytest.raises(ValueError, match="keys of its own"):
        in_wider_heads(small_model(num_key_value_heads=1), 16)
