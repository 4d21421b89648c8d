"""All updates of the policy in a global step, through ``update_policy``: a policy of 6 numbers learns."""

import json
import math
from dataclasses import replace

import pytest
import torch
from rank_models import LEARNING_RATE, Strategy, Unigrams, accumulation_of, flags, make_policy, make_samples, order_of
from simulated_ranks import Simulated
from torch import nn
from transformers import GPT2Config, LlamaConfig, MixtralConfig

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.settings import Schedule
from openrlhf_cov.trainer.batches.rank_batches import shares_of_ranks
from openrlhf_cov.trainer.metrics.observation import StepDiagnostics
from openrlhf_cov.trainer.model.actor_model import draws_in_training
from openrlhf_cov.trainer.update import update_policy

pytestmark = pytest.mark.usefixtures("one_process")

LARGE = dict(allow_large_cov_ratio=True)
CONFIGS = {
    "kl_cov": CovConfig(cov_type="kl_cov", kl_cov_ratio=0.2, ppo_kl_coef=0.5, **LARGE),
    "clip_cov": CovConfig(cov_type="clip_cov", clip_cov_ratio=0.2, clip_cov_lb=0.01, **LARGE),
}
UNCLIPPED = dict(eps_clip_low_high=(math.inf, math.inf))
SAMPLES = 8
TOKENS = sum(sample.action_tokens for sample in make_samples())


@pytest.fixture
def observed(monkeypatch):
    """What the loss did: (numbers of the samples, record) of every micro-batch."""
    seen, observe = [], StepDiagnostics.observe

    def noting(self, ids, record):
        seen.append((ids.tolist(), record))
        observe(self, ids, record)

    monkeypatch.setattr(StepDiagnostics, "observe", noting)
    return seen


def restrained(observed):
    """[{(number of a sample, place of a token)} that the first plan acts on in an update] of a step."""
    updates: dict[int, set[tuple[int, int]]] = {}
    for ids, record in observed:
        places = updates.setdefault(record.update, set())
        places |= {(ids[row], place) for row, place in record.selected.nonzero().tolist()}
    observed.clear()
    return list(updates.values())


