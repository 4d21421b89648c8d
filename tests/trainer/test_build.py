"""Which groups, bundles and engines each layout of GPUs makes, and in which order a training is built and run."""

from types import SimpleNamespace

import pytest
import ray
from openrlhf.trainer.ray import launcher
from run_flags import run_flags

from openrlhf_cov.cluster import connection
from openrlhf_cov.trainer import build
from openrlhf_cov.trainer.strategy import CovStrategy

FLAGS = {
    "actor.num_gpus_per_node": 4, "ref.num_gpus_per_node": 4, "critic.num_gpus_per_node": 2,
    "reward.num_gpus_per_node": 2, "vllm.num_engines": 4, "train.full_determinism_enable": True,
    "train.batch_size": 16, "logger.wandb.key": "secret",
}  # fmt: skip
ALL_ROLES = {
    "algo.kl.init_coef": 0.1,
    "critic.model_name_or_path": "critic",
    "reward.remote_url": None,
    "reward.model_name_or_path": "rewards",
}


class RecordingCluster:
    """Stands in for Ray: notes placement groups, the ranks of every role, and what is called, in this order.

    A placement group is known by its number, from 1.
    """

    def __init__(self, monkeypatch):
        self.events = []
        self.groups = 0
        self.ranks = {}
        self.engine_groups = []
        self.engines = []
        monkeypatch.setattr(ray, "get", self.get)
        for module in (connection, launcher):
            monkeypatch.setattr(module, "placement_group", self.reserve)
        monkeypatch.setattr(launcher, "PlacementGroupSchedulingStrategy", lambda **strategy: strategy)
        monkeypatch.setattr(build.ray, "remote", lambda role: RecordingRole(self, role.__name__))
        monkeypatch.setattr(build, "start_engines", self.start_engines)
        monkeypatch.setattr(build, "TrainingController", SimpleNamespace(remote=self.controller))

    @staticmethod
    def get(value):
        return [each() for each in value] if isinstance(value, list) else value()

    def reserve(self, bundles, strategy):
        assert strategy == "PACK"
        assert set(map(str, bundles)) == {"{'GPU': 1, 'CPU': 1}"}
        self.groups += 1
        self.events.append(f"reserve {len(bundles)}")
        return SimpleNamespace(number=self.groups, ready=lambda: lambda: None)

    def start_engines(self, args, shared):
        self.events.append("engines")
        self.engine_groups.append(shared.number if shared else None)
        self.engines = ["engine"]
        return self.engines

    def controller(self, args, groups, engines):
        assert engines == self.engines
        self.events.append("controller")
        call = lambda name, answer: SimpleNamespace(  # noqa: E731
            remote=lambda: lambda: self.events.append(f"controller {name}") or answer
        )
        return SimpleNamespace(max_steps=call("max_steps", 100), run=call("run", None))


class RecordingRole:
    """Stands in for the Ray actor class of a role; its ranks note the calls when their answers are fetched."""

    def __init__(self, recording, name):
        self.recording, self.name = recording, name

    def options(self, num_cpus, num_gpus, resources=None, scheduling_strategy=None):
        assert num_cpus == num_gpus
        place = scheduling_strategy or {}
        group = place["placement_group"].number if place else None

        def remote(world_size, rank, address, port):
            bundle = place.get("placement_group_bundle_index")
            self.recording.ranks.setdefault(self.name, []).append((group, bundle, num_gpus))
            return RecordingRank(self.recording, self.name, rank)

        return SimpleNamespace(remote=remote)


class RecordingRank:
    def __init__(self, recording, name, rank):
        self.recording, self.name, self.rank = recording, name, rank

    def __getattr__(self, method):
        def remote(*arguments):
            def answer():
                if method == "get_master_addr_port":
                    return "localhost", 29500
                if self.rank == 0:
                    # the strategy, which goes first, is not shown
                    self.recording.events.append((self.name, method, *arguments[1:]))

            return answer

        return SimpleNamespace(remote=remote)


def train(monkeypatch, changes):
    recording = RecordingCluster(monkeypatch)
    build.train(run_flags(FLAGS | changes))
    return recording


def places(recording):
    """Return role -> (placement group, part of a GPU) of its ranks, after a check of their bundles."""
    found = {}
    for role, ranks in recording.ranks.items():
        ((group, part),) = {(group, part) for group, _, part in ranks}
        if group is not None:
            assert [bundle for _, bundle, _ in ranks] == list(range(len(ranks)))
        found[role.removesuffix("Role")] = (group, part)
    return found


def test_a_run_on_recorded_rollouts_starts_engines_for_its_evaluation_alone(monkeypatch):
    recording = train(monkeypatch, {"rollout_replay_dir": "rollouts"})
    assert recording.engine_groups == []
    recording = train(monkeypatch, {"rollout_replay_dir": "rollouts", "eval.dataset": "bench:aime24"})
    assert recording.engine_groups == [None]


