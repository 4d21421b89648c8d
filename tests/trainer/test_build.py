"""Which groups, bundles and engines each layout of GPUs makes, and in which order a training is built and run."""

import pytest
from played_cluster import PlayedCluster
from run_flags import run_flags

from openrlhf_cov.trainer import build
from openrlhf_cov.trainer.model.strategy import CovStrategy

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
ENGINE = "CovRolloutActor"


@pytest.fixture
def cluster(monkeypatch, gpu_host):
    return PlayedCluster(monkeypatch)


def train(changes):
    build.train(run_flags(FLAGS | changes))


def places(cluster):
    """Return role or "Engine" -> (placement group, part of a GPU) of its processes, after a check of their bundles."""
    found = {}
    for kind, started in cluster.started.items():
        if kind == "TrainingController":
            continue
        ((group, part),) = {(each.group, each.part) for each in started}
        assert [each.bundle for each in started] == list(range(len(started)))
        found["Engine" if kind == ENGINE else kind.removesuffix("Role")] = (group, part)
    return found


def test_a_run_on_recorded_rollouts_starts_engines_for_its_evaluation_alone(cluster):
    train({"rollout_replay_dir": "rollouts"})
    assert ENGINE not in cluster.started
    train({"rollout_replay_dir": "rollouts", "eval.dataset": "bench:aime24"})
    assert len(cluster.started[ENGINE]) == 4
    # The controller gets the flags, the groups of the roles, and the engines.
    *_, engines = cluster.started["TrainingController"][-1].positional
    assert [(engine.kind, engine.number) for engine in engines] == [(ENGINE, number) for number in range(4)]


SHARED = dict.fromkeys(("Policy", "Reference", "Critic", "Reward"), (1, 0.2))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # the engines, and then the policy
        ({}, {"Engine": (1, 1), "Policy": (2, 1)}),
        # a placement group for each
        (ALL_ROLES, {"Engine": (1, 1), "Policy": (2, 1), "Reference": (3, 1), "Critic": (4, 1), "Reward": (5, 1)}),
        (
            ALL_ROLES | {"train.colocate_actor_ref": True},
            {"Policy": (1, 0.2), "Reference": (1, 0.2), "Engine": (2, 1), "Critic": (3, 1), "Reward": (4, 1)},
        ),
        (ALL_ROLES | {"train.colocate_all": True}, SHARED | {"Engine": (1, 0.2)}),
        # engines that generate while the policy trains have GPUs of their own
        (ALL_ROLES | {"train.colocate_all": True, "train.async_enable": True}, SHARED | {"Engine": (2, 1)}),
        (
            ALL_ROLES | {"train.colocate_critic_reward": True},
            {"Engine": (1, 1), "Policy": (2, 1), "Reference": (3, 1), "Critic": (4, 0.2), "Reward": (4, 0.2)},
        ),
        (
            ALL_ROLES | {"train.colocate_critic_reward": True, "train.colocate_all": True},
            SHARED | {"Engine": (1, 0.2), "Critic": (2, 0.2), "Reward": (2, 0.2)},
        ),
    ],
)
def test_roles_and_engines_are_placed_as_the_flags_say(cluster, changes, expected):
    train(changes)
    assert places(cluster) == expected
    processes = {"Critic": 2, "Reward": 2}
    for role in expected.keys() - {"Engine"}:
        assert len(cluster.started[f"{role}Role"]) == processes.get(role, 4)
    for bundles in cluster.reserved:
        assert bundles == [{"GPU": 1, "CPU": 1}] * len(bundles)


@pytest.mark.parametrize(("ring", "tensor"), [(1, 1), (2, 2)])
def test_ranks_of_a_ring_or_of_tensor_parallelism_get_the_same_samples(cluster, ring, tensor):
    changes = ALL_ROLES | {"ds.ring_attn_size": ring, "ds.tensor_parallel_size": tensor}
    groups = build.make_groups(run_flags(FLAGS | changes), None)
    members = groups.policy, groups.reference, groups.critic, groups.reward
    assert {group.duplicate_actors for group in members} == {ring * tensor}


PRIME = {"method": "prime", "cov_type": "none", "prime_beta": 0.05, "prime_lr": 1e-6, "prime_max_norm": 10.0}
OF_PRIME = ("Policy", "Reference", "ProcessReward")


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ({}, {"Engine": (1, 1), "Policy": (2, 1), "Reference": (3, 1), "ProcessReward": (4, 1)}),
        ({"train.colocate_actor_ref": True}, dict.fromkeys(OF_PRIME, (1, 0.2)) | {"Engine": (2, 1)}),
        ({"train.colocate_all": True}, dict.fromkeys(("Engine", *OF_PRIME), (1, 0.2))),
    ],
)
@pytest.mark.parametrize(("given", "model"), [("", "policy"), ("other", "other")])
def test_a_process_reward_model_comes_with_a_reference_of_the_same_start(cluster, layout, expected, given, model):
    train(PRIME | {"prime_model": given} | layout)
    assert places(cluster) == expected
    assert len(cluster.started["ProcessRewardRole"]) == 4  # as many as the policy
    loads = [event for event in cluster.events if event[1] == "load"]
    assert loads[1:] == [("ReferenceRole", "load", model), ("ProcessRewardRole", "load", model, 100)]


def test_a_training_is_built_and_run_in_order(cluster, capsys):
    train(ALL_ROLES | {"train.colocate_all": True, "critic.save_value_network": True})
    (load,) = [event for event in cluster.events if event[:2] == ("PolicyRole", "load")]
    assert load[2:4] == ("policy", 100)
    assert [(engine.kind, engine.number) for engine in load[4]] == [(ENGINE, number) for number in range(4)]
    assert cluster.events == [
        "reserve 4",
        f"start {ENGINE}",
        *(f"start {role}Role" for role in ("Policy", "Reference", "Critic", "Reward")),
        "start TrainingController",
        ("TrainingController", "max_steps"),
        load,
        ("ReferenceRole", "load", "policy"),
        ("RewardRole", "load", "rewards"),
        # An engine that cannot start ends the run, because the policy would wait for it.
        (ENGINE, "check_health"),
        ("CriticRole", "load", "critic", 100),
        ("TrainingController", "run"),
        ("PolicyRole", "save_model"),
        ("CriticRole", "save_model"),
    ]
    printed = capsys.readouterr().out
    assert "batch_size=16" in printed
    assert "secret" not in printed


def test_the_strategy_has_the_settings_of_upstreams():
    from openrlhf.utils import get_strategy

    args = run_flags(FLAGS)
    strategy = build.make_strategy(args)
    assert isinstance(strategy, CovStrategy)
    assert vars(strategy) == vars(get_strategy(args))