LAYOUTS = [
    *({"micro_batch_size": size} for size in (1, 2, 4)),
    {"micro_batch_size": 1, "dynamic_batch_enable": True},
    {"dynamic_batch_enable": True, "max_tokens_per_gpu": 30},
]


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_updates_do_not_depend_on_the_micro_batches(tmp_path, observed, config):
    reference = make_policy(flags(tmp_path, config, micro_batch_size=SAMPLES, **UNCLIPPED))
    update_policy(reference, order_of(reference.args), make_samples())
    expected = restrained(observed)
    assert [len(places) for places in expected] == [int(0.2 * TOKENS)] * 2
    assert expected[0] != expected[1]  # the policy moved, so tokens are sampled from other candidates
    for layout in LAYOUTS:
        policy = make_policy(flags(tmp_path, config, **layout, **UNCLIPPED))
        result = update_policy(policy, order_of(policy.args), make_samples())
        assert restrained(observed) == expected, layout
        assert result.updates == 2
        # two updates of some 40 token gradients in float32, added in another order
        torch.testing.assert_close(policy.actor.logits, reference.actor.logits, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("loss_agg_mode", ["token-mean", "seq-mean-token-mean"])
def test_logged_losses_are_those_of_the_updates_whatever_the_micro_batches_are(tmp_path, loss_agg_mode):
    """Samples of different lengths, a KL loss and an entropy bonus; one update, so that all layouts share it."""
    losses = dict(
        use_loss=True, init_coef=0.1, estimator="k2", entropy_coef=0.01, max_epochs=1, loss_agg_mode=loss_agg_mode,
        train__batch_size=SAMPLES,
    )  # fmt: skip
    samples = make_samples(drift=0.4)
    reference = make_policy(flags(tmp_path, micro_batch_size=SAMPLES, **losses))
    expected = update_policy(reference, order_of(reference.args, kl_coef=0.1), samples).metrics
    # k2 is half of the squared log ratio to the reference, which is the noise of ``base_log_probs``.
    assert expected["kl"] > 0.01
    assert expected["entropy_loss"] > 0.5
    for layout in LAYOUTS:
        policy = make_policy(flags(tmp_path, **layout, **losses))
        found = update_policy(policy, order_of(policy.args, kl_coef=0.1), samples).metrics
        for name in ("policy_loss", "kl", "entropy_loss"):
            assert found[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-7), (layout, name)


def test_the_logged_loss_by_hand(tmp_path):
    # Responses of one token with advantages 1, 1 and -2, and of two tokens with 3 each; all ratios are 1 in the first
    # update, so the token mean of -A is -(1 + 1 - 2 + 3 + 3) / 5 = -1.2, in one update of two or four micro-batches.
    (sample,) = make_samples(1)
    samples = []
    for number, advantages in enumerate(([1.0], [1.0], [-2.0], [3.0, 3.0])):
        count = len(advantages)
        log_probs = Unigrams().logits.detach().log_softmax(0)[1].repeat(count)
        samples.append(
            replace(
                sample, sample_id=number, tokens=torch.tensor([0, *[1] * count]), advantages=torch.tensor(advantages),
                action_mask=torch.ones(count, dtype=torch.bool), log_probs=log_probs, entropy=torch.ones(count),
                base_log_probs=log_probs, rollout_log_probs=log_probs,
            )
        )  # fmt: skip
    for layout in ({"micro_batch_size": 2}, {"micro_batch_size": 1, "dynamic_batch_enable": True}):
        policy = make_policy(flags(tmp_path, **layout, max_epochs=1, train__batch_size=4))
        found = update_policy(policy, order_of(policy.args), samples).metrics
        assert found["policy_loss"] == pytest.approx(-1.2, rel=1e-6), layout


def without_shares(metrics):
    """Leave out the covariance of the selected tokens, which is centred in its micro-batch."""
    return {name: value for name, value in metrics.items() if name != "cov/selected_mean"}


@pytest.mark.slow
@pytest.mark.parametrize("config", [CovConfig(), *CONFIGS.values(), CovConfig(method="steer")])
@pytest.mark.parametrize(("batch_size", "epochs"), [(4, 1), (8, 2)])
def test_ranks_learn_what_one_rank_learns(tmp_path, config, batch_size, epochs):
    # The samples of an update do not depend on the ranks in the first epoch; later, only if it has them all.
    args = flags(
        tmp_path, config, dynamic_batch_enable=True, train__batch_size=batch_size, max_epochs=epochs, use_loss=True,
        init_coef=0.1, entropy_coef=0.01, dual_clip=3.0,
    )  # fmt: skip
    alone = make_policy(args)
    order = order_of(args, kl_coef=0.1)
    samples = make_samples(drift=0.2)
    (share,) = shares_of_ranks(samples, args, ranks=1, step=order.step)
    expected = update_policy(alone, order, share)
    for count in (2, 4):
        simulated = Simulated(count)

        def policy_of(rank, simulated=simulated, count=count):
            policy = make_policy(args)
            ranks = replace(simulated.rank(rank), size=count)
            policy.ranks, policy.layout = ranks, replace(policy.layout, update_size=batch_size // count)
            policy.strategy.average = lambda gradient: ranks.all_reduce_sum(gradient) / count
            return policy

        policies = [policy_of(rank) for rank in range(count)]
        shares = shares_of_ranks(samples, args, ranks=count, step=order.step)
        results = simulated.run(lambda policy, share, _: update_policy(policy, order, share), policies, shares)
        for policy, result in zip(policies, results, strict=True):
            torch.testing.assert_close(policy.actor.logits, alone.actor.logits, rtol=1e-5, atol=1e-6)
            assert (result.updates, result.learning_rate) == (2, LEARNING_RATE)
            assert result.mean_entropy == expected.mean_entropy
            assert result.metrics.keys() == expected.metrics.keys()
            assert without_shares(result.metrics) == pytest.approx(
                without_shares(expected.metrics), rel=2e-5, abs=1e-6, nan_ok=True
            )


@pytest.mark.slow
def test_the_policy_is_asked_from_the_second_update_on(tmp_path):
    for changes, questions in ({}, 2), ({"cov_log_probs": "old"}, 0), ({"cov_scope": "micro_batch"}, 0):
        policy = make_policy(flags(tmp_path, CovConfig(cov_type="kl_cov", **changes), micro_batch_size=4))
        update_policy(policy, order_of(policy.args), make_samples())
        assert policy.actor.questions == questions  # two micro-batches of the second epoch
        assert not any(call.training for call in policy.actor.calls if not call.gradient)
        assert all(call.training for call in policy.actor.calls if call.gradient)
    policy = make_policy(flags(tmp_path, CovConfig(cov_type="kl_cov"), micro_batch_size=4))
    for asked in (2, 4):  # the next global step starts anew
        update_policy(policy, order_of(policy.args), make_samples())
        assert policy.actor.questions == asked


def test_one_micro_batch_is_planned_by_the_forward_pass_that_trains_it(tmp_path, observed):
    args = flags(tmp_path, CONFIGS["clip_cov"], micro_batch_size=SAMPLES)
    policy, asking = make_policy(args), make_policy(args)
    asking.draws_in_training = True  # then another pass it is, without what is drawn
    found = []
    for each in (policy, asking):
        update_policy(each, order_of(args), make_samples())
        found.append(restrained(observed))
    assert found[0] == found[1] != []
    assert (policy.actor.questions, asking.actor.questions) == (0, 1)
    assert torch.equal(policy.actor.logits, asking.actor.logits)


@pytest.mark.parametrize("setting", ["old", "current"])
def test_the_entropies_that_a_method_asks_for_decide_which_tokens_train(tmp_path, observed, setting):
    # floor(0.4 * 5) = 2 tokens train. The rollout's entropies are 0.5, 1.5, 2, 0.2 and 1 nats: those of 2 and 1.5
    # train. The entropy that the policy has now grows with the token before, 3, 0, 1, 4 and 2: those of 4 and 3 train.
    config = CovConfig(method="top_entropy", top_entropy_frac=0.4, top_entropy_policy=setting)
    policy = make_policy(flags(tmp_path, config, micro_batch_size=1, batch_size=1))
    policy.layout = replace(policy.layout, micro_batches=1)
    (sample,) = make_samples(1)
    tokens = torch.tensor([3, 0, 1, 4, 2, 5])
    log_probs = policy.actor.logits.detach().log_softmax(0)[tokens[1:]]
    entropy = torch.tensor([0.5, 1.5, 2.0, 0.2, 1.0])
    sample = replace(
        sample, tokens=tokens, log_probs=log_probs, entropy=entropy, action_mask=torch.ones(5, dtype=torch.bool),
        advantages=torch.ones(5), returns=torch.ones(5), rollout_log_probs=log_probs, values=None,
        base_log_probs=None,
    )  # fmt: skip
    update_policy(policy, order_of(policy.args), [sample])
    first, second = (record.selected.int().tolist() for _, record in observed)
    assert first == [[1, 0, 0, 1, 1]]  # no update yet: the rollout's are those of the policy
    assert second == ([[1, 0, 0, 1, 1]] if setting == "old" else [[0, 1, 1, 0, 1]])


def test_old_log_probs_select_the_same_tokens_in_every_update(tmp_path, observed):
    config = replace(CONFIGS["kl_cov"], cov_log_probs="old")
    found = []
    for each in (config, CONFIGS["kl_cov"]):
        policy = make_policy(flags(tmp_path, each))
        update_policy(policy, order_of(policy.args), make_samples())
        found.append(restrained(observed))
    (first, second), (current, moved) = found
    assert first == second == current != moved


def test_every_pass_over_a_rollout_samples_tokens_anew(tmp_path, observed):
    # The old log-probs have the same candidates in both epochs, so only the draws differ.
    policy = make_policy(flags(tmp_path, replace(CONFIGS["clip_cov"], cov_log_probs="old")))
    update_policy(policy, order_of(policy.args), make_samples())
    first, second = restrained(observed)
    assert len(first) == len(second) > 0
    assert first != second


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["current", "old"])
def test_every_fifty_steps_the_selections_by_both_policies_are_compared(tmp_path, observed, setting):
    config = replace(CONFIGS["kl_cov"], cov_log_probs=setting)
    quota = int(0.2 * TOKENS)
    passes = {"current": 2, "old": 0}[setting]  # one for each micro-batch of the second epoch
    args = flags(tmp_path, config, micro_batch_size=4)
    for step, compared in (0, True), (1, False), (49, False), (50, True):
        policy = make_policy(args)
        overlap = update_policy(policy, order_of(args, step), make_samples()).metrics["cov/old_overlap"]
        first, second = restrained(observed)
        assert policy.actor.questions == (2 if compared else passes)
        if not compared:
            assert math.isnan(overlap)
            continue
        # The rollout's log-probs select in every update what the first one selects. The first update is not compared:
        # it has the rollout's policy.
        if setting == "old":
            by_current = make_policy(flags(tmp_path, CONFIGS["kl_cov"], micro_batch_size=4))
            update_policy(by_current, order_of(by_current.args, step), make_samples())
            second = restrained(observed)[1]
        assert overlap == pytest.approx(len(first & second) / quota)
        assert 0 < overlap < 1


def test_the_number_of_a_sample_decides_not_its_place(tmp_path, observed):
    found = []
    for way in (1, -1):
        policy = make_policy(flags(tmp_path, CONFIGS["clip_cov"], dynamic_batch_enable=True, max_epochs=1))
        update_policy(policy, order_of(policy.args), make_samples()[::way])
        found.append(restrained(observed))
    assert found[0] == found[1] != [set()]


def test_a_step_repeats_and_steps_differ(tmp_path, observed):
    """Also random tokens of ``--cov_scope micro_batch`` and the order of static batches: both use random states."""
    config = replace(CONFIGS["clip_cov"], cov_scope="micro_batch")
    args, found = flags(tmp_path, config, max_epochs=1, train__batch_size=8, micro_batch_size=4), []
    for step in (7, 8, 7):
        torch.rand(5)  # whatever was drawn before
        update_policy(make_policy(args), order_of(args, step), make_samples())
        found.append(([ids for ids, _ in observed], restrained(observed)))
    assert found[0] == found[2]
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


def test_random_tokens_of_a_micro_batch_depend_on_the_rank(tmp_path, observed):
    config = replace(CONFIGS["clip_cov"], cov_scope="micro_batch")
    args = flags(tmp_path, config, max_epochs=1, micro_batch_size=8, dynamic_batch_enable=True, max_tokens_per_gpu=99)
    found = []
    for rank in (0, 1, 0):
        policy = make_policy(args)
        policy.strategy = Strategy(args, accumulation_of(args), data_rank=rank)
        update_policy(policy, order_of(args), make_samples())
        found.append(restrained(observed))
    assert found[0] == found[2] != found[1]


@pytest.mark.slow
def test_a_step_takes_its_settings_from_the_order(tmp_path):
    args = flags(tmp_path, CovConfig(cov_type="kl_cov", kl_cov_ratio=Schedule(0.4, 0.2, 6), **LARGE))
    for step, share in (0, 0.4), (3, 0.3), (6, 0.2):
        metrics = update_policy(make_policy(args), order_of(args, step), make_samples()).metrics
        # round down, or up to 1 of the tokens of each of two updates
        assert metrics["cov/selected_count"] == pytest.approx(2 * share * TOKENS, abs=2)


@pytest.mark.parametrize("given", [None, 0.01])
def test_a_method_moves_the_entropy_bonus(tmp_path, given):
    moving = CovConfig(method="adaptive_entropy", entropy_bonus=0.05)
    found = []
    for config, bonus in ((moving, given), (CovConfig(), 0.05), (CovConfig(), given)):
        policy = make_policy(flags(tmp_path, config, entropy_coef=bonus))
        result = update_policy(policy, order_of(policy.args), make_samples())
        assert ("entropy_loss" in result.metrics) is (config is moving or bonus is not None)
        found.append(policy.actor.logits.detach())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_the_result_of_a_step(tmp_path):
    policy = make_policy(flags(tmp_path, train__batch_size=4))
    samples = make_samples()
    result = update_policy(policy, order_of(policy.args), samples)
    assert (result.updates, result.learning_rate) == (4, LEARNING_RATE)
    entropies = torch.cat([sample.entropy.double() for sample in samples])
    assert result.mean_entropy == pytest.approx(float(entropies.mean()), rel=1e-9)
    assert result.metrics["entropy/mean"] == pytest.approx(result.mean_entropy, rel=1e-6)
    assert result.metrics["actor_lr"] == LEARNING_RATE
    assert result.metrics["ppo/skipped_updates"] == 0.0
    # both are of gradients before they were clipped: of the last update, and the mean of all four
    assert result.metrics["actor_grad_norm"] == policy.engine.norm
    assert result.metrics["gradient/norm"] != result.metrics["actor_grad_norm"]


def test_the_norm_of_one_update(tmp_path):
    policy = make_policy(flags(tmp_path, max_epochs=1))
    before = policy.actor.logits.detach().clone()
    metrics = update_policy(policy, order_of(policy.args), make_samples()).metrics
    # plain gradient descent: the step is the learning rate times the gradient
    norm = float((policy.actor.logits.detach() - before).norm()) / LEARNING_RATE
    assert metrics["gradient/norm"] == metrics["actor_grad_norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("dynamic", [False, True])
def test_updates_with_nan_are_skipped_and_counted(tmp_path, dynamic):
    args = flags(tmp_path, train__batch_size=4, max_epochs=1, dynamic_batch_enable=dynamic, tensor_parallel_size=2)
    samples = make_samples()
    samples[1] = replace(samples[1], advantages=torch.full_like(samples[1].advantages, math.nan))
    policy = make_policy(args)
    assert update_policy(policy, order_of(args, 7), samples).metrics["ppo/skipped_updates"] == 1.0
    assert policy.actor.logits.isfinite().all()
    assert not torch.equal(policy.actor.logits, Unigrams().logits)  # the other update was made
    assert [path.name for path in (tmp_path / "bad_updates").iterdir()] == ["step8_1_rank0.pt"]
    kept = torch.load(tmp_path / "bad_updates" / "step8_1_rank0.pt", weights_only=False)
    assert set(kept.sample_ids.tolist()) <= {0, 1, 2, 3}
    # three in a row, over the ends of steps, end the run
    samples = [replace(each, advantages=torch.full_like(each.advantages, math.nan)) for each in samples]
    update_policy(policy, order_of(args, 8), samples)
    with pytest.raises(RunStopped, match=r"global step 10: the gradient is NaN or infinite.*3 in a row end"):
        update_policy(policy, order_of(args, 9), samples)


@pytest.mark.parametrize("micro_batch", [1, 2, 8])
@pytest.mark.parametrize("config", [CovConfig(), CONFIGS["kl_cov"], CovConfig(method="steer")])
def test_samples_without_action_tokens_change_nothing(tmp_path, config, micro_batch):
    """A micro-batch of nothing else has no mean: its numbers must not make those of the step NaN."""
    losses = dict(
        tensor_parallel_size=2, entropy_coef=0.1, use_loss=True, init_coef=0.1, is_correction_level="token",
        loss_agg_mode="seq-mean-token-mean",
    )  # fmt: skip
    args = flags(tmp_path, config, micro_batch_size=micro_batch, **losses)
    samples = make_samples(4, drift=0.1)
    empty = [
        replace(each, sample_id=each.sample_id + 4, action_mask=torch.zeros_like(each.action_mask)) for each in samples
    ]
    policy = make_policy(args)
    alone = make_policy(flags(tmp_path, config, micro_batch_size=4, train__batch_size=4, **losses))
    result = update_policy(policy, order_of(args, kl_coef=0.1), samples + empty)
    expected = update_policy(alone, order_of(alone.args, kl_coef=0.1), samples)
    torch.testing.assert_close(policy.actor.logits, alone.actor.logits, rtol=1e-5, atol=1e-6)
    for name in ("ppo_kl", "ppo_clip_ratio", "logprobs_diff", "vllm_kl", "is_filter_ratio", "entropy/mean"):
        assert result.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-4, abs=1e-6), name
    assert math.isfinite(result.metrics["policy_loss"])
    assert result.mean_entropy == expected.mean_entropy


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("seq", 1 / 8),
        # The longest of the eight responses has 8 of their 2 + 2 + 3 + 4 + 5 + 6 + 7 + 8 = 37 tokens.
        ("token", 8 / 37),
    ],
)
@pytest.mark.parametrize("micro_batch", [1, 2, 8])
def test_the_share_that_a_rollout_correction_filters_is_one_of_its_level(tmp_path, level, expected, micro_batch):
    args = flags(tmp_path, micro_batch_size=micro_batch, is_correction_level=level, is_correction_threshold=(0.9, 1.1))
    # The engine gave the last response a log-prob that is lower by 1 at each token: the ratio e is above 1.1.
    samples = make_samples()
    samples = [replace(each, rollout_log_probs=each.log_probs - float(each.sample_id == 7)) for each in samples]
    result = update_policy(make_policy(args), order_of(args), samples)
    assert result.metrics["is_filter_ratio"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("cov_type", "epochs", "count"), [("kl_cov", 1, 1), ("kl_cov", 2, 0), ("none", 1, 0)])
