"""The published scores to compare with: Table 2 of arXiv 2505.22617v1, in percent (pure).

The paper gives no intervals, no seeds and no pass@k. Its average is not here: it is not the mean of its columns.
"""

SOURCE = "arXiv 2505.22617, Table 2"

COLUMNS = ("AIME24", "AIME25", "AMC", "MATH500", "OMNI", "Olympiad", "Minerva")

# --against: the scores of each method, in the order of ``COLUMNS``.
ROWS: dict[str, dict[str, tuple[float, ...]]] = {
    "paper-7b": {
        "GRPO": (21.2, 9.6, 58.7, 78.8, 27.9, 40.7, 36.7),
        "clip-higher": (18.1, 11.5, 56.6, 79.2, 29.8, 43.3, 40.4),
        "Clip-Cov": (22.1, 15.8, 58.2, 80.4, 30.5, 44.1, 41.1),
        "KL-Cov": (22.6, 12.9, 61.4, 80.8, 29.1, 42.6, 38.2),
    },
    "paper-32b": {
        "GRPO": (21.8, 16.2, 69.7, 84.2, 35.2, 43.6, 45.5),
        "clip-higher": (35.6, 22.3, 69.5, 77.2, 35.1, 42.5, 43.0),
        "Clip-Cov": (32.3, 22.7, 67.2, 87.0, 42.0, 57.2, 46.0),
        "KL-Cov": (36.8, 30.8, 74.5, 84.6, 39.1, 49.0, 46.3),
    },
}

# Column by benchmark.
COLUMN_OF = {
    "aime24": "AIME24",
    "aime25": "AIME25",
    "amc23": "AMC",
    "amc_2022_2023": "AMC",
    "math500": "MATH500",
    "omni_math": "OMNI",
    "olympiadbench": "Olympiad",
    "minerva_math": "Minerva",
}

# Columns of which the paper does not say what problems they are. AMC it cites as NuminaMath (Li et al. 2024), whose
# validation set has the 83 problems of 2022 and 2023.
UNCERTAIN = ("OMNI",)

# Benchmark that stands in a column whose problems are others -> what to know.
OTHER = {"amc23": "its AMC are the 83 problems of 2022 and 2023, amc_2022_2023, of which amc23 has 40"}


def published(against: str, benchmark: str) -> dict[str, float]:
    """Return the scores of the paper on a benchmark.

    Args:
        against: Key of ``ROWS``: the model whose scores are meant.
        benchmark: Name of the benchmark.

    Returns:
        Method -> score, a fraction; empty if the paper does not have the benchmark.
    """
    if benchmark not in COLUMN_OF:
        return {}
    column = COLUMNS.index(COLUMN_OF[benchmark])
    return {method: round(scores[column] / 100, 3) for method, scores in ROWS[against].items()}
