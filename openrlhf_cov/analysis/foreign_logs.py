"""Runs that were not logged by us: folders of TensorBoard events, tables in CSV, and ``trainer_state.json``."""

import csv
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np

from openrlhf_cov.analysis.naming import Renaming, renaming
from openrlhf_cov.analysis.table import (
    EMPTY,
    Rows,
    Table,
    join,
    to_numbers,
    to_table,
    without_abandoned_evaluations,
)
from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.json_lines import parse_object, read_bounded
from openrlhf_cov.utils.metric_table import ENTROPY, STEP, TIME

EVENT_FILES = "events.out.tfevents*"
# Log of transformers' trainers, TRL's among them, in every checkpoint.
STATE_FILE = "trainer_state.json"
CHECKPOINTS = "checkpoint-*"
VALUE = "value"
# Metrics of every step. Others have NaN in an event file where a step has no such value (docs/metrics.md).
ALWAYS = (ENTROPY, "reward", "score")
# Columns that an error names.
LISTED = 20
# Rows of a table read at once.
CSV_ROWS = 50_000

# Training, evaluations, warnings.
Tables = tuple[Table, Table, list[str]]


def read_csv(
    path: Path, mapping: Mapping[str, str] | str | None = None, columns: Collection[str] | None = None
) -> Tables:
    """Return the metrics in a table with a header, comma separated (.tsv: tabs), as W&B and pandas export it.

    A row with too few or too many fields is left out, an empty field is missing; that the last number of a file was
    cut does not show. Training and evaluation of a step may be in one row or in several.

    Args:
        path: The file.
        mapping: Names of the log for ours, see ``renaming``.
        columns: Training columns to keep, by our names; None keeps all.

    Returns:
        Training metrics, evaluations, and warnings about the file.

    Raises:
        UsageError: The file is no table, has no column with the step or no known column, or lacks a name of
            ``mapping``.
    """
    # Spreadsheets write a byte order mark. A byte that is not UTF-8 costs its own field alone.
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        try:
            header = next(reader, [])
            names = renaming(header, mapping)
            step = _step_column(path, header, names)
            _check_known(path, names, columns)
            used = _used(names, columns) | {step}
            # Two runs in one table, for example: which of them is meant is not known.
            if twice := sorted(name for name in used if header.count(name) > 1):
                raise UsageError(f"{path}: two columns are called {twice[0]!r}; rename one of them")
            rows, odd, broken = _csv_rows(reader, header, used, step)
        except csv.Error as error:
            raise UsageError(f"{path}, line {reader.line_num}, cannot be read: {error}") from error
    warnings = []
    if broken:
        warnings.append(f"{path.name}: rows without the {len(header)} fields of the header left out, {broken}")
    if odd:
        warnings.append(f"{path.name}: fields that are not finite numbers taken as missing, {odd}")
    return _split(rows, names, warnings, path.name)


def read_trainer_state(
    path: Path, mapping: Mapping[str, str] | str | None = None, columns: Collection[str] | None = None
) -> Tables:
    """Return the log in a ``trainer_state.json``, an entry per training step or evaluation.

    Args:
        path: The file.
        mapping: Names of the log for ours, see ``renaming``.
        columns: Training columns to keep, by our names; None keeps all.

    Raises:
        UsageError: The file cannot be read or holds no log, or a name of ``mapping`` is not in it.
    """
    try:
        history = parse_object(read_bounded(path)).get("log_history")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise UsageError(f"{path} has no list log_history; give a {STATE_FILE} of TRL or transformers")
    header = list(dict.fromkeys(name for entry in history for name in entry))
    names = renaming(header, mapping)
    step = _step_column(path, header, names)
    _check_known(path, names, columns)
    found = {name: to_numbers([entry.get(name) for entry in history]) for name in _used(names, columns) | {step}}
    odd = sum(count for _, count in found.values())
    values = {name: numbers for name, (numbers, _) in found.items()}
    warnings = [f"{path.name}: fields that are not finite numbers taken as missing, {odd}"] if odd else []
    return _split(Rows(values.pop(step), values), names, warnings, path.name)


