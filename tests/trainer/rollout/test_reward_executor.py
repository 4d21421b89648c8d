import asyncio
import copy
import math

import pytest
from character_tokenizer import character_tokenizer
from vllm import SamplingParams
from vllm_outputs import request_output

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.rewards import reward_func
from openrlhf_cov.trainer.rollout.reward_executor import RewardExecutor

PROMPT = r"What is 2+3? Answer in \boxed{}. "
MAX_LENGTH = 200
TOKENIZER = character_tokenizer()


class Engine:
    """Answers every prompt with one text."""

    def __init__(self, text: str, finish_reason: str = "stop") -> None:
        ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
        self.output = request_output(ids, text, finish_reason=finish_reason)

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        return self.output


def execute(executor, text, label="5", finish_reason="stop", prompt=PROMPT, tokenizer=TOKENIZER) -> dict:
    engine = Engine(text, finish_reason)
    sampling = SamplingParams(max_tokens=100)
    return asyncio.run(executor.execute(prompt, label, sampling, MAX_LENGTH, tokenizer, engine))


@pytest.fixture
def reward_file(tmp_path):
    """Function (body of ``reward_func``, lines before it) -> the file of a reward function."""

    def write(body: str, before: str = "") -> str:
        path = tmp_path / "my_reward.py"
        path.write_text(f"{before}\ndef reward_func(queries, prompts, labels):\n    {body}\n")
        return str(path)

    return write


@pytest.mark.parametrize(
    ("text", "finish_reason", "score", "reward"),
    [
        (r"\boxed{5}", "stop", 1.0, 1.25),  # right: 1 + bonus
        (r"\boxed{6}", "stop", 0.0, -0.75),  # wrong, in the format: -1 + bonus
        ("It is 5.", "stop", 0.0, -1.0),  # no answer
        (r"\boxed{5}, and then", "length", 0.0, -1.0),  # cut off
    ],
)
def test_score_and_reward_of_our_rule(text, finish_reason, score, reward):
    config = RewardConfig(reward_incorrect=-1.0, reward_format_bonus=0.25)
    output = execute(RewardExecutor(reward_func.__file__, config), text, finish_reason=finish_reason)
    assert (output["scores"], output["reward"]) == (score, reward)
    assert output["extra_logs"]["reward/error_frac"] == 0.0
    assert output["extra_logs"]["reward/no_answer_frac"] == float(text.startswith("It"))


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_thinking_that_was_not_closed_has_no_answer(finish_reason):
    config = RewardConfig(reward_keep_truncated=True, reward_format_bonus=0.25)
    executor = RewardExecutor(reward_func.__file__, config)
    for text, prompt, score in (
        (r"<think>Maybe \boxed{5}. But wait", PROMPT, 0.0),
        (r"Maybe \boxed{5}. But wait", PROMPT + "<think>\n", 0.0),
        (r"Maybe \boxed{6}.</think>\boxed{5}", PROMPT + "<think>\n", 1.0),
        (r"\boxed{5}", "What is <think>? " + PROMPT, 1.0),
    ):
        output = execute(executor, text, finish_reason=finish_reason, prompt=prompt)
        # without an answer there is no bonus either; the correct ones get 1 + 0.25
        assert (output["scores"], output["reward"]) == (score, 1.25 * score), text
        assert output["extra_logs"]["reward/no_answer_frac"] == 1.0 - score


def test_a_reward_of_the_user_is_called_as_upstream_calls_it(reward_file):
    result = "{'rewards': [0.5 * (queries == [prompts[0] + 'abc'])], 'extra_logs': {'length': [3]}}"
    path = reward_file(f"return {result}")
    output = execute(RewardExecutor([path], RewardConfig()), "abc", finish_reason="length")
    # no scores: the reward stands for it; no truncated_rewards: a response that was cut off keeps its reward
    assert (output["reward"], output["scores"]) == (0.5, 0.5)
    assert output["extra_logs"] == {"reward/error_frac": 0.0, "length": 3.0}


@pytest.mark.parametrize(
    "value",
    [
        *("1", "[1]", "True", "numpy.float32(1)", "numpy.ones((1, 1))", "fractions.Fraction(1)", "torch.tensor(1.0)"),
        *("torch.ones(1, 1)", "torch.ones(1, dtype=torch.bfloat16)", "[torch.ones(1, requires_grad=True)]"),
    ],
)
def test_one_number_is_a_reward_in_any_wrapping(reward_file, value):
    path = reward_file(f"return {{'rewards': {value}}}", before="import fractions, numpy, torch")
    output = execute(RewardExecutor(path, RewardConfig()), "abc")
    assert (output["reward"], output["scores"], output["extra_logs"]) == (1.0, 1.0, {"reward/error_frac": 0.0})


