"""All processes of a run continue from the same checkpoint, or none does."""

import pytest
from played_models import PlayedGroup
from run_flags import run_flags

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.trainer.checkpoint.resuming import restored_states
from openrlhf_cov.trainer.model_groups import ModelGroups

STATES = {"global_step": 4, "kl_coef": 0.5}


@pytest.fixture
def resume(tmp_path, played_ray):
    """Function (policy's tag, critic's tag, ...) -> the client states that a run continues from.

    ``folder`` says if this process finds checkpoints where it looks for them.
    """

    def run(policy, critic=None, folder=True, has_critic=False, load_enable=True, method="none", prm=None):
        args = run_flags({
            **vars(CovConfig(method=method)), "ckpt.path": str(tmp_path / "ckpt"), "ckpt.load_enable": load_enable,
            "critic.model_name_or_path": "critic" if has_critic else None,
        })  # fmt: skip
        has_prm = method == "prime"
        if folder:
            for name in ["_actor", *["_critic"] * has_critic, *["_prm"] * has_prm]:
                (tmp_path / "ckpt" / name).mkdir(parents=True)
                (tmp_path / "ckpt" / name / "latest").write_text("global_step4")
        groups = ModelGroups(
            args,
            PlayedGroup("policy", get_restored=policy, get_checkpoint_states=STATES),
            critic=PlayedGroup("critic", get_restored=critic) if has_critic else None,
            process_reward=PlayedGroup("prm", get_restored=prm) if has_prm else None,
        )
        return restored_states(args, groups)

    return run


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        ("global_step4", {}),
        ("global_step4", {"has_critic": True, "critic": "global_step4"}),
        ("global_step4", {"method": "prime", "prm": "global_step4"}),
        (None, {"folder": False}),  # the first start of a command that also resumes
        (None, {"folder": False, "has_critic": True}),
        (None, {"load_enable": False}),  # a fresh start, whatever is there
    ],
)
def test_a_run_goes_on_where_all_continue_from_the_same_checkpoint(resume, policy, settings):
    assert resume(policy, **settings) == (STATES if policy else {})


@pytest.mark.parametrize(
    ("policy", "settings", "message"),
    [
        ("global_step4", {"folder": False}, "from global_step4, but .*_actor has none on host"),
        (None, {"folder": True}, "from no checkpoint, but .*_actor has one on host"),
        ("global_step4", {"has_critic": True, "critic": "global_step2"}, "_step4, the critic from global_step2"),
        ("global_step4", {"has_critic": True}, "from global_step4, the critic from none"),
        ("global_step4", {"method": "prime", "prm": "global_step2"}, "process reward model from global_step2; write"),
        (None, {"folder": False, "has_critic": True, "critic": "best_global_step2"}, "critic from best_global_step2"),
    ],
)
def test_a_mixture_of_checkpoints_ends_the_run(resume, policy, settings, message):
    with pytest.raises(RunStopped, match=message):
        resume(policy, **settings)
