import json
import math
from dataclasses import replace

import pytest
import torch
from character_tokenizer import character_tokenizer
from played_engines import failed, one_step
from played_ray import PlayedActor
from run_flags import run_flags

from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.evaluation.plan import Completion
from openrlhf_cov.evaluation.response_records import Response
from openrlhf_cov.trainer.evaluation import (
    BenchmarkEvaluation,
    PromptEvaluation,
    best_metric,
    load_evaluation,
    plan_of,
    prompt_metrics,
)
from openrlhf_cov.trainer.records import Sample
from openrlhf_cov.trainer.rollout.generation import EngineGroup
from openrlhf_cov.trainer.rollout.prompts import Prompt

TOKENIZER = character_tokenizer()


@pytest.fixture
def make_args(tmp_path):
    """Function (flags) -> arguments of a training that evaluates on a file of three problems."""
    rows = [{"id": str(n), "problem": f"{n}+{n}=", "answer": str(2 * n), "source": "math"} for n in range(3)]
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(
        samples=None, temperature=None, max_len=100, dataset=f"bench:{file}", seeded=False, determinism=False, **flags
    ):
        config = {f"eval_{name}": value for name, value in ({"template": "none"} | flags).items()}
        return run_flags(config | {
            "eval.dataset": dataset, "eval.n_samples_per_prompt": samples, "eval.temperature": temperature,
            "data.max_len": max_len, "train.seed": 7, "train.full_determinism_enable": determinism,
            "rollout_seeded": seeded,
        })  # fmt: skip

    return make


def response(problem: int, sample: int, **values) -> Response:
    defaults = dict(benchmark="sums", id=str(problem), sample=sample, seed=None, text="", tokens=10, prompt_tokens=4)
    defaults |= dict(truncated=False, surprisal=None, answer="1", status="graded", correct=False)
    return Response(**(defaults | values))


def test_flags_replace_the_settings_of_the_protocol(make_args):
    (greedy,) = plan_of(make_args(), TOKENIZER).benchmarks
    assert (greedy.samples, greedy.temperature, greedy.max_tokens) == (1, 0.0, 8192)
    given = make_args(samples=4, temperature=0.7, max_tokens=50, limit=2)
    (sampled,) = plan_of(given, TOKENIZER).benchmarks
    assert (sampled.samples, sampled.temperature, sampled.max_tokens) == (4, 0.7, 50)
    assert (sampled.problems, sampled.complete) == (2, False)
    assert best_metric(plan_of(given, TOKENIZER)) == "eval/sums/avg@4"


def test_the_curve_is_by_the_grader_strict_whichever_rewards(make_args):
    args = make_args(samples=1, temperature=0.0)
    args.reward_grader = "published"
    (request, *_) = (evaluation := BenchmarkEvaluation(plan_of(args, TOKENIZER), args)).requests
    graded = evaluation.grader(request, Completion(r"\boxed{1-1}", 3, 4, False))
    assert (graded.correct, graded.published) == (False, None)


@pytest.mark.parametrize("repeatable", [{}, {"seeded": True}, {"determinism": True}])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_requests_have_seeds_where_a_run_is_to_repeat(make_args, repeatable, temperature):
    samples = 2 if temperature else 1
    args = make_args(samples=samples, temperature=temperature, **repeatable)
    plan = plan_of(args, TOKENIZER)
    seeds = [request.seed for request in BenchmarkEvaluation(plan, args).requests]
    if repeatable and temperature:
        assert seeds == [request.seed for request in plan.requests(seed=7, max_model_len=100)]  # those of `evaluate`
        assert len(set(seeds)) == 6  # 3 problems x 2 samples
    else:
        assert seeds == [None] * 3 * samples


def test_prompt_and_response_fit_into_max_len(make_args):
    # prompts have 4 characters, so 4 tokens
    args = make_args(max_len=20, max_tokens=50)
    evaluation = BenchmarkEvaluation(plan_of(args, TOKENIZER), args)
    assert [request.max_tokens for request in evaluation.requests] == [16, 16, 16]


