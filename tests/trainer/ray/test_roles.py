"""The methods of the roles on one rank, with small models and a strategy that makes no process group."""

import gc
from types import SimpleNamespace

import pytest
import torch
from openrlhf.trainer.ray.launcher import ReferenceModelActor, RewardModelActor
from openrlhf.trainer.ray.ppo_critic import CriticModelActor
from run_flags import run_flags
from torch import nn

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.workers import plain_class
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.trainer.ray import roles
from openrlhf_cov.trainer.ray.roles import (
    CriticRole,
    PolicyRole,
    ProcessRewardRole,
    ReferenceRole,
    RewardRole,
    scoring_models,
)
from openrlhf_cov.trainer.records import PolicyScores, RankSamples, StepResult, StepSettings, TrainSample
from openrlhf_cov.trainer.rollout.rollout_file import write_state


def flags(**changes):
    return run_flags({"ckpt.disable_ds": True} | changes)


class Strategy(SimpleNamespace):
    """The parts of a strategy that a role uses between two collectives; it notes what is exported."""

    def __init__(self, args, rank=0):
        super().__init__(args=args, ring_attn_group=None, rank=rank, exported=[])

    def is_rank_0(self):
        return self.rank == 0

    def save_model(self, model, tokenizer, folder):
        self.exported.append((model, tokenizer, folder))


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    """What the constructor of a rank sets is as before after the test."""
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")


def make_role(kind, args=None, rank=0, **attributes):
    role = kind(1, rank, "localhost", 29500)
    vars(role).update(strategy=Strategy(args or flags(), rank), **attributes)
    return role


class RecordingPolicy:
    """Takes the place of ``Policy``: the log-prob of token v is -v, its entropy 10 v; notes how it is asked."""

    def __init__(self, proxy=False):
        self.actor = nn.Linear(1, 1)
        self.actor.temperature = 0.6
        self.ema_model = None
        self.tokenizer = "tokenizer"
        self.proxy = proxy
        self.asked = []

    def score(self, tokens, action_mask, attention_mask, image_inputs, with_entropy, with_proxy):
        self.asked.append((self.actor.temperature, image_inputs, with_entropy, with_proxy))
        # half precision, as a model in bf16 may answer
        log_probs = (-1.0 * tokens[:, -action_mask.shape[1] :] * action_mask).bfloat16()
        proxy = log_probs / 2 if with_proxy and self.proxy else None
        return PolicyScores(log_probs, -10 * log_probs if with_entropy else None, proxy)


TOKENS = torch.arange(5).expand(2, 5)
ACTIONS = torch.tensor([[0, 1, 1, 0], [0, 1, 0, 0]])
ATTENTION = torch.ones(2, 5, dtype=torch.long)


@pytest.mark.parametrize("proxy", [False, True])
def test_the_policy_scores_rollouts_in_float32_with_entropies_and_proxies(proxy):
    policy = RecordingPolicy(proxy)
    images = [{"pixel_values": torch.ones(1, 3)}]
    scores = make_role(PolicyRole, policy=policy).score(TOKENS, ACTIONS, ATTENTION, images)
    # columns are about tokens 1, 2, 3, 4; tokens 2 and 3 are actions
    assert scores[0].tolist() == [[0.0, -2.0, -3.0, 0.0], [0.0, -2.0, 0.0, 0.0]]
    assert scores[1].tolist() == [[0.0, 20.0, 30.0, 0.0], [0.0, 20.0, 0.0, 0.0]]
    assert (scores[2] is None) is not proxy
    assert {each.dtype for each in scores if each is not None} == {torch.float32}
    assert policy.asked == [(0.6, images, True, True)]


def test_texts_are_scored_at_temperature_1_token_by_token():
    policy = RecordingPolicy()
    # token v has log-prob -v; the first token of a text has none
    assert make_role(PolicyRole, policy=policy).score_texts([[5, 6, 7], [9, 1]]) == [-6.0, -7.0, -1.0]
    assert policy.asked == [(1.0, None, False, False)] * 2
    assert policy.actor.temperature == 0.6


class Model(nn.Module):
    """A model of a scoring role, in half precision; notes its arguments, and if it was training."""

    is_vlm = True

    def __init__(self):
        super().__init__()
        self.calls = []

    def forward(self, *tensors, **options):
        assert not torch.is_grad_enabled()
        self.calls.append((self.training, tensors, options))
        return tensors[0].bfloat16()[:, 1:]


def one_call(model):
    ((training, tensors, options),) = model.calls
    return training, tensors, options


@pytest.mark.parametrize("images", [None, [{"pixel_values": torch.ones(1, 3)}, {"pixel_values": torch.zeros(1, 3)}]])
def test_the_reference_scores_as_upstreams_does(images):
    ours, theirs = Model().eval(), Model().eval()
    scores = make_role(ReferenceRole, model=ours).score(TOKENS, ACTIONS, ATTENTION, images)
    upstream = make_role(plain_class(ReferenceModelActor), model=theirs)
    expected = upstream.forward(TOKENS, ACTIONS, ATTENTION, mm_train_inputs_list=images)
    assert scores.dtype == torch.float32
    assert torch.equal(scores, expected.float())
    (_, tensors, options), (_, their_tensors, their_options) = one_call(ours), one_call(theirs)
    assert all(map(torch.equal, tensors, their_tensors))
    del their_options["packed_seq_lens"]  # None, which is its default
    assert options.keys() == their_options.keys() == {"ring_attn_group"} | ({"pixel_values"} if images else set())
    if images:
        assert torch.equal(options["pixel_values"], their_options["pixel_values"])


