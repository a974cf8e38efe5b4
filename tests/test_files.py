"""Reading and writing the files of run folders: what is broken is named, and nothing is ever half
written."""

import resource

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trl_miner.data.reading import load_data_set, read_file
from trl_miner.runs import files
from trl_miner.runs.files import read_lines, read_object, read_optional, read_yaml, write_whole


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1,\n"b": }', "Invalid JSON: expected value at line 2 column 6"),
        (b"[1]", "Input should be an object, got [1]"),
    ],
)
def test_a_broken_object_is_named_with_its_line_and_what_to_do(tmp_path, content, message):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken.json: .*Sample again\.$") as caught:
        read_object(path, "Sample again.")
    assert message in str(caught.value)
    path.unlink()
    assert read_optional(path) == {}


def test_lines_keep_their_numbers_and_may_hold_other_line_ends(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": "x\u2028y"}\n\n{"a": 2}\n', encoding="utf-8")
    assert read_lines(path) == [(1, {"a": "x\u2028y"}), (3, {"a": 2})]
    path.write_text('{"a": 1}\n{"a": ')
    with pytest.raises(ValueError, match=r"lines.jsonl, line 2: Invalid JSON: EOF .* Run again\.$"):
        read_lines(path, "Run again.")


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path):
    def chunks():
        yield b"new"
        raise OSError("disk full")

    path = tmp_path / "file"
    write_whole(path, "old")
    with pytest.raises(OSError, match="disk full"):
        write_whole(path, chunks())
    assert path.read_text() == "old"


def bomb(aliases):
    """Nine times nine times ... a list, by aliases: 9^12 texts from a kilobyte."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, aliases)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (bomb(12), "over 1000000 characters with its aliases"),
        ("a: &a [*a]", "over 1000000 characters with its aliases"),
        ("a: &a {b: *a}", "over 1000000 characters with its aliases"),
        ("a: " + "x" * 10**6, "it holds 1000003 characters"),
        ("a: " + "[" * 10**5, "recursion"),
        ("a: !!python/name:os.system", "constructor"),
    ],
)
def test_yaml_that_would_never_end_is_refused_in_one_line(text, words, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"r.yaml is not valid YAML: .*{words}") as told:
        read_yaml(path)
    assert "\n" not in str(told.value) and len(str(told.value)) < 400


def test_yaml_may_use_aliases_and_utf_16(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("a: &a {b: [1, 2]}\nc: {<<: *a, d: *a}", encoding="utf-16")
    assert read_yaml(path) == {"a": {"b": [1, 2]}, "c": {"b": [1, 2], "d": {"b": [1, 2]}}}


def test_a_small_file_that_unpacks_to_gigabytes_is_refused(tmp_path, monkeypatch):
    """7,200 times one text of a megabyte: 7.2 GB, from a file of a kilobyte."""
    monkeypatch.setattr(files, "_MOST_MEMORY", 2**28)
    path = tmp_path / "bomb.parquet"
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 7200, pa.int32()), ["x" * 10**6])
    pq.write_table(pa.table({"question": texts, "answer": ["1"] * 7200}), path, compression="zstd")
    assert path.stat().st_size < 2000
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(ValueError, match=r"bomb.parquet must fit into 0.25 GiB of memory: its"):
        read_file(path)
    with pytest.raises(ValueError, match="The data set in .*bomb.parquet could not be loaded"):
        load_data_set(str(path))
    assert resource.getrlimit(resource.RLIMIT_DATA) == limits