def test_metrics_by_hand(make_args):
    args = make_args(samples=2, temperature=1.0)
    evaluation = BenchmarkEvaluation(plan_of(args, TOKENIZER), args)
    responses = [  # in no order, as they finish; right: 1 of 2, 0 of 2, 2 of 2
        response(2, 1, correct=True, tokens=40),
        response(1, 1, status="no_answer", answer=None),
        response(0, 0, correct=True),
        response(1, 0, status="no_answer", answer=None, truncated=True, tokens=20),
        response(2, 0, correct=True),
        response(0, 1, truncated=True, tokens=20),
    ]
    assert evaluation.metrics(responses) == {
        "eval/sums/avg@2": 0.5,
        "eval/sums/pass@2": pytest.approx(2 / 3),
        "eval/sums/response_length_mean": pytest.approx(110 / 6),
        "eval/sums/truncated_frac": pytest.approx(2 / 6),
        "eval/sums/no_answer_frac": pytest.approx(2 / 6),
        "eval/mean/avg": 0.5,
    }


def test_the_mean_over_benchmarks_weighs_each_the_same(make_args, tmp_path):
    # one of the three sums right, and the only difference right
    other = tmp_path / "differences.jsonl"
    other.write_text('{"id": "0", "problem": "2-1", "answer": "1", "source": "math"}\n')
    args = make_args()
    args.eval.dataset += f",{other}"
    evaluation = BenchmarkEvaluation(plan_of(args, TOKENIZER), args)
    responses = [response(n, 0, correct=n == 0) for n in range(3)]
    responses.append(replace(response(0, 0, correct=True), benchmark="differences"))
    metrics = evaluation.metrics(responses)
    assert (metrics["eval/sums/avg@1"], metrics["eval/differences/avg@1"]) == (pytest.approx(1 / 3), 1.0)
    assert metrics["eval/mean/avg"] == pytest.approx(2 / 3)


def test_responses_come_from_the_engines_and_are_graded(make_args, played_ray):
    def complete(request):
        n = int(request.key[1])
        return Completion(f"\\boxed{{{2 * n if n else 5}}}", tokens=3, prompt_tokens=4, truncated=False)

    engines = EngineGroup([PlayedActor(complete=complete)])
    evaluation = load_evaluation(make_args(), None, TOKENIZER, None)
    assert isinstance(evaluation, BenchmarkEvaluation)
    assert {each.id: each.correct for each in evaluation.respond(engines)} == {"0": False, "1": True, "2": True}
    metrics = evaluation.run(engines)
    assert metrics["eval/sums/avg@1"] == pytest.approx(2 / 3)
    assert "eval/sums/pass@1" not in metrics


def test_a_prompt_without_room_counts_as_wrong(make_args):
    args = make_args(max_len=4)
    metrics = BenchmarkEvaluation(plan_of(args, TOKENIZER), args).run(EngineGroup([]))
    assert (metrics["eval/sums/avg@1"], metrics["eval/sums/truncated_frac"]) == (0.0, 1.0)


def test_what_cannot_be_evaluated_is_refused_and_nothing_is_no_evaluation(make_args):
    assert load_evaluation(make_args(dataset=None), None, TOKENIZER, None) is None
    with pytest.raises(UsageError, match="a name is empty"):
        plan_of(make_args(dataset="bench:"), TOKENIZER)
    with pytest.raises(RunStopped, match=r"--eval\.dataset: a response came without a reward"):
        prompt_metrics([Prompt(0, "a", "")], [[sample("a", None, reward=None)]])


def sample(prompt: str, score: float | None, length: int = 3, **values) -> Sample:
    mask = torch.ones(length, dtype=torch.bool)
    values = {"reward": 0.3} | values
    return Sample(tokens=torch.zeros(length + 1), action_mask=mask, prompt=prompt, score=score, **values)


