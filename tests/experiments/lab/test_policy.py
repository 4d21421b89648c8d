import pytest
import torch

import openrlhf_cov.experiments.lab.lab_policy
from openrlhf_cov.experiments.lab.lab_policy import log_probs_and_entropy, logits_of, sample
from openrlhf_cov.models.token_head import EXCLUDED, discriminator_means, min_p_scores

PROMPTS = torch.tensor([[20, 5, 6, 7], [21, 8, 3, 2], [22, 4, 5, 6]])


def test_the_cache_changes_nothing(policy):
    model, tokenizer = policy
    model.eval()
    responses = sample(model, PROMPTS, 5, None, tokenizer.eos_token_id, tokenizer.pad_token_id).responses
    ids = PROMPTS
    for place in range(responses.shape[1]):
        expected = model(ids).logits[:, -1].argmax(-1)
        going_on = responses[:, place] != tokenizer.pad_token_id
        assert responses[going_on, place].equal(expected[going_on])
        ids = torch.cat([ids, responses[:, place : place + 1]], 1)


def test_nothing_stands_behind_the_end(policy):
    model, tokenizer = policy
    prompts = PROMPTS.repeat(100, 1)
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    responses = sample(model, prompts, 8, torch.Generator().manual_seed(0), eos, pad).responses
    for row in responses.tolist():
        end = row.index(eos) if eos in row else len(row)
        assert set(row[end + 1 :]) <= {pad}
    assert any(eos in row for row in responses.tolist())


def test_log_probs_and_entropy_by_hand(policy):
    model, _ = policy
    responses = torch.tensor([[9, 3], [4, 4], [1, 0]])
    log_probs, entropy = log_probs_and_entropy(model, PROMPTS, responses)
    for row in range(3):
        for place in range(2):
            before = torch.cat([PROMPTS[row], responses[row, :place]])
            p = model(before[None]).logits[0, -1].softmax(-1)
            assert log_probs[row, place].item() == pytest.approx(p[responses[row, place]].log().item(), abs=1e-6)
            assert entropy[row, place].item() == pytest.approx(-(p * p.log()).sum().item(), abs=1e-6)
    assert log_probs.requires_grad


def test_samples_have_their_log_probs_among_the_probable_tokens(policy):
    model, tokenizer = policy
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    found = sample(model, PROMPTS, 3, torch.Generator().manual_seed(0), eos, pad, min_p=0.99)
    ids = torch.cat([PROMPTS, found.responses[:, :-1]], 1)
    logits = logits_of(model, ids, found.responses.shape[1], [])
    weight = torch.eye(logits.shape[-1])
    expected = min_p_scores(logits.flatten(0, 1), weight, None, found.responses.flatten(), 1.0, 0.99)
    torch.testing.assert_close(found.proxy.flatten(), expected, rtol=1e-5, atol=1e-5)
    assert 0 < (found.proxy == EXCLUDED).sum() < found.proxy.numel()
    assert sample(model, PROMPTS, 3, torch.Generator().manual_seed(0), eos, pad).proxy is None


def test_samples_have_means_of_the_discriminator(policy):
    model, tokenizer = policy
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    drawn = torch.Generator().manual_seed(0)
    found = sample(model, PROMPTS, 3, drawn, eos, pad, with_discriminator_mean=True)
    ids = torch.cat([PROMPTS, found.responses[:, :-1]], 1)
    logits = logits_of(model, ids, found.responses.shape[1], [])
    expected = discriminator_means(logits.flatten(0, 1), torch.eye(logits.shape[-1]), None, 1.0)
    torch.testing.assert_close(found.discriminator_mean.flatten(), expected, rtol=1e-4, atol=1e-6)
    assert found.proxy is None


def test_the_forward_pass_is_that_of_transformers(policy):
    model, _ = policy
    ids = torch.randint(0, 20, (6, 9), generator=torch.Generator().manual_seed(0))
    expected = model(ids).logits
    found = logits_of(model, ids, 4, [])
    torch.testing.assert_close(found, expected[:, -4:], rtol=0, atol=1e-6)
    cache = []
    logits_of(model, ids[:, :5], 1, cache)
    torch.testing.assert_close(logits_of(model, ids[:, 5:], 4, cache), expected[:, -4:], rtol=0, atol=1e-6)
    gradients = [torch.autograd.grad(each.square().sum(), model.parameters()) for each in (found, expected[:, -4:])]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_samples_say_what_the_policy_thought_of_them(policy):
    model, tokenizer = policy
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    found = sample(model, PROMPTS, 5, torch.Generator().manual_seed(0), eos, pad, each=20)
    assert found.responses.shape[0] == 60
    asked = PROMPTS.repeat_interleave(20, 0)
    log_probs, entropy = log_probs_and_entropy(model, asked, found.responses)
    counts = found.responses != pad
    torch.testing.assert_close(found.log_probs[counts], log_probs[counts], rtol=0, atol=1e-5)
    torch.testing.assert_close(found.entropy[counts], entropy[counts], rtol=0, atol=1e-5)


def test_the_gradient_of_an_entropy_bonus_by_hand(policy, monkeypatch):
    # p = (1/2, 1/4, 1/4): H = 1.5 ln 2 = 1.039721, dH / d logit = -p (ln p + H) = -0.173287, 0.086643, 0.086643
    logits = torch.tensor([[[0.5, 0.25, 0.25]]]).log().requires_grad_()
    monkeypatch.setattr(openrlhf_cov.experiments.lab.lab_policy, "logits_of", lambda *arguments: logits)
    _, entropy = log_probs_and_entropy(policy[0], torch.zeros(1, 1).long(), torch.zeros(1, 1).long())
    entropy.sum().backward()
    assert entropy.item() == pytest.approx(1.039721, abs=1e-6)
    assert logits.grad.flatten().tolist() == pytest.approx([-0.173287, 0.086643, 0.086643], abs=1e-6)
