"""Reading and writing the files of run folders: what is broken is named, and nothing is ever half
written."""

import pytest

from trl_miner.runs.files import read_lines, read_object, read_optional, write_whole


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