SHARED = dict.fromkeys(("Policy", "Reference", "Critic", "Reward"), (1, 0.2))


@pytest.mark.parametrize(
    ("changes", "expected", "engines"),
    [
        ({}, {"Policy": (1, 1)}, [None]),
        # a placement group for each of the four
        (ALL_ROLES, {"Policy": (1, 1), "Reference": (2, 1), "Critic": (3, 1), "Reward": (4, 1)}, [None]),
        (
            ALL_ROLES | {"train.colocate_actor_ref": True},
            {"Policy": (1, 0.2), "Reference": (1, 0.2), "Critic": (2, 1), "Reward": (3, 1)},
            [None],
        ),
        (ALL_ROLES | {"train.colocate_all": True}, SHARED, [1]),
        # engines that generate while the policy trains have GPUs of their own
        (ALL_ROLES | {"train.colocate_all": True, "train.async_enable": True}, SHARED, [None]),
        (
            ALL_ROLES | {"train.colocate_critic_reward": True},
            {"Policy": (1, 1), "Reference": (2, 1), "Critic": (3, 0.2), "Reward": (3, 0.2)},
            [None],
        ),
        (
            ALL_ROLES | {"train.colocate_critic_reward": True, "train.colocate_all": True},
            SHARED | {"Critic": (2, 0.2), "Reward": (2, 0.2)},
            [1],
        ),
    ],
)
def test_roles_and_engines_are_placed_as_the_flags_say(monkeypatch, changes, expected, engines):
    recording = train(monkeypatch, changes)
    assert places(recording) == expected
    assert recording.engine_groups == engines
    assert {role: len(ranks) for role, ranks in recording.ranks.items()} == {
        f"{role}Role": 4 if role in ("Policy", "Reference") else 2 for role in expected
    }


@pytest.mark.parametrize(("ring", "tensor"), [(1, 1), (2, 2)])
def test_ranks_of_a_ring_or_of_tensor_parallelism_get_the_same_samples(monkeypatch, ring, tensor):
    RecordingCluster(monkeypatch)
    changes = ALL_ROLES | {"ds.ring_attn_size": ring, "ds.tensor_parallel_size": tensor}
    groups = build.make_groups(run_flags(FLAGS | changes), None)
    members = groups.policy, groups.reference, groups.critic, groups.reward
    assert {group.duplicate_actors for group in members} == {ring * tensor}


PRIME = {"method": "prime", "cov_type": "none", "prime_beta": 0.05, "prime_lr": 1e-6, "prime_max_norm": 10.0}


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ({}, {"Policy": (1, 1), "Reference": (2, 1), "ProcessReward": (3, 1)}),
        ({"train.colocate_actor_ref": True}, dict.fromkeys(("Policy", "Reference", "ProcessReward"), (1, 0.2))),
        ({"train.colocate_all": True}, dict.fromkeys(("Policy", "Reference", "ProcessReward"), (1, 0.2))),
    ],
)
@pytest.mark.parametrize(("given", "model"), [("", "policy"), ("other", "other")])
def test_a_process_reward_model_comes_with_a_reference_of_the_same_start(monkeypatch, layout, expected, given, model):
    recording = train(monkeypatch, PRIME | {"prime_model": given} | layout)
    assert places(recording) == expected
    assert len(recording.ranks["ProcessRewardRole"]) == 4  # as many as the policy
    loads = [event for event in recording.events if event[1] == "load"]
    assert loads[1:] == [("ReferenceRole", "load", model), ("ProcessRewardRole", "load", model, 100)]


def test_a_training_is_built_and_run_in_order(monkeypatch, capsys):
    recording = train(monkeypatch, ALL_ROLES | {"train.colocate_all": True, "critic.save_value_network": True})
    assert recording.events == [
        "reserve 4",
        "engines",
        "controller",
        "controller max_steps",
        ("PolicyRole", "load", "policy", 100, ["engine"]),
        ("ReferenceRole", "load", "policy"),
        ("RewardRole", "load", "rewards"),
        ("CriticRole", "load", "critic", 100),
        "controller run",
        ("PolicyRole", "save_model"),
        ("CriticRole", "save_model"),
    ]
    printed = capsys.readouterr().out
    assert "batch_size=16" in printed
    assert "secret" not in printed


def test_the_strategy_has_the_settings_of_upstreams(monkeypatch):
    from openrlhf.utils import get_strategy

    args = run_flags(FLAGS)
    strategy = build.make_strategy(args)
    assert isinstance(strategy, CovStrategy)
    assert vars(strategy) == vars(get_strategy(args))
