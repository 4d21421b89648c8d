"""The policy actor's own methods, on upstream's code with a stub model and strategy."""

from types import SimpleNamespace

import pytest
import torch
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.trainer.actor_trainer import CovActorTrainer
from openrlhf_cov.trainer.observation import StepDiagnostics
from openrlhf_cov.trainer.ray.ppo_actor import CovPolicyActor


def policy_actor(**attributes):
    actor = object.__new__(CovPolicyActor)
    args = SimpleNamespace(
        algo=SimpleNamespace(kl=SimpleNamespace(init_coef=0.0)),
        critic=SimpleNamespace(model_name_or_path=None),
        reward=SimpleNamespace(remote_url=["reward.py"]),
    )
    vars(actor).update(strategy=SimpleNamespace(ring_attn_group=None, args=args), **attributes)
    return actor


def scoring_actor(policy):
    actor = policy_actor(actor=policy, scored=[], trainer=object.__new__(CovActorTrainer))
    vars(actor.trainer).update(actor=policy, strategy=actor.strategy, config=CovConfig())
    return actor


def test_scoring_rollouts_keeps_their_entropies_until_they_are_taken(stub_actor):
    actor = scoring_actor(stub_actor())
    action_mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    log_probs = actor.forward(torch.arange(5).expand(2, 5), action_mask, attention_mask=torch.ones(2, 5))
    assert log_probs.tolist() == [[-2.0, -3.0, 0.0], [-2.0, 0.0, 0.0]]
    # positions 0..3 carry entropy 0, 10, 20, 30; the last three of them are actions
    (scored,) = actor.take_scored()
    assert {name: rows.tolist() for name, rows in scored.items()} == {"entropy": [[10.0, 20.0, 30.0]] * 2}
    assert actor.take_scored() == []


def test_texts_are_scored_at_temperature_1_token_by_token(stub_actor):
    policy, temperatures = stub_actor(), []
    policy.temperature = 0.6
    policy.register_forward_pre_hook(lambda module, _: temperatures.append((module.temperature, module.training)))
    actor = scoring_actor(policy)
    # token v has log-prob -v; the first token of a text has none
    assert actor.score_texts([[5, 6, 7], [9, 1]]) == [-6.0, -7.0, -1.0]
    assert temperatures == [(1.0, False), (1.0, False)]
    assert policy.temperature == 0.6
    assert policy.training
    assert actor.take_scored() == []  # they are no rollouts


def test_a_model_that_cannot_say_what_a_method_asks_for_ends_the_run(stub_actor):
    policy, seen = stub_actor(), []
    policy.register_forward_pre_hook(lambda module, _: seen.append(module.proxy_min_p))
    actor = scoring_actor(policy)
    actor.trainer.config = CovConfig(method="lp_reg", lp_reg_min_p=0.05)
    with pytest.raises(RunStopped, match="--method lp_reg"):
        actor.forward(torch.arange(5).expand(2, 5), torch.ones(2, 3), attention_mask=torch.ones(2, 5))
    assert seen == [0.05]
    assert policy.proxy_min_p is None  # training does not ask for it


@pytest.mark.parametrize("images", [None, [{"pixel_values": torch.ones(1, 3)}, {"pixel_values": torch.zeros(1, 3)}]])
def test_rollouts_are_scored_as_upstream_scores_them(images):
    calls = []

    class Probe(torch.nn.Module):
        is_vlm = True

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, sequences, action_mask, attention_mask, return_output=False, return_entropy=False, **others):
            assert not torch.is_grad_enabled()
            calls.append((self.training, sequences, action_mask, attention_mask, others))
            log_probs = sequences[:, 1:] * -1.0
            return (log_probs, SimpleNamespace(entropy=-log_probs)) if return_output else log_probs

    actor = scoring_actor(Probe())
    batch = torch.arange(6).view(2, 3), torch.ones(2, 2), torch.ones(2, 3)
    upstream = PolicyModelActor.__ray_metadata__.modified_class.forward
    results = [forward(actor, *batch, mm_train_inputs_list=images) for forward in (upstream, CovPolicyActor.forward)]
    assert torch.equal(*results)
    assert actor.actor.training
    theirs, ours = calls
    assert ours[0] is theirs[0] is False
    assert all(map(torch.equal, ours[1:4], theirs[1:4]))
    assert ours[4].keys() == theirs[4].keys() == {"ring_attn_group"} | ({"pixel_values"} if images else set())


ROLLOUTS = {"groups": list(range(999))}


def restored_actor(folder, rank=0, **states):
    actor = policy_actor(checkpoint_states={"global_step": 3} | states, restored="global_step3")
    actor.strategy.args = SimpleNamespace(ckpt=SimpleNamespace(path=str(folder)))
    actor.strategy.is_rank_0 = lambda: rank == 0
    return actor


@pytest.mark.parametrize("earlier_version", [False, True])
def test_a_restored_state_is_short_in_the_log_complete_and_from_the_first_rank(tmp_path, earlier_version):
    inside = {"data_loader_state_dict": ROLLOUTS, "optimizer": {"state": list(range(999))}} if earlier_version else {}
    if not earlier_version:
        (tmp_path / "_actor" / "global_step3").mkdir(parents=True)
        torch.save(ROLLOUTS, tmp_path / "_actor" / "global_step3" / "rollouts.pt")
    states = restored_actor(tmp_path, **inside).get_checkpoint_states()
    assert f"{states}" == "{'global_step': 3, 'data_loader_state_dict': <class 'dict'>}"
    assert states == {"global_step": 3, "data_loader_state_dict": ROLLOUTS}
    assert restored_actor(tmp_path, rank=1, **inside).get_checkpoint_states() == {"global_step": 3}


def test_a_checkpoint_without_the_state_of_the_rollouts_ends_the_run(tmp_path):
    with pytest.raises(RunStopped, match=r"rollouts.pt, .* cannot be read: No such file"):
        restored_actor(tmp_path).get_checkpoint_states()


def test_a_fresh_start_has_no_states(tmp_path):
    actor = policy_actor(checkpoint_states={})
    actor.strategy.is_rank_0 = lambda: True
    assert actor.get_checkpoint_states() == {}


def test_the_closed_loop_is_saved_and_goes_on(monkeypatch):
    (restoring, upstream), saved = CovPolicyActor.__bases__, {}
    monkeypatch.setattr(upstream, "save_checkpoint", lambda self, tag, states, *others: saved.update(states))
    monkeypatch.setattr(restoring, "init_model_from_pretrained", lambda self, strategy: None)
    config = CovConfig(method="repo_r", entropy_target=0.3)

    def actor():
        trainer = SimpleNamespace(controller=config.controller(), diagnostics=StepDiagnostics(samples_per_prompt=8))
        return policy_actor(trainer=trainer, disable_ds_ckpt=True)

    first = actor()
    first.trainer.controller.step(0.1, 0.3)
    first.save_checkpoint("global_step1", {"global_step": 1})
    second = actor()
    second.checkpoint_states = saved
    second.init_model_from_pretrained(second.strategy)
    assert second.trainer.controller.applied == first.trainer.controller.applied == {"repo_zeta": 0.02}
