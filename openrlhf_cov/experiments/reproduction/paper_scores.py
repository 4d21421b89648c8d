"""The scores of runs in the lab, side by side: what Table 2 is at the tiny scale."""

from collections.abc import Sequence
from pathlib import Path

from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.json_lines import read_json
from openrlhf_cov.utils.metrics_log import TEST_FILE
from openrlhf_cov.utils.text_table import aligned


def scores_of(folders: Sequence[Path]) -> list[str]:
    """Return the lines of a table with the test scores of runs, in percent of the problems of the test.

    The columns are the greedy score, avg@K and pass@K.

    Args:
        folders: Folders of finished runs of the lab.

    Raises:
        UsageError: A folder has no test results.
    """
    rows = []
    drawn = 0
    for folder in folders:
        test = read_json(folder / TEST_FILE)
        if not isinstance(test, dict):
            raise UsageError(f"{folder} holds no {TEST_FILE}, which a finished run of the lab has")
        problems = len(test["greedy"])
        drawn = test["samples"]
        right = (sum(test["greedy"]), sum(test["right"]) / drawn, sum(each > 0 for each in test["right"]))
        rows.append((folder.name, str(problems), *(f"{100 * each / problems:.1f}" for each in right)))
    return aligned([("run", "problems", "greedy", f"avg@{drawn}", f"pass@{drawn}"), *rows])