@pytest.mark.parametrize("source", [None, "", "default", math.nan])
def test_rows_without_a_source_have_the_name_of_the_training(source):
    of_label = Prompt(0, "a", {"answer": "1", "source": "maths"}, source=source)
    assert "eval_default_pass1" in prompt_metrics([Prompt(0, "a", "", source=source)], [[sample("a", 1.0)]])
    assert "eval_maths_pass1" in prompt_metrics([of_label], [[sample("a", 1.0)]])


def test_metrics_of_prompts_by_hand():
    prompts = [Prompt(0, "a", "", source="sums"), Prompt(1, "b", "", source="x/y"), Prompt(2, "c", "", source="sums")]
    groups = [
        [sample("a", 1.0, 2), sample("a", 0.0, 4)],
        [sample("b", 0.0, 5, truncated=True), sample("b", math.nan, 5, abstained=True)],  # not solved
        [sample("c", None, 6, reward=0.25), sample("c", 0.75, 8)],  # of a reward model
    ]
    assert prompt_metrics(prompts, groups) == {
        "eval_sums_pass2": (1.0 + 0.75) / 2,
        "eval_sums_pass1": (0.5 + 0.5) / 2,
        "eval_sums_response_length_mean": 20 / 4,
        "eval_sums_truncated_rate": 0.0,
        "eval_x/y_pass2": 0.0,
        "eval_x/y_pass1": 0.0,
        "eval_x/y_response_length_mean": 5.0,
        "eval_x/y_truncated_rate": 0.5,
        "eval_response_length_mean": 30 / 6,
        "eval_truncated_rate": 1 / 6,
        "eval_num_samples": 6.0,
    }
    assert prompt_metrics([], []) == {}


def evaluation_of(sampler, prompts=3) -> PromptEvaluation:
    data = [Prompt(place, str(place), "x", source="task") for place in range(prompts)]
    return PromptEvaluation(data, sampler.args, sampler.requests)


def test_an_evaluation_takes_all_prompts_and_leaves_the_training_data_alone(make_sampler):
    sampler, handles = make_sampler(engines=2, ranks=4, train_batch=2, rollout_seeded=True)
    evaluation = evaluation_of(sampler)
    for _ in range(2):
        # prompt 0 is all right, 1 half right, 2 all wrong
        metrics = evaluation.run(sampler.engines)
        assert metrics["eval_task_pass2"] == pytest.approx(2 / 3)
        assert metrics["eval_task_pass1"] == pytest.approx(1 / 2)
        assert metrics["eval_num_samples"] == 6.0
    asked = [
        (prompt, *each["seeds"])
        for handle in handles
        for prompt, each in zip(handle.requests, handle.asked, strict=True)
    ]
    assert len(asked) == 6
    assert len(set(asked)) == 3  # both evaluations have the same seeds
    assert {each["sampling_params"].temperature for handle in handles for each in handle.asked} == {0.5}
    assert sampler.order.drawn == 0
    assert one_step(sampler)[0] == [1, 3, 5, 7]


def test_failed_rewards_stop_an_evaluation(make_sampler):
    sampler, _ = make_sampler(failures={0: {1: [failed("0", "x")] * 2}})
    with pytest.raises(RunStopped, match="the reward of 2 of 6 responses failed"):
        evaluation_of(sampler).run(sampler.engines)


def test_engines_are_awake_during_an_evaluation(make_sampler, played_ray):
    sampler, (engine,) = make_sampler()
    sampler.args.vllm.enable_sleep = True
    calls = []
    for method in ("wake_up", "sleep"):
        getattr(engine, method).remote = lambda method=method: calls.append((method, len(engine.requests)))
    evaluation_of(sampler).run(sampler.engines)
    assert calls == [("wake_up", 0), ("sleep", 3)]
