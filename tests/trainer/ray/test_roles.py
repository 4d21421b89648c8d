"""The methods of the roles on one rank, with the policy and the critic of a few numbers of ``rank_models``."""

import gc
from pathlib import Path

import pytest
import torch
from openrlhf.trainer.ray.launcher import ReferenceModelActor, RewardModelActor
from openrlhf.trainer.ray.ppo_critic import CriticModelActor
from openrlhf.utils.deepspeed import DeepspeedStrategy
from rank_models import (
    Strategy,
    Unigrams,
    accumulation_of,
    flags,
    make_critic,
    make_policy,
    make_process_reward,
    make_samples,
    order_of,
)
from torch import nn

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.cluster.workers import plain_class
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.trainer.critic_update import update_critic
from openrlhf_cov.trainer.process_reward_update import update_process_reward
from openrlhf_cov.trainer.ray import roles
from openrlhf_cov.trainer.ray.roles import (
    CriticRole,
    PolicyRole,
    ProcessRewardRole,
    ReferenceRole,
    RewardRole,
)
from openrlhf_cov.trainer.records import RankSamples
from openrlhf_cov.trainer.rollout.sampler_state_file import write_state
from openrlhf_cov.trainer.update import update_policy

pytestmark = pytest.mark.usefixtures("one_process")


class RoleStrategy(Strategy):
    """Also notes which model a role exports, and where."""

    restored = None
    # True to create the folder of an export, as upstream's strategy does.
    creates_folders = False

    def __init__(self, args, rank=0):
        super().__init__(args, accumulation_of(args), rank)
        self.exported = []

    def save_model(self, model, tokenizer, folder):
        self.exported.append((model, folder))
        if self.creates_folders:
            Path(folder).mkdir()


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    """What the constructor of a rank sets is as before after the test."""
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")


def make_role(kind, args, rank=0, **attributes):
    role = kind(1, rank, "localhost", 29500)
    vars(role).update(strategy=RoleStrategy(args, rank), **attributes)
    return role


TOKENS = torch.arange(5).expand(2, 5)
ACTIONS = torch.tensor([[0, 1, 1, 0], [0, 1, 0, 0]])
ATTENTION = torch.ones(2, 5, dtype=torch.long)
IMAGES = [{"pixel_values": torch.ones(1, 3)}, {"pixel_values": torch.zeros(1, 3)}]


@pytest.mark.parametrize(("method", "extra"), [("none", None), ("lp_reg", "proxy"), ("clip_v", "discriminator_mean")])
def test_the_policy_scores_rollouts_in_float32_with_what_methods_ask_for(tmp_path, method, extra):
    args = flags(tmp_path, CovConfig(method=method))
    policy = make_policy(args)
    policy.actor.bfloat16()
    policy.actor.is_vlm = True
    scores = make_role(PolicyRole, args, policy=policy).score(TOKENS, ACTIONS, ATTENTION, IMAGES)
    expected = policy.score(TOKENS, ACTIONS, ATTENTION, IMAGES, with_entropy=True, with_vocabulary_scores=True)
    for name in ("log_probs", "entropy", "proxy", "discriminator_mean"):
        found = getattr(scores, name)
        assert (found is not None) is (name in ("log_probs", "entropy", extra))
        if found is not None:
            assert found.dtype == torch.float32
            assert torch.equal(found, getattr(expected, name).float())
    assert policy.actor.calls[0].options["pixel_values"].tolist() == [[1.0] * 3, [0.0] * 3]


def test_texts_are_scored_at_temperature_1_token_by_token(tmp_path):
    args = flags(tmp_path)
    policy = make_policy(args)
    policy.actor.temperature = 0.6
    found = make_role(PolicyRole, args, policy=policy).score_texts([[5, 2, 3], [0, 1]])
    # the first token of a text has no log-prob
    assert found == policy.actor.logits.log_softmax(0)[[2, 3, 1]].tolist()
    assert policy.actor.temperature == 0.6


