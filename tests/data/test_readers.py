import csv
import hashlib
import json

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from texts import missing

from openrlhf_cov.data import readers
from openrlhf_cov.data.inputs import DatasetPart, Keys, Row, check_sources, open_sources
from openrlhf_cov.data.readers import is_hub_name
from openrlhf_cov.errors import UsageError

ROWS = [
    {"problem": 'Say "1,5"\non two lines.', "answer": "2"},
    {"problem": "Find $x_2$.", "answer": "\\frac{1}{2}"},
    {"problem": "How many?", "answer": None},
]
EXPECTED = [
    Row("own", "own-0", 'Say "1,5"\non two lines.', "2", "math/own"),
    Row("own", "own-1", "Find $x_2$.", "\\frac{1}{2}", "math/own"),
    Row("own", "own-2", "How many?", "", "math/own"),  # is dropped as empty
]


def read(source):
    return list(source.read(hashlib.sha256()))


def refusal(*arguments, **keywords):
    with pytest.raises(UsageError) as refused:
        [read(source) for source in open_sources(*arguments, **keywords)]
    assert "\n" not in str(refused.value)
    return str(refused.value)


def write_json_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_json(path, rows):
    path.write_text(json.dumps(rows, indent=2))


def write_json_with_mark(path, rows):
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(rows).encode())


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(path, rows):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def save_to_disk(path, rows):
    datasets.Dataset.from_list(rows).save_to_disk(path)


def save_splits_to_disk(path, rows):
    dataset = datasets.Dataset.from_list(rows)
    datasets.DatasetDict({"test": dataset.select([0]), "train": dataset}).save_to_disk(path)


FORMATS = {
    "JSON Lines": ("own.jsonl", write_json_lines),
    "JSON": ("own.json", write_json),
    "CSV": ("own.csv", write_csv),
    "parquet": ("own.parquet", write_parquet),
    "a folder": ("own", save_to_disk),
    "lines in .json": ("own.json", write_json_lines),
    "a byte order mark": ("own.json", write_json_with_mark),
    "capitals": ("own.PARQUET", write_parquet),
    "no suffix": ("own", write_json_lines),
    "splits": ("own", save_splits_to_disk),
}


@pytest.mark.parametrize("case", FORMATS)
def test_rows_are_the_same_in_every_format_and_the_digest_is_that_of_the_file(tmp_path, case):
    name, write = FORMATS[case]
    path = tmp_path / name
    write(path, ROWS)
    (source,) = open_sources(str(path), None, Keys())
    assert list(source.read(digest := hashlib.sha256())) == read(source) == EXPECTED
    assert source.name == "own"
    assert path.is_dir() or digest.hexdigest() == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_digest_of_a_folder_follows_its_rows(tmp_path):
    digests = []
    for name, rows in (("a", ROWS), ("b", ROWS), ("c", ROWS[:2])):
        save_to_disk(tmp_path / name, rows)
        (source,) = open_sources(str(tmp_path / name), None, Keys())
        list(source.read(digest := hashlib.sha256()))
        digests.append(digest.hexdigest())
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("own.json", b'[{"problem": "?", "answer": "5"}, [1]]', "own.json, row 2: it is not a JSON object"),
        ("own.json", b'[{"problem": "?"', "own.json: not JSON: "),
        ("own.json", b'[{"problem": "?"}]', "own.json, row 1 has no key 'answer'; it has problem; name the key with"),
        ("own.csv", b"problem,answer\n?,5\n1,2,3\n", "own.csv, line 3 has more fields than the header"),
        ("own.csv", b'problem,answer\n"a\nb",5\n1,2,3\n', "own.csv, line 4 has more fields than the header"),
        ("own.csv", b"problem,answer,source\n?,5,gsm8k/x\n?,5\n", "own.csv, line 3 has fewer fields than the header"),
        ("own.csv", b"problem,answer\n\xff,5\n", "own.csv: byte 16 is not UTF-8"),
        ("own.csv", b'problem,answer\n"a,2\nb,3\n', "own.csv, line 2: unexpected end of data"),
        ("own.csv", b"messages,answer\n\"[{'role': 'user'}]\",2\n", "'messages': it is a list of messages written as"),
        ("own.csv", b"problem,answer,answer\n?,5,6\n", "own.csv: two columns are called 'answer'; rename one of them"),
        ("own.parquet", b"PAR1 no parquet", "own.parquet cannot be read: "),
        ("own.arrow", b"no arrow", "own.arrow cannot be read: "),
    ],
)
def test_a_file_that_is_not_as_its_suffix_says_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    assert message in refusal(str(tmp_path / name), None, Keys())


