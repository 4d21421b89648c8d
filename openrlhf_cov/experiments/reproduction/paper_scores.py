"""The scores of runs in the lab, side by side: what Table 2 is at the tiny scale."""

from collections.abc import Sequence
from pathlib import Path

from openrlhf_cov.errors import UsageError
from openrlhf_cov.experiments.study.result_records import Answers, read_record
from openrlhf_cov.utils.metrics_log import TEST_FILE
from openrlhf_cov.utils.text_table import aligned


def scores_of(folders: Sequence[Path]) -> list[str]:
    """Return the lines of a table with the scores of runs of the lab.

    Args:
        folders: Folders of finished runs, whose tests have equally many samples of a problem.

    Returns:
        A head and a row for each run: the name of its folder, the number of test problems, and in percent of them the
        greedy accuracy, the mean over the K samples, and the share with at least one correct sample.

    Raises:
        UsageError: A folder has no test, or a damaged one.
    """
    rows = []
    drawn = 0
    for folder in folders:
        try:
            test = read_record(Answers, folder / TEST_FILE)
        except OSError as error:
            raise UsageError(f"{folder} holds no {TEST_FILE}, which a finished run of the lab has") from error
        except ValueError as error:  # the message begins with the name of the file
            raise UsageError(f"{folder}/{error}; make the run again") from error
        problems = len(test.greedy)
        drawn = test.samples
        right = (sum(test.greedy), sum(test.right) / drawn, sum(each > 0 for each in test.right))
        rows.append((folder.name, str(problems), *(f"{100 * each / problems:.1f}" for each in right)))
    return aligned([("run", "problems", "greedy", f"avg@{drawn}", f"pass@{drawn}"), *rows])