def test_the_reward_model_scores_as_upstreams_does():
    ours, theirs = Model().eval(), Model().eval()
    rewards = make_role(RewardRole, model=ours).score(TOKENS, ATTENTION)
    expected = make_role(plain_class(RewardModelActor), model=theirs).forward(TOKENS, ATTENTION)
    assert rewards.dtype == torch.float32
    assert torch.equal(rewards, expected.float())
    (_, tensors, options), (_, their_tensors, their_options) = one_call(ours), one_call(theirs)
    assert all(map(torch.equal, tensors, their_tensors))
    del their_options["packed_seq_lens"]
    assert options == their_options


def test_the_critic_scores_as_upstreams_does_and_trains_on():
    ours, theirs = Model().train(), Model().train()
    values = make_role(CriticRole, critic=SimpleNamespace(engine=ours)).score(TOKENS, ACTIONS, ATTENTION)
    expected = make_role(plain_class(CriticModelActor), critic=theirs).forward(TOKENS, ACTIONS, ATTENTION)
    assert values.dtype == torch.float32
    assert torch.equal(values, expected.float())
    (training, tensors, options), (_, their_tensors, their_options) = one_call(ours), one_call(theirs)
    assert training is False
    assert ours.training
    assert all(map(torch.equal, tensors, their_tensors))
    assert options == their_options


@pytest.mark.parametrize(
    ("changes", "models"),
    [
        ({}, 1),
        ({"algo.kl.init_coef": 0.1}, 2),
        ({"algo.kl.init_coef": 0.1, "critic.model_name_or_path": "m", "reward.remote_url": None}, 4),
    ],
)
def test_models_that_score_side_by_side_share_the_cores(monkeypatch, changes, models):
    args = flags(**changes)
    assert scoring_models(args) == models
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: True)
    seen, before = [], torch.get_num_threads()
    torch.set_num_threads(8)
    try:
        policy = RecordingPolicy()
        policy.score = lambda tokens, mask, *others, **options: (
            seen.append(torch.get_num_threads()) or RecordingPolicy().score(tokens, mask, *others, **options)
        )
        make_role(PolicyRole, args, policy=policy).score(TOKENS, ACTIONS, ATTENTION)
        assert seen == [8 // models]
        assert torch.get_num_threads() == 8
    finally:
        torch.set_num_threads(before)


def train_sample(number):
    zeros = torch.zeros(3)
    return TrainSample(
        sample_id=number, score=1.0, abstained=False, tokens=torch.arange(4), action_mask=zeros.bool(),
        log_probs=zeros, entropy=zeros, advantages=zeros, returns=zeros,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "function", "learner"), [(PolicyRole, "update_policy", "policy"), (CriticRole, "update_critic", "critic")]
)
def test_a_role_trains_on_its_share(monkeypatch, kind, function, learner):
    updates = []

    def update(trained, order, samples):
        updates.append((trained, order, [sample.sample_id for sample in samples]))
        return StepResult({"loss": 0.5})

    monkeypatch.setattr(roles, function, update)
    model = nn.Linear(1, 1).eval()
    trained = SimpleNamespace(actor=model, engine=model)
    role = make_role(kind, **{learner: trained})
    order = StepSettings(step=3, config=CovConfig(), kl_coef=0.1)
    assert role.update(order, RankSamples.of([train_sample(4), train_sample(2)])) == StepResult({"loss": 0.5})
    assert updates == [(trained, order, [4, 2])]
    assert model.training  # it was loaded in evaluation mode


def test_a_process_reward_model_trains_on_its_share_and_gives_log_probs(monkeypatch):
    updates = []

    def update(model, order, samples):
        updates.append((model, [sample.sample_id for sample in samples]))
        return StepResult({"prm/loss": 0.5})

    class Scorer(nn.Module):
        def forward(self, tokens, action_mask, attention_mask, ring_attn_group):
            assert not self.training
            return -tokens[:, 1:].double() * action_mask

    monkeypatch.setattr(roles, "update_process_reward", update)
    role = make_role(ProcessRewardRole, prm=SimpleNamespace(model=Scorer()))
    order = StepSettings(step=3, config=CovConfig(), kl_coef=0.1)
    assert role.update(order, RankSamples.of([train_sample(4), train_sample(2)])).metrics == {"prm/loss": 0.5}
    assert updates == [(role.prm, [4, 2])]
    tokens = torch.tensor([[1, 2, 3]])
    scores = role.score(tokens, torch.tensor([[False, True]]), torch.ones_like(tokens))
    assert scores.dtype == torch.float32
    assert scores.tolist() == [[0.0, -3.0]]


