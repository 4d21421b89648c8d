"""The benchmarks and the protocols they are run by: frozen records, and the choice among them by name (pure).

A version counts up whenever a benchmark's problems, answers, rule or default sampling change: results compare only
within one version. The names of datasets and fields on the Hugging Face hub are those that public code loads; they
could not be tried here, on a host without the hub. Wrong ones stop the run: row count and fields are checked.
"""

import difflib
from dataclasses import dataclass
from pathlib import Path

from openrlhf_cov.data.hub import HubDataset
from openrlhf_cov.errors import UsageError
from openrlhf_cov.rewards.code import datasets
from openrlhf_cov.rewards.code.datasets import Converter
from openrlhf_cov.utils.text_table import aligned


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The sampling settings of a benchmark or of a whole run.

    Raises:
        ValueError: The settings are impossible, such as repeated greedy decoding.
    """

    # Responses per problem.
    samples: int
    # 0: greedy.
    temperature: float
    top_p: float
    # Longest response, in tokens.
    max_tokens: int

    def __post_init__(self) -> None:
        for name in ("samples", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} {getattr(self, name)}: must be at least 1")
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"--temperature {self.temperature}: must be a finite number of at least 0")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"--top_p {self.top_p}: must be a fraction in (0, 1]")
        if self.temperature == 0.0 and self.samples > 1:
            raise ValueError(
                f"--samples {self.samples} with --temperature 0: greedy responses are all the same; use 1"
            )


AVG_AT_32 = Sampling(samples=32, temperature=0.6, top_p=1.0, max_tokens=8192)
GREEDY = Sampling(samples=1, temperature=0.0, top_p=1.0, max_tokens=8192)


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One set of problems with the rule that grades it and its default sampling, which is the paper's."""

    name: str
    version: int = 1
    title: str
    # Problems in ``<name>.jsonl``; None: however many the file has.
    rows: int | None = None
    sampling: Sampling = GREEDY
    # Key of ``openrlhf_cov.rewards.sources.SOURCES``, or ``row``: the field ``source`` of each problem names it.
    grader: str = "math"
    # None: the set is not on the hub.
    hub: HubDataset | None = None
    # Another file name that is read where ``<name>.jsonl`` is not there.
    file: str | None = None
    # The file itself, of a benchmark that is not one of ours, or that comes with the package.
    path: Path | None = None
    # Makes problem and answer from a row of the dataset, on the hub or in the file, if they are no fields of it.
    convert: Converter | None = None
    # Key of ``openrlhf_cov.rewards.code.comparison.JUDGES``, the published judge that compares outputs. Empty: the
    # label names the judge.
    judge: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the local file, the preferred one first."""
        return (f"{self.name}.jsonl", *([self.file] if self.file else []))


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The sampling and prompting of all benchmarks of a run."""

    name: str
    # Key of ``openrlhf_cov.data.templates.TEMPLATES``.
    template: str
    # One sampling for all benchmarks; None for each benchmark's own.
    sampling: Sampling | None

    def sampling_of(self, benchmark: Benchmark) -> Sampling:
        """Return the sampling of one benchmark: that of the protocol, or else the benchmark's own."""
        return self.sampling or benchmark.sampling


# --protocol. ``paper`` is arXiv 2505.22617: avg@32 at temperature 0.6 for AIME and AMC, greedy for the rest.
PROTOCOLS: dict[str, Protocol] = {
    "paper": Protocol(name="paper", template="qwen-boxed", sampling=None),
    "quick": Protocol(
        name="quick",
        template="qwen-boxed",
        sampling=Sampling(samples=4, temperature=0.6, top_p=1.0, max_tokens=2048),
    ),
}


