import json
from dataclasses import replace

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.benchmarks import GREEDY, PROTOCOLS, Benchmark, Sampling, own_benchmark, select
from openrlhf_cov.evaluation.plan import EvaluationPlan, PromptedProblem, make_plan
from openrlhf_cov.evaluation.response_records import AskedProblem, BenchmarkSettings
from openrlhf_cov.utils.seeds import seed_of

WARM = Sampling(samples=4, temperature=0.6, top_p=0.9, max_tokens=100)
ROWS = [{"id": f"p{n}", "problem": f"What is {n} + {n} ?", "answer": str(2 * n), "source": "math"} for n in range(3)]
NO_OVERRIDES = dict.fromkeys(("samples", "temperature", "top_p", "max_tokens"))
IDS = {"<s>": 0, "<unk>": 1, "What": 2, "is": 3, "0": 4, "1": 5, "2": 6, "+": 7, "?": 8}


@pytest.fixture
def tokenizer():
    """Words; like Llama's it puts <s> before every text."""
    words = Tokenizer(WordLevel(IDS, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    words.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", unk_token="<unk>")


@pytest.fixture
def sums(tmp_path):
    """Function (rows, sampling) -> a benchmark of its own file."""

    def make(rows=ROWS, sampling=WARM):
        path = tmp_path / "sums.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return replace(own_benchmark(path), sampling=sampling)

    return make


def plan_of(*benchmarks, protocol="paper", overrides=(), limit=None, template="none", tokenizer=None, data_dir=None):
    return make_plan(
        benchmarks,
        PROTOCOLS[protocol],
        NO_OVERRIDES | dict(overrides),
        data_dir=data_dir,
        limit=limit,
        template=template,
        tokenizer=tokenizer,
    )


def requests_of(plan, seed=0, max_model_len=None, **settings):
    return list(plan.requests(seed=seed, max_model_len=max_model_len, **settings))


def test_every_sample_of_every_problem_in_order(sums):
    plan = plan_of(sums(ROWS[:2], replace(WARM, samples=2)))
    requests = requests_of(plan, log_probs=True)
    assert [request.key for request in requests] == [
        ("sums", "p0", 0), ("sums", "p0", 1), ("sums", "p1", 0), ("sums", "p1", 1),
    ]  # fmt: skip
    assert [request.prompt for request in requests[1:3]] == ["What is 0 + 0 ?", "What is 1 + 1 ?"]
    assert {(r.temperature, r.top_p, r.max_tokens, r.log_probs, r.fits) for r in requests} == {
        (0.6, 0.9, 100, True, True)
    }
    assert plan.problems[1] == AskedProblem(
        benchmark="sums", id="p1", problem="What is 1 + 1 ?", answer="2", source="math"
    )


def test_benchmarks_follow_each_other_each_by_its_own_sampling(tmp_path):
    for name, rows in (("one", ROWS[:1]), ("two", ROWS[1:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    one, two = (
        Benchmark(name=name, version=3, title="", rows=rows, sampling=how, grader="math", hub=None)
        for name, rows, how in (("one", 1, WARM), ("two", 2, GREEDY))
    )
    plan = plan_of(one, two, data_dir=tmp_path)
    assert [request.key[:2] for request in requests_of(plan)] == [("one", "p0")] * 4 + [("two", "p1"), ("two", "p2")]
    assert [(b.name, b.version, b.problems, b.complete, b.samples) for b in plan.benchmarks] == [
        ("one", 3, 1, True, 4),
        ("two", 3, 2, True, 1),
    ]


def test_seeds_follow_from_run_benchmark_problem_and_sample_alone(sums):
    requests = requests_of(plan_of(sums()), seed=7)
    assert [r.seed for r in requests] == [seed_of(7, *r.key) for r in requests]
    assert len({r.seed for r in requests}) == len(requests) == 12
    # neither the other problems nor their order, nor how it is asked, change the seed of a sample
    seeds = {r.key: r.seed for r in requests}
    for plan in (
        plan_of(sums(ROWS[::-1])),
        plan_of(sums(), limit=1),
        plan_of(sums(), template="plain", overrides={"temperature": 1.0, "top_p": 0.5, "max_tokens": 3}),
        plan_of(sums(), overrides={"samples": 2}),
    ):
        assert {r.key: r.seed for r in requests_of(plan, seed=7, max_model_len=50)}.items() <= seeds.items()
    assert not {r.seed for r in requests_of(plan_of(sums()), seed=8)} & set(seeds.values())
    assert {r.seed for r in requests_of(plan_of(sums(sampling=GREEDY)))} == {None}


def test_problems_of_the_package_are_asked_for_programs_too():
    """Its benchmark has a file, as those of a user have, whose rows say themselves what grades them."""
    (benchmark,) = select("code_basics")
    for template in ("qwen-boxed", "plain", "chat"):
        with pytest.raises(UsageError, match=f"--template {template} does not ask for what code_basics grades; use"):
            plan_of(benchmark, template=template)
    for template in ("qwen-code", "plain-code", "none"):
        assert len(plan_of(benchmark, template=template).problems) == 20


def numbered(length, max_tokens):
    """A plan of one prompt of ``length`` tokens."""
    settings = BenchmarkSettings(
        name="b", version=1, problems=1, complete=True, samples=1, temperature=0.0, top_p=1.0, max_tokens=max_tokens,
        grader="math", sha256="",
    )  # fmt: skip
    problem = AskedProblem(benchmark="b", id="p", problem="?", answer="1", source="s")
    return EvaluationPlan((settings,), (PromptedProblem(problem, "?", tuple(range(length))),))


@pytest.mark.parametrize(
    ("prompt", "max_model_len", "expected"),
    [
        (10, None, 20),
        (10, 40, 20),
        (10, 30, 20),  # 10 + 20 = 30: it just fits
        (10, 29, 19),
        (10, 11, 1),
        (10, 10, 0),  # no room for one token
        (10, 9, 0),
    ],
)
def test_a_response_is_cut_to_the_room_its_prompt_leaves(prompt, max_model_len, expected):
    (request,) = requests_of(numbered(prompt, max_tokens=20), max_model_len=max_model_len)
    assert request.max_tokens == expected
    assert request.fits == (expected > 0)


def test_a_prompt_of_unknown_length_is_not_cut(sums):
    (request,) = requests_of(plan_of(sums(ROWS[:1], GREEDY)), max_model_len=3)
    assert (request.prompt_ids, request.max_tokens) == (None, 8192)


def test_the_tokenizer_adds_its_special_tokens(sums, tokenizer):
    plan = plan_of(sums(ROWS[1:2]), tokenizer=tokenizer)
    (item,) = plan.items
    assert (item.prompt, item.prompt_ids) == ("What is 1 + 1 ?", (0, 2, 3, 5, 7, 5, 8))
    assert plan.longest_prompt == 7
    assert requests_of(plan)[0].prompt_ids == (0, 2, 3, 5, 7, 5, 8)


def test_problems_that_the_tokenizer_cannot_write_are_refused(sums):
    digits = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"0": 0}, unk_token="<unk>")))
    with pytest.raises(UsageError, match=r"^sums: the tokenizer of the model cannot write its problems \(.*UNK"):
        plan_of(sums(ROWS), tokenizer=digits)


@pytest.mark.parametrize(
    ("sampling", "protocol", "overrides", "expected"),
    [
        (WARM, "paper", {}, WARM),
        (GREEDY, "quick", {}, PROTOCOLS["quick"].sampling),
        (WARM, "paper", {"max_tokens": 5, "top_p": 0.5}, replace(WARM, max_tokens=5, top_p=0.5)),
        (WARM, "paper", {"temperature": 0.0}, replace(WARM, temperature=0.0, samples=1)),  # greedy: one says all
        (GREEDY, "paper", {"temperature": 1.0, "samples": 8}, replace(GREEDY, temperature=1.0, samples=8)),
        (WARM, "quick", {"samples": 2}, replace(PROTOCOLS["quick"].sampling, samples=2)),
    ],
)
def test_overrides_replace_what_the_protocol_says(sums, sampling, protocol, overrides, expected):
    (settings,) = plan_of(sums(sampling=sampling), protocol=protocol, overrides=overrides).benchmarks
    assert Sampling(**{name: getattr(settings, name) for name in NO_OVERRIDES}) == expected


@pytest.mark.parametrize(
    ("limit", "problems", "complete"), [(None, 3, True), (2, 2, False), (3, 3, True), (9, 3, True)]
)
def test_a_limit_takes_the_first_and_says_so_unless_these_are_all(sums, limit, problems, complete):
    plan = plan_of(sums(), limit=limit)
    (settings,) = plan.benchmarks
    assert (settings.problems, settings.complete) == (problems, complete)
    assert [problem.id for problem in plan.problems] == ["p0", "p1", "p2"][:problems]


def test_with_a_limit_the_whole_file_is_checked(sums):
    with pytest.raises(UsageError, match="line 3: answer: must not be empty"):
        plan_of(sums([*ROWS[:2], ROWS[2] | {"answer": ""}]), limit=1)


@pytest.mark.parametrize("field", ["id", "problem", "answer", "source"])
def test_the_fingerprint_changes_with_every_field(sums, field):
    def sha256(rows):
        return plan_of(sums(rows)).benchmarks[0].sha256

    changed = [dict(each) for each in ROWS]
    changed[1][field] += "/0"  # a source begins with its rule
    assert sha256(changed) != sha256(ROWS)
    assert sha256([each | {"more": 1} for each in ROWS]) == sha256(ROWS)  # what is not asked changes nothing


def test_the_fingerprint_is_that_of_the_order_and_of_what_is_asked(sums):
    whole = plan_of(sums()).benchmarks[0].sha256
    assert plan_of(sums(ROWS[::-1])).benchmarks[0].sha256 != whole
    assert plan_of(sums(), limit=2).benchmarks[0].sha256 == plan_of(sums(ROWS[:2])).benchmarks[0].sha256 != whole
    assert plan_of(sums(), overrides={"samples": 1}, template="plain").benchmarks[0].sha256 == whole
    assert len(whole) == 64


def test_answers_that_cannot_be_graded_are_noted(sums):
    rows = [ROWS[0], ROWS[1] | {"answer": "\\frac{1}{2"}, ROWS[2] | {"source": "gsm8k", "answer": "two"}]
    assert plan_of(sums(rows)).benchmarks[0].ungradable == ("p1", "p2")
    assert plan_of(sums(rows), limit=2).benchmarks[0].ungradable == ("p1",)
