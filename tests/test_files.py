"""Reading and writing the files of run folders: what is broken is named, and nothing is ever half written."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trl_miner.runs.files import read_lines, read_object, read_optional, read_parquet, write_whole


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1,\n"b": }', "it must be JSON: expected value at line 2 column 6"),
        (b"[1]", "it must be an object: got [1]"),
        (b"\xff\xff", "must be JSON: "),
    ],
)
def test_a_broken_object_is_named_with_its_line_and_what_to_do(tmp_path, content, message):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken.json: .*Sample again\.$") as caught:
        read_object(path, "Sample again.")
    assert message in str(caught.value)
    notes = []
    assert read_optional(path, notes) == {} and notes[0].startswith("broken.json could not be read and is left out")
    with pytest.raises(ValueError, match=r"broken.json: it must be"):
        read_optional(path)


def test_a_missing_object_is_an_error_unless_it_is_optional(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none.json is missing. Restore it"):
        read_object(tmp_path / "none.json")
    notes = []
    assert read_optional(tmp_path / "none.json", notes) == {} and notes == []


def test_lines_keep_their_numbers_and_may_hold_other_line_ends(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": "x\u2028y"}\n\n{"a": 2}\n', encoding="utf-8")
    assert read_lines(path) == [(1, {"a": "x\u2028y"}), (3, {"a": 2})]
    path.write_text('{"a": 1}\n{"a": ')
    with pytest.raises(ValueError, match=r"lines.jsonl, line 2: it must be JSON: EOF .* Run again\.$"):
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


def test_row_groups_that_are_whole_are_read(tmp_path):
    path = tmp_path / "folder" / "table.parquet"
    path.parent.mkdir()
    table = pa.table({"a": list(range(6)), "b": ["x" * 50 + str(i) for i in range(6)]}).replace_schema_metadata(
        {"k": "v"}
    )
    pq.write_table(table, path, row_group_size=2, write_page_checksum=True)
    assert read_parquet(path, ["a", "c"])[0].column_names == ["a"]
    column = pq.ParquetFile(path).metadata.row_group(1).column(1)
    content = bytearray(path.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(content)
    found, note = read_parquet(path)
    assert found["a"].to_pylist() == [0, 1, 4, 5] and found.schema.metadata == {b"k": b"v"}
    assert note.startswith("folder/table.parquet is damaged: 4 of its 6 rows were read (")
    assert read_parquet(path, ["a"]) == (table.select(["a"]), None)  # the damage is elsewhere
    path.write_bytes(content[:-10])
    found, note = read_parquet(path)
    assert found is None and "it has no footer, so it was cut off or is still being written" in note