def test_weights_go_out_through_upstreams_sender_or_over_gloo(monkeypatch):
    sent = []
    monkeypatch.setattr(roles, "transfer_weights", lambda *given: sent.append(given))
    monkeypatch.setattr(torch.distributed, "barrier", lambda: sent.append("barrier"))
    policy = SimpleNamespace(actor=SimpleNamespace(model=SimpleNamespace(module="module")))
    args = flags(**{"ds.zero_stage": 3})
    make_role(PolicyRole, args, policy=policy, gloo_sender="sender").send_weights()
    assert sent == [("module", "sender", 3), "barrier"]
    sent.clear()
    sender = SimpleNamespace(broadcast_to_vllm=lambda: sent.append("upstream"))
    make_role(PolicyRole, args, policy=policy, upstream_sender=sender).send_weights()
    assert sent == ["upstream"]


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("ema", [False, True])
def test_a_checkpoint_may_have_an_export_and_the_run_ends_with_one(ema):
    policy = RecordingPolicy()
    policy.ema_model = "average"
    args = flags(**{"train.enable_ema": ema, "ckpt.save_hf": True, "ckpt.path": "ckpt"})
    role = make_role(PolicyRole, args, policy=policy)
    role.save_checkpoint("global_step3", {"global_step": 3})
    role.save_model()
    model = "average" if ema else policy.actor
    assert role.strategy.exported == [(model, "tokenizer", "ckpt/global_step3_hf"), (model, "tokenizer", "out")]


@pytest.mark.parametrize("tokenizer", [None, "tokenizer"])
def test_a_critic_is_exported_if_it_was_loaded_with_a_tokenizer(tokenizer):
    role = make_role(CriticRole, critic=SimpleNamespace(engine="critic"), tokenizer=tokenizer)
    role.save_checkpoint("global_step3")  # --ckpt.disable_ds: there is nothing to write
    role.save_model()
    assert role.strategy.exported == ([("critic", "tokenizer", "out_critic")] if tokenizer else [])


ROLLOUTS = {"groups": list(range(999))}


def restored_role(folder, rank=0, **states):
    args = flags(**{"ckpt.path": str(folder)})
    return make_role(PolicyRole, args, rank, client_states={"global_step": 3} | states, restored="global_step3")


@pytest.mark.parametrize("of_deepspeed", [{}, {"optimizer": {"state": list(range(999))}}])
def test_a_restored_state_is_short_in_the_log_complete_and_from_the_first_rank(tmp_path, of_deepspeed):
    (tmp_path / "_actor" / "global_step3").mkdir(parents=True)
    write_state(tmp_path / "_actor" / "global_step3" / "rollouts.safetensors", ROLLOUTS)
    states = restored_role(tmp_path, **of_deepspeed).get_checkpoint_states()
    assert f"{states}" == "{'global_step': 3, 'data_loader_state_dict': <class 'dict'>}"
    assert states == {"global_step": 3, "data_loader_state_dict": ROLLOUTS}
    assert restored_role(tmp_path, rank=1, **of_deepspeed).get_checkpoint_states() == {"global_step": 3}


def test_a_state_that_cannot_be_written_is_an_error_that_ends_the_checkpoint(tmp_path):
    with pytest.raises(RuntimeError, match=r"rollouts.safetensors: state/groups is of type object, which"):
        roles._write_rollouts(tmp_path / "rollouts.safetensors", {"groups": object()})


def test_a_checkpoint_without_the_rollouts_or_with_a_pickle_in_their_place_ends_the_run(tmp_path):
    with pytest.raises(RunStopped, match=r"rollouts.safetensors, .* cannot be read: No such file"):
        restored_role(tmp_path).get_checkpoint_states()
    (tmp_path / "_actor" / "global_step3").mkdir(parents=True)
    torch.save({"groups": []}, tmp_path / "_actor" / "global_step3" / "rollouts.safetensors")
    with pytest.raises(RunStopped, match=r"rollouts.safetensors, .*it is no state of a sampler"):
        restored_role(tmp_path).get_checkpoint_states()


@pytest.mark.parametrize("load_enable", [False, True])
def test_a_run_that_was_killed_before_its_first_save_starts_afresh(monkeypatch, tmp_path, load_enable):
    monkeypatch.setattr(roles, "share_over_ranks", lambda value: [value])
    (tmp_path / "_actor" / "partial-global_step1").mkdir(parents=True)
    args = flags(**{"ckpt.path": str(tmp_path), "ckpt.load_enable": load_enable})
    role = make_role(PolicyRole, args)
    role.strategy.restored = None
    assert role.restore() == {}  # a load would fail: the strategy has none
    assert role.get_restored() is None
    assert args.ckpt.load_enable is load_enable  # the flags of the run stay as they are


def test_a_role_collects_garbage_again_when_it_is_made():
    gc.disable()  # as ``prepare_worker`` leaves it
    try:
        ReferenceRole(1, 0, "localhost", 29500)
        assert gc.isenabled()
    finally:
        gc.enable()
