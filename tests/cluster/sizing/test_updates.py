import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.cluster.sizing.updates import update_unit, usable_groups

STATIC = {"train.dynamic_batch_enable": False}
SMALL = STATIC | {"train.batch_size": 4, "rollout.micro_batch_size": 2}
CRITIC = {"critic.model_name_or_path": "value", "critic.num_gpus_per_node": 3}
REF = {"algo.kl.init_coef": 0.01, "ref.num_gpus_per_node": 5}


@pytest.mark.parametrize(
    ("changes", "unit"),
    [
        ({"rollout.micro_batch_size": 3}, 256),  # dynamic batches: the update alone
        (STATIC, 256),  # 8 ranks x 1 divide it
        (STATIC | {"rollout.micro_batch_size": 3}, 768),  # 24 and 256
        (SMALL | {"actor.num_gpus_per_node": 2}, 4),  # 2 x 2
        (SMALL | {"actor.num_gpus_per_node": 3}, 12),  # 6 and 4
        (SMALL | {"actor.num_gpus_per_node": 1, "rollout.micro_batch_size": 3}, 4),  # one rank takes any number
        (SMALL | {"ds.ring_attn_size": 2, "ds.tensor_parallel_size": 2}, 4),  # 8 processes are 2 ranks
        (SMALL | CRITIC | {"actor.num_gpus_per_node": 2}, 12),  # it trains, too: 4, 4 and 6
        (SMALL | REF | {"actor.num_gpus_per_node": 2}, 20),  # it is split, too: 4, 4 and 10
        (SMALL | REF | {"actor.num_gpus_per_node": 2, "ds.zero_stage": 2}, 4),  # it is whole on every rank
    ],
)
def test_samples_of_whole_updates(flags, changes, unit):
    assert update_unit(flags(changes)) == unit


@pytest.mark.parametrize(
    ("kept", "unit", "count"),
    [(3, 8, 3), (3, 16, 2), (5, 32, 4), (1, 16, 0), (0, 8, 0), (31, 64, 24), (7, 12, 6), (2, 12, 0)],
)
def test_usable_groups_make_whole_updates(flags, kept, unit, count):
    # 8 samples in each group; of 12 samples in an update every third group ends one
    assert usable_groups(kept, flags({"train.batch_size": unit})) == count


@pytest.mark.parametrize(("kept", "count"), [(4, 0), (7, 0), (8, 8), (9, 8)])
def test_no_rank_goes_without_a_chunk(flags, kept, count):
    # updates of 4 groups; chunks of 4 samples are groups, and a reference that waits for nobody has 8 ranks
    sizes = {"actor.num_gpus_per_node": 2, "ref.num_gpus_per_node": 8, "ds.zero_stage": 2, "algo.kl.init_coef": 0.01}
    sizes |= {"train.batch_size": 16, "rollout.micro_batch_size": 4, "rollout.n_samples_per_prompt": 4}
    assert usable_groups(kept, flags(STATIC | sizes)) == count


@given(kept=st.integers(0, 200), samples=st.integers(1, 9), unit=st.integers(1, 60))
def test_no_more_groups_would_be_usable(flags, kept, samples, unit):
    count = usable_groups(kept, flags({"train.batch_size": unit, "rollout.n_samples_per_prompt": samples}))
    assert [more for more in range(kept + 1) if more * samples % unit == 0][-1] == count
