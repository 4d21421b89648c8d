import argparse
import json
from functools import partial

import pytest
from texts import refusal_of
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.benchmarks import PROTOCOLS, own_benchmark
from openrlhf_cov.evaluation.flags import LOCAL_FLAGS, SERVER_FLAGS, add_engine_arguments
from openrlhf_cov.evaluation.plan import make_plan
from openrlhf_cov.trainer.evaluation_backends import EDGE, fingerprint, open_backend

pytestmark = pytest.mark.usefixtures("quiet_engines")

PROBLEMS = ["What is 1 ?", "What is 1 + 1 + 1 ?"]  # 4 and 8 tokens


@pytest.fixture
def model(tmp_path):
    """A folder with all that is read of a model before its engines start; it has 64 positions."""
    words = Tokenizer(WordLevel({"<unk>": 0, "What": 1, "is": 2, "1": 3, "+": 4, "?": 5}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(tmp_path / "model")
    config = {"model_type": "llama", "max_position_embeddings": 64}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    return tmp_path / "model"


@pytest.fixture
def open_with(model):
    """Function (flags...) -> the backend; --model is the folder unless a flag says otherwise."""

    def run(*flags):
        parser = argparse.ArgumentParser()
        for name in ("--model", "--template"):
            parser.add_argument(name)
        for name in ("--limit", "--seed", "--max_tokens"):
            parser.add_argument(name, type=int)
        add_engine_arguments(parser)
        return open_backend(parser.parse_args(["--model", str(model), *map(str, flags)]))

    return run


@pytest.fixture
def refusal(open_with):
    return partial(refusal_of, open_with)


@pytest.fixture
def plan(tmp_path):
    """Function (tokenizer, longest response) -> a plan of both problems."""

    def make(tokenizer, max_tokens=20):
        rows = [{"id": text, "problem": text, "answer": "1", "source": "math"} for text in PROBLEMS]
        (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return make_plan(
            [own_benchmark(tmp_path / "sums.jsonl")],
            PROTOCOLS["paper"],
            {"max_tokens": max_tokens},
            data_dir=None,
            limit=None,
            template="none",
            tokenizer=tokenizer,
        )

    return make


# Words behind each flag that are not its default.
OTHER_VALUES = {
    **dict.fromkeys(("num_engines", "tensor_parallel_size", "concurrency", "max_retries"), "2"),
    **dict.fromkeys(("max_model_len", "max_num_seqs"), "64"),
    **dict.fromkeys(("enforce_eager", "allow_openrlhf_version", "trust_remote_code"), ""),
    **{"gpu_memory_utilization": "0.5", "dtype": "fp32", "api_key_env": "KEY", "max_num_batched_tokens": "512"},
}


@pytest.mark.parametrize("name", LOCAL_FLAGS)
def test_flags_of_engines_are_refused_with_a_server(refusal, openai_server, name):
    flags = (f"--{name}", *OTHER_VALUES[name].split(), "--base_url", openai_server.url)
    assert refusal(*flags) == f"--{name} is for engines started here and has no effect with --base_url; drop it"


@pytest.mark.parametrize("name", SERVER_FLAGS)
def test_flags_of_a_server_are_refused_without_one(refusal, name):
    message = f"--{name} is for a server and has no effect without --base_url; drop it"
    assert refusal(f"--{name}", *OTHER_VALUES[name].split()) == message


def test_every_flag_is_for_one_of_both():
    parser = argparse.ArgumentParser(add_help=False)
    add_engine_arguments(parser)
    names = {action.dest for action in parser._actions}
    assert names == {*LOCAL_FLAGS, *SERVER_FLAGS, "base_url"} == OTHER_VALUES.keys() | {"base_url"}


class TestEngines:
    @pytest.mark.parametrize("content", ["", "{", '{"version": "1.0"}'])
    def test_a_broken_tokenizer_is_refused(self, refusal, model, content):
        (model / "tokenizer.json").write_text(content)
        assert refusal().startswith(f"--model {model}: its tokenizer cannot be loaded (")

    def test_it_tokenizes(self, open_with):
        backend = open_with()
        assert backend.tokenizer(PROBLEMS[0])["input_ids"] == [1, 2, 3, 5]

    @pytest.mark.parametrize(
        ("flags", "max_tokens", "expected"),
        [
            ((), 20, 28),  # the longest prompt has 8 tokens
            ((), 56, 64),
            ((), 57, 64),  # as many as the model has positions
            ((), 8192, 64),
            (("--max_model_len", 64), 20, 64),
            (("--max_model_len", 7), 20, 7),
        ],
    )
    def test_the_context_is_what_is_needed_and_possible(self, open_with, plan, flags, max_tokens, expected, capsys):
        backend = open_with(*flags)
        assert backend.settings(plan(backend.tokenizer, max_tokens))["max_model_len"] == expected
        note = f"may take {8 + max_tokens} tokens, and have {expected}: longer responses are cut"
        assert (note in capsys.readouterr().err) is (8 + max_tokens > expected)

    def test_a_response_that_takes_all_positions_is_refused(self, open_with, plan):
        backend = open_with("--max_tokens", 64)
        with pytest.raises(UsageError, match=r"--max_tokens 64: .* has 64 positions"):
            backend.settings(plan(backend.tokenizer, 64))
        open_with("--max_tokens", 63).settings(plan(backend.tokenizer, 63))

    def test_a_context_that_the_model_does_not_have_is_refused(self, open_with, plan, model):
        backend = open_with("--max_model_len", 65)
        line = refusal_of(backend.settings, plan(backend.tokenizer))
        assert line == f"--max_model_len 65: {model} has 64 positions"

    def test_what_determines_the_responses_is_recorded(self, open_with, plan, model):
        backend = open_with("--dtype", "fp16")
        settings = backend.settings(plan(backend.tokenizer))
        assert settings.keys() == {"model", "model_sha256", "dtype", "max_model_len", "packages"}
        assert (settings["model"], settings["dtype"]) == (str(model), "fp16")
        assert settings["model_sha256"] == fingerprint(model)
        assert {"torch", "transformers", "openrlhf"} <= settings["packages"].keys()

    @pytest.mark.parametrize(("on_cpu", "dtype"), [(True, "fp32"), (False, "bf16")])
    def test_the_precision_follows_the_host(self, open_with, monkeypatch, on_cpu, dtype):
        monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: on_cpu)
        assert open_with().dtype == dtype
        assert open_with("--dtype", "fp16").dtype == "fp16"


class TestServer:
    def test_it_is_sent_texts_or_messages(self, open_with, openai_server):
        backend = open_with("--base_url", openai_server.url, "--model", "tiny", "--template", "chat")
        assert (backend.tokenizer, backend.endpoint.chat) == (None, True)
        assert not open_with("--base_url", openai_server.url, "--model", "tiny").endpoint.chat

    def test_what_determines_the_responses_is_recorded(self, open_with, openai_server, plan):
        settings = open_with("--base_url", openai_server.url, "--model", "tiny").settings(plan(None))
        assert (settings["model"], settings["max_model_len"]) == ("tiny", 64)
        assert settings.keys() == {"model", "max_model_len", "packages"}

    @pytest.mark.slow
    def test_the_key_is_that_of_the_variable(self, open_with, openai_server, plan, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", "usual")
        monkeypatch.setenv("MY_KEY", "mine")
        requests = list(plan(None).requests(seed=0, max_model_len=None))
        for flags in ((), ("--api_key_env", "MY_KEY"), ("--api_key_env", "NO_KEY")):
            backend = open_with("--base_url", openai_server.url, "--model", "tiny", *flags)
            assert len(list(backend.generate(requests[:1], None))) == 1
        keys = [headers["authorization"] for _, _, headers in openai_server.asked]
        assert keys == ["Bearer usual", "Bearer mine", "Bearer none"]


class TestFingerprint:
    def test_it_is_that_of_names_sizes_and_contents(self, model, tmp_path):
        first = fingerprint(model)
        assert len(first) == 64
        assert fingerprint(model) == first
        seen = {first}
        changes = [("model.safetensors", b"Weights"), ("model-2.safetensors", b""), ("chat_template.jinja", b"x")]
        for name, content in changes:
            (model / name).write_bytes(content)
            assert fingerprint(model) not in seen, name
            seen.add(fingerprint(model))
        (model / "model.safetensors").rename(model / "other.safetensors")
        assert fingerprint(model) not in seen

    def test_what_a_training_leaves_beside_a_model_is_no_part_of_it(self, model):
        first = fingerprint(model)
        (model / "run.log").write_text("step 1")
        (model / "metrics.jsonl").write_text("{}")
        (model / "checkpoints.json").mkdir()
        assert fingerprint(model) == first

    @pytest.mark.parametrize("size", [10, EDGE + 1, 3 * EDGE])
    @pytest.mark.parametrize("place", ["first", "last"])
    def test_a_change_at_either_end_of_a_file_of_any_size_is_seen(self, tmp_path, size, place):
        content = bytearray(size)
        (tmp_path / "model.safetensors").write_bytes(content)
        before = fingerprint(tmp_path)
        content[0 if place == "first" else -1] = 1
        (tmp_path / "model.safetensors").write_bytes(content)
        assert fingerprint(tmp_path) != before