def test_a_penalty_without_gradient_is_reported_once(tmp_path, log, cov_type, epochs, count):
    policy = make_policy(flags(tmp_path, CovConfig(cov_type=cov_type), max_epochs=epochs))
    for step in (3, 4):
        update_policy(policy, order_of(policy.args, step), make_samples())
    assert len(log.messages) == count
    assert all("--train.max_epochs" in message for message in log.messages)


@pytest.mark.parametrize("method", ["clip_v", "lp_reg"])
def test_a_model_that_cannot_score_what_a_method_needs_ends_the_run(tmp_path, method):
    policy = make_policy(flags(tmp_path, CovConfig(method=method)))
    policy.actor.has_plain_head = False
    tokens, ones = torch.ones(1, 3, dtype=torch.long), torch.ones(1, 3)
    with pytest.raises(RunStopped, match=f"--method {method} needs a policy whose log-probs are those of a plain out"):
        policy.score(tokens, ones[:, 1:], ones, None, with_entropy=True, with_vocabulary_scores=True)
    assert policy.actor.training
    policy.score(tokens, ones[:, 1:], ones, None, with_entropy=True)


def test_the_tokens_of_a_step_are_dumped_where_that_is_due(tmp_path):
    args = flags(tmp_path, replace(CONFIGS["kl_cov"], cov_dump_every=2, cov_dump_tokens=5))
    for step in (2, 3):
        update_policy(make_policy(args), order_of(args, step), make_samples())
    (path,) = (tmp_path / "cov_tokens").iterdir()
    assert path.name == "step_4.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(records) == 5
    assert [record["cov"] for record in records] == sorted((record["cov"] for record in records), reverse=True)
    samples = {sample.sample_id: sample for sample in make_samples()}
    for record in records:
        assert samples[record["sample_id"]].tokens[record["position"]] == record["token_id"]
        assert record["token"] == str(record["token_id"])
    assert records[0]["selected"]


