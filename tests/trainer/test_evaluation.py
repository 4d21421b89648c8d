import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from openrlhf_cov.config import EngineConfig, EvaluationConfig, RewardConfig
from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.plan import Completion, EvaluationPlan
from openrlhf_cov.evaluation.records import Response
from openrlhf_cov.trainer.benchmark_evaluation import (
    BenchmarkEvaluation,
    best_metric,
    of_benchmarks,
    plan_of,
    with_benchmarks,
)


class Tokenizer:
    """One token per character."""

    def __call__(self, texts, add_special_tokens):
        return {"input_ids": [[ord(letter) for letter in text] for text in texts]}


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
        return SimpleNamespace(
            eval=SimpleNamespace(dataset=dataset, n_samples_per_prompt=samples, temperature=temperature),
            data=SimpleNamespace(max_len=max_len),
            train=SimpleNamespace(seed=7, full_determinism_enable=determinism),
            rollout_seeded=seeded,
            **vars(RewardConfig()),
            **vars(EngineConfig()),
            **vars(EvaluationConfig(**config)),
        )

    return make


def response(problem: int, sample: int, **values) -> Response:
    defaults = dict(benchmark="sums", id=str(problem), sample=sample, seed=None, text="", tokens=10, prompt_tokens=4)
    defaults |= dict(truncated=False, surprisal=None, answer="1", status="graded", correct=False)
    return Response(**(defaults | values))


def test_the_chat_template_has_the_arguments_of_the_training(make_args):
    class Chat(Tokenizer):
        chat_template = "{{ enable_thinking }}"

        def apply_chat_template(self, messages, tokenize, add_generation_prompt, **arguments):
            return f"{messages[0]['content'][:4]} {arguments}"

    args = make_args(template="chat")
    args.chat_template_kwargs = '{"enable_thinking": false}'
    assert plan_of(args, Chat()).prompts[0][0] == "0+0= {'enable_thinking': False}"
    args.eval_template = "none"  # does not use the chat template
    assert plan_of(args, Chat()).prompts[0][0] == "0+0="


def test_flags_replace_the_settings_of_the_protocol(make_args):
    (greedy,) = plan_of(make_args(), Tokenizer()).benchmarks
    assert (greedy.samples, greedy.temperature, greedy.max_tokens) == (1, 0.0, 8192)
    given = make_args(samples=4, temperature=0.7, max_tokens=50, limit=2)
    (sampled,) = plan_of(given, Tokenizer()).benchmarks
    assert (sampled.samples, sampled.temperature, sampled.max_tokens) == (4, 0.7, 50)
    assert (sampled.problems, sampled.complete) == (2, False)
    assert best_metric(plan_of(given, Tokenizer())) == "eval/sums/avg@4"


def test_no_names_are_refused(make_args):
    with pytest.raises(UsageError, match="a name is empty"):
        plan_of(make_args(dataset="bench:"), Tokenizer())


def test_the_curve_is_by_the_grader_strict_whichever_rewards(make_args):
    args = make_args(samples=1, temperature=0.0)
    args.reward_grader = "published"
    (request, *_) = (evaluation := BenchmarkEvaluation(plan_of(args, Tokenizer()), args)).requests
    graded = evaluation.grader(request, Completion(r"\boxed{1-1}", 3, 4, False))
    assert (graded.correct, graded.published) == (False, None)


@pytest.mark.parametrize("repeatable", [{}, {"seeded": True}, {"determinism": True}])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_requests_have_seeds_where_a_run_is_to_repeat(make_args, repeatable, temperature):
    samples = 2 if temperature else 1
    args = make_args(samples=samples, temperature=temperature, **repeatable)
    plan = plan_of(args, Tokenizer())
    seeds = [request.seed for request in BenchmarkEvaluation(plan, args).requests]
    if repeatable and temperature:
        assert seeds == [request.seed for request in plan.requests(seed=7, max_model_len=100)]  # those of `evaluate`
        assert len(set(seeds)) == 6  # 3 problems x 2 samples
    else:
        assert seeds == [None] * 3 * samples


