"""Policy and reference without logits give what upstream's give, for padded and packed samples, and know when to let
upstream compute."""

import math

import pytest
import torch
import transformers
from openrlhf.models import Actor

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.models.token_head import EXCLUDED
from openrlhf_cov.trainer.model import actor_model
from openrlhf_cov.trainer.model.actor_model import CovActor

pytestmark = pytest.mark.usefixtures("uncompiled")

# Padding on the left, tokens of prompt and response of each sample; the rest is padding on the right.
LENGTHS = [(0, 2, 7), (3, 1, 3), (0, 9, 8), (1, 5, 1), (2, 1, 1)]
ROUNDING = 1e-5
SIZE = dict(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=50, initializer_range=0.2, pad_token_id=0, bos_token_id=1, eos_token_id=1,
)  # fmt: skip
TINY = dict(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=32, initializer_range=0.2)
STILL = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, summary_first_dropout=0.0, eos_token_id=1)
DYNAMIC = dict(rope_type="dynamic", factor=4.0, rope_theta=10000.0)
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16)

PLAIN = {
    "llama": transformers.LlamaConfig(**SIZE),
    "tied": transformers.Qwen2Config(**SIZE, tie_word_embeddings=True),
    "flags": transformers.Qwen2Config(**SIZE, use_sliding_window=True, sliding_window=64, max_window_layers=2),
    "bias of the head": transformers.PhiConfig(**SIZE, resid_pdrop=0.0),
    "learned positions": transformers.GPT2Config(**TINY, **STILL, bos_token_id=1),
    "experts": transformers.Qwen2MoeConfig(**SIZE, **MOE, output_router_logits=True),
}
# What these models do after the head must be in the log-probs.
CHANGING = {
    "soft cap": transformers.Gemma2Config(**SIZE, head_dim=8, final_logit_softcapping=3.0),
    "scaled": transformers.CohereConfig(**SIZE, logit_scale=0.3),
    "scaled otherwise": transformers.Cohere2Config(**SIZE, logit_scale=0.3),
    "divided": transformers.GraniteConfig(**SIZE, logits_scaling=4.0),
}
# Not all samples may stand side by side: places in a row count, neighbours mix, what is drawn would be shared, or the
# longest sample counts for all.
APART = {
    "window": transformers.MistralConfig(**SIZE, sliding_window=8),
    "wide window": transformers.MistralConfig(**SIZE, sliding_window=16),
    "convolutions": transformers.Lfm2Config(**SIZE, layer_types=["conv", "full_attention"]),
    "noise": transformers.PhiConfig(**SIZE, resid_pdrop=0.5),
    "dynamic": transformers.LlamaConfig(**SIZE, max_position_embeddings=8, rope_parameters=DYNAMIC),
    "pattern": transformers.Gemma3TextConfig(**SIZE, head_dim=8, sliding_window=64),
}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Function: name of a config -> folder of a model with random weights."""
    made = {}

    def make(name):
        if name not in made:
            torch.manual_seed(0)
            made[name] = tmp_path_factory.mktemp("model")
            model = transformers.AutoModelForCausalLM.from_config(
                (PLAIN | CHANGING | APART)[name], dtype=torch.float32
            )
            for parameter in model.parameters():  # biases are zeros at first
                torch.nn.init.normal_(parameter, std=0.2) if parameter.dim() == 1 else None
            model.save_pretrained(made[name])
        return str(made[name])

    return make


def batch():
    """(sequences, attention mask (B, T), action mask (B, T - 1 from the first response on))."""
    width = max(map(sum, LENGTHS)) + 1  # a column that no sample reaches
    sequences = torch.randint(2, 50, (len(LENGTHS), width), generator=torch.Generator().manual_seed(1))
    position = torch.arange(width)
    left, prompt, length = (
        torch.tensor(each)[:, None] for each in zip(*((a, a + p, a + p + r) for a, p, r in LENGTHS), strict=True)
    )
    attention = ((position >= left) & (position < length)).long()
    action = ((position >= prompt) & (position < length)).long()
    action[0, 4:6] = 0
    return sequences * attention, attention, action[:, 2:]


def results(actor, checkpointing=False, entropy_weight=0.1):
    """(log-probs, entropies of action tokens, gradient, log-probs and entropies without gradient)."""
    sequences, attention, action = batch()
    weights = torch.randn(action.shape, generator=torch.Generator().manual_seed(2))
    if checkpointing:
        actor.gradient_checkpointing_enable()
    actor.train()
    log_probs, output = actor(sequences, action, attention_mask=attention, return_output=True, return_entropy=True)
    entropy = output.entropy[:, -action.shape[1] :] * action
    (log_probs * weights + entropy_weight * entropy).sum().backward()
    gradient = torch.cat([param.grad.flatten() for param in actor.parameters() if param.grad is not None])
    actor.eval()
    with torch.no_grad():
        scored = actor(sequences, action, attention)
    return log_probs.detach(), entropy.detach(), gradient, scored


def assert_same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        scale = float(other.abs().max())
        assert scale > 1e-2
        torch.testing.assert_close(one, other, rtol=0, atol=ROUNDING * scale)


@pytest.fixture
def asked(monkeypatch):
    """The calls of the head that answered with log-probs."""
    calls = []
    scores = actor_model.token_scores

    def counting(*args):
        calls.append(args)
        return scores(*args)

    monkeypatch.setattr(actor_model, "token_scores", counting)
    return calls


SETTINGS = dict(attn_implementation="sdpa", param_dtype="fp32", temperature=0.9)


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", PLAIN)
def test_as_upstream(folder_of, asked, name, checkpointing):
    ours = results(CovActor(folder_of(name), **SETTINGS), checkpointing)
    assert len(asked) == 2
    assert_same(ours, results(Actor(folder_of(name), **SETTINGS), checkpointing))
    assert len(asked) == 2


@pytest.mark.slow
@pytest.mark.skipif(not cpu_host.is_cpu_host(), reason="a GPU host packs with flash attention")
@pytest.mark.parametrize("name", ["llama", "tied", "learned positions"])
def test_packed_as_upstream(folder_of, asked, monkeypatch, name):
    settings = SETTINGS | dict(attn_implementation=cpu_host.PACKED_ATTENTION, packing_samples=True)
    sequences, attention, action = batch()
    keep = torch.tensor([0, 2])  # upstream's packing wants samples without padding on the left
    monkeypatch.setitem(globals(), "batch", lambda: (sequences[keep], attention[keep], action[keep]))
    ours = results(CovActor(folder_of(name), **settings))
    assert len(asked) == 2
    assert_same(ours, results(Actor(folder_of(name), **settings)))
    assert_same(ours, results(Actor(folder_of(name), **SETTINGS)))


@pytest.mark.parametrize("name", CHANGING)
def test_a_model_that_changes_its_logits_is_upstreams(folder_of, asked, name):
    actor = CovActor(folder_of(name), **SETTINGS)
    assert_same(results(actor), results(Actor(folder_of(name), **SETTINGS)))
    assert asked == []
    assert not any("forward" in vars(module) for module in actor.modules())


@pytest.mark.parametrize(("made", "ends"), [
    (lambda h, head: head(h).float(), True), (lambda h, head: head(h).to(h.dtype), False),
    (lambda h, head: h @ head.weight.T, False), (lambda h, head: head(h) + head(h), False),
])  # fmt: skip
def test_models_that_do_more_or_less_than_call_their_head_once(folder_of, made, ends):
    actor = CovActor(folder_of("llama"), **SETTINGS | dict(param_dtype="bf16"))
    model = actor.model
    model.forward = lambda tokens, **others: {"logits": made(model.model(tokens, **others)[0], model.lm_head)}
    assert actor._ends_with_its_head is ends


@pytest.mark.parametrize(("target", "scores"), [("lm_head", 0), ("q_proj", 2)])
def test_lora(folder_of, asked, target, scores):
    found = []
    for kind in (CovActor, Actor):
        torch.manual_seed(0)
        actor = kind(folder_of("llama"), lora_rank=2, target_modules=[target], **SETTINGS)
        for name, parameter in actor.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        found.append(results(actor))
    assert_same(*found)
    assert len(asked) == scores


@pytest.mark.parametrize("name", ["llama", "bias of the head"])
def test_log_probs_among_the_probable_tokens(folder_of, name):
    sequences, attention, action = batch()
    actor = CovActor(folder_of(name), **SETTINGS).eval()
    with torch.no_grad():
        positions = (attention.cumsum(1) - 1).clamp(min=0)
        logits = actor.model(sequences, attention_mask=attention, position_ids=positions).logits
    log_p = (logits[:, :-1] / SETTINGS["temperature"]).log_softmax(-1)[:, -action.shape[1] :]
    targets = sequences[:, -action.shape[1] :]
    of_target = log_p.gather(-1, targets[..., None]).squeeze(-1) - log_p.amax(-1)
    of_target = of_target[action == 1].exp().sort().values
    min_p = float(of_target[5] + of_target[6]) / 2  # so that six are left out
    with torch.no_grad():
        _, output = actor(sequences, action, attention, return_output=True, proxy_min_p=min_p)
    for row, column in action.nonzero().tolist():
        p = log_p[row, column].exp()
        kept = p >= min_p * p.max()
        target = int(targets[row, column])
        expected = math.log(p[target] / p[kept].sum()) if kept[target] else EXCLUDED
        assert output.proxy[row, column].item() == pytest.approx(expected, abs=1e-4)
    assert not output.proxy[action == 0].any()
    assert (output.proxy == EXCLUDED).sum() == 6 < action.sum()
    with torch.no_grad():
        _, output = actor(sequences, action, attention, return_output=True, with_discriminator_mean=True)
    entropy = -(log_p.exp() * log_p).sum(-1, keepdim=True)
    expected = (log_p.exp().square() * (entropy + log_p)).sum(-1)
    torch.testing.assert_close(output.discriminator_mean, expected * action, rtol=1e-4, atol=1e-5)
    assert not hasattr(actor(sequences, action, attention, return_output=True)[1], "discriminator_mean")
    assert not hasattr(actor(sequences, action, attention, return_output=True)[1], "proxy")


def test_experts_keep_their_loss(folder_of):
    sequences, attention, action = batch()
    losses = []
    for kind in (CovActor, Actor):
        _, output = kind(folder_of("experts"), **SETTINGS)(sequences, action, attention, return_output=True)
        losses.append(output.aux_loss.detach())
    torch.testing.assert_close(*losses)


def test_half_precision_as_upstream(folder_of):
    settings = SETTINGS | dict(param_dtype="bf16")
    sequences, attention, action = batch()
    found = []
    for kind in (CovActor, Actor):
        actor = kind(folder_of("llama"), **settings).eval()
        log_probs, output = actor(sequences, action, attention, return_output=True, return_entropy=True)
        found.append((log_probs.detach(), output.entropy[:, -action.shape[1] :].detach() * action))
        assert log_probs.dtype == torch.float32
    for ours, theirs in zip(*found, strict=True):  # logits are the same bfloat16 numbers, but for their order
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.03)


@pytest.mark.parametrize("name", ["llama", "soft cap"])
def test_samples_without_action(folder_of, name):
    sequences, attention, action = batch()
    actor = CovActor(folder_of(name), **SETTINGS)
    log_probs = actor(sequences, torch.zeros_like(action), attention)
    # with ZeRO-3 a rank without an action must call the model as often as the others
    assert actor._ends_with_its_head is (name == "llama")
    assert not log_probs.any()
    log_probs.sum().backward()
    assert all(not parameter.grad.any() for parameter in actor.parameters())


def group():
    """Three samples of one prompt, two of another and a single one: (sequences, attention mask, action mask)."""
    generator = torch.Generator().manual_seed(3)
    prompts = torch.randint(2, 50, (3, 7), generator=generator)[[0, 1, 0, 2, 1, 0]]
    sequences = torch.cat([prompts, torch.randint(2, 50, (6, 5), generator=generator)], 1)
    attention = (torch.arange(12) < 7 + torch.tensor([5, 3, 4, 5, 1, 2])[:, None]).long()
    action = attention[:, 7:].clone()
    action[0, 2] = 0
    return sequences * attention, attention, action


@pytest.fixture
def read(monkeypatch):
    """Shapes of the tokens that were laid out side by side."""
    found = []
    layout_of = actor_model.shared_layout

    def laying(*args, **kwargs):
        layout = layout_of(*args, **kwargs)
        found.append(layout and tuple(layout.tokens.shape))
        return layout

    monkeypatch.setattr(actor_model, "shared_layout", laying)
    monkeypatch.setitem(globals(), "batch", group)
    return found


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["llama", "tied", "bias of the head", "learned positions"])
def test_samples_of_a_prompt_side_by_side(folder_of, read, name, checkpointing, attention):
    settings = SETTINGS | dict(attn_implementation=attention)
    actor = CovActor(folder_of(name), **settings)
    ours = results(actor, checkpointing)
    (_, *used) = read  # the first is the model's trial
    assert len(used) == 2
    assert all(shape and math.prod(shape) < group()[0].numel() / 1.5 for shape in used)
    assert actor.shares_prefixes
    assert_same(ours, results(Actor(folder_of(name), **settings), checkpointing))


def test_rows_are_no_wider_than_a_window(folder_of, read):
    ours = results(CovActor(folder_of("wide window"), **SETTINGS))
    (_, *used) = read
    assert all(12 < shape[1] <= 16 for shape in used)
    assert_same(ours, results(Actor(folder_of("wide window"), **SETTINGS)))


@pytest.mark.parametrize(
    ("name", "shares"),
    [("window", True), ("convolutions", False), ("experts", False), ("noise", False), ("dynamic", False)],
)
def test_models_that_read_samples_apart(folder_of, read, name, shares):
    actor = CovActor(folder_of(name), **SETTINGS)
    actor.train()
    sequences, attention, action = group()
    with torch.no_grad():
        actor(sequences, action, attention)
    assert not any(read[1:])  # nothing but the trial
    assert actor.shares_prefixes is shares
    if name != "noise":
        assert_same(results(actor), results(Actor(folder_of(name), **SETTINGS)))


def test_noise_is_not_drawn_where_log_probs_are_scored(folder_of, read):
    actor = CovActor(folder_of("noise"), **SETTINGS).eval()
    sequences, attention, action = group()
    with torch.no_grad():
        ours = actor(sequences, action, attention)
        theirs = Actor(folder_of("noise"), **SETTINGS).eval()(sequences, action, attention)
    assert read[-1] is not None
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("ignored", "dtype", "off"), [
    ("attention_mask", "fp32", 1e-5), ("position_ids", "fp32", 1e-5), ("position_ids", "bf16", 0.1),
])  # fmt: skip
def test_a_model_that_ignores_mask_or_positions_is_found_out(folder_of, read, ignored, dtype, off):
    settings = SETTINGS | dict(param_dtype=dtype)
    actor = CovActor(folder_of("llama"), **settings)
    forward = actor.model.model.forward
    actor.model.model.forward = lambda *args, **others: forward(*args, **others | {ignored: None})
    assert not actor.shares_prefixes
    sequences, attention, action = group()
    log_probs = actor(sequences, action, attention)
    assert len(read) == 1
    theirs = Actor(folder_of("llama"), **settings)(sequences, action, attention)
    torch.testing.assert_close(log_probs, theirs, rtol=0, atol=off)  # right padding: both change nothing in own rows


@pytest.mark.parametrize(("dtype", "amount"), [("fp32", 1e-5), ("bf16", 0.01)])
def test_a_model_that_mixes_neighbours_a_little_is_found_out(folder_of, dtype, amount):
    actor = CovActor(folder_of("llama"), **SETTINGS | dict(param_dtype=dtype))

    def mix(layer, inputs, output):
        """As a short convolution over places does, less than rounding may change in logits."""
        hidden = output[0] if isinstance(output, tuple) else output
        hidden[:, 1:] += amount * hidden[:, :-1].clone()

    actor.model.model.layers[0].register_forward_hook(mix)
    assert not actor.shares_prefixes


@pytest.mark.slow
def test_gradients_of_a_shared_prompt_repeat_bit_for_bit():
    """Resuming depends on it: threads that add the gradients of one token at once do so in any order."""
    draw = torch.Generator().manual_seed(0)
    head, hidden = torch.nn.Linear(192, 20), torch.randn(1, 500, 192, generator=draw)
    rows = torch.cat([torch.randint(0, 20, (400,), generator=draw), torch.arange(500)])
    weights = torch.randn(900, generator=draw)

    def gradient():
        leaf = hidden.clone().requires_grad_()
        scores = actor_model.HeadScores(head, rows, rows % 20, 1.0, with_entropy=False)
        (scores.answer(leaf) * weights).sum().backward()
        return leaf.grad

    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        first = gradient()
        assert all(gradient().equal(first) for _ in range(50))
    finally:
        torch.set_num_threads(threads)