def test_images_go_with_the_text(tmp_path):
    policy = make_policy(flags(tmp_path, CovConfig(cov_type="kl_cov"), micro_batch_size=4, tensor_parallel_size=2))
    samples = [
        replace(
            each, image_inputs=None if each.sample_id == 1 else {"pixel_values": torch.full((1, 2), each.sample_id)}
        )
        for each in make_samples()
    ]
    update_policy(policy, order_of(policy.args), samples)
    assert all("pixel_values" not in call.options for call in policy.actor.calls)  # of a model without images

    policy.actor.is_vlm = True
    policy.actor.calls.clear()
    update_policy(policy, order_of(policy.args), samples)
    # training passes of the first epoch, then each window is asked first
    seen = [(call.gradient, call.options["pixel_values"][:, 0].tolist()) for call in policy.actor.calls]
    halves = [0, 2, 3], [4, 5, 6, 7]
    assert seen == [
        *((True, half) for half in halves), *((False, half) for half in halves), *((True, half) for half in halves)
    ]  # fmt: skip


def with_config(config):
    module = nn.Linear(2, 2)
    module.config = config
    return module


@pytest.mark.parametrize(
    ("module", "draws"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)), False),
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)), True),
        (with_config(LlamaConfig()), False),
        (with_config(LlamaConfig(attention_dropout=0.1)), True),
        (with_config(GPT2Config()), True),
        (with_config(MixtralConfig(router_jitter_noise=0.01)), True),
        (with_config({"attention_dropout": 0.1}), False),  # DeepSpeed's, of its engine
    ],
)
def test_dropout_is_seen_in_modules_and_configs(module, draws):
    assert draws_in_training(nn.ModuleList([module])) is draws