@pytest.mark.parametrize("images", [None, IMAGES])
def test_the_reference_scores_as_upstreams_does(tmp_path, images):
    args = flags(tmp_path)
    model = Unigrams().bfloat16().eval()
    model.is_vlm = True
    scores = make_role(ReferenceRole, args, model=model).score(TOKENS, ACTIONS, ATTENTION, images)
    upstream = make_role(plain_class(ReferenceModelActor), args, model=model)
    expected = upstream.forward(TOKENS, ACTIONS, ATTENTION, mm_train_inputs_list=images)
    assert scores.dtype == torch.float32
    assert torch.equal(scores, expected.float())
    assert not any(call.gradient for call in model.calls)
    if images:
        ours, theirs = (call.options["pixel_values"] for call in model.calls)
        assert torch.equal(ours, theirs)


class RewardModel(nn.Module):
    """A reward model in half precision."""

    def forward(self, tokens, attention_mask, ring_attn_group, pad_sequence, packed_seq_lens=None):
        assert pad_sequence
        return (tokens * attention_mask).sum(1).bfloat16()


def test_the_reward_model_scores_as_upstreams_does(tmp_path):
    args = flags(tmp_path)
    rewards = make_role(RewardRole, args, model=RewardModel()).score(TOKENS, ATTENTION)
    expected = make_role(plain_class(RewardModelActor), args, model=RewardModel()).forward(TOKENS, ATTENTION)
    assert rewards.dtype == torch.float32
    assert torch.equal(rewards, expected.float())


def test_the_critic_scores_as_upstreams_does_and_trains_on(tmp_path):
    args = flags(tmp_path)
    critic = make_critic(args)
    critic.engine.table.data = torch.linspace(-1, 1, 6).bfloat16()
    values = make_role(CriticRole, args, critic=critic).score(TOKENS, ACTIONS, ATTENTION)
    upstream = make_role(plain_class(CriticModelActor), args, critic=critic.engine)
    assert values.dtype == torch.float32
    assert torch.equal(values, upstream.forward(TOKENS, ACTIONS, ATTENTION).float())
    assert critic.engine.training


def test_a_process_reward_model_scores_without_dropout(tmp_path):
    args = flags(tmp_path, CovConfig(method="prime"))
    prm = make_process_reward(args)
    scores = make_role(ProcessRewardRole, args, prm=prm).score(TOKENS, ACTIONS, ATTENTION)
    assert torch.equal(scores, prm.model.logits.detach().log_softmax(0)[TOKENS[:, 1:]] * ACTIONS)
    assert not prm.model.calls[0].training


@pytest.fixture
def eight_threads(monkeypatch):
    """This process has eight threads on a CPU host, and as many as before after the test."""
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: True)
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    yield
    torch.set_num_threads(before)


CRITIC = {"critic__model_name_or_path": "m"}
ASYNCHRONOUS = {"async_enable": True}


@pytest.mark.usefixtures("eight_threads")
@pytest.mark.parametrize(
    ("changes", "threads"),
    [
        ({}, 8),
        ({"init_coef": 0.1}, 4),
        ({"init_coef": 0.1, "reward__remote_url": None} | CRITIC, 2),
        ({"actor__num_gpus_per_node": 2}, 4),
        # The engines have the other half.
        (ASYNCHRONOUS, 4),
        (ASYNCHRONOUS | {"init_coef": 0.1}, 2),
    ],
)
def test_models_that_score_side_by_side_share_the_cores(tmp_path, changes, threads):
    args = flags(tmp_path, **changes)
    policy = make_policy(args)
    seen = []
    policy.actor.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    make_role(PolicyRole, args, policy=policy).score(TOKENS, ACTIONS, ATTENTION)
    assert seen == [threads]
    assert torch.get_num_threads() == 8


def small_reference(args):
    """A role, its attributes, and the module that scores."""
    model = Unigrams().eval()
    return ReferenceRole, {"model": model}, model


def small_reward_model(args):
    model = RewardModel()
    return RewardRole, {"model": model}, model


def small_critic(args):
    critic = make_critic(args)
    return CriticRole, {"critic": critic}, critic.engine


def small_process_reward(args):
    prm = make_process_reward(args)
    return ProcessRewardRole, {"prm": prm}, prm.model


