"""Runs of the laboratory as command lines of the trainer."""

import shlex
from functools import partial
from pathlib import Path

import pytest
import yaml

from openrlhf_cov.cli import study
from openrlhf_cov.errors import UsageError
from openrlhf_cov.experiments.lab.tasks import HELD_OUT_PROGRAMS, HELD_OUT_SUMS
from openrlhf_cov.experiments.study.lab_runs import LabStudy
from openrlhf_cov.experiments.study.ray_runs import RayStudyOfLabFlags
from openrlhf_cov.experiments.study.run_flags import HELD_OUT, lab_request, trainer_flags
from openrlhf_cov.experiments.study.run_plan import all_runs
from openrlhf_cov.experiments.study.spec_file import read_spec
from openrlhf_cov.experiments.tiny_task.coin_reward_func import reward_func

SHORT = "--steps 5 --rollout.batch_size 6 --rollout.n_samples_per_prompt 4 --updates 3"
SPEC = {"title": "t", "task": "commands", "flags": SHORT, "seeds": [0, 1], "arms": [{"name": "GRPO"}]}


def flags_of(words, task="commands"):
    """The words of a trainer's run as flag -> what stands behind it."""
    found, flag = {}, ""
    for word in trainer_flags(lab_request(["--output", "o", "--task", task, *shlex.split(words)])):
        if word.startswith("--"):
            flag = word
            found[flag] = ""
        else:
            found[flag] = f"{found[flag]} {word}".strip()
    return found


def written(folder, **changes):
    path = folder / "short.yaml"
    path.write_text(yaml.safe_dump(SPEC | changes))
    return path


def made(kind, folder, **changes):
    return kind(read_spec(written(folder, **changes)), folder / "out", folder / "base")


def test_a_budget_in_the_flags_of_the_trainer():
    found = flags_of(f"{SHORT} --actor.adam.lr 3e-4 --train.seed 7")
    # 6 prompts with 4 samples are 24, in 3 updates 8 each; 5 rollouts draw 30 prompts
    assert found["--rollout_limit"] == "5"
    assert found["--rollout.batch_size"] == "6"
    assert found["--rollout.n_samples_per_prompt"] == "4"
    assert found["--train.batch_size"] == found["--train.micro_batch_size"] == "8"
    assert found["--data.max_samples"] == "30"
    assert found["--train.num_episodes"] == "1"
    assert float(found["--actor.adam.lr"]) == 3e-4
    assert found["--train.seed"] == "7"
    assert found["--algo.advantage.estimator"] == "group_norm"
    assert not {"--actor.eps_clip_low_high", "--actor.entropy_coef", "--algo.kl.use_loss"} & found.keys()
    assert not {"--output", "--task", "--steps", "--updates"} & found.keys()


def test_what_is_not_the_default_is_handed_on():
    words = "--actor.eps_clip_low_high 0.1 0.3 --actor.entropy_coef 0.01 --algo.kl.init_coef 0.02"
    found = flags_of(f"{SHORT} {words} --train.micro_batch_size 2 --method top_entropy --top_entropy_frac 0.4")
    assert found["--actor.eps_clip_low_high"] == "0.1 0.3"
    assert float(found["--actor.entropy_coef"]) == 0.01
    assert float(found["--algo.kl.init_coef"]) == 0.02
    assert found["--algo.kl.use_loss"] == ""  # the laboratory has it in the loss, by k3
    assert found["--algo.kl.estimator"] == "k3"
    assert found["--ref.num_gpus_per_node"] == found["--actor.num_gpus_per_node"] == "1"
    assert "--train.colocate_actor_ref" in found
    assert found["--train.micro_batch_size"] == "2"
    assert found["--train.batch_size"] == "8"
    assert found["--method"] == "top_entropy"
    assert found["--top_entropy_frac"] == "0.4"


def test_problems_come_again_where_a_run_draws_more_than_there_are():
    # 8,100 sums, of which 512 are held out: 600 rollouts of 64 prompts draw 38,400, which is 5.06 times 7,588
    assert flags_of("--steps 600", "addition")["--train.num_episodes"] == "6"
    # 118 whole rollouts of 64 in an episode, and a rest: 592 of them draw 4.99 times 7,588, and take 5.02 episodes
    assert flags_of("--steps 592", "addition")["--train.num_episodes"] == "6"


def test_the_toss_of_a_coin_is_a_reward():
    assert Path(flags_of("--random_reward")["--reward.remote_url"]).is_file()
    texts = [""] * 1000
    found = reward_func(texts, texts, texts)
    assert set(found["rewards"].tolist()) == {0.0, 1.0}
    assert 0.4 < found["rewards"].mean() < 0.6  # 0.5 with a standard deviation of 0.016
    assert found["scores"].equal(found["rewards"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--updates 5", "--updates 5: must divide"),
        ("--base_seed 1", "--base_seed 1 has no counterpart"),
        ("--kl_cov_ratio 0.1", "--kl_cov_ratio"),
        ("--steps many", "--steps"),
    ],
)
def test_what_either_of_the_two_refuses_is_refused(words, said):
    with pytest.raises(UsageError, match=said):
        flags_of(words)


@pytest.mark.slow
def test_the_trainer_takes_every_method_of_the_laboratory(tmp_path):
    path = Path("studies/methods.yaml")
    RayStudyOfLabFlags(read_spec(path), tmp_path / "out", tmp_path / "base").check(path)


def test_the_same_flags_in_the_two_engines_are_two_runs(tmp_path):
    lab, ray = (made(kind, tmp_path) for kind in (LabStudy, RayStudyOfLabFlags))
    run, *_ = all_runs(lab.spec, {})
    assert lab.asked(run) != ray.asked(run)


def test_the_test_is_that_of_the_laboratory(tmp_path):
    study_of = partial(made, RayStudyOfLabFlags, tmp_path)
    assert study_of(flags=f"{SHORT} --test_samples 16").looks.test_samples == 16
    asked = [
        each.asked(all_runs(each.spec, {})[0]) for each in (study_of(), study_of(flags=f"{SHORT} --test_samples 16"))
    ]
    assert asked[0] != asked[1]


def test_no_engine_trains_on_what_the_laboratory_asks():
    assert HELD_OUT == HELD_OUT_SUMS == HELD_OUT_PROGRAMS


def test_engine_is_the_specs_unless_a_flag_says_otherwise(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path)
    for words, folder in (([], "short"), (["--engine", "ray"], "short-ray")):
        found = study.study_of(study.build_parser().parse_args([str(path), *words]))
        assert found.output == tmp_path / "runs" / "study" / folder
    assert study.main([str(path), "--engine", "ray", "--dry_run"]) == 0
    assert capsys.readouterr().out.count("--rollout_limit 5") == 2
