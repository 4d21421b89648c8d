"""The policy model without logits on two ranks (``tests/helpers/actor_model_rank.py``), for every ZeRO stage."""

import sys

import actor_model_rank
import pytest
import torch
from openrlhf.models import Actor
from rank_group import RankGroup
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig

pytestmark = pytest.mark.e2e

SIZE = dict(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=50, initializer_range=0.2, head_dim=8,
)  # fmt: skip
CONFIGS = {
    "plain": LlamaConfig(**SIZE),
    "tied": LlamaConfig(**SIZE, tie_word_embeddings=True),
    "soft cap": Gemma2Config(**SIZE, final_logit_softcapping=3.0),
}


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory):
    """Function (folder of the model, stage, folder) -> what ``actor_model_rank.py`` saved on each rank."""
    group = RankGroup([sys.executable, actor_model_rank.__file__], ranks=2, folder=tmp_path_factory.mktemp("ranks"))

    def run(folder, stage, out):
        group(str(folder), stage, str(out))
        return [torch.load(out / f"{rank}.pt") for rank in range(2)]

    yield run
    group.end()


@pytest.mark.parametrize(("name", "stage"), [("plain", 0), ("tied", 1), ("plain", 2), ("tied", 3), ("soft cap", 3)])
def test_an_update_is_that_of_upstreams_model(on_two_ranks, tmp_path, monkeypatch, name, stage):
    folder = tmp_path / "model"
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIGS[name], dtype=torch.float32).save_pretrained(folder)
    found = on_two_ranks(folder, stage, tmp_path)

    monkeypatch.setattr("openrlhf.utils.utils.convert_to_torch_dtype", lambda dtype: torch.float32)
    actor = Actor(str(folder), attn_implementation="sdpa", param_dtype="fp32", temperature=0.9)
    with torch.compiler.set_stance("force_eager"):
        log_probs, losses = zip(
            *(actor_model_rank.loss_of(actor, *actor_model_rank.batch(rank)) for rank in range(2)), strict=True
        )
        (sum(losses) / 2).backward()  # the mean of the ranks, and of two micro-batches that are the same
        before = {name: parameter.detach().clone() for name, parameter in actor.model.named_parameters()}
        torch.optim.SGD(actor.parameters(), lr=0.1).step()
        scored = [actor_model_rank.loss_of(actor, *actor_model_rank.batch(rank))[0].detach() for rank in range(2)]
    for rank, (ours, ours_after, weights, head_answers, shared) in enumerate(found):
        assert head_answers is (name != "soft cap")
        assert not head_answers or shared == [rank == 0]
        torch.testing.assert_close(ours, log_probs[rank].detach(), rtol=0, atol=1e-5)
        torch.testing.assert_close(ours_after, scored[rank], rtol=0, atol=1e-3)  # lr 1 makes large steps
        for parameter, theirs in actor.model.named_parameters():
            assert not torch.equal(theirs, before[parameter])
            torch.testing.assert_close(weights[parameter], theirs.detach(), rtol=0, atol=2e-5)
