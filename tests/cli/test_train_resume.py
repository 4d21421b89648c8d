"""Where a training writes, from which checkpoint it goes on, and what of its settings may change on the way."""

import json
import logging
import shutil
from functools import partial

import pytest
from texts import missing, refusal_of

from openrlhf_cov.trainer.checkpoint.checkpoints import FORMAT, FORMAT_VERSION
from openrlhf_cov.trainer.preflight import check_run, preflight

RESUME = "--ckpt.load_enable"
UNIVERSAL = "--ds.use_universal_ckpt"
WEIGHTS = "global_step5/weights"


def put(folder, *names):
    """Files of checkpoints as DeepSpeed leaves them; by default those of the policy's, complete."""
    for name in names or ("_actor/latest", f"_actor/{WEIGHTS}"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("global_step5" if name.endswith("latest") else "")


@pytest.fixture
def warnings(caplog):
    """Function () -> what the checks have warned of so far, as it is logged."""
    check_run.logger.addHandler(caplog.handler)  # upstream's loggers do not propagate
    yield lambda: [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    check_run.logger.removeHandler(caplog.handler)


# Flags, the beginning of a warning, and whether there is one. An update has 4 of the 4 prompts x 2 = 8 samples.
ONE_UPDATE = "--train.batch_size 8"
HIGHER = f"{ONE_UPDATE} --actor.eps_clip_low_high 0.2 0.28"
SMALL = "--rollout.n_samples_per_prompt 8 --train.batch_size 4 --rollout.batch_size 1"
FILTERED = "--algo.dynamic_filtering_enable"
WARNED = [
    (f"--method kl_cov {ONE_UPDATE}", "--method kl_cov with one update per rollout", True),
    ("--method kl_cov", "--method kl_cov with one update per rollout", False),
    (f"--method kl_cov --train.max_epochs 2 {ONE_UPDATE}", "--method kl_cov with one", False),
    # 16 samples, but the data gives 8.
    (f"--method kl_cov --rollout.batch_size 8 {ONE_UPDATE}", "--method kl_cov with one update", True),
    (f"--method clip_cov {ONE_UPDATE}", "--method ", False),
    (HIGHER, "--actor.eps_clip_low_high 0.2 0.28 with one", True),
    (f"{HIGHER} --train.batch_size 4", "--actor.eps_clip_low_high", False),
    # This method has a clip of its own and does not need the other one.
    (f"{HIGHER} --method clip_cov", "--actor.eps_clip_low_high", False),
    (f"--method lite_ppo {SMALL}", "--method lite_ppo with one prompt per rollout", True),
    (f"--method rs_grpo {SMALL}", "--method ", False),
    ("--rollout.top_p 0.9", "--rollout.top_p 0.9: ", True),
    ("--rollout.top_p 1.0", "--rollout.top_p", False),
    # Of the 4 prompts, 4 make a rollout: a limit of one rollout leaves the schedule to the data as well.
    (FILTERED, "--actor.lr_scheduler cosine_with_min_lr with --algo.dynamic_filtering_enable: ", True),
    (f"{FILTERED} --rollout_limit 1", "--actor.lr_scheduler cosine_with_min_lr with ", True),
    (f"{FILTERED} --rollout_limit 1 --train.num_episodes 2", "--actor.lr_scheduler", False),
    (f"{FILTERED} --actor.lr_scheduler constant", "--actor.lr_scheduler", False),
    (f"{FILTERED} --actor.lr_scheduler constant_with_warmup", "--actor.lr_scheduler", False),
    ("--rollout_limit 1", "--actor.lr_scheduler", False),
]


@pytest.mark.parametrize(("flags", "beginning", "warns"), WARNED)
def test_settings_that_hide_a_method_are_warned_of(check, warnings, flags, beginning, warns):
    check((), *flags.split())
    assert sum(message.startswith(beginning) for message in warnings()) == warns


def test_a_folder_of_another_run_is_refused(refusal, check, tmp_path):
    put(tmp_path / "run", "metrics.jsonl")
    start = f"--ckpt.output_dir {tmp_path / 'run'} holds metrics.jsonl of another run; choose a new folder"
    assert refusal() == start  # there is nothing to continue from
    put(tmp_path / "checkpoints")
    assert refusal() == f"{start}, or continue that run with {RESUME}"
    check({}, RESUME)


@pytest.fixture
def with_critic(tmp_path):
    return {
        "--critic.model_name_or_path": tmp_path / "model",
        "--critic.num_gpus_per_node": 1,
        "--algo.advantage.estimator": "gae",
    }


@pytest.mark.parametrize(
    ("left", "critic"),
    [
        ([], False),  # killed before the first checkpoint
        (["_actor/partial-global_step5/weights"], False),  # killed while it was written
        ([f"_actor/{WEIGHTS}"], False),  # killed before latest was written
        (["_actor/latest", f"_actor/{WEIGHTS}", "_critic/partial-global_step5/weights"], True),
        (["_critic/latest", f"_critic/{WEIGHTS}"], True),
    ],
)
def test_a_run_that_was_killed_before_its_first_checkpoint_starts_afresh(
    check, tmp_path, warnings, with_critic, left, critic
):
    put(tmp_path / "run", "metrics.jsonl")
    if left:
        put(tmp_path / "checkpoints", *left)
    check(with_critic if critic else {}, RESUME)
    (warning,) = warnings()
    start = f"{RESUME}: --ckpt.path {tmp_path / 'checkpoints'} holds no complete checkpoint: the run starts"
    assert warning.startswith(start)
    assert (tmp_path / "run" / "metrics.jsonl").exists()  # a check moves nothing


@pytest.mark.parametrize(
    ("kept", "critic", "missing"),
    [
        (["_actor/global_step5/weights", "_actor/global_step9/weights"], False, "the file latest"),
        (["_actor/latest", "_actor/global_step5/w", "_actor/global_step9/w"], True, "complete checkpoint in _critic"),
    ],
)
def test_checkpoints_that_no_kill_explains_are_not_replaced(refusal, tmp_path, with_critic, kept, critic, missing):
    put(tmp_path / "checkpoints", *kept)
    message = refusal(with_critic if critic else {}, RESUME)
    assert f"{missing}; restore what is missing, or choose a new folder" in message


# What lies in --ckpt.path, flags that write there, what is refused, and flags that write elsewhere or nothing.
STOP = "--ckpt.on_signal stop"
BEST = "--eval.dataset {}/train.jsonl --ckpt.best_metric_key auto"
MODELS = "--ckpt.save_steps 5 --ckpt.disable_ds"
REPLACED = [
    ("_actor/global_step5/weights", f"--ckpt.save_steps 5 {STOP}", "_actor/global_step5", STOP),
    ("_actor/global_step5/weights", "", "_actor/global_step5", f"{BEST} --eval.steps 5 {STOP}"),  # the default saves
    ("_actor/global_step5/weights", "", "_actor/global_step5", MODELS),
    ("global_step5_hf/config.json", f"{MODELS} --ckpt.save_hf", "global_step5_hf", MODELS),
    ("best/config.json", f"{BEST} --eval.steps 5 {STOP}", "best", STOP),
    ("best/config.json", f"{BEST} --eval.at_start {STOP}", "best", STOP),
]


@pytest.mark.parametrize(("there", "saves", "found", "leaves"), REPLACED)
def test_checkpoints_and_models_of_another_run_are_not_replaced(refusal, check, tmp_path, there, saves, found, leaves):
    put(tmp_path / "checkpoints", there)
    message = refusal({}, *saves.format(tmp_path).split())
    assert message.startswith(f"--ckpt.path {tmp_path / 'checkpoints'} holds {found} of another run")
    check({}, *leaves.format(tmp_path).split())
    if there.startswith("_actor"):
        put(tmp_path / "checkpoints", "_actor/latest")
        assert refusal({}, *saves.format(tmp_path).split()).endswith(f"or continue that run with {RESUME}")
        check({}, *saves.format(tmp_path).split(), RESUME)


@pytest.mark.slow
@pytest.mark.parametrize("spelling", ["model", "./other/../model"])
def test_the_folder_of_the_base_model_is_not_overwritten(refusal, tmp_path, spelling):
    (tmp_path / "other").mkdir()
    output = {"--ckpt.output_dir": f"{tmp_path}/{spelling}"}
    assert "is also --actor.model_name_or_path" in refusal(output)
    (tmp_path / "model" / "metrics.jsonl").touch()  # not even to continue a run
    put(tmp_path / "checkpoints")
    assert "is also --actor.model_name_or_path" in refusal(output, RESUME)


@pytest.mark.parametrize("weights", ["pytorch_model.bin", "model-00001-of-00002.safetensors"])
def test_a_folder_with_a_model_is_not_overwritten(refusal, check, make_model, tmp_path, weights):
    folder = make_model(tmp_path / "run", ("config.json", weights))
    message = refusal()
    assert message.startswith(f"--ckpt.output_dir {folder} holds {weights}, which the trained model would overwrite")
    (folder / "metrics.jsonl").touch()  # a finished run
    message = refusal({}, RESUME)
    assert message.startswith(f"{RESUME}: --ckpt.path {tmp_path / 'checkpoints'} holds no checkpoint, and")
    assert f"{weights} of a finished run" in message
    put(tmp_path / "checkpoints")
    check({}, RESUME)


@pytest.fixture
def checkpointed(tmp_path):
    """Function (description of the run, more folders) -> flags of a checkpoint as our trainer leaves it."""

    def make(run, *more):
        actor = tmp_path / "ck" / "_actor"
        for name in ("global_step3", *more):
            (actor / name).mkdir(parents=True)
        (actor / "global_step3" / "run.json").write_text(json.dumps({FORMAT: FORMAT_VERSION} | run))
        (actor / "latest").write_text("global_step3")
        return {"--ckpt.path": tmp_path / "ck"}

    return make


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"ranks": 1, FORMAT: 1}, "global_step3 has the checkpoint format 1, this version reads 3"),
        ({"ranks": 2}, "global_step3 has ranks 2, this run has 1"),
        ({"ranks": 2, "ZeRO stage": 9}, "global_step3 has ranks 2, this run has 1; ZeRO stage 9, this run has "),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(refusal, checkpointed, run, said):
    assert said in refusal(checkpointed(run), RESUME)