def test_samples_of_a_prompt_come_together_where_a_model_gains_by_it(tmp_path):
    def groups_prompts(config=None, shares_prefixes=True):
        return make_policy(flags(tmp_path, config), shares_prefixes=shares_prefixes).layout.groups_prompts

    assert groups_prompts()
    assert groups_prompts(CONFIGS["kl_cov"])
    assert groups_prompts(CovConfig(cov_scope="micro_batch"))  # nothing looks at micro-batches
    assert not groups_prompts(CovConfig(cov_type="kl_cov", cov_scope="micro_batch"))  # it selects in them
    assert not groups_prompts(shares_prefixes=False)


def test_the_samples_of_a_run_do_not_change(tmp_path):
    samples, expected = make_samples(), make_samples()
    policy = make_policy(flags(tmp_path, CONFIGS["clip_cov"]))
    update_policy(policy, order_of(policy.args), samples)
    for sample, same in zip(samples, expected, strict=True):
        for name, value in vars(sample).items():
            other = getattr(same, name)
            assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other


ABSTAINED = (1, 4)  # with other lengths than their neighbours


def with_abstentions(samples):
    """The samples, and two beside them whose reward function abstained: probable tokens without an advantage."""
    return [
        replace(each, abstained=True, advantages=torch.zeros_like(each.advantages)) if place in ABSTAINED else each
        for place, each in enumerate(samples)
    ]