ALL_MODELS = {"init_coef": 0.1, "reward__remote_url": None} | CRITIC


@pytest.mark.usefixtures("eight_threads")
@pytest.mark.parametrize(
    ("make", "changes", "threads"),
    [
        (small_reference, ALL_MODELS, 2),
        (small_reward_model, ALL_MODELS, 2),
        (small_critic, ALL_MODELS, 2),
        # It scores when the others are done, on as many ranks as the policy has.
        (small_process_reward, {"actor__num_gpus_per_node": 2}, 4),
    ],
)
def test_every_model_scores_with_its_part_of_the_threads(tmp_path, make, changes, threads):
    args = flags(tmp_path, CovConfig(method="prime"), **changes)
    kind, attributes, model = make(args)
    seen = []
    model.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    masks = (ATTENTION,) if kind is RewardRole else (ACTIONS, ATTENTION)
    make_role(kind, args, **attributes).score(TOKENS, *masks)
    assert seen == [threads]
    assert torch.get_num_threads() == 8


@pytest.mark.usefixtures("eight_threads")
def test_the_ranks_of_the_policy_share_the_threads_when_they_score_texts(tmp_path):
    args = flags(tmp_path, actor__num_gpus_per_node=4)
    policy = make_policy(args)
    seen = []
    policy.actor.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    make_role(PolicyRole, args, policy=policy).score_texts([[5, 2, 3], [0, 1]])
    assert seen == [2, 2]


ROLES = {
    "policy": (PolicyRole, make_policy, update_policy, CovConfig()),
    "critic": (CriticRole, make_critic, update_critic, CovConfig()),
    "prm": (ProcessRewardRole, make_process_reward, update_process_reward, CovConfig(method="prime")),
}


@pytest.mark.usefixtures("eight_threads")
@pytest.mark.parametrize(
    ("name", "changes", "threads"),
    [
        ("policy", {}, 8),
        ("policy", {"init_coef": 0.1}, 8),  # the reference has scored before
        ("policy", CRITIC, 4),
        ("policy", CRITIC | {"enable_sleep": True}, 8),  # one trains after the other
        ("policy", {"actor__num_gpus_per_node": 4}, 2),
        ("policy", ASYNCHRONOUS, 4),
        ("policy", ASYNCHRONOUS | CRITIC, 2),
        ("critic", CRITIC, 4),
        ("prm", {"actor__num_gpus_per_node": 2}, 4),
        ("prm", ASYNCHRONOUS, 4),
    ],
)
def test_models_that_train_side_by_side_share_the_cores(tmp_path, monkeypatch, name, changes, threads):
    kind, make, update, config = ROLES[name]
    args = flags(tmp_path, config, **changes)
    seen = []
    monkeypatch.setattr(roles, update.__name__, lambda *_: seen.append(torch.get_num_threads()))
    make_role(kind, args, **{name: make(args)}).update(None, RankSamples.of([]))
    assert seen == [threads]
    assert torch.get_num_threads() == 8


# Role -> the attribute of its record that has a mode of training and one of evaluation.
TRAINED = {"policy": "actor", "critic": "engine", "prm": "model"}


@pytest.mark.parametrize("name", ROLES)
def test_a_role_trains_on_its_share(tmp_path, name):
    kind, make, update, config = ROLES[name]
    args = flags(tmp_path, config)
    samples = make_samples(drift=0.1)
    expected = update(make(args), order_of(args), samples)
    model = make(args)
    module = getattr(model, TRAINED[name])
    module.eval()  # as it is after loading
    role = make_role(kind, args, **{name: model})
    assert role.update(order_of(args), RankSamples.of(samples)).metrics == pytest.approx(expected.metrics, nan_ok=True)
    assert module.training