def test_a_half_written_checkpoint_is_named_and_passed_over(check, checkpointed, warnings):
    check(checkpointed({"ranks": 1}, "partial-global_step4"), RESUME)
    assert "partial-global_step4 was never completed and is passed over" in " ".join(warnings())


def test_a_checkpoint_of_a_process_reward_model_is_checked_as_the_policys(
    check, refusal, checkpointed, tmp_path, warnings
):
    prime = {"--method": "prime", "--algo.advantage.estimator": "rloo", "--rollout.n_samples_per_prompt": 2}
    changes = checkpointed({"ranks": 1}) | prime
    other = tmp_path / "ck" / "_prm"
    shutil.copytree(tmp_path / "ck" / "_actor", other)
    same = {FORMAT: FORMAT_VERSION, "ranks": 1, "optimizer": "adam"}
    (other / "global_step3" / "run.json").write_text(json.dumps(same))
    check(changes, RESUME)
    assert warnings() == []
    (other / "global_step3" / "run.json").write_text(json.dumps(same | {"vocab_size": 5}))
    assert refusal(changes, RESUME).startswith(f"{RESUME}: {other}: global_step3 has vocab_size 5, this run")


# Pointers to a checkpoint, flags, and what is refused.
TWO = {"latest": "global_step3", "latest_universal": "global_step3_universal"}
NO_ROLLOUTS = "global_step3_universal has no rollouts.safetensors, which the converter leaves behind; copy it from glo"
SINCE = {"latest": "best_global_step6", "latest_universal": "global_step2_universal"}
POINTERS = [
    ({"latest": "global_step3"}, UNIVERSAL, "has no latest_universal; convert global_step3"),
    ({"latest_universal": "global_step2_universal"}, "", f"add {UNIVERSAL}"),
    (SINCE, UNIVERSAL, "was saved to since global_step2_universal was made"),
    (TWO, UNIVERSAL, NO_ROLLOUTS),
]