def test_prompt_and_response_fit_into_max_len(make_args):
    # prompts have 4 characters, so 4 tokens
    args = make_args(max_len=20, max_tokens=50)
    evaluation = BenchmarkEvaluation(plan_of(args, Tokenizer()), args)
    assert [request.max_tokens for request in evaluation.requests] == [16, 16, 16]


def test_metrics_by_hand(make_args):
    args = make_args(samples=2, temperature=1.0)
    evaluation = BenchmarkEvaluation(plan_of(args, Tokenizer()), args)
    responses = [  # in no order, as they finish; right: 1 of 2, 0 of 2, 2 of 2
        response(2, 1, correct=True, tokens=40),
        response(0, 0, correct=True),
        response(1, 1, status="no_answer", answer=None),
        response(2, 0, correct=True),
        response(0, 1, truncated=True, tokens=20),
        response(1, 0, status="no_answer", answer=None, truncated=True, tokens=20),
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
    evaluation = BenchmarkEvaluation(plan_of(args, Tokenizer()), args)
    responses = [response(n, 0, correct=n == 0) for n in range(3)]
    responses.append(replace(response(0, 0, correct=True), benchmark="differences"))
    metrics = evaluation.metrics(responses)
    assert (metrics["eval/sums/avg@1"], metrics["eval/differences/avg@1"]) == (pytest.approx(1 / 3), 1.0)
    assert metrics["eval/mean/avg"] == pytest.approx(2 / 3)


def test_responses_come_from_the_engines_and_are_graded(make_args, monkeypatch):
    from openrlhf_cov.trainer.ray import completions

    def generate(engines, requests, sequences):
        assert engines == "the engines of the training"
        assert sequences == 128  # of an engine on a CPU host, such as this one
        for request in reversed(requests):
            n = int(request.key[1])
            yield request, Completion(f"\\boxed{{{2 * n if n else 5}}}", tokens=3, prompt_tokens=4, truncated=False)

    monkeypatch.setattr(completions, "generate", generate)
    args = make_args()
    evaluation = BenchmarkEvaluation(plan_of(args, Tokenizer()), args)
    responses = evaluation.respond("the engines of the training")
    assert {each.id: each.correct for each in responses} == {"0": False, "1": True, "2": True}
    metrics = of_benchmarks(lambda *args: {"upstream": 1.0})(evaluation, responses, None)
    assert metrics["eval/sums/avg@1"] == pytest.approx(2 / 3)
    assert "eval/sums/pass@1" not in metrics


def test_a_prompt_without_room_counts_as_wrong(make_args, monkeypatch):
    from openrlhf_cov.trainer.ray import completions

    monkeypatch.setattr(completions, "generate", lambda engines, requests, sequences: iter(()))
    args = make_args(max_len=4)
    evaluation = BenchmarkEvaluation(plan_of(args, Tokenizer()), args)
    metrics = evaluation.metrics(evaluation.respond(None))
    assert (metrics["eval/sums/avg@1"], metrics["eval/sums/truncated_frac"]) == (0.0, 1.0)


def test_upstream_prepares_the_prompts_alone(make_args):
    seen = []

    def prepare_datasets(strategy, tokenizer):
        seen.append(strategy.args.eval.dataset)
        return "prompts", "evaluation", 12

    prepare = with_benchmarks(prepare_datasets)
    args = make_args()
    prompts, evaluation, steps = prepare(SimpleNamespace(args=args), Tokenizer())
    assert (prompts, steps, seen) == ("prompts", 12, [None])
    assert isinstance(evaluation, BenchmarkEvaluation)
    assert isinstance(evaluation.plan, EvaluationPlan)
    assert args.eval.dataset.startswith("bench:")
    other = SimpleNamespace(args=make_args(dataset="data.jsonl"))
    assert prepare(other, Tokenizer()) == ("prompts", "evaluation", 12)


def test_other_evaluations_are_upstreams(make_args):
    assert of_benchmarks(lambda *args: {"upstream": args})("loader", ["samples"], 4) == {
        "upstream": ("loader", ["samples"], 4)
    }
