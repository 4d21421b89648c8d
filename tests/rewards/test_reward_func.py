import pytest
import torch

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.rewards import reward_func as module
from openrlhf_cov.rewards.reward_func import STATUS_METRICS, make_check_label, make_reward_func, response_of

PROMPT = "What is 2 + 3? "
# right, wrong, no answer, unreadable
RESPONSES = [r"\boxed{5}", r"\boxed{6}", "five", r"\boxed{\foo}"]


def run(config, responses=RESPONSES, labels=None):
    labels = labels or ["5"] * len(responses)
    prompts = [PROMPT] * len(responses)
    return make_reward_func(config)([PROMPT + response for response in responses], prompts, labels)


@pytest.mark.parametrize(
    ("incorrect", "bonus", "rewards"),
    [
        (0.0, 0.0, [1.0, 0.0, 0.0, 0.0]),
        (-1.0, 0.0, [1.0, -1.0, -1.0, -1.0]),  # DAPO
        (0.0, 0.25, [1.25, 0.25, 0.0, 0.25]),  # the bonus is for an answer in the format, readable or not
        (-1.0, 0.5, [1.5, -0.5, -1.0, -0.5]),
    ],
)
def test_shaping_moves_rewards_and_never_scores(incorrect, bonus, rewards):
    result = run(RewardConfig(reward_incorrect=incorrect, reward_format_bonus=bonus))
    assert result["rewards"].tolist() == rewards
    assert result["scores"].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert result["truncated_rewards"].tolist() == [incorrect] * 4  # neither correctness nor format
    for key in ("rewards", "scores", "truncated_rewards"):
        assert result[key].dtype == torch.float32
        assert result[key].shape == (4,)


def test_statuses_are_counted():
    logs = run(RewardConfig())["extra_logs"]
    assert set(logs) == set(STATUS_METRICS.values())
    assert logs["reward/no_answer_frac"].tolist() == [0.0, 0.0, 1.0, 0.0]
    assert logs["reward/unparsable_frac"].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert logs["reward/timeout_frac"].tolist() == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.slow
def test_a_timeout_is_wrong_and_counted():
    # 42 functions, each computed to some hundred digits at 22 points
    answer = "+".join(rf"\frac{{3\sin({k}x)}}{{2}}" for k in range(2, 23))
    gold = "+".join(rf"\frac{{3}}{{2}}\sin({k}x)" for k in range(2, 23))
    result = run(RewardConfig(reward_timeout=0.05), [rf"\boxed{{{answer}}}", r"\boxed{5}"], [gold, "5"])
    assert result["scores"].tolist() == [0.0, 1.0]
    assert result["extra_logs"]["reward/timeout_frac"].tolist() == [1.0, 0.0]


def test_labels_with_a_source():
    labels = [{"answer": "B", "source": "choice"}, {"answer": "#### 6", "source": "gsm8k"}, 5, "5"]
    result = run(
        RewardConfig(reward_source="row"), [r"\boxed{B. 5}", r"\boxed{6}", r"\boxed{5}", r"\boxed{6}"], labels
    )
    assert result["scores"].tolist() == [1.0, 1.0, 1.0, 0.0]


def test_rows_of_programs_have_the_metrics_of_programs_and_others_do_not():
    # One call for each response, as in training. Thinking that is not closed has no program, which passes no test.
    tests = {"answer": '{"inputs": ["1"], "outputs": ["2"]}', "source": "code/own"}
    config = RewardConfig(reward_source="row")
    of_code = run(config, ["<think> It is"], [tests])["extra_logs"]
    assert of_code["reward/code_test_share"].tolist() == [0.0]
    assert "reward/code_test_share" not in run(config, [r"\boxed{5}"], ["5"])["extra_logs"]


def test_the_prompt_is_not_read_as_the_answer():
    prompt = r"Write \boxed{5}. "
    result = make_reward_func(RewardConfig())([prompt + "no"], [prompt], ["5"])
    assert result["scores"].tolist() == [0.0]


@pytest.mark.parametrize(
    ("query", "prompt", "response"),
    [
        ("abc", "a", "bc"),
        ("abc", "abc", ""),
        ("abab", "ab", "ab"),  # the response may repeat the prompt
        ("x" * 50 + "y" * 200 + "rest", "z" * 100 + "y" * 200, "rest"),  # the beginning of the prompt was cut off
        # also where the response repeats the end of its prompt, the prompt ends at the first of them
        ("y" * 200 + "Is " + "y" * 200 + " it? 5", "z" * 100 + "y" * 200, "Is " + "y" * 200 + " it? 5"),
    ],
)
def test_response_of(query, prompt, response):
    assert response_of(query, prompt) == response


@pytest.mark.parametrize(("query", "prompt"), [("abc", "d"), ("", "d"), ("abc" * 100, "d" * 300)])
def test_a_query_without_its_prompt_is_an_error(query, prompt):
    with pytest.raises(ValueError, match="the query does not contain the end of its prompt"):
        response_of(query, prompt)


@pytest.mark.parametrize("label", [None, "", [], {"answer": ""}])
def test_a_label_that_cannot_be_graded_is_an_error(label):
    with pytest.raises(ValueError, match="a label is"):
        make_reward_func(RewardConfig())([PROMPT + r"\boxed{5}"], [PROMPT], [label])
    with pytest.raises(ValueError, match="a label is"):
        make_check_label(RewardConfig())(label)


def test_as_many_labels_as_queries():
    with pytest.raises(ValueError, match="argument 3 is shorter"):
        make_reward_func(RewardConfig())([PROMPT + "5"], [PROMPT], [])


def test_upstream_finds_the_names_it_loads():
    result = module.reward_func([PROMPT + r"\boxed{5}"], [PROMPT], ["5"], unused=1)
    assert result["rewards"].tolist() == [1.0]
    assert module.check_label("5") is None