def _programs(
    name: str,
    title: str,
    path: str,
    convert: Converter,
    *,
    rows: int | None = None,
    id: str = "task_id",
    config: str | None = None,
    judge: str = "",
    version: int = 1,
) -> Benchmark:
    """Return a benchmark of programs. ``path`` is its name on the hub, where its rows have fields of their own."""
    hub = HubDataset(path=path, id=id, config=config)
    return Benchmark(
        name=name, version=version, title=title, rows=rows, grader="code", hub=hub, convert=convert, judge=judge
    )


# --benchmarks, by name, in the order of the tables.
BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            name="aime24",
            title="AIME 2024 I and II",
            rows=30,
            sampling=AVG_AT_32,
            hub=HubDataset(path="Maxwell-Jia/AIME_2024", split="train", problem="Problem", answer="Answer", id="ID"),
        ),
        Benchmark(
            name="aime25",
            title="AIME 2025 I and II",
            rows=30,
            sampling=AVG_AT_32,
            hub=HubDataset(path="math-ai/aime25", id="id"),
        ),
        Benchmark(
            name="amc23",
            title="AMC 12A and 12B of 2023, integer answers",
            rows=40,
            sampling=AVG_AT_32,
            hub=HubDataset(path="math-ai/amc23", problem="question", id="id"),
        ),
        Benchmark(
            name="amc_2022_2023",
            title="AMC 12A and 12B of 2022 and 2023; contains amc23",
            rows=83,
            sampling=AVG_AT_32,
            hub=HubDataset(path="AI-MO/aimo-validation-amc", split="train", id="id"),
        ),
        Benchmark(
            name="math500", title="MATH-500", rows=500, hub=HubDataset(path="HuggingFaceH4/MATH-500", id="unique_id")
        ),
        Benchmark(
            name="minerva_math",
            title="Minerva math: MIT OpenCourseWare",
            rows=272,
            hub=HubDataset(path="math-ai/minervamath", problem="question"),
        ),
        Benchmark(
            name="olympiadbench",
            title="OlympiadBench: English mathematics, text only, open-ended",
            rows=675,
            hub=HubDataset(path="math-ai/olympiadbench", problem="question", answer="final_answer", id="id", rows=674),
        ),
        Benchmark(
            name="omni_math",
            title="Omni-MATH-Rule: the problems of Omni-MATH that rules can grade",
            rows=2816,
            # KbsdJames/Omni-MATH is all 4,428 problems, many of which need a judge
            file="omni_math_rule.jsonl",
        ),
        Benchmark(
            name="omni_math_500", title="500 Omni-MATH problems with numeric answers; 476 are in omni_math", rows=500
        ),
        Benchmark(
            name="gsm8k",
            title="GSM8K test",
            rows=1319,
            grader="gsm8k",
            hub=HubDataset(path="openai/gsm8k", config="main", problem="question"),
        ),
        Benchmark(
            name="code_basics",
            title="20 small problems of our own, tests included",
            rows=20,
            grader="code",
            path=Path(__file__).with_name("code_basics.jsonl"),
        ),
        _programs("humaneval", "HumanEval", "openai/openai_humaneval", datasets.humaneval, rows=164),
        _programs("humaneval_plus", "HumanEval+", "evalplus/humanevalplus", datasets.humaneval, rows=164),
        _programs("mbpp", "MBPP test", "google-research-datasets/mbpp", datasets.mbpp, rows=500, config="full"),
        _programs("mbpp_plus", "MBPP+", "evalplus/mbppplus", datasets.mbpp_plus, rows=378),
        _programs(
            "livecodebench",
            "LiveCodeBench, the release of the file or of the hub",
            "livecodebench/code_generation_lite",
            datasets.livecodebench,
            id="question_id",
            judge="livecodebench",
            version=2,
        ),
    )
}

