"""Servers that fail for a while or always, refuse, answer in another form, or are none."""

import socket
from dataclasses import replace

import pytest
from texts import missing

from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.evaluation.plan import Request

SEEDED = Request(("sums", "p0", 3), "3 + 4 =", None, 17, 0.6, 0.9, 24)


@pytest.mark.slow
def test_what_fails_for_a_while_is_asked_for_again(endpoint, openai_server, completed, error_reply):
    failures = iter([500, 429, 503])

    def reply(path, body):
        status = next(failures, 200)
        return error_reply(status, "busy") if status != 200 else (200, completed(path, body, "it is 7"))

    openai_server.reply = reply
    ((_, completion),) = endpoint(max_retries=3).generate([SEEDED])
    assert completion.text == "it is 7"
    bodies = [body for _, body, _ in openai_server.asked]
    assert bodies == [bodies[0]] * 4  # the seed as well
    failures = iter([500] * 9)
    with pytest.raises(RunStopped, match=r"^sums, problem p0, sample 3 failed 3 times, last with .*busy"):
        list(endpoint(max_retries=2).generate([SEEDED]))
    assert len(openai_server.asked) == 4 + 3


def test_a_server_that_dies_stops_the_run(endpoint, openai_server):
    alive = endpoint(max_retries=0)
    openai_server.shutdown()
    openai_server.server_close()
    with pytest.raises(RunStopped, match="sums, problem p0, sample 3 failed with Connection error"):
        list(alive.generate([SEEDED]))


@pytest.mark.parametrize(("status", "message"), [(400, "top_p is wrong"), (401, "no such key")])
def test_what_the_server_refuses_stops_the_run_at_once(endpoint, openai_server, error_reply, status, message):
    openai_server.reply = lambda path, body: error_reply(status, message)
    with pytest.raises(RunStopped, match=f"^the server refuses sums, problem p0, sample 3: .*{message}"):
        list(endpoint().generate([SEEDED]))
    assert len(openai_server.asked) == 1


USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
STOPPED = {"text": "7", "finish_reason": "stop"}


@pytest.mark.parametrize(
    ("reply", "what"),
    [
        (b"<html>\nhello</html>", "the reply is text, not a JSON object of OpenAI's form: '<html>"),
        (b'{"choices": [', "Expecting value"),
        (b"[" * 100_000, ""),
        ({"choices": []}, "the reply has no choices"),
        ({"error": "out of memory"}, "the reply has no choices; the server reports: out of memory"),
        ({"choices": [{"text": "7", "finish_reason": "stop"}]}, "the reply has no usage"),
        ({"choices": [{"text": "7", "finish_reason": None}], "usage": USAGE}, "the reply has no finish_reason"),
        ({"choices": [{"text": "7", "finish_reason": "abort"}], "usage": USAGE}, "did not finish the response"),
        ({"choices": [{"finish_reason": "stop"}], "usage": USAGE}, "the choice has no text"),
        ({"choices": [STOPPED], "usage": {"prompt_tokens": 3}}, "the usage of the reply has no completion_tokens"),
    ],
)
def test_an_answer_of_another_form_stops_the_run(endpoint, openai_server, reply, what):
    openai_server.reply = lambda path, body: (200, reply)
    with pytest.raises(RunStopped, match=r"^the server answers sums, problem p0, sample 3 in a form") as stop:
        list(endpoint().generate([SEEDED]))
    assert what in str(stop.value)
    assert "\n" not in str(stop.value)


@pytest.mark.parametrize(
    ("reason", "is_cut"),
    [("length", True), ("MAX_TOKENS", True), ("model_length", True), ("stop", False), ("eos_token", False)],
)
def test_servers_name_the_limit_in_their_own_words(endpoint, openai_server, reason, is_cut):
    reply = {"choices": [{"text": "7", "finish_reason": reason}], "usage": USAGE}
    openai_server.reply = lambda path, body: (200, reply)
    ((_, completion),) = endpoint().generate([SEEDED])
    assert completion.truncated is is_cut


def test_a_chat_reply_without_a_message_stops_the_run(endpoint, openai_server):
    openai_server.reply = lambda path, body: (200, {"choices": [{"finish_reason": "stop"}], "usage": USAGE})
    with pytest.raises(RunStopped, match=r"in a form of its own: the choice has no message; drop --chat"):
        list(endpoint(chat=True).generate([SEEDED]))


def test_null_content_of_a_chat_is_an_empty_response(endpoint, openai_server):
    choice = {"finish_reason": "length", "message": {"role": "assistant", "content": None}}
    openai_server.reply = lambda path, body: (200, {"choices": [choice], "usage": USAGE})
    ((_, completion),) = endpoint(chat=True).generate([SEEDED])
    assert (completion.text, completion.truncated, completion.tokens) == ("", True, 1)


@pytest.mark.parametrize("status", [404, 502])
def test_an_error_page_is_one_short_line(endpoint, openai_server, status):
    page = b"<html>\n<body>\n" + b"<p>Bad Gateway</p>\n" * 1000 + b"</body></html>"
    openai_server.reply = lambda path, body: (status, page)
    with pytest.raises(RunStopped, match=f"Error code: {status}") as stop:
        list(endpoint(max_retries=0).generate([SEEDED]))
    assert "\n" not in str(stop.value)
    assert len(str(stop.value)) < 400


def test_a_server_without_log_probs_stops_the_run(endpoint, openai_server):
    with pytest.raises(RunStopped, match=r"^the server gives no log-probs; drop --log_probs$"):
        list(endpoint().generate([replace(SEEDED, log_probs=True)]))


def test_an_unknown_model_is_refused_with_those_there_are(endpoint, openai_server):
    openai_server.models = [{"id": "tiny"}, {"id": "large"}]
    with pytest.raises(UsageError) as refused:
        endpoint(model="tinny")
    assert missing(str(refused.value), "--model tinny", openai_server.url, "tiny, large") == []
    openai_server.models = []
    with pytest.raises(UsageError, match=r"it serves nothing$"):
        endpoint()


def closed_port():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/v1", "http://[", "{server}/no", ""])
def test_a_server_that_is_none_is_refused_in_one_line(endpoint, openai_server, url):
    url = url.format(port=closed_port(), server=openai_server.url)
    with pytest.raises(UsageError) as refused:
        endpoint(base_url=url)
    assert str(refused.value).startswith(f"--base_url {url} does not answer as an OpenAI server: ")
    assert "\n" not in str(refused.value)


ODD = ["7", None, -1, 1.5, True, [], 10**30, float("nan")]
FIELDS = ("completion_tokens", "prompt_tokens", "usage", "choices")


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize(
    ("field", "value"), [*((field, value) for field in FIELDS for value in ODD), ("text", 1.5), ("text", [7])]
)
def test_a_field_of_another_type_never_reaches_the_records(endpoint, openai_server, completed, chat, field, value):
    def reply(path, body):
        answer = completed(path, body, "it is 7")
        if field == "text":
            answer["choices"][0] |= {"message": {"role": "assistant", "content": value}} if chat else {"text": value}
        else:
            (answer["usage"] if field.endswith("tokens") else answer)[field] = value
        return 200, answer

    openai_server.reply = reply
    with pytest.raises(RunStopped, match=r"^the server answers sums, problem p0, sample 3 in a form of its own: "):
        list(endpoint(chat=chat).generate([SEEDED]))


@pytest.mark.parametrize("length", ["many", 0, True, None, 10**30])
def test_a_length_that_is_none_is_not_believed(endpoint, openai_server, length):
    openai_server.models = [{"id": "tiny", "max_model_len": length}]
    assert endpoint().max_model_len is None
