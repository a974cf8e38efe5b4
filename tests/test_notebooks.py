"""The notebooks as they are read: whole outputs, text that says what the cells show, an order."""

import html
import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
notebooks = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
# Numbers of text that no cell shows: of the paper, of a setting's default, of arithmetic in words.
FROM_ELSEWHERE = {
    "01_the_method_in_one_batch": {"2601.04731", "0.75", "0.5", "1.5", "0.9"},
    "02_train_the_arithmetic_model": {"0.15"},  # million parameters
    "03_which_tokens_are_paid": {"0.15"},  # percent: the default of miner_lambda_max
    "04_evaluate": {"0.7", "0.5", "95"},
    "06_a_real_model_on_a_laptop": {"20"},  # percent: the recipe of the exercise
}
# what carries a claim: a number with a decimal point, with a percent sign, in points or in GiB
CLAIM = re.compile(r"(?<![\w.])(\d+\.\d+|\d+(?= (?:%|points|GiB|to \d+ points)))(?![\w.]*\d)")


def cells(notebook, kind):
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == kind]


def shown(notebook):
    """All numbers in the outputs of a notebook, as text."""
    texts = []
    for cell in cells(notebook, "code"):
        for output in cell["outputs"]:
            data = output.get("data", {})
            texts += [
                output.get("text", ""),
                *(data.get(f"text/{kind}", "") for kind in ("plain", "html")),
            ]
    text = html.unescape(" ".join("".join(part) for part in texts))
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", text)]


def is_shown(claim, numbers):
    """Whether a number, or a hundredth of it, rounds to the claim at its digits."""
    digits = len(claim.partition(".")[2])
    return any(round(number * by, digits) == float(claim) for number in numbers for by in (1, 100))


@notebooks
def test_a_number_of_the_text_is_one_of_the_cells(notebook):
    numbers, allowed = shown(notebook), FROM_ELSEWHERE.get(notebook.stem, set())
    text = "\n".join("".join(cell["source"]) for cell in cells(notebook, "markdown"))
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    claims = {*CLAIM.findall(text)} - allowed
    assert not {claim for claim in claims if not is_shown(claim, numbers)}


@pytest.mark.parametrize(
    ("claim", "numbers", "expected"),
    [("63.2", [63.2], True), ("82", [0.8163], True), ("19", [20.1, 33.44], False)],
)
def test_a_claim_is_compared_at_its_own_digits(claim, numbers, expected):
    assert is_shown(claim, numbers) == expected


@notebooks
def test_an_output_is_whole(notebook):
    """Chunks of a stream that were stored apart would cut lines in two."""
    for cell in cells(notebook, "code"):
        streams = [output.get("name") for output in cell["outputs"]]
        assert not [
            one for one, two in zip(streams, streams[1:], strict=False) if one == two is not None
        ]


@notebooks
def test_no_command_failed(notebook):
    """Jupyter goes on after a `!` line that fails; `.ci/run notebooks` does not."""
    outputs = [output for cell in cells(notebook, "code") for output in cell["outputs"]]
    text = "".join("".join(output.get("text", "")) for output in outputs)
    assert not re.search(r"^trl-miner.*: error:", text, re.MULTILINE)


def test_each_notebook_ends_with_the_next():
    assert NOTEBOOKS[0].stem == "00_your_own_data"
    for notebook, following in zip(NOTEBOOKS, NOTEBOOKS[1:], strict=False):
        last = "".join(cells(notebook, "markdown")[-1]["source"]).splitlines()[-1]
        assert last.startswith("Next: [") and f"]({following.name})" in last, notebook.name


def test_no_placeholder_is_left():
    assert not [path.name for path in NOTEBOOKS if "OWNER" in path.read_text()]


def test_they_are_read_in_a_quarter_of_an_hour():
    """2,250 words at 150 a minute, without code, formulas and links."""
    text = "\n".join(
        "".join(cell["source"]) for path in NOTEBOOKS for cell in cells(path, "markdown")
    )
    text = re.sub(r"```.*?```|\$\$.*?\$\$|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    assert len(re.findall(r"[A-Za-z0-9][\w'%.,@-]*", text)) <= 2250