_PAPER = ("aime24", "aime25", "amc_2022_2023", "math500", "omni_math", "olympiadbench", "minerva_math")
_CODE = ("humaneval", "humaneval_plus", "mbpp", "mbpp_plus", "livecodebench")
# --benchmarks, several by one name. ``paper``: the columns of Table 2. ``law``: what R of the entropy law is the mean
# over, section 2.2. Its AMC is cited as NuminaMath's, whose validation set are the 83 problems of 2022 and 2023; which
# problems of Omni-MATH it took is open. ``all``: all mathematics but the two sets that share problems with another
# one.
GROUPS: dict[str, tuple[str, ...]] = {
    "paper": _PAPER,
    "law": ("math500", "aime24", "amc_2022_2023", "olympiadbench", "omni_math"),
    "all": (*_PAPER, "gsm8k"),
    "code": _CODE,
}


# Marks benchmarks in a training's --eval.dataset, which can also name a data set.
PREFIX = "bench:"


def select(names: str) -> list[Benchmark]:
    """Return the benchmarks, groups and files (``*.jsonl``) of a comma-separated list, in its order, each once.

    Raises:
        UsageError: A name is unknown (the message has the closest known one) or empty, or a file has the name of
            another benchmark of the list.
    """
    chosen: dict[str, Benchmark] = {}
    for name in (part.strip() for part in names.split(",")):
        if name.endswith(".jsonl"):
            members = [own_benchmark(Path(name))]
        elif name in BENCHMARKS or name in GROUPS:
            members = [BENCHMARKS[member] for member in GROUPS.get(name, (name,))]
        elif name:
            close = difflib.get_close_matches(name.lower(), [*BENCHMARKS, *GROUPS], n=1)
            advice = f"did you mean {close[0]}?" if close else "--list shows all"
            raise UsageError(f"--benchmarks {names}: no benchmark {name!r}; {advice}")
        else:
            raise UsageError(f"--benchmarks {names}: a name is empty; give names from --list, separated by commas")
        for member in members:
            if chosen.setdefault(member.name, member) != member:
                raise UsageError(f"--benchmarks {names}: two benchmarks are called {member.name}; rename the file")
    return list(chosen.values())


def names_in(dataset: str | None) -> str | None:
    """Return the names after ``bench:`` in a training's --eval.dataset; None for another dataset."""
    return dataset.removeprefix(PREFIX) if dataset and dataset.startswith(PREFIX) else None


def own_benchmark(path: Path) -> Benchmark:
    """Return the benchmark of a user's own file: greedy by default, and graded by the rule that each source names."""
    return Benchmark(name=path.stem, version=0, title=path.name, grader="row", path=path)


def get_protocol(name: str) -> Protocol:
    """Return the protocol of this name.

    Raises:
        UsageError: There is none; the message names the known ones.
    """
    if name not in PROTOCOLS:
        raise UsageError(f"--protocol {name}: no such protocol; choose one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


def table() -> str:
    """Return all benchmarks with their settings, the groups and the protocols, as text for a terminal."""
    head = ("name", "version", "problems", "samples", "temperature", "max tokens", "grader", "hub", "content")
    rows: list[tuple[str, ...]] = [head]
    for benchmark in BENCHMARKS.values():
        how = benchmark.sampling
        numbers = (benchmark.version, benchmark.rows, how.samples, how.temperature, how.max_tokens)
        hub = benchmark.hub.path if benchmark.hub else "-"
        rows.append((benchmark.name, *map(str, numbers), benchmark.grader, hub, benchmark.title))
    lines = aligned(rows, left=range(len(head)))
    lines += ["", *(f"group {name}: {', '.join(members)}" for name, members in GROUPS.items())]
    return "\n".join([*lines, *map(_protocol_line, PROTOCOLS.values())])


def _protocol_line(protocol: Protocol) -> str:
    how = protocol.sampling
    if how is None:
        return f"protocol {protocol.name}: prompt {protocol.template}; samples, temperature and tokens of the table"
    return (
        f"protocol {protocol.name}: prompt {protocol.template}; {how.samples} samples, temperature {how.temperature}, "
        f"top_p {how.top_p}, {how.max_tokens} tokens for every benchmark"
    )
