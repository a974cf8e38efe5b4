"""Files that cannot be read, encodings, and a large one."""

import json

import pytest

from trl_miner.data.columns import as_text
from trl_miner.data.files import load_splits, read_file
from trl_miner.data.settings import DataArguments

UNREADABLE = {
    "head.csv": ("question,answer\n", "head.csv has no rows"),
    "nothing.jsonl": ("", "nothing.jsonl has no rows"),
    "nothing.csv": ("", "nothing.csv cannot be read"),
    "binary.csv": (bytes(range(128, 256)) * 9, "codec can't decode"),
    "commas.csv": (
        "question,answer\n1 + 1?,2\n1,000 + 1?,1001\n",
        "Expected 2 fields in line 3, saw 3",
    ),
    "open.csv": ('question,answer\n1?,1\n2?,"2\n3?,3\n', "EOF inside string starting at row 2"),
    "twice.csv": (
        "question,answer,answer\n1?,1,2\n",
        "Duplicate column names found: ..question., .answer., .answer",
    ),
    "long.jsonl": ('{"a": 1%s}\n' % ("0" * 30), "too large"),
    "broken.jsonl": ('{"a": 1}\n{"a": ', "line 2 column 7"),
    "broken.json": ('[{"a": 1},\n{"a"', "line 2 column"),
    "ragged.json": ('{"a": [1, 2], "b": [1]}', "must be of the same length"),
    "numbers.json": ("[1]", "not iterable"),
    "deep.json": ("[" * 10**5, "recursion"),
    "no.parquet": ("no", "no.parquet cannot be read"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path, name):
    content, said = UNREADABLE[name]
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ValueError, match=said) as error:
        load_splits(DataArguments(dataset_name=str(tmp_path / name)))
    assert name in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text, encoding",
    [
        ("Was kostet es: 3,50 € und 4 € für Übung?", "cp1252"),
        ("L'élève a déjà mangé «½ œuf»…", "cp1252"),
        ("Wie groß?", "utf-8-sig"),
        ("小明有三个苹果，又买了两个，一共有多少个苹果？", "gb18030"),
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_the_encoding_of_a_text_is_found(text, encoding, name, tmp_path):
    content = json.dumps({"q": text, "a": "5"}, ensure_ascii=False)
    content = content if name == "a.jsonl" else f'q;a\n"{text}";5\n'
    (tmp_path / name).write_bytes(content.encode(encoding))
    assert read_file(tmp_path / name).to_list() == [{"q": text, "a": "5"}]


def test_texts_stay_as_they_are(tmp_path):
    """`datasets` would make dates of 2021-05-05, 7 of 007, and nothing of NA."""
    golds = ["007", "1e3", "NA", "2021-05-05", "two\nlines\u2028here", 'a "quote", a comma']
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"a": gold}) + "\n" for gold in golds))
    cells = ['"' + gold.replace('"', '""') + '"' for gold in golds]
    (tmp_path / "a.csv").write_text("\n".join(["a", *cells]) + "\n", newline="")
    for name in ("a.jsonl", "a.csv"):
        assert [row["a"] for row in read_file(tmp_path / name)] == golds


def test_rows_may_lack_columns_and_mix_types(tmp_path):
    rows = [{"q": "1?", "a": 2}, {"q": "2?", "a": "b", "level": {"of": 1}}, {"q": "3?", "a": 0.5}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_file(tmp_path / "a.jsonl")
    assert read["a"][:] == [2, "b", 0.5] and read[1]["level"] == {"of": 1}


def test_a_cell_as_text():
    cells = [2.0, 0.1 + 0.2, None, float("nan"), True, ["7", 7]]
    assert [*map(as_text, cells)] == ["2", "0.3", "", "", "True", "7"]
