"""Scores of samples that are written by hand: grades, votes, the paper's rows, two
models."""

import json

import pytest

from trl_miner.evaluation.scores import score_folders


def write(folder, texts, *, name="mine", title="Mine", grader="math", solutions=None,
          options=None, **settings):  # fmt: skip
    """Write a file of samples: for each problem the texts of its samples."""
    folder.mkdir(exist_ok=True)
    about = {"title": title, "grader": grader, "num_problems": len(texts), "problems": "abc",
             "decimal_comma": False, "model": "m", **settings}  # fmt: skip
    rows = [
        {
            "problem": f"p{place}", "sample": number, "text": text, "truncated": number == 1,
            "solution": solutions[place] if solutions else "7",
            "options": options[place] if options else [],
        }
        for place, own in enumerate(texts)
        for number, text in enumerate(own)
    ]  # fmt: skip
    (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, [about, *rows])) + "\n")
    return folder


def scored(folder, name="mine"):
    score_folders([folder])
    return json.loads((folder / "scores.json").read_text())[name]


SEVEN, EIGHT, NONE = "It is \\boxed{7}.", "It is \\boxed{8}.", "I do not know."


def test_pass_and_majority_by_hand(tmp_path):
    """Problem 1: 7, 7, 8 has two votes for 7. Problem 2: 8, 8, 7 has two for 8. Problem 3: 7, and
    nothing twice: the only vote is for 7. Equal answers are one: 14/2 is 7."""
    texts = [[SEVEN, "\\boxed{14/2}", EIGHT], [EIGHT, EIGHT, SEVEN], [SEVEN, NONE, NONE]]
    found = scored(write(tmp_path, texts))
    # correct: 2, 1 and 1 of 3
    assert found["metrics"]["Pass@1"][0] == pytest.approx((2 / 3 + 1 / 3 + 1 / 3) / 3)
    # 1 - C(3-c, 2)/C(3, 2): 1, 2/3 and 2/3
    assert found["metrics"]["Pass@2"][0] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    assert found["metrics"]["Pass@3"][0] == 1
    assert found["metrics"]["Maj@3"][0] == pytest.approx(2 / 3)
    mean, low, high = found["metrics"]["Maj@3"]
    assert low < mean < high  # over problems
    assert (found["cut off"], found["not graded"]) == (3, {})


def test_what_cannot_be_graded_is_wrong_and_counted(tmp_path):
    found = scored(write(tmp_path, [[SEVEN], [SEVEN]], solutions=["7", ""]))
    assert found["not graded"] == {"gold": 1} and found["metrics"]["Pass@1"][0] == 0.5


def test_choices_are_graded_as_choices(tmp_path):
    texts = [["The answer is B.", "The answer is (A) Paris."]]
    write(tmp_path, texts, grader="choice", solutions=["B"], options=[["Paris", "Rome"]])
    assert scored(tmp_path)["metrics"]["Pass@1"][0] == 0.5


def test_a_decimal_comma_is_read_where_it_was_set(tmp_path):
    texts = [["\\boxed{15,50}"]]
    for is_set, expected in ((True, 1), (False, 0)):
        write(tmp_path, texts, solutions=["15.5"], decimal_comma=is_set)
        assert scored(tmp_path)["metrics"]["Pass@1"][0] == expected


@pytest.mark.parametrize("texts", [[[SEVEN, SEVEN], [SEVEN]], [[SEVEN], []]])
def test_missing_samples_are_refused(tmp_path, texts):
    with pytest.raises(ValueError, match="samples of each of 2 problems"):
        scored(write(tmp_path, texts))


def test_two_models_are_compared_problem_by_problem(tmp_path):
    """The second solves five problems of five that the first does not: of 32 swaps two are as
    large. Other problems of one name are not compared."""
    write(tmp_path / "a", [[EIGHT]] * 5)
    write(tmp_path / "b", [[SEVEN]] * 5)
    folders = [tmp_path / "a", tmp_path / "b"]
    told = "mine.jsonl against the first: Pass@1 +100.00% (+100.00% to +100.00%, p 0.0625)"
    assert f"{folders[1]}/{told}" in score_folders(folders)
    write(tmp_path / "b", [[SEVEN]] * 5, problems="others")
    assert "against" not in score_folders(folders)


def test_the_papers_rows_stand_below_each_benchmark(tmp_path):
    write(tmp_path, [[SEVEN, EIGHT]], name="aime24", title="AIME2024")
    write(tmp_path, [[SEVEN, SEVEN]], name="math500", title="MATH500")
    text = score_folders([tmp_path], paper="Qwen3-4B-Base")
    # the paper's main table
    assert "paper, MINER: Pass@1, and Pass@K at its K, [25.86, 73.33]" in text
    assert "paper, MINER: Pass@1, and Pass@K at its K, [86.93, 95.8]" in text
    assert "paper, GRPO: Pass@1, and Pass@K at its K, [19.79, 63.33]" in text