def state_file(path: Path) -> Path | None:
    """Return the ``trainer_state.json`` that a path is, or that its folder or the last checkpoint in it has."""
    if path.name == STATE_FILE:
        return path
    checkpoints = [each for each in path.glob(CHECKPOINTS) if each.name.rpartition("-")[2].isdecimal()]
    # By number, because checkpoint-1000 sorts before checkpoint-200 as a text.
    last_first = sorted(checkpoints, key=lambda each: int(each.name.rpartition("-")[2]), reverse=True)
    found = [folder / STATE_FILE for folder in (path, *last_first)]
    return next((file for file in found if file.is_file()), None)


def _step_column(path: Path, header: list[str], names: Renaming) -> str:
    """Return the name that the log gives the column with the step. Raise UsageError if there is no such column."""
    if not header:
        raise UsageError(f"{path} is empty; give a log with a step in every row")
    if STEP not in names.training:
        listed = ", ".join(header[:LISTED])
        raise UsageError(
            f"{path}: no column with the step; name it, such as --mapping step={header[0]}; the columns are {listed}"
        )
    return names.training[STEP]


def _csv_rows(reader: Iterator[list[str]], header: list[str], used: set[str], step: str) -> tuple[Rows, int, int]:
    """Return the used columns, the count of their fields that are no numbers, and the count of incomplete rows."""
    places = {name: header.index(name) for name in used}
    parts = []
    odd = 0
    broken = 0
    # Rows are converted in parts, because a field as a text takes many times the memory of a number.
    while rows := list(islice(reader, CSV_ROWS)):
        whole = [row for row in rows if len(row) == len(header)]
        # A blank line is a row without fields, and nothing is lost with it.
        broken += sum(len(row) not in (0, len(header)) for row in rows)
        found = {name: to_numbers([row[place] for row in whole]) for name, place in places.items()}
        odd += sum(count for _, count in found.values())
        values = {name: numbers for name, (numbers, _) in found.items()}
        parts.append(Rows(values.pop(step), values))
    return join(parts), odd, broken


