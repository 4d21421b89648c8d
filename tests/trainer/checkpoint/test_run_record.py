"""What determines a run, and how a checkpoint's record is compared with that of the run that resumes."""

import datasets
import pytest
from played_engines import one_step
from run_flags import run_flags

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.trainer.checkpoint import run_record
from openrlhf_cov.trainer.records import Group

KEYS = run_flags({"data.input_key": "input", "data.label_key": "label"}).data


def rows(*pairs):
    return datasets.Dataset.from_list([{"input": prompt, "label": label} for prompt, label in pairs])


def test_the_digest_of_data_is_of_prompts_labels_and_order():
    first, second = ("1+1=", "2"), ("2+2=", "4")
    expected = run_record.digest_of_rows(rows(first, second), KEYS)
    assert expected.startswith("2 rows, digest ")
    assert run_record.digest_of_rows(rows(first, second), KEYS) == expected
    others = [rows(second, first), rows(first), rows(first, ("2+2=", "5")), rows(first, ("2+2 =", "4"))]
    assert all(run_record.digest_of_rows(other, KEYS) != expected for other in others)


@pytest.mark.parametrize("column", ["datasource", "source", "data_source"])
def test_the_record_of_a_run_is_of_sources_too(column):
    both = [rows(("1+1=", "2")).add_column(column, [name]) for name in ("gsm8k", "math")]
    one, other = (run_record.record_of(run_flags(), each) for each in both)
    assert run_record.changed_names(one, other) == ["data_source" if column == "data_source" else "data"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_the_digest_of_a_model_is_of_its_content_and_not_of_its_path(tmp_path, name):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text("{}")
        (tmp_path / folder / "model.safetensors").write_bytes(b"0" * 100)
    digest = run_record.digest_of_files(str(tmp_path / "a"), run_record.MODEL_FILES)
    assert run_record.digest_of_files(str(tmp_path / "b"), run_record.MODEL_FILES) == digest
    content = (tmp_path / "b" / name).read_bytes()
    (tmp_path / "b" / name).write_bytes(content[:-1] + b"1")  # of equal size
    assert run_record.digest_of_files(str(tmp_path / "b"), run_record.MODEL_FILES) != digest
    assert run_record.digest_of_files("owner/name", run_record.MODEL_FILES) == "owner/name"


def test_large_weights_are_read_in_samples(tmp_path, monkeypatch):
    # 42 bytes: blocks of 4 in every 10, which begin at 0, 10, 20 and 30, and the last 4, from 38 on
    monkeypatch.setattr(run_record, "READ_WHOLE", 10)
    monkeypatch.setattr(run_record, "STRIDE", 10)
    monkeypatch.setattr(run_record, "BLOCK", 4)
    weights = tmp_path / "model.safetensors"

    def digest(*changed):
        content = bytearray(42)
        for place in changed:
            content[place] = 1
        weights.write_bytes(content)
        return run_record.digest_of_files(str(tmp_path), run_record.MODEL_FILES)

    unchanged = digest()
    assert digest(16) == unchanged
    assert all(digest(place) != unchanged for place in (0, 3, 12, 31, 38, 41))
    assert all(digest(*range(first, first + 10)) != unchanged for first in range(33))


def test_settings_that_one_version_does_not_know_do_not_differ():
    saved = {"train.batch_size": 4, "former": 1, "train.seed": 1}
    record = {"train.batch_size": 8, "new": 1, "train.seed": 1}
    assert run_record.changed_names(saved, record) == ["train.batch_size"]
    assert run_record.describe_changes(["train.batch_size"], saved, record) == "train.batch_size 4 (this run: 8)"


def test_other_data_begins_with_its_first_prompt_and_keeps_the_count_of_rollouts(make_sampler):
    fresh, _ = make_sampler()
    expected = one_step(fresh)[0]
    first, _ = make_sampler()
    for _ in range(2):
        one_step(first)
    second, _ = make_sampler()
    second.restart(first.state_dict())
    assert second.order.drawn == 0
    assert second.step == first.step == 2
    assert one_step(second)[0] == expected


def test_waiting_groups_of_another_size_are_left_out_and_named(make_sampler, caplog):
    # two samples per prompt, and a group of them waits: with three per prompt its samples would join other groups
    first, _ = make_sampler(prompts=10)
    one_step(first)
    state = first.state_dict()
    samples = [object(), object()]
    state["groups"] = [Group(samples, scores=[1.0, 0.0], tokens=2, version=1)]
    second, _ = make_sampler(prompts=10)
    second.args.rollout.n_samples_per_prompt = 2
    second.load_state_dict(state)
    assert [group.samples for group in second.buffer.groups] == [samples]
    third, _ = make_sampler(prompts=10)
    third.args.rollout.n_samples_per_prompt = 3
    third.load_state_dict(state)
    assert third.buffer.groups == []
    assert "1 groups that waited are left out" in caplog.text
    assert "--rollout.n_samples_per_prompt 3" in caplog.text


def test_another_start_of_the_process_reward_model_is_seen():
    args = run_flags({**vars(CovConfig(method="prime")), "data.label_key": None})
    data = rows(("a", "1"))
    record = run_record.record_of(args, data)
    assert record["process_reward_model"] == "policy"
    assert record["prime_lr"] == 1e-6
    assert "prime_model" not in record  # the content is compared, not the path
    args.prime_model = "other"
    assert run_record.changed_names(record, run_record.record_of(args, data)) == ["process_reward_model"]
    args.method = "none"
    assert run_record.record_of(args, data)["process_reward_model"] is None


@pytest.mark.parametrize(
    ("cov_type", "scope", "is_compared"),
    [("kl_cov", "micro_batch", True), ("kl_cov", "global", False), ("none", "micro_batch", False)],
)
def test_micro_batches_are_compared_where_a_method_selects_within_them(cov_type, scope, is_compared):
    args = run_flags(cov_type=cov_type, method="none", cov_scope=scope)
    for name in ("train.micro_batch_size", "train.max_tokens_per_gpu", "train.dynamic_batch_enable"):
        assert run_record.is_free(name, args) is not is_compared