@pytest.mark.parametrize(
    "body",
    [
        "raise KeyError('x')",
        "return {}",
        "return None",
        *(f"return {{'rewards': {value}}}" for value in ("[float('nan')]", "float('inf')", "[1.0, 2.0]", "[]", "'x'")),
    ],
)
def test_a_failing_reward_is_counted_and_never_none(reward_file, body):
    output = execute(RewardExecutor(reward_file(body), RewardConfig(reward_incorrect=-0.5)), "abc")
    assert (output["reward"], output["scores"], output["extra_logs"]) == (-0.5, 0.0, {"reward/error_frac": 1.0})


@pytest.fixture
def server(openai_server, monkeypatch):
    """A server whose replies a test chooses. Upstream's client waits a second before it tries a URL again."""
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: sleep(0))
    return openai_server


def test_a_reward_that_a_server_does_not_give_is_counted_as_failed(server):
    executor = RewardExecutor(server.url, RewardConfig(reward_incorrect=-0.5))
    server.reply = lambda path, body: (200, {"rewards": [0.75], "scores": [1.0]})
    output = execute(executor, "abc")
    assert (output["reward"], output["scores"], output["extra_logs"]) == (0.75, 1.0, {"reward/error_frac": 0.0})
    server.reply = lambda path, body: (503, {})
    output = execute(executor, "abc")
    assert (output["reward"], output["scores"], output["extra_logs"]) == (-0.5, 0.0, {"reward/error_frac": 1.0})
    assert len(server.asked) == 1 + 5  # upstream's client tries a URL five times


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("[1.0]", "must return an object with the key 'rewards'; got [1.0]"),
        ("{'reward': 1.0}", "must return an object with the key 'rewards'; got the keys reward"),
        ("{'rewards': [{'score': 1.0}]}", "a reward must be a number; got {'score': 1.0}"),
    ],
)
def test_a_result_of_another_form_is_no_abstention_and_says_what_it_is(log, reward_file, result, message):
    executor = RewardExecutor(reward_file(f"return {result}"), RewardConfig())
    assert execute(executor, "abc")["extra_logs"] == {"reward/error_frac": 1.0}
    assert message in log.messages[0]


@pytest.mark.parametrize(
    "result",
    ["{'rewards': None}", "{'rewards': [None]}", "{'rewards': [None], 'scores': [1.0]}", "{'rewards': ((None,),)}"],
)
def test_a_reward_of_none_abstains(reward_file, result):
    output = execute(RewardExecutor(reward_file(f"return {result}"), RewardConfig(reward_incorrect=-0.5)), "abc")
    assert output["reward"] == 0.0
    assert math.isnan(output["scores"])
    assert output["extra_logs"] == {"reward/error_frac": 0.0, "reward/abstained_frac": 1.0}


def test_each_kind_of_error_is_logged_once_a_minute(log, reward_file):
    path = reward_file("raise next(errors)('no')", before="errors = iter([KeyError, ZeroDivisionError] * 3)")
    executor = RewardExecutor(path, RewardConfig())
    for _ in range(6):
        execute(executor, "abc")
    assert ["KeyError" in line for line in log.messages] == [True, False]
    assert "label '5'" in log.messages[0]


class CountedTokenizer(type(TOKENIZER)):
    """Notes the prompts that it makes tokens of."""

    def __call__(self, text, *arguments, **settings):
        if isinstance(text, list):
            self.prompts += text
        return super().__call__(text, *arguments, **settings)


def test_the_tokens_of_a_prompt_are_computed_once_for_its_samples():
    tokenizer = copy.deepcopy(TOKENIZER)
    tokenizer.__class__ = CountedTokenizer
    tokenizer.prompts = []
    executor = RewardExecutor(None, RewardConfig())
    outputs = [execute(executor, "abc", prompt=prompt, tokenizer=tokenizer) for prompt in ("1+1=", "2+2=", "1+1=")]
    # Twice for each prompt: with special tokens and without. The third prompt is the first one.
    assert tokenizer.prompts == ["1+1=", "1+1=", "2+2=", "2+2="]
    first, second, third = (output["observation_tokens"] for output in outputs)
    assert first == third != second


def test_without_a_rule_the_reward_is_left_to_the_reward_model():
    assert execute(RewardExecutor(None, RewardConfig()), "abc")["reward"] is None