@pytest.mark.parametrize(("pointers", "flags", "said"), POINTERS)
def test_the_kind_of_checkpoint_that_is_asked_for_is_there(refusal, checkpointed, tmp_path, pointers, flags, said):
    changes = checkpointed({"ranks": 1})
    actor = tmp_path / "ck" / "_actor"
    (actor / "latest").unlink()
    (actor / "global_step3" / "rollouts.safetensors").touch()
    for name, tag in pointers.items():
        (actor / tag).mkdir(exist_ok=True)
        (actor / name).write_text(tag)
    assert said in refusal(changes, RESUME, *flags.split())


def test_a_whole_universal_checkpoint_of_other_ranks_is_taken(check, checkpointed, tmp_path):
    changes = checkpointed({"ranks": 7}, "global_step3_universal")
    (tmp_path / "ck" / "_actor" / "latest_universal").write_text("global_step3_universal")
    check(changes, RESUME, UNIVERSAL)


@pytest.mark.parametrize(
    ("pointer", "fault"),
    [("global_step9", "latest names global_step9"), ("", "latest names no folder")],
)
def test_a_pointer_that_leads_nowhere_is_told_what_to_name(refusal, checkpointed, tmp_path, pointer, fault):
    changes = checkpointed({"ranks": 1})
    actor = tmp_path / "ck" / "_actor"
    (actor / "latest").write_text(pointer)
    assert missing(refusal(changes, RESUME), f"{RESUME}: {actor}", fault, "global_step3") == []
    (actor / "global_step3").rename(actor / "partial-global_step3")
    without = refusal(changes, RESUME)
    assert missing(without, f"{RESUME}: {actor}", fault) == []
    assert "global_step3" not in without


