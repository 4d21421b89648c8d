"""Requests and answers, against a real HTTP server on this host."""

from dataclasses import replace

import pytest

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.evaluation.plan import Completion, Request

SEEDED = Request(("sums", "p0", 3), "3 + 4 =", None, 17, 0.6, 0.9, 24)
GREEDY = Request(("sums", "p1", 0), "5 + 6 =", None, None, 0.0, 1.0, 8)


def test_a_request_becomes_one_of_openai(endpoint, openai_server):
    assert len(list(endpoint().generate([SEEDED, GREEDY]))) == 2
    sent = {body["prompt"]: (path, body) for path, body, _ in openai_server.asked}
    assert sent["3 + 4 ="] == (
        "/completions",
        {"model": "tiny", "prompt": "3 + 4 =", "temperature": 0.6, "top_p": 0.9, "max_tokens": 24, "seed": 17},
    )
    assert sent["5 + 6 ="] == (  # greedy decoding has no seed
        "/completions",
        {"model": "tiny", "prompt": "5 + 6 =", "temperature": 0.0, "top_p": 1.0, "max_tokens": 8},
    )
    assert {headers["authorization"] for _, _, headers in openai_server.asked} == {"Bearer key"}


@pytest.mark.slow
def test_arguments_of_the_chat_template_go_to_the_server(endpoint, openai_server):
    for owner in ("vllm", "somebody"):
        openai_server.models = [{"id": "tiny", "owned_by": owner}]
        asked = endpoint(chat=True, chat_template_kwargs={"enable_thinking": False})
        assert len(list(asked.generate([SEEDED]))) == 1
        assert openai_server.asked[-1][1]["chat_template_kwargs"] == {"enable_thinking": False}
    assert len(list(endpoint(chat=True).generate([SEEDED]))) == 1
    assert "chat_template_kwargs" not in openai_server.asked[-1][1]


@pytest.mark.parametrize("chat", [False, True])
def test_vllm_is_told_to_sample_as_engines_started_here(endpoint, openai_server, chat):
    # or it would take top_k and a repetition penalty from the model's folder, and drop the end token
    openai_server.models = [{"id": "tiny", "owned_by": "vllm"}]
    assert len(list(endpoint(chat=chat).generate([SEEDED]))) == 1
    ((_, told, _),) = openai_server.asked
    own = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    own |= {"skip_special_tokens": False, "include_stop_str_in_output": True}
    assert own.items() <= told.items()


@pytest.mark.slow
@pytest.mark.parametrize("chat", [False, True])
def test_a_completion(endpoint, openai_server, completed, chat):
    openai_server.reply = lambda path, body: (200, completed(path, body, text="it is 7"))
    assert list(endpoint(chat=chat).generate([SEEDED])) == [
        (SEEDED, Completion("it is 7", tokens=3, prompt_tokens=4, truncated=False))
    ]
    ((path, body, _),) = openai_server.asked
    assert path == ("/chat/completions" if chat else "/completions")
    assert not chat or body["messages"] == [{"role": "user", "content": "3 + 4 ="}]
    assert (body["seed"], body["temperature"], body["top_p"], body["max_tokens"]) == (17, 0.6, 0.9, 24)
    openai_server.reply = lambda path, body: (200, completed(path, body, text="a b c d e f g h"))  # 8 of 8 tokens
    ((_, completion),) = endpoint(chat=chat).generate([GREEDY])
    assert completion.truncated


@pytest.mark.parametrize("chat", [False, True])
def test_surprisal_is_the_mean_of_minus_the_log_probs(endpoint, openai_server, completed, chat):
    openai_server.reply = lambda path, body: (200, completed(path, body, "a b", log_probs=[-0.5, -1.0]))
    ((_, completion),) = endpoint(chat=chat).generate([replace(SEEDED, log_probs=True)])
    assert completion.surprisal == 0.75  # (0.5 + 1) / 2
    ((_, asked, _),) = openai_server.asked
    assert asked["logprobs"] == (True if chat else 1)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("log_probs", [[], [float("nan"), -1.0], [float("-inf")]])
def test_a_surprisal_that_is_no_number_is_none(endpoint, openai_server, completed, chat, log_probs):
    openai_server.reply = lambda path, body: (200, completed(path, body, "", log_probs=log_probs))
    ((_, completion),) = endpoint(chat=chat).generate([replace(SEEDED, log_probs=True)])
    assert completion.surprisal is None


def test_half_a_surrogate_pair_is_replaced(endpoint, openai_server, completed):
    # JSON can hold "\ud83d" alone, a file in UTF-8 cannot; a whole pair is one character
    openai_server.reply = lambda path, body: (200, completed(path, body, text="a\ud83db \ud83d\ude00"))
    ((_, completion),) = endpoint().generate([SEEDED])
    assert completion.text == "a\ufffdb \U0001f600"


@pytest.fixture
def with_room(completed, error_reply):
    """Function (limit) -> replies of a server that, as vLLM, refuses what is longer than ``limit`` tokens, counted in
    words."""

    def make(limit):
        def reply(path, body):
            prompt, asked = len(body["prompt"].split()), body["max_tokens"]
            if asked > limit:
                return error_reply(400, f"max_tokens={asked} cannot be greater than max_model_len={limit}")
            if prompt + asked > limit:
                length = f"This model's maximum context length is {limit} tokens"
                return error_reply(400, f"{length}. However, you requested ...")
            return 200, completed(path, body, text=" ".join(["word"] * asked))

        return reply

    return make


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        (40, 24),  # 40 + 24 = 64: all of max_tokens
        (41, 23),
        (64, None),  # no room for one token
    ],
)
@pytest.mark.parametrize("max_tokens", [24, 8192])
def test_a_response_gets_the_room_that_its_prompt_leaves(
    endpoint, openai_server, with_room, words, tokens, max_tokens
):
    openai_server.reply = with_room(64)
    request = replace(SEEDED, prompt="w " * words, max_tokens=max_tokens)
    ((_, completion),) = endpoint().generate([request])
    if tokens is None:
        assert completion is None
    else:
        assert completion.tokens == (tokens if max_tokens == 24 else 64 - words)
        assert completion.truncated
        assert openai_server.asked[-1][1]["seed"] == 17


@pytest.mark.slow
def test_without_a_known_context_too_many_tokens_stop_the_run(endpoint, openai_server, with_room):
    openai_server.models = [{"id": "tiny"}]
    openai_server.reply = with_room(64)
    client = endpoint()
    assert client.max_model_len is None
    stop = r"maximum context length is 64 tokens.*; lower --max_tokens 60$"
    with pytest.raises(RunStopped, match=stop):
        list(client.generate([replace(SEEDED, prompt="w " * 20, max_tokens=60)]))
    ((_, completion),) = client.generate([replace(SEEDED, prompt="w " * 64, max_tokens=60)])
    assert completion is None