@pytest.mark.parametrize(
    "config",
    [
        CovConfig(),
        *CONFIGS.values(),
        CovConfig(cov_type="kl_cov", kl_cov_ratio=0.2, ppo_kl_coef=0.5, cov_scope="micro_batch", **LARGE),
        CovConfig(method="top_entropy", top_entropy_frac=0.5),
        CovConfig(method="dr_grpo", dr_grpo_length=5.0),
        CovConfig(method="clip_b", clip_b_mu=0.5),
    ],
    ids=lambda config: f"{config.method} {config.cov_type} {config.cov_scope}",
)
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_a_sample_that_abstained_changes_no_update(tmp_path, config, mode):
    """One update on all samples in one micro-batch moves the policy as one on the graded ones alone."""
    if mode != "token-mean" and config.method in ("top_entropy", "dr_grpo"):
        return  # refused
    samples = make_samples()
    graded = [each for place, each in enumerate(samples) if place not in ABSTAINED]
    moved = []
    metrics = []
    for some in (graded, with_abstentions(samples)):
        sizes = dict.fromkeys(("train__batch_size", "rollout__batch_size", "train__micro_batch_size"), len(some))
        policy = make_policy(flags(tmp_path, config, **sizes, max_epochs=1, loss_agg_mode=mode, **UNCLIPPED))
        before = policy.actor.logits.detach().clone()
        metrics.append(update_policy(policy, order_of(policy.args), some).metrics)
        moved.append(policy.actor.logits.detach() - before)
    assert moved[0].abs().max() > 1e-3
    torch.testing.assert_close(moved[1], moved[0], rtol=1e-5, atol=1e-7)
    # The metrics of the policy loss are of graded samples, too. kl and logprobs_diff are of all.
    of_graded = {name for name in metrics[0] if name.startswith(("cov/", "gradient/", "method/", "ppo"))}
    assert {name: metrics[1][name] for name in of_graded} == pytest.approx(
        {name: metrics[0][name] for name in of_graded}, rel=1e-4, abs=1e-6, nan_ok=True
    )