@pytest.fixture
def resumed(inputs, parse_nested, checkpointed):
    """Function (flags) -> the flags of a run that goes on from a checkpoint of the inputs, with these flags behind."""
    words = [str(word) for pair in inputs.items() for word in pair]
    first = parse_nested(*words, "--ckpt.save_steps", "5")
    preflight.check(first)
    there = checkpointed({"ranks": 1, "settings": json.loads(json.dumps(first.run_record))})

    def run(flags=""):
        args = parse_nested(*words, "--ckpt.path", str(there["--ckpt.path"]), RESUME, *flags.split())
        preflight.check(args)
        return args

    return run


@pytest.fixture
def resume_refused(resumed):
    return partial(refusal_of, resumed)


OTHER_PROMPTS = "".join(json.dumps({"input": f"{n}-{n}=", "label": "0"}) + "\n" for n in range(4))
OTHER_REWARD = "def reward_func(queries, prompts, labels): ...\ndef check_label(label): ...\n"
FILES = [
    ("train.jsonl", OTHER_PROMPTS, "data"),
    ("model/model.safetensors", "changes", "model"),
    ("model/tokenizer_config.json", '{"chat_template": "x"}', "tokenizer"),
    ("reward.py", OTHER_REWARD, "reward_function"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "content", "name"), FILES)
def test_a_resume_with_other_files_is_refused_until_it_is_accepted(
    resumed, resume_refused, tmp_path, file, content, name
):
    assert resumed().data_changed is False
    (tmp_path / file).write_text(content)
    message = resume_refused()
    assert f"was made with {name} " in message
    assert message.endswith(f"accept the new ones with --ckpt.allow_changed {name}")
    assert resumed(f"--ckpt.allow_changed {name}").data_changed is (name == "data")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--train.batch_size 8", "train.batch_size 4 (this run: 8)"),
        ("--actor.adam.lr 1e-3", "actor.adam.lr 1e-06 (this run: 0.001)"),
        ("--reward_incorrect -1", "reward_incorrect 0.0 (this run: -1.0)"),
        ("--data.input_template Q:{}", "data.input_template null (this run: Q:{})"),
        ("--cov_type clip_cov", "cov_type none (this run: clip_cov)"),
        ("--train.num_episodes 9", "train.num_episodes 1 (this run: 9)"),  # of a schedule of the learning rate
        ("--rollout_limit 9", "rollout_limit 0 (this run: 9)"),  # as well
    ],
)
def test_a_resume_with_other_settings_names_them(resumed, resume_refused, flags, said):
    message = resume_refused(flags)
    assert said in message
    accepted = message.rpartition("--ckpt.allow_changed ")[2]
    assert resumed(f"{flags} --ckpt.allow_changed {accepted}").data_changed is False


@pytest.mark.slow
def test_every_difference_is_in_one_line_and_all_have_to_be_accepted(resumed, resume_refused, tmp_path):
    (tmp_path / "train.jsonl").write_text(OTHER_PROMPTS)
    for accepted in ("", "--ckpt.allow_changed data"):
        assert resume_refused(f"--train.seed 7 {accepted}").endswith("--ckpt.allow_changed data,train.seed")
    assert resumed("--train.seed 7 --ckpt.allow_changed data,--train.seed").data_changed is True


@pytest.mark.parametrize(
    "flags",
    [
        "--train.num_episodes 9 --actor.lr_scheduler constant --ckpt.allow_changed actor.lr_scheduler",
        "--rollout_limit 9 --actor.lr_scheduler constant --ckpt.allow_changed actor.lr_scheduler",
        "--ckpt.output_dir {}/elsewhere",
        "--vllm.num_engines 2 --ckpt.save_steps 7",
        "--train.micro_batch_size 2 --logger.logging_steps 3",
        "--eval.dataset {0}/train.jsonl --eval.steps 9 --eval.temperature 0.1",
    ],
)
def test_what_does_not_determine_a_run_may_change(resumed, tmp_path, flags):
    assert resumed(flags.format(tmp_path)).data_changed is False


def test_names_that_cannot_be_accepted_are_refused(resume_refused, refusal):
    message = resume_refused("--ckpt.allow_changed train.batchsize")
    assert "allow_changed train.batchsize: " in message
    assert "did you mean train.batch_size" in message
    assert f"only applies with {RESUME}" in refusal({}, "--ckpt.allow_changed", "data")
