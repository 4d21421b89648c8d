"""Weights of a LoRA model under the names of the plain model, with adapters merged by hand."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from openrlhf_cov.trainer.weights import weight_transfer
from openrlhf_cov.trainer.weights.lora_weights import (
    adapted_layers,
    merged_state_dict,
    merged_weight,
    plain_parameters,
)
from openrlhf_cov.trainer.weights.weight_transfer import transfer_weights

LLAMA = dict(
    hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=20, pad_token_id=0, bos_token_id=1, eos_token_id=1,
)  # fmt: skip
GPT2 = dict(vocab_size=20, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=1, eos_token_id=1)


def plain_model(config, dtype=torch.float32):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


def with_lora(model, targets, **more):
    """``model`` with adapters whose B is not 0, as after some updates; the scale is 6 / 3 = 2."""
    peft_model = get_peft_model(
        model, LoraConfig(task_type="CAUSAL_LM", r=3, lora_alpha=6, target_modules=targets, **more)
    )
    for name, param in peft_model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(param, std=0.1)
    return peft_model


def sent_weights(model):
    layers = adapted_layers(model)
    return {name: merged_weight(param, layers.get(name)) for name, param in plain_parameters(model)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"], ["lm_head"], ["embed_tokens"]])
def test_names_and_values_by_hand(targets, dtype):
    config = LlamaConfig(**LLAMA, tie_word_embeddings=False)
    expected = {name: param.clone() for name, param in plain_model(config, dtype).named_parameters()}
    model = with_lora(plain_model(config), targets).to(dtype)
    raw = dict(model.named_parameters())
    before = {name: param.clone() for name, param in raw.items()}
    adapted = 0
    for name in expected:
        prefix = f"base_model.model.{name.removesuffix('.weight')}"
        if (a := raw.get(f"{prefix}.lora_A.default.weight")) is not None:
            delta = raw[f"{prefix}.lora_B.default.weight"].float() @ a.float()
        elif (a := raw.get(f"{prefix}.lora_embedding_A.default")) is not None:
            delta = (raw[f"{prefix}.lora_embedding_B.default"].float() @ a.float()).T
        else:
            continue
        adapted += 1
        expected[name] = (expected[name].float() + 2 * delta.to(dtype).float()).to(dtype)
    assert adapted == {"all-linear": 14, "lm_head": 1, "embed_tokens": 1}.get(
        targets if isinstance(targets, str) else targets[0], 4
    )
    sent = sent_weights(model)
    assert list(sent) == list(expected)
    for name, value in expected.items():
        assert sent[name].dtype == dtype
        torch.testing.assert_close(sent[name], value, rtol=0 if dtype == torch.float32 else 2**-7, atol=1e-6)
    assert all(torch.equal(param, before[name]) for name, param in model.named_parameters())  # training goes on


@pytest.mark.parametrize(
    ("config", "targets", "more"),
    [
        (LlamaConfig(**LLAMA, tie_word_embeddings=True), "all-linear", {}),
        (LlamaConfig(**LLAMA), "all-linear", {"lora_dropout": 0.5}),
        (LlamaConfig(**LLAMA), ["q_proj"], {"modules_to_save": ["lm_head", "norm"]}),
        (GPT2Config(**GPT2), ["c_attn", "c_proj"], {"fan_in_fan_out": True}),
    ],
    ids=["tied", "dropout", "modules_to_save", "transposed weights"],
)
def test_the_plain_model_with_the_merged_state_computes_the_same(config, targets, more):
    model = with_lora(plain_model(config), targets, **more).eval()
    for name, param in model.named_parameters():
        if "modules_to_save" in name:
            torch.nn.init.normal_(param, std=0.5)  # the copy is trained, the original is not
    plain = plain_model(config).eval()
    assert plain.state_dict().keys() - sent_weights(model).keys() <= {"lm_head.weight"}  # tied
    plain.load_state_dict(merged_state_dict(model, zero_stage=2), strict=False)
    plain.tie_weights()
    tokens = torch.tensor([[3, 4, 5, 6]])
    torch.testing.assert_close(plain(tokens).logits, model(tokens).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_an_adapter_on_a_shared_weight_is_refused(target):
    model = with_lora(plain_model(LlamaConfig(**LLAMA, tie_word_embeddings=True)), [target])
    with pytest.raises(ValueError, match=f"{target} has a LoRA adapter and shares its weight"):
        sent_weights(model)


def test_the_transfer_sends_merged_weights_in_buckets(monkeypatch):
    model = with_lora(plain_model(LlamaConfig(**LLAMA)), "all-linear")
    monkeypatch.setattr(weight_transfer, "BUCKET_BYTES", 2000)

    class Sender:
        start = finish = staticmethod(lambda: None)

        def __init__(self):
            self.sent = []

        def send(self, named):
            self.sent.extend(named)

    sender = Sender()
    transfer_weights(model, sender, zero_stage=2)
    expected = sent_weights(model)
    assert [name for name, _ in sender.sent] == list(expected)
    assert all(torch.equal(value, expected[name]) for name, value in sender.sent)
