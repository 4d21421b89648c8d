"""Against a real HTTP server on this host."""

import os
import signal
import socket
import threading
import time
from dataclasses import replace

import pytest

from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.evaluation.endpoint import Endpoint
from openrlhf_cov.evaluation.plan import Completion, Request

SEEDED = Request(("sums", "p0", 3), "3 + 4 =", None, 17, 0.6, 0.9, 24)
GREEDY = Request(("sums", "p1", 0), "5 + 6 =", None, None, 0.0, 1.0, 8)


@pytest.fixture
def endpoint(openai_server):
    """Function (settings...) -> the endpoint of the server."""

    def make(**settings):
        given = dict(base_url=openai_server.url, model="tiny", chat=False, concurrency=4, max_retries=3, api_key="key")
        return Endpoint(**(given | settings))

    return make


def error(status, message):
    return status, {"error": {"message": message, "type": "BadRequestError", "code": status}}


def samples(count):
    return [replace(SEEDED, key=("sums", "p0", sample), seed=sample) for sample in range(count)]


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


def test_chat_sends_one_user_message(endpoint, openai_server):
    assert len(list(endpoint(chat=True).generate([SEEDED]))) == 1
    ((path, body, _),) = openai_server.asked
    assert path == "/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "3 + 4 ="}]
    assert (body["seed"], body["temperature"], body["top_p"], body["max_tokens"]) == (17, 0.6, 0.9, 24)


@pytest.mark.parametrize("chat", [False, True])
def test_vllm_is_told_to_sample_as_engines_started_here(endpoint, openai_server, chat):
    # or it would take top_k and a repetition penalty from the model's folder, and drop the end token
    openai_server.models = [{"id": "tiny", "owned_by": "vllm"}]
    assert len(list(endpoint(chat=chat).generate([SEEDED]))) == 1
    ((_, told, _),) = openai_server.asked
    own = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    own |= {"skip_special_tokens": False, "include_stop_str_in_output": True}
    assert own.items() <= told.items()


@pytest.mark.parametrize("chat", [False, True])
def test_a_completion(endpoint, openai_server, completed, chat):
    openai_server.reply = lambda path, body: (200, completed(path, body, text="it is 7"))
    assert list(endpoint(chat=chat).generate([SEEDED])) == [
        (SEEDED, Completion("it is 7", tokens=3, prompt_tokens=4, truncated=False))
    ]
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


def test_what_fails_for_a_while_is_asked_for_again(endpoint, openai_server, completed):
    failures = iter([500, 429, 503])

    def reply(path, body):
        status = next(failures, 200)
        return error(status, "busy") if status != 200 else (200, completed(path, body, "it is 7"))

    openai_server.reply = reply
    ((_, completion),) = endpoint(max_retries=3).generate([SEEDED])
    assert completion.text == "it is 7"
    bodies = [body for _, body, _ in openai_server.asked]
    assert bodies == [bodies[0]] * 4  # the seed as well


def test_what_fails_always_stops_the_run(endpoint, openai_server):
    openai_server.reply = lambda path, body: error(500, "out of order")
    with pytest.raises(RunStopped, match=r"^sums, problem p0, sample 3 failed 3 times, last with .*out of order"):
        list(endpoint(max_retries=2).generate([SEEDED]))
    assert len(openai_server.asked) == 3


def test_a_server_that_dies_stops_the_run(endpoint, openai_server):
    alive = endpoint(max_retries=0)
    openai_server.shutdown()
    openai_server.server_close()
    with pytest.raises(RunStopped, match="sums, problem p0, sample 3 failed with Connection error"):
        list(alive.generate([SEEDED]))


@pytest.mark.parametrize(("status", "message"), [(400, "top_p is wrong"), (401, "no such key"), (404, "no such page")])
def test_what_the_server_refuses_stops_the_run_at_once(endpoint, openai_server, status, message):
    openai_server.reply = lambda path, body: error(status, message)
    with pytest.raises(RunStopped, match=f"^the server refuses sums, problem p0, sample 3: .*{message}"):
        list(endpoint().generate([SEEDED]))
    assert len(openai_server.asked) == 1


@pytest.mark.parametrize(
    ("reply", "what"),
    [
        (b"<html>hello</html>", "'str' object has no attribute 'choices'"),
        (b'{"choices": [', "Expecting value"),
        ({"choices": []}, "list index out of range"),
        ({"choices": [{"text": "7", "finish_reason": "stop"}]}, "'NoneType' object has no attribute"),  # no usage
    ],
)
def test_an_answer_of_another_form_stops_the_run(endpoint, openai_server, reply, what):
    openai_server.reply = lambda path, body: (200, reply)
    with pytest.raises(
        RunStopped, match=r"^the server answers sums, problem p0, sample 3 in a form of its own: "
    ) as stop:
        list(endpoint().generate([SEEDED]))
    assert what in str(stop.value)


def test_a_server_without_log_probs_stops_the_run(endpoint, openai_server):
    with pytest.raises(RunStopped, match=r"^the server gives no log-probs; drop --log_probs$"):
        list(endpoint().generate([replace(SEEDED, log_probs=True)]))