def read_events(
    folder: Path, mapping: Mapping[str, str] | str | None = None, columns: Collection[str] | None = None
) -> Tables:
    """Return the scalars of a folder of TensorBoard events, or of the one folder below that has any.

    Args:
        folder: The folder.
        mapping: Names of the log for ours, see ``renaming``.
        columns: Training columns to keep, by our names; None keeps all.

    Returns:
        Training metrics, evaluations, and warnings about the events.

    Raises:
        UsageError: TensorBoard is not installed, several folders below have events, no column is known, or a name of
            ``mapping`` is not in the log.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator
    except ImportError as error:
        raise UsageError(f"reading {folder} needs TensorBoard: pip install tensorboard") from error
    # A size of 0 keeps all values; by default TensorBoard keeps a random sample of 10,000.
    events = EventAccumulator(str(event_folder(folder)), size_guidance={SCALARS: 0})
    events.Reload()
    names = renaming(events.Tags()[SCALARS], mapping)
    _check_known(folder, names, columns)
    always = {names.training.get(ours) for ours in ALWAYS}
    rows_of_tags = {}
    warnings = []
    for tag in sorted(_used(names, columns)):
        steps, times, values = zip(
            *((each.step, each.wall_time, each.value) for each in events.Scalars(tag)), strict=True
        )
        numbers, odd = to_numbers(values)
        odd = odd if tag in always else int(np.isinf(values).sum())
        rows_of_tags[tag] = Rows(np.array(steps, dtype=np.float64), {TIME: np.array(times), VALUE: numbers})
        warnings += (
            [f"{folder.name}: {tag}: values that are not finite numbers taken as missing, {odd}"] if odd else []
        )
    training_rows = [rows_of_tags[tag] for tag in names.training.values() if tag in rows_of_tags]
    series = {}
    for tag, rows in rows_of_tags.items():
        left_out: list[str] = []
        if tag in names.evaluation.values():
            rows, left_out = without_abandoned_evaluations(rows, training_rows)
        series[tag], found = to_table(rows, whole_rows=True)
        warnings += [f"{folder.name}: {tag}: {warning}" for warning in (*left_out, *found)]
    training, evaluations = (
        _aligned({ours: series[tag] for ours, tag in naming.items() if tag in series})
        for naming in (names.training, names.evaluation)
    )
    return training, evaluations, warnings


def event_folder(folder: Path) -> Path:
    """Return the folder itself if it has events, otherwise the only one below that does.

    Raises:
        UsageError: No folder below has events, or several have.
    """
    if any(folder.glob(EVENT_FILES)):
        return folder
    found = sorted({path.parent for path in folder.rglob(EVENT_FILES)})
    if len(found) != 1:
        listed = ", ".join(str(path.relative_to(folder)) for path in found) or "none"
        raise UsageError(f"{folder}: one folder with TensorBoard events is needed, got {listed}")
    return found[0]


def _check_known(path: Path, names: Renaming, columns: Collection[str] | None) -> None:
    """Raise UsageError for a log that has training columns, but none of those to keep."""
    ours = names.training.keys() - {STEP, TIME}
    if columns is not None and ours and ours.isdisjoint(columns):
        listed = ", ".join(sorted({name for each, name in names.training.items() if each != STEP})[:LISTED])
        raise UsageError(f"{path}: none of its columns is known, {listed}; map them, report --mapping reward=NAME ...")


def _used(names: Renaming, columns: Collection[str] | None) -> set[str]:
    """Return the names that the log gives the columns to keep."""
    training = {name for ours, name in names.training.items() if columns is None or ours in columns}
    return training | set(names.evaluation.values()) | ({names.evaluation_step} if names.evaluation_step else set())


def _split(rows: Rows, names: Renaming, warnings: list[str], source: str) -> Tables:
    """Split rows that hold both into training and evaluations."""
    # Rows of an evaluation alone may have their step in another column.
    is_evaluation = np.zeros(len(rows.steps), dtype=bool)
    steps_of_evaluations = rows.steps
    if names.evaluation_step:
        own_steps = rows.columns[names.evaluation_step]
        is_evaluation = np.isnan(rows.steps) & ~np.isnan(own_steps)
        steps_of_evaluations = np.where(is_evaluation, own_steps, rows.steps)
    parts = (
        (names.training, rows.steps, ~is_evaluation),
        (names.evaluation, steps_of_evaluations, np.ones_like(is_evaluation)),
    )
    clock = rows.columns.get(names.training.get(TIME, ""))
    found_parts = []
    for naming, steps, may_be_of_part in parts:
        columns = {ours: rows.columns[name] for ours, name in naming.items() if name in rows.columns and ours != TIME}
        # A row without any value of this kind is one of the other kind. All rows have a time.
        there = np.any([~np.isnan(values) for values in columns.values()] or [[False] * len(rows.steps)], axis=0)
        there = there & may_be_of_part
        if clock is not None:
            columns[TIME] = clock
        found_parts.append(Rows(steps[there], {name: values[there] for name, values in columns.items()}))
    training, evaluations = found_parts
    left_out: list[str] = []
    if clock is not None:
        evaluations, left_out = without_abandoned_evaluations(evaluations, [training])
    training_table, found = to_table(training, whole_rows=False)
    evaluation_table, found_of_evaluations = to_table(evaluations, whole_rows=False)
    warnings = warnings + [f"{source}: {warning}" for warning in (*found, *left_out, *found_of_evaluations)]
    return training_table, evaluation_table, warnings


def _aligned(series: Mapping[str, Table]) -> Table:
    """Return one table of several series, each a table with steps of its own; ``time`` is the latest of a step."""
    steps = np.unique(np.concatenate([table.steps for table in series.values()] or [EMPTY.steps]))
    columns = {name: np.full(len(steps), np.nan) for name in (TIME, *series)} if series else {}
    for name, table in series.items():
        place = np.searchsorted(steps, table.steps)
        # ``fmax`` takes the number where one of the two is NaN.
        columns[TIME][place] = np.fmax(columns[TIME][place], table.column(TIME))
        columns[name][place] = table.column(VALUE)
    return Table(steps, columns)
