import json
import logging
import shutil

import pytest

from openrlhf_cov.errors import UsageError
from openrlhf_cov.trainer.checkpoint.checkpoints import FORMAT, FORMAT_VERSION
from openrlhf_cov.trainer.preflight import check_run

GAE = {"--algo.advantage.estimator": "gae"}


def put_checkpoint(folder, *names):
    """A checkpoint as DeepSpeed leaves it: <folder>/_actor/latest and a folder."""
    for name in names or ("_actor/latest", "_actor/global_step5/weights"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("global_step5" if name.endswith("latest") else "")


def put_metrics(folder):
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')


def test_a_folder_of_another_run_is_refused(refusal, check, tmp_path):
    put_metrics(tmp_path / "run")
    start = f"--ckpt.output_dir {tmp_path / 'run'} holds metrics.jsonl of another run; choose a new folder"
    assert refusal() == start  # there is nothing to continue from
    put_checkpoint(tmp_path / "checkpoints")
    assert refusal() == f"{start}, or continue that run with --ckpt.load_enable"
    check({}, "--ckpt.load_enable")


WEIGHTS = "global_step5/weights"


@pytest.fixture
def warnings(caplog):
    """Function () -> what the checks have warned of so far, as it is logged."""
    check_run.logger.addHandler(caplog.handler)  # upstream's loggers do not propagate
    yield lambda: [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    check_run.logger.removeHandler(caplog.handler)


# changes of the inputs -> the beginning of the warning, or what no warning begins with, and whether there is one
ONE_UPDATE = {"--train.batch_size": 8}  # 4 prompts x 2 = 8 samples
HIGHER = ONE_UPDATE | {"--actor.eps_clip_low_high": "0.2 0.28"}
SMALL = {"--rollout.n_samples_per_prompt": 8, "--train.batch_size": 4, "--rollout.batch_size": 1}
WARNED = [
    ({"--cov_type": "kl_cov"} | ONE_UPDATE, "--method kl_cov with one update per rollout", True),
    ({"--cov_type": "kl_cov"}, "--method kl_cov with one update per rollout", False),
    ({"--cov_type": "kl_cov", "--train.max_epochs": 2} | ONE_UPDATE, "--method kl_cov with one", False),
    # 16 samples, but the data gives 8
    ({"--cov_type": "kl_cov", "--rollout.batch_size": 8} | ONE_UPDATE, "--method kl_cov with one update", True),
    ({"--cov_type": "clip_cov"} | ONE_UPDATE, "--method ", False),
    (HIGHER, "--actor.eps_clip_low_high 0.2 0.28 with one", True),
    (HIGHER | {"--train.batch_size": 4}, "--actor.eps_clip_low_high", False),
    # which has a clip of its own and does not need it
    (HIGHER | {"--cov_type": "clip_cov"}, "--actor.eps_clip_low_high", False),
    ({"--method": "lite_ppo"} | SMALL, "--method lite_ppo with one prompt per rollout", True),
    ({"--method": "rs_grpo"} | SMALL, "--method ", False),
    ({"--rollout.top_p": 0.9}, "--rollout.top_p 0.9: ", True),
    ({"--rollout.top_p": 1.0}, "--rollout.top_p", False),
]


@pytest.mark.parametrize(("changes", "beginning", "warns"), WARNED)
def test_settings_that_hide_a_method_are_warned_of(check, warnings, changes, beginning, warns):
    changes = dict(changes)
    clip = changes.pop("--actor.eps_clip_low_high", "").split()
    check(changes, *(["--actor.eps_clip_low_high", *clip] if clip else []))
    assert sum(message.startswith(beginning) for message in warnings()) == warns


def with_critic(tmp_path):
    return {"--critic.model_name_or_path": tmp_path / "model", "--critic.num_gpus_per_node": 1} | GAE


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
def test_a_run_that_was_killed_before_its_first_checkpoint_starts_afresh(check, tmp_path, warnings, left, critic):
    put_metrics(tmp_path / "run")
    if left:
        put_checkpoint(tmp_path / "checkpoints", *left)
    changes = with_critic(tmp_path) if critic else {}
    check(changes, "--ckpt.load_enable")
    (warning,) = warnings()
    start = f"--ckpt.load_enable: --ckpt.path {tmp_path / 'checkpoints'} holds no complete checkpoint: the run starts"
    assert warning.startswith(start)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == '{"step": 1}\n'  # a check moves nothing


def test_a_finished_run_without_a_checkpoint_is_not_replaced(refusal, tmp_path):
    put_metrics(tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").touch()
    message = refusal({}, "--ckpt.load_enable")
    assert message.startswith(f"--ckpt.load_enable: --ckpt.path {tmp_path / 'checkpoints'} holds no checkpoint, and")
    assert "model.safetensors of a finished run" in message


@pytest.mark.parametrize(
    ("kept", "critic", "missing"),
    [
        (["_actor/global_step5/weights", "_actor/global_step9/weights"], False, "the file latest"),
        (
            ["_actor/latest", "_actor/global_step5/w", "_actor/global_step9/w"],
            True,
            "a complete checkpoint in _critic",
        ),
    ],
)
def test_checkpoints_that_no_kill_explains_are_not_replaced(refusal, tmp_path, kept, critic, missing):
    put_checkpoint(tmp_path / "checkpoints", *kept)
    changes = with_critic(tmp_path) if critic else {}
    message = refusal(changes, "--ckpt.load_enable")
    assert f"but not {missing}; restore what is missing, or choose a new folder" in message


NO_SIGNAL = ["--ckpt.on_signal", "stop"]
SAVES = [
    ["--ckpt.save_steps", "5", *NO_SIGNAL],
    [],  # which is the default
]
SAVES_NOT = [
    NO_SIGNAL,
    ["--eval.dataset", "EVAL", "--eval.steps", "5", "--ckpt.best_metric_key", "auto", *NO_SIGNAL],
    ["--ckpt.save_steps", "5", "--ckpt.disable_ds"],
]


def evaluated(flags, inputs):
    return [str(inputs["--data.prompt_dataset"]) if flag == "EVAL" else flag for flag in flags]


@pytest.mark.parametrize("flags", SAVES)
def test_checkpoints_of_another_run_are_not_replaced(refusal, check, inputs, tmp_path, flags):
    put_checkpoint(tmp_path / "checkpoints")
    message = refusal({}, *(saves := evaluated(flags, inputs)))
    assert message.startswith(f"--ckpt.path {tmp_path / 'checkpoints'} holds _actor/global_step5 of another run")
    assert message.endswith("choose a new folder, or continue that run with --ckpt.load_enable")
    check({}, *saves, "--ckpt.load_enable")


@pytest.mark.parametrize("flags", SAVES_NOT)
def test_a_run_without_checkpoints_leaves_those_of_others(check, inputs, tmp_path, flags):
    put_checkpoint(tmp_path / "checkpoints")
    check({}, *evaluated(flags, inputs))


def test_models_of_another_run_are_not_replaced(refusal, check, tmp_path):
    put_checkpoint(tmp_path / "checkpoints", "global_step5_hf/config.json")
    saves = ["--ckpt.save_steps", "5", "--ckpt.disable_ds"]
    message = refusal({}, *saves, "--ckpt.save_hf")
    assert f"{tmp_path / 'checkpoints'} holds global_step5_hf of another run" in message
    assert message.endswith("choose a new folder")
    check({}, *saves)


@pytest.mark.parametrize("when", [["--eval.steps", "5"], ["--eval.at_start"]])
def test_the_best_model_of_another_run_is_not_replaced(refusal, check, inputs, tmp_path, when):
    put_checkpoint(tmp_path / "checkpoints", "best/config.json")
    evaluates = [*evaluated(["--eval.dataset", "EVAL"], inputs), *when, *NO_SIGNAL]
    message = refusal({}, *evaluates, "--ckpt.best_metric_key", "auto")
    assert f"{tmp_path / 'checkpoints'} holds best of another run" in message
    check({}, *evaluates)


@pytest.mark.slow
@pytest.mark.parametrize("spelling", ["model", "./other/../model"])
def test_the_folder_of_the_base_model_is_not_overwritten(refusal, inputs, tmp_path, spelling):
    (tmp_path / "other").mkdir()
    put = {"--ckpt.output_dir": f"{tmp_path}/{spelling}"}
    assert "is also --actor.model_name_or_path, which the trained model would overwrite" in refusal(put)
    (tmp_path / "model" / "metrics.jsonl").touch()  # not even to continue a run
    put_checkpoint(tmp_path / "checkpoints")
    assert "is also --actor.model_name_or_path" in refusal(put, "--ckpt.load_enable")


@pytest.mark.parametrize("weights", ["pytorch_model.bin", "model-00001-of-00002.safetensors"])
def test_a_folder_with_a_model_is_not_overwritten(refusal, check, make_model, tmp_path, weights):
    folder = make_model(tmp_path / "run", ("config.json", weights))
    message = refusal()
    assert message.startswith(f"--ckpt.output_dir {folder} holds {weights}, which the trained model would overwrite")
    put_checkpoint(tmp_path / "checkpoints")
    (folder / "metrics.jsonl").touch()  # a finished run, continued
    check({}, "--ckpt.load_enable")


TWO_ACTORS = {"--actor.num_gpus_per_node": 2}
CHUNKS = TWO_ACTORS | {"--rollout.micro_batch_size": 4, "--algo.kl.init_coef": 0}
MICRO = "--train.micro_batch_size"
PARALLEL = {"--ds.tensor_parallel_size": 2, "--ds.param_dtype": "bf16"}
ACTOR_REF = "--train.colocate_actor_ref"
ALL = "--train.colocate_all"
CRITIC_REWARD = "--train.colocate_critic_reward"
DYNAMIC = "--train.dynamic_batch_enable"
TWO_LEARNERS = GAE | TWO_ACTORS | {"--critic.num_gpus_per_node": 2}
KL_LOSS = "--algo.kl.use_loss --algo.kl.init_coef 1e-3"

# Changes of the inputs, further flags, and what the refusal says; None where the run is accepted. The inputs have
# rollouts of 4 prompts x 2 samples, 4 prompts in the data, and updates of 4 samples.
SIZES = [
    # A rollout is one update or several whole ones.
    ({"--train.batch_size": 9}, "", "--train.batch_size 9 is more than one rollout"),
    ({"--train.batch_size": 9, "--rollout.batch_size": 100}, "", " 8 samples; not one optimizer step would be made"),
    ({"--data.max_samples": 1}, "", " 2 samples; not one optimizer step would be made"),
    ({"--train.batch_size": 3}, "", ": 2 samples of every rollout would have no update"),  # 8 = 2 * 3 + 2
    ({"--rollout.batch_size": 7}, "", ": 2 samples of every rollout would have no update"),  # 14 = 3 * 4 + 2
    ({"--rollout.vllm_generate_batch_size": 3}, "", "--rollout.vllm_generate_batch_size 3 is less"),
    ({"--rollout.vllm_generate_batch_size": 4}, "", None),
    ({"--rollout.vllm_generate_batch_size": 8}, "--train.async_enable", None),
    # Two ranks with chunks of 4 samples take 8, the whole rollout; 3 prompts have 6 samples.
    (CHUNKS, "", None),
    (CHUNKS | {"--data.max_samples": 3}, "", " = 6 samples; not one optimizer step would be made, which takes a mul"),
    # Models that share GPUs have one size; 2 nodes of 1 GPU and 1 node of 2 are no equal sizes.
    (TWO_ACTORS, ACTOR_REF, "--actor.num_nodes 1 x --actor.num_gpus_per_node 2 and --ref.num_nodes 1"),
    (TWO_ACTORS | {"--ref.num_gpus_per_node": 2}, ACTOR_REF, None),
    (TWO_ACTORS | {"--algo.kl.init_coef": 0}, ACTOR_REF, None),  # no reference model
    (TWO_ACTORS | {"--ref.num_nodes": 2}, ACTOR_REF, "--ref.num_nodes 2 x --ref.num_gpus_per_node 1"),
    (TWO_ACTORS, ALL, "--ref.num_nodes 1 x --ref.num_gpus_per_node 1"),
    ({"--vllm.num_engines": 2}, ALL, "--actor.num_gpus_per_node 1 = 1, --vllm.num_engines 2 x"),
    ({"--vllm.num_engines": 1}, ALL, None),
    (GAE | {"--critic.num_gpus_per_node": 2}, CRITIC_REWARD, "--critic.num_gpus_per_node 2 and --reward.num_nodes"),
    ({"--critic.num_gpus_per_node": 2}, CRITIC_REWARD, None),  # group_norm has no critic
    # Upstream keeps the last max_len - max_new_tokens tokens of a prompt; without max_new_tokens, all but one.
    ({"--data.max_len": 64, "--rollout.max_new_tokens": 64}, "", "max_new_tokens 64: no token is left for the prompt"),
    ({"--data.max_len": 64, "--rollout.max_new_tokens": 100}, "", "--data.max_len 64 is for prompt and response tog"),
    ({"--data.max_len": 64, "--rollout.max_new_tokens": 63}, "", None),
    ({"--data.max_len": 1}, "", "--rollout.max_new_tokens 1: no token is left for the prompt"),
    ({"--data.max_len": 2}, "", None),
    # An update is a whole number of micro-batches on every rank.
    ({MICRO: 2}, "", None),
    ({MICRO: 8}, "", "--train.micro_batch_size 8 x 1 rank of actor = 8"),  # 4 // 8 = 0 accumulation steps
    ({MICRO: 3}, "", "--train.micro_batch_size 3 x 1 rank of actor = 3"),  # DeepSpeed: 4 != 3 * 1 * 1
    ({MICRO: 4} | TWO_ACTORS, "", "--train.micro_batch_size 4 x 2 ranks of actor = 8"),
    ({MICRO: 2, "--ref.num_gpus_per_node": 4}, "", "--train.micro_batch_size 2 x 4 ranks of ref = 8"),
    ({MICRO: 2, "--ref.num_gpus_per_node": 4, "--algo.kl.init_coef": 0}, "", None),
    ({"--critic.num_gpus_per_node": 8} | GAE, "", "--train.micro_batch_size 1 x 8 ranks of critic = 8"),
    ({"--reward.num_gpus_per_node": 8, "--reward.remote_url": ""}, "", "micro_batch_size 1 x 8 ranks of reward = 8"),
    ({"--critic.num_gpus_per_node": 8, "--reward.num_gpus_per_node": 8}, "", None),
    ({MICRO: 4, "--ref.num_gpus_per_node": 2} | TWO_ACTORS | PARALLEL, "", None),  # two processes per rank
    (PARALLEL, "", "--actor.num_gpus_per_node 1 = 1 process, no multiple of --ds.ring_attn_size 1 x"),
    # Dynamic batches need as many samples on every rank: of 4 samples upstream trains on 3 with 3 ranks.
    (TWO_LEARNERS, DYNAMIC, None),
    ({"--actor.num_gpus_per_node": 3}, DYNAMIC, "--train.batch_size 4 is no multiple of the 3 ranks of actor: "),
    (GAE | {"--critic.num_gpus_per_node": 5}, DYNAMIC, "--train.batch_size 4 is no multiple of the 5 ranks of critic"),
    ({"--ref.num_gpus_per_node": 3}, DYNAMIC, "ranks of ref = 3"),  # it does not train
    # The gradient of log pi - log pi_ref is that of log pi, whose mean over samples of pi is 0; a reward may be k1.
    ({}, KL_LOSS, "--algo.kl.estimator k1 as a loss (--algo.kl.use_loss) has a gradient of 0"),
    ({"--algo.kl.estimator": "k3"}, KL_LOSS, None),
    ({}, f"{KL_LOSS} --algo.kl.unbiased_gradient", None),
    ({}, "--algo.kl.use_loss --algo.kl.init_coef 0", None),
    ({}, "--algo.kl.init_coef 1e-3", None),
]


@pytest.mark.parametrize(("changes", "flags", "said"), SIZES)
def test_sizes_that_do_not_go_together_are_refused(refusal, check, inputs, changes, flags, said):
    if changes.get("--reward.remote_url") == "":
        inputs["--reward.model_name_or_path"] = inputs["--actor.model_name_or_path"]
    if said is None:
        check(changes, *flags.split())
    else:
        assert said in refusal(changes, *flags.split())


def checkpointed(folder, run, partial=()):
    """A checkpoint as our trainer leaves it."""
    actor = folder / "ck" / "_actor"
    (actor / "global_step3").mkdir(parents=True)
    (actor / "global_step3" / "run.json").write_text(json.dumps({FORMAT: FORMAT_VERSION} | run))
    (actor / "latest").write_text("global_step3")
    for name in partial:
        (actor / name).mkdir()
    return {"--ckpt.path": folder / "ck"}


PRIME = {"--method": "prime", "--algo.advantage.estimator": "rloo", "--rollout.n_samples_per_prompt": 2}


def with_process_reward(tmp_path, run):
    """Return the flags of a run with checkpoints of both trained models; ``run`` describes the other one."""
    changes = checkpointed(tmp_path, {"ranks": 1})
    prm = tmp_path / "ck" / "_prm"
    shutil.copytree(tmp_path / "ck" / "_actor", prm)
    (prm / "global_step3" / "run.json").write_text(json.dumps({FORMAT: FORMAT_VERSION} | run))
    return changes | PRIME


def test_a_checkpoint_of_a_process_reward_model_is_checked_as_the_policys(check, refusal, tmp_path):
    changes = with_process_reward(tmp_path, {"ranks": 1, "optimizer": "adam", "vocab_size": 5})
    message = refusal(changes, "--ckpt.load_enable")
    assert message.startswith(
        f"--ckpt.load_enable: {tmp_path / 'ck' / '_prm'}: global_step3 has vocab_size 5, this run"
    )


def test_a_run_with_a_process_reward_model_goes_on(check, tmp_path, warnings):
    check(with_process_reward(tmp_path, {"ranks": 1, "optimizer": "adam"}), "--ckpt.load_enable")
    assert warnings() == []


def test_a_half_written_checkpoint_is_named_and_passed_over(check, tmp_path, warnings):
    changes = checkpointed(tmp_path, {"ranks": 1}, partial=["partial-global_step4"])
    check(changes, "--ckpt.load_enable")
    assert "partial-global_step4 was never completed and is passed over" in " ".join(warnings())


@pytest.mark.parametrize(
    ("pointers", "flags", "said"),
    [
        ({"latest": "global_step3"}, ["--ds.use_universal_ckpt"], "has no latest_universal; convert global_step3"),
        ({"latest_universal": "global_step2_universal"}, [], "add --ds.use_universal_ckpt"),
        (
            {"latest": "best_global_step6", "latest_universal": "global_step2_universal"},
            ["--ds.use_universal_ckpt"],
            "was saved to since global_step2_universal was made",
        ),
        (
            {"latest": "global_step3", "latest_universal": "global_step3_universal"},
            ["--ds.use_universal_ckpt"],
            "global_step3_universal has no rollouts.safetensors, which the converter leaves behind; "
            "copy it from global_step3",
        ),
    ],
)
def test_the_kind_of_checkpoint_that_is_asked_for_is_there(refusal, tmp_path, pointers, flags, said):
    changes = checkpointed(tmp_path, {"ranks": 1})
    actor = tmp_path / "ck" / "_actor"
    (actor / "latest").unlink()
    (actor / "global_step3" / "rollouts.safetensors").touch()
    for name, tag in pointers.items():
        (actor / tag).mkdir(exist_ok=True)
        (actor / name).write_text(tag)
    assert said in refusal(changes, "--ckpt.load_enable", *flags)


@pytest.mark.parametrize(
    ("pointer", "fault"),
    [("global_step9", "latest names global_step9, which is not there"), ("", "latest names no folder beside it: ''")],
)
def test_a_pointer_that_leads_nowhere_is_told_what_to_name(refusal, tmp_path, pointer, fault):
    changes = checkpointed(tmp_path, {"ranks": 1})
    actor = tmp_path / "ck" / "_actor"
    (actor / "latest").write_text(pointer)
    message = refusal(changes, "--ckpt.load_enable")
    assert message == f"--ckpt.load_enable: {actor}: {fault}; write global_step3, which is there, into it"
    (actor / "global_step3").rename(actor / "partial-global_step3")
    message = refusal(changes, "--ckpt.load_enable")
    assert message == f"--ckpt.load_enable: {actor}: {fault}; restore the folder, or choose a new one"


def test_a_whole_universal_checkpoint_of_other_ranks_is_taken(check, tmp_path):
    changes = checkpointed(tmp_path, {"ranks": 7})
    actor = tmp_path / "ck" / "_actor"
    (actor / "global_step3_universal").mkdir()
    (actor / "latest_universal").write_text("global_step3_universal")
    check(changes, "--ckpt.load_enable", "--ds.use_universal_ckpt")


@pytest.fixture
def resumed(inputs, parse_nested, tmp_path):
    """Function (changes, flags...): resume from a checkpoint of the inputs with some of them changed; the flags."""
    from openrlhf_cov.trainer.preflight import preflight

    def words(changes=()):
        return [str(word) for pair in (inputs | dict(changes)).items() for word in pair]

    def run(changes=(), *extra):
        flags = parse_nested(*words(changes), "--ckpt.load_enable", *extra)
        preflight.check(flags)
        return flags

    first = parse_nested(*words(), "--ckpt.save_steps", "5")
    preflight.check(first)
    inputs |= checkpointed(tmp_path, {"ranks": 1, "settings": json.loads(json.dumps(first.run_record))})
    return run


def changed_data(inputs, write_rows, tmp_path):
    """Other prompts under the same path."""
    write_rows(tmp_path / "train.jsonl", [{"input": f"{i}-{i}=", "label": "0"} for i in range(4)])


def changed_weights(inputs, write_rows, tmp_path):
    (tmp_path / "model" / "model.safetensors").write_text("changes")


def changed_template(inputs, write_rows, tmp_path):
    (tmp_path / "model" / "tokenizer_config.json").write_text('{"chat_template": "x"}')


def changed_reward(inputs, write_rows, tmp_path):
    (tmp_path / "reward.py").write_text((tmp_path / "reward.py").read_text() + "\n# stricter\n")


FILES = [
    (changed_data, "data"),
    (changed_weights, "model"),
    (changed_template, "tokenizer"),
    (changed_reward, "reward_function"),
]


@pytest.mark.parametrize(("change", "name"), FILES)
def test_a_resume_with_other_files_is_refused_until_it_is_accepted(
    resumed, inputs, write_rows, tmp_path, change, name
):
    assert resumed().data_changed is False
    change(inputs, write_rows, tmp_path)
    with pytest.raises(UsageError) as refused:
        resumed()
    message = str(refused.value)
    assert f"was made with {name} " in message
    assert message.endswith(f"accept the new ones with --ckpt.allow_changed {name}")
    assert resumed({}, "--ckpt.allow_changed", name).data_changed is (name == "data")


CHANGED_FLAGS = [
    ({"--train.batch_size": 8}, "train.batch_size 4 (this run: 8)"),
    ({"--actor.adam.lr": 1e-3}, "actor.adam.lr 1e-06 (this run: 0.001)"),
    ({"--reward_format": "any"}, "reward_format boxed (this run: any)"),
    ({"--data.input_template": "Q: {}"}, "data.input_template null (this run: Q: {})"),
    ({"--cov_type": "clip_cov"}, "cov_type none (this run: clip_cov)"),
]


@pytest.mark.parametrize(("changes", "said"), CHANGED_FLAGS)
def test_a_resume_with_other_settings_names_them(resumed, changes, said):
    with pytest.raises(UsageError) as refused:
        resumed(changes)
    message = str(refused.value)
    assert said in message
    accepted = message.rpartition("--ckpt.allow_changed ")[2]
    assert resumed(changes, "--ckpt.allow_changed", accepted).data_changed is False


def test_every_difference_is_in_one_line_and_all_have_to_be_accepted(resumed, inputs, write_rows, tmp_path):
    changed_data(inputs, write_rows, tmp_path)
    changes = {"--train.seed": 7}
    for accepted in ((), ("--ckpt.allow_changed", "data")):
        with pytest.raises(UsageError) as refused:
            resumed(changes, *accepted)
        assert "\n" not in str(refused.value)
        assert str(refused.value).endswith("--ckpt.allow_changed data,train.seed")
    assert resumed(changes, "--ckpt.allow_changed", "data,--train.seed").data_changed is True


FREE_CHANGES = [
    {"--train.num_episodes": 9, "--actor.lr_scheduler": "constant"},
    {"--ckpt.output_dir": "elsewhere"},
    {"--vllm.num_engines": 2, "--rollout_limit": 9, "--ckpt.save_steps": 7},
    {"--train.micro_batch_size": 2, "--logger.logging_steps": 3, "--eval.temperature": 0.1},
]


@pytest.mark.parametrize("changes", FREE_CHANGES, ids=lambda changes: next(iter(changes)))
def test_what_does_not_determine_a_run_may_change(resumed, tmp_path, changes):
    if "--ckpt.output_dir" in changes:
        changes = {"--ckpt.output_dir": tmp_path / changes["--ckpt.output_dir"]}
    accepted = ["--ckpt.allow_changed", "actor.lr_scheduler"] if "--actor.lr_scheduler" in changes else []
    resumed(changes, *accepted)


def test_more_episodes_change_a_schedule_of_the_learning_rate(resumed):
    with pytest.raises(UsageError, match=r"train\.num_episodes 1 \(this run: 9\)"):
        resumed({"--train.num_episodes": 9})


def test_a_checkpoint_of_another_format_is_refused(refusal, tmp_path):
    changes = checkpointed(tmp_path, {"ranks": 1, FORMAT: 1})
    assert "global_step3 has the checkpoint format 1, this version reads 2" in refusal(changes, "--ckpt.load_enable")


def test_names_that_cannot_be_accepted_are_refused(resumed):
    with pytest.raises(UsageError, match=r"allow_changed train\.batchsize: .*did you mean train\.batch_size"):
        resumed({}, "--ckpt.allow_changed", "train.batchsize")


def test_changes_are_accepted_on_a_resume_alone(refusal):
    assert "only applies with --ckpt.load_enable" in refusal({}, "--ckpt.allow_changed", "data")