class Sender:
    """Either sender of weights; notes what is sent, by which of them."""

    def __init__(self):
        self.sent = []

    def broadcast_to_vllm(self):
        self.sent.append("upstream")

    def start(self):
        self.sent.append("start")

    def send(self, named):
        self.sent += [name for name, _ in named]

    def finish(self):
        self.sent.append("finish")


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        # The barrier comes last: no rank goes on while the first one sends.
        ("gloo_sender", ["start", "weight", "bias", "finish", "barrier"]),
        ("upstream_sender", ["upstream"]),
    ],
)
def test_weights_go_out_over_gloo_or_through_upstreams_sender(tmp_path, monkeypatch, kind, sent):
    args = flags(tmp_path)
    policy = make_policy(args)
    policy.engine.module = nn.Linear(2, 2)
    sender = Sender()
    # On one process the barrier itself does nothing that could be seen.
    monkeypatch.setattr(torch.distributed, "barrier", lambda: sender.sent.append("barrier"))
    make_role(PolicyRole, args, policy=policy, **{kind: sender}).send_weights()
    assert sender.sent == sent


@pytest.mark.parametrize("ema", [False, True])
def test_a_checkpoint_may_have_an_export_and_the_run_ends_with_one(tmp_path, ema):
    changes = {"train__enable_ema": ema, "ckpt__save_hf": True, "ckpt__path": "ckpt", "ckpt__disable_ds": True}
    args = flags(tmp_path, **changes)
    policy = make_policy(args, with_ema=ema)
    role = make_role(PolicyRole, args, policy=policy)
    role.save_checkpoint("global_step3", client_states={"global_step": 3})
    role.save_model()
    model = policy.ema_model if ema else policy.actor
    assert role.strategy.exported == [(model, "ckpt/global_step3_hf"), (model, str(tmp_path))]


@pytest.mark.parametrize("ema", [False, True])
def test_the_best_model_is_the_policy_that_was_evaluated(tmp_path, ema):
    """The engines evaluate the weights of the policy, never its moving average."""
    args = flags(tmp_path, train__enable_ema=ema, ckpt__path=str(tmp_path))
    policy = make_policy(args, with_ema=ema)
    role = make_role(PolicyRole, args, policy=policy)
    role.strategy.creates_folders = True
    role.export_best({"global_step": 3, "value": 0.5})
    ((model, _),) = role.strategy.exported
    assert model is policy.actor


@pytest.mark.parametrize("tokenizer", [None, "tokenizer"])
def test_a_critic_is_exported_if_it_was_loaded_with_a_tokenizer(tmp_path, tokenizer):
    args = flags(tmp_path, ckpt__disable_ds=True)
    role = make_role(CriticRole, args, critic=make_critic(args), tokenizer=tokenizer)
    role.save_checkpoint("global_step3")  # --ckpt.disable_ds: there is nothing to write
    role.save_model()
    assert role.strategy.exported == ([(role.engine, f"{tmp_path}_critic")] if tokenizer else [])


ROLLOUTS = {"groups": list(range(999))}


def restored_role(folder, rank=0, **states):
    args = flags(folder, ckpt__path=str(folder))
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
def test_a_run_that_was_killed_before_its_first_save_starts_afresh(tmp_path, load_enable):
    (tmp_path / "_actor" / "partial-global_step1").mkdir(parents=True)
    args = flags(tmp_path, ckpt__path=str(tmp_path), ckpt__load_enable=load_enable)
    role = make_role(PolicyRole, args)
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


def test_a_checkpoint_gets_the_metric_of_its_own_evaluation(tmp_path):
    """Upstream's reader and writer, on rank 0 alone; a step without a checkpoint gets no folder."""
    args = flags(tmp_path)
    args.ckpt.path = str(tmp_path)
    place = tmp_path / "_actor" / "global_step4"
    place.mkdir(parents=True)
    upstream = DeepspeedStrategy(args=args)
    for rank in (1, 0):
        role = make_role(PolicyRole, args, rank=rank)
        role.strategy._write_ckpt_metric = upstream._write_ckpt_metric
        role.record_metric("global_step4", 0.75, "eval_pass1")
        assert upstream._read_ckpt_metric(str(place)) == (None if rank else 0.75)
    role.record_metric("global_step5", 0.5, "eval_pass1")
    assert [path.name for path in place.parent.iterdir()] == ["global_step4"]