def with_room(limit, completed):
    """A server that, as vLLM, refuses what is longer than ``limit`` tokens, counted in words."""

    def reply(path, body):
        prompt = len(body["prompt"].split())
        if body["max_tokens"] > limit:
            return error(400, f"max_tokens={body['max_tokens']} cannot be greater than max_model_len={limit}")
        if prompt + body["max_tokens"] > limit:
            return error(400, f"This model's maximum context length is {limit} tokens. However, you requested ...")
        return 200, completed(path, body, text=" ".join(["word"] * body["max_tokens"]))

    return reply


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        (40, 24),  # 40 + 24 = 64: all of max_tokens
        (41, 23),
        (63, 1),
        (64, None),  # no room for one token
        (70, None),
    ],
)
@pytest.mark.parametrize("max_tokens", [24, 8192])
def test_a_response_gets_the_room_that_its_prompt_leaves(
    endpoint, openai_server, completed, words, tokens, max_tokens
):
    openai_server.reply = with_room(64, completed)
    request = replace(SEEDED, prompt="w " * words, max_tokens=max_tokens)
    ((_, completion),) = endpoint().generate([request])
    if tokens is None:
        assert completion is None
    else:
        assert completion.tokens == (tokens if max_tokens == 24 else 64 - words)
        assert completion.truncated
        assert openai_server.asked[-1][1]["seed"] == 17


def test_without_a_known_context_too_many_tokens_stop_the_run(endpoint, openai_server, completed):
    openai_server.models = [{"id": "tiny"}]
    openai_server.reply = with_room(64, completed)
    client = endpoint()
    assert client.max_model_len is None
    stop = r"maximum context length is 64 tokens.*; lower --max_tokens 60$"
    with pytest.raises(RunStopped, match=stop):
        list(client.generate([replace(SEEDED, prompt="w " * 20, max_tokens=60)]))
    ((_, completion),) = client.generate([replace(SEEDED, prompt="w " * 64, max_tokens=60)])
    assert completion is None


@pytest.mark.parametrize("concurrency", [1, 3, 16])
def test_no_more_than_so_many_at_once_and_every_response_once(endpoint, openai_server, completed, concurrency):
    def reply(path, body):
        time.sleep(0.003 * (body["seed"] % 3))
        return 200, completed(path, body)

    openai_server.reply = reply
    requests = samples(24)
    results = list(endpoint(concurrency=concurrency).generate(requests))
    assert sorted(request.key for request, _ in results) == sorted(request.key for request in requests)
    assert len(openai_server.asked) == 24
    assert openai_server.most <= concurrency
    assert openai_server.most > 1 or concurrency == 1
    for request, completion in results:  # each got the response to its own seed
        body = {"prompt": request.prompt, "seed": request.seed, "model": "tiny", "max_tokens": 24}
        assert completion.text == completed("/completions", body)["choices"][0]["text"]


def test_nothing_is_asked_for_nothing(endpoint, openai_server):
    assert list(endpoint().generate([])) == []
    assert openai_server.asked == []


def test_what_arrived_before_a_failure_is_kept(endpoint, openai_server, completed):
    arrived = threading.Event()

    def reply(path, body):
        if body["seed"] == 2:
            arrived.wait(5)
            return error(400, "no")
        return 200, completed(path, body)

    openai_server.reply = reply
    results = []

    def take_all():
        for request, _ in endpoint(concurrency=2).generate(samples(6)):
            results.append(request.seed)
            if len(results) == 4:
                arrived.set()

    with pytest.raises(RunStopped):
        take_all()
    assert {0, 1, 3, 4} <= set(results)


def test_what_arrived_together_with_a_failure_is_kept(openai_server):
    class Together(Endpoint):
        """Its requests end at the same moment, the second with a failure."""

        async def _complete(self, client, request):
            if request.seed == 1:
                raise RunStopped
            return Completion("7", 1, 4, False)

    settings = dict(chat=False, concurrency=4, max_retries=0, api_key="key")
    results = []
    with pytest.raises(RunStopped):
        results.extend(Together(openai_server.url, "tiny", **settings).generate(samples(4)))
    assert {request.seed for request, _ in results} == {0, 2, 3}


@pytest.mark.parametrize("stop", [RunStopped, KeyboardInterrupt])
def test_who_stops_does_not_wait_for_slow_responses(endpoint, openai_server, completed, stop):
    slow = threading.Event()

    def reply(path, body):
        if body["seed"]:
            slow.wait(20)
        return 200, completed(path, body)

    openai_server.reply = reply

    def take_one():
        for _ in endpoint().generate(samples(4)):
            raise stop

    started = time.monotonic()
    with pytest.raises(stop):
        take_one()
    assert time.monotonic() - started < 5
    slow.set()


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_while_waiting_ends_at_once(endpoint, openai_server):
    slow = threading.Event()

    def reply(path, body):
        os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C
        slow.wait(20)
        return error(500, "late")

    openai_server.reply = reply
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(endpoint().generate([SEEDED]))
    assert time.monotonic() - started < 5
    slow.set()


def test_an_unknown_model_is_refused_with_those_there_are(endpoint, openai_server):
    openai_server.models = [{"id": "tiny"}, {"id": "large"}]
    with pytest.raises(UsageError) as refused:
        endpoint(model="tinny")
    assert str(refused.value) == f"--model tinny is not served at {openai_server.url}; it serves tiny, large"
    openai_server.models = []
    with pytest.raises(UsageError, match=r"it serves nothing$"):
        endpoint()


def test_the_context_is_that_of_the_model(endpoint, openai_server):
    openai_server.models = [{"id": "large", "max_model_len": 4096}, {"id": "tiny", "max_model_len": 64}]
    assert endpoint().max_model_len == 64


def closed_port():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/v1", "nonsense", "http://[", "{server}/no", ""])
def test_a_server_that_is_none_is_refused_in_one_line(endpoint, openai_server, url):
    url = url.format(port=closed_port(), server=openai_server.url)
    with pytest.raises(UsageError) as refused:
        endpoint(base_url=url)
    assert str(refused.value).startswith(f"--base_url {url} does not answer as an OpenAI server: ")
    assert "\n" not in str(refused.value)


def test_a_page_in_place_of_models_is_refused(endpoint, openai_server):
    openai_server.models = "<html></html>"
    with pytest.raises(UsageError, match="does not answer as an OpenAI server"):
        endpoint()