@pytest.mark.parametrize("suffix", [".gz", ".tsv", ".xlsx", ".ZIP"])
def test_a_file_of_another_format_is_refused_by_its_suffix(tmp_path, suffix):
    path = tmp_path / f"train.jsonl{suffix}"
    path.write_text('{"problem": "1+1=", "answer": "2"}\n')
    line = f"{path}: files that end in {suffix.lower()} cannot be read; convert it to JSON Lines, JSON, CSV or parquet"
    with pytest.raises(UsageError) as caught:
        readers.read_file(path, hashlib.sha256())
    assert str(caught.value) == line


def test_a_row_of_parquet_is_refused_by_its_number(tmp_path):
    write_parquet(tmp_path / "own.parquet", [{"problem": "?", "answer": ["5"]}])
    assert "own.parquet, row 1: 'answer' is a text, got ['5']" in refusal(str(tmp_path / "own.parquet"), None, Keys())


def test_two_columns_of_parquet_with_one_name_are_refused(tmp_path):
    table = pyarrow.table([["?"], ["5"], ["6"]], names=["problem", "answer", "answer"])
    pyarrow.parquet.write_table(table, tmp_path / "own.parquet")
    assert "own.parquet: two columns are called 'answer'" in refusal(str(tmp_path / "own.parquet"), None, Keys())


def test_a_split_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    save_splits_to_disk(tmp_path / "own", ROWS)
    message = refusal(f"{tmp_path}/own", None, Keys(), part=DatasetPart(split="dev"))
    assert missing(message, "--split dev", f"{tmp_path}/own", "test, train") == []
    (source,) = open_sources(f"{tmp_path}/own", None, Keys(), part=DatasetPart(split="test"))
    assert read(source) == EXPECTED[:1]


def test_an_id_of_the_hub(hub):
    calls = hub(ROWS)
    (source,) = open_sources("org/own", None, Keys(), part=DatasetPart(split="test", subset="main"))
    assert read(source) == EXPECTED
    assert calls == [("org/own", "main", "test")]
    assert (source.place, source.count) == ("org/own, main, split test", 3)


def test_an_id_that_cannot_be_loaded_is_refused_in_one_line(monkeypatch):
    def load_dataset(*arguments, **keywords):
        raise ConnectionError("no route\nto the hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    message = refusal("org/own", None, Keys())
    assert missing(message, "--dataset org/own", "no route", "--subset", "--split train") == []
    assert "\n" not in message


def test_what_is_no_id_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    assert is_hub_name("org/own-1.5")
    assert not any(map(is_hub_name, ("data/own", "own", "org/own.parquet", "/org/own", "./own", "a/b/c", "")))


def test_the_hub_is_not_asked_by_a_check(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", None)
    check_sources("org/own,gsm8k", None)
    with pytest.raises(UsageError, match="--dataset own: no such file or dataset"):
        check_sources("own", None)


@pytest.mark.slow
def test_a_small_parquet_file_of_large_row_groups_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MIN_GROUP_BYTES", 2**22)
    blank = " " * 2**20
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"x": [f"{n}{blank}" for n in range(12)]}), path, compression="zstd")
    # 12 MiB: more than 4 MiB and 1,000 times the size of the file
    assert path.stat().st_size * readers.MAX_RATIO < 2**23
    digest = hashlib.sha256()
    with pytest.raises(UsageError, match=r"x.parquet: row group 1 has [0-9,]+ bytes uncompressed, more than"):
        list(readers._parquet(path, digest))


@pytest.mark.slow
def test_a_text_that_many_rows_share_is_not_in_memory_for_each(tmp_path, monkeypatch):
    sizes = []
    path = tmp_path / "x.parquet"
    write_parquet(path, [{"x": "x" * 10**5}] * 2000)
    real = readers._parquet_file

    class Watched:
        def __init__(self, file):
            self.metadata, self.schema_arrow, self._file = file.metadata, file.schema_arrow, file

        def iter_batches(self, batch_size):
            for batch in self._file.iter_batches(batch_size=batch_size):
                sizes.append(batch.num_rows)
                yield batch

    monkeypatch.setattr(readers, "_parquet_file", lambda path: Watched(real(path)))
    assert sum(1 for _ in readers._parquet(path, hashlib.sha256())) == 2000
    assert max(sizes) <= 128
