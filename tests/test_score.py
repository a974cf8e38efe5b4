"""Result folders with known answers, their scores by hand, and the tables that show them."""

import json

import pytest

from trl_miner.cli import main
from trl_miner.evaluation.graded import PAPER
from trl_miner.evaluation.metrics import effect_text
from trl_miner.evaluation.paired import compare_folders
from trl_miner.evaluation.score import score_folder
from trl_miner.evaluation.score_tables import paper_rows

SETTINGS = {
    "model": "runs/me_and_you",
    "seed": 0,
    "temperature": 0.7,
    "top_p": 0.95,
    "max_tokens": 8192,
}


def box(*answers):
    """One text per answer; None: a text without one."""
    return ["I give up." if answer is None else rf"So \boxed{{{answer}}}." for answer in answers]


def write_benchmark(folder, name, answers, *, title="AIME2024", grader="math", options=()):
    """`answers`: the gold and the sampled texts of each problem."""
    path = folder / name
    path.mkdir(parents=True)
    asked = max(len(texts) for _, texts in answers)
    about = {
        "name": name,
        "title": title,
        "grader": grader,
        "samples": asked,
        "fingerprint": f"of {name}",
    }
    (path / "benchmark.json").write_text(json.dumps(about | {"source": {}}))
    problems, lines = [], []
    for number, (gold, texts) in enumerate(answers):
        problems.append({"id": f"p{number}", "question": "?", "solution": gold, "options": options})
        for sample, text in enumerate(texts):
            tokens = len(lines) + 1
            lines.append(
                {"problem": f"p{number}", "sample": sample, "seed": 1, "text": text}
                | {"tokens": tokens, "truncated": tokens == 1}
            )
    (path / "problems.jsonl").write_text(
        "".join(json.dumps(problem) + "\n" for problem in problems)
    )
    (path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_folder(folder, **settings):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(SETTINGS | settings))
    return folder


# c = 2 of 4 and 1 of 4
TWO = [("7", box(7, 8, None, 7)), ("3", box(5, 5, 5, 3))]


@pytest.fixture
def result(tmp_path):
    folder = write_folder(tmp_path / "one")
    write_benchmark(folder, "aime24", TWO)
    return folder


def test_scores_by_hand(result):
    scores = score_folder(result)["benchmarks"]["aime24"]
    # pass@2: 1 - C(2,2)/C(4,2) = 5/6 and 1 - C(3,2)/C(4,2) = 1/2; pass@4: both
    assert scores["pass@k"] == pytest.approx(
        {"1": (0.5 + 0.25) / 2, "2": (5 / 6 + 1 / 2) / 2, "4": 1}
    )
    # of all four, 7 wins 2:1 and 5 wins 3:1
    assert list(scores["maj@k"]) == ["1", "2", "4"]
    assert scores["maj@k"]["4"] == {"mean": 0.5, "std": 0}
    assert scores["problems"] == 2 and scores["samples"] == scores["k"] == 4
    # tokens are 1 to 8, the first is cut off
    assert scores["tokens"] == 4.5 and scores["truncated"] == 1 / 8
    assert scores["no_answer"] == 1 and scores["not_judged"] == {}
    # two problems: every mean of two of their scores is between the smaller and the larger
    assert scores["intervals"]["pass@1"] == pytest.approx({"mean": 0.375, "low": 0.25, "high": 0.5})


def test_files_hold_what_was_returned_and_a_second_call_agrees(result):
    before = (result / "aime24" / "samples.jsonl").read_bytes()
    written = []
    for _ in range(2):
        scores = score_folder(result)
        assert json.loads((result / "scores.json").read_text()) == scores
        written.append([(result / name).read_text() for name in ("scores.json", "scores.md")])
    assert (
        written[0] == written[1] and "Pass@1 37.50 %" in written[0][1] and "Maj@4" in written[0][1]
    )
    assert (result / "aime24" / "samples.jsonl").read_bytes() == before


def test_what_stands_without_a_box_counts_leniently(tmp_path):
    """Of 7, 8 and "the answer is 7" two are right, one of them in a box; a box that is there
    decides."""
    folder = write_folder(tmp_path)
    write_benchmark(
        folder, "aime24", [("7", [*box(7, 8), "So the answer is 7."]), ("7", box(8, None, 8))]
    )
    scores = score_folder(folder)["benchmarks"]["aime24"]
    assert (scores["pass@k"]["1"], scores["lenient_pass@1"]) == pytest.approx((1 / 6, 2 / 6))
    assert "Pass@1 33.33 % if answers without a box count too" in (folder / "scores.md").read_text()


def test_equal_answers_vote_together_and_others_do_not(tmp_path):
    """1/2 twice against 3; a half, written in two ways, against 1; 7 among four wrong answers; 7
    and 8 in a tie."""
    folder = write_folder(tmp_path)
    answers = [
        (r"\frac{1}{2}", box("0.5", 3, r"\frac{1}{2}", 4, 5)),
        ("1", box("2/4", 1, "0.5", 4, 5)),
    ]
    write_benchmark(
        folder, "aime24", [*answers, ("7", box(8, 7, 9, 7, 10)), ("8", box(8, 7, 9, 7, 8))]
    )
    votes = score_folder(folder)["benchmarks"]["aime24"]["maj@k"]["5"]
    # of the ten draws of all samples, those in which 8 comes before 7
    share = 4 * votes["mean"] - (1 + 0 + 1)
    assert 0.2 < share < 0.8 and votes["std"] == pytest.approx(
        (share * (1 - share) * 10 / 9) ** 0.5 / 4
    )


def test_choices(tmp_path):
    folder = write_folder(tmp_path)
    texts = ["The answer is B.", "The answer is zinc.", "The answer is iron.", "Perhaps."]
    write_benchmark(
        folder, "medqa", [("B", texts)], title="MedQA", grader="choice", options=["iron", "zinc"]
    )
    scores = score_folder(folder)["benchmarks"]["medqa"]
    assert scores["pass@k"]["1"] == 0.5 and scores["maj@k"]["4"]["mean"] == scores["no_answer"] == 1


def test_a_problem_without_a_verdict_is_left_out_and_counted(tmp_path):
    """Of 2 problems the first has 1 of 2 right, and no answer to the second can be judged: 1/2, not
    1/4."""
    folder = write_folder(tmp_path)
    write_benchmark(folder, "aime24", [("7", box(7, 8)), ("", box(7, 8))])
    scores = score_folder(folder)
    aime24 = scores["benchmarks"]["aime24"]
    assert aime24["pass@k"] == pytest.approx({"1": 0.5, "2": 1}) and aime24["problems"] == 1
    assert aime24["not_judged"] == {"gold": 2} and aime24["no_answer"] == 0
    assert "2 of 4 samples were not judged" in scores["warnings"][0]
    assert scores["warnings"][0] in (folder / "scores.md").read_text()


def test_a_benchmark_without_a_verdict_has_no_score(tmp_path):
    folder, other = write_folder(tmp_path / "a"), write_folder(tmp_path / "b")
    write_benchmark(folder, "aime24", [("", box(7, 8))])
    with pytest.raises(ValueError, match="2 of 2 samples were not judged"):
        score_folder(folder)
    write_benchmark(folder, "amc23", [("7", box(7, 7))])
    for name in ("aime24", "amc23"):
        write_benchmark(other, name, [("7", box(7, 7))])
    scores = score_folder(folder)
    assert [*scores["benchmarks"]] == ["amc23"] and "n/a" in scores["warnings"][0]
    first, second, warning = compare_folders([other, folder])
    assert "Pass@1" in first and "Pass@2" in second and "Only some folders have aime24" in warning


def test_a_model_that_answers_nothing_scores_zero(tmp_path):
    folder = write_folder(tmp_path)
    write_benchmark(folder, "aime24", [("7", [""] * 2), ("8", ["", "hm"])])
    scores = score_folder(folder)
    found = scores["benchmarks"]["aime24"]
    assert (
        set(found["pass@k"].values()) == {0}
        and found["maj@k"]["2"]["mean"] == 0
        and found["no_answer"] == 4
    )
    assert "every score is 0" in scores["warnings"][0]


def test_a_broken_line_at_the_end_is_a_missing_sample(result):
    path = result / "aime24" / "samples.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match="1 of 8 are missing.*same `trl-miner eval`.*1 broken line"
    ):
        score_folder(result)
    assert path.read_bytes() == before


def test_a_later_line_wins_and_samples_that_do_not_belong_are_not_scored(result):
    path = result / "aime24" / "benchmark.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"samples": 2}))
    again = {
        "problem": "p1",
        "sample": 0,
        "seed": 1,
        "text": box(3)[0],
        "tokens": 5,
        "truncated": False,
    }
    with (result / "aime24" / "samples.jsonl").open("a") as stream:
        stream.write(json.dumps(again) + "\n" + '{"problem": "p0", "sam\n')
    scores = score_folder(result)  # 7, 8 and 3, 5
    assert (
        scores["benchmarks"]["aime24"]["pass@k"]["1"] == pytest.approx(0.5)
        and len(scores["warnings"]) == 1
    )
    with (result / "aime24" / "samples.jsonl").open("a") as stream:
        stream.write(json.dumps(again | {"problem": "p9"}) + "\n")
    with pytest.raises(ValueError, match="'p9'"):
        score_folder(result)


def test_the_papers_rows_stand_beside(tmp_path):
    folder = write_folder(tmp_path, temperature=1.0)
    write_benchmark(folder, "math500", [("7", box(7, 7))], title="MATH500")
    write_benchmark(folder, "aime24", [("7", box(*[7] * 128))])
    score_folder(folder, paper="Qwen/Qwen3-4B-Base")
    page = (folder / "scores.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| Paper: MINER"))
    # AIME2024 first, as in the paper; MATH500 has K=16 there, so that only its P@1 can stand here
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    assert cells == ["25.86", "73.33", "86.93", "-", f"{(25.86 + 86.93) / 2:.2f}", "-"]
    assert "temperature 0.7, here 1.0" in page
    assert "GSPO, Avg P@1" in page
    assert paper_rows("meta-llama/Llama-3.1-8B-Instruct") is PAPER["rows"]["Llama3.1-8B-Instruct"]
    with pytest.raises(
        ValueError, match="The paper has no model 'Qwen3-32B'. .*Its models: Qwen3-4B-Base, "
    ):
        score_folder(folder, paper="Qwen3-32B")


def test_the_papers_tables_by_k_stand_beside(tmp_path):
    """Pass@1, Pass@2, Maj@1 and Maj@2 of one problem that is always right; larger K were not
    sampled."""
    folder = write_folder(tmp_path)
    write_benchmark(folder, "aime24", [("7", box(7, 7))])
    score_folder(folder, paper="Qwen3-4B-Base")
    page = (folder / "scores.md").read_text()
    for metric, of_miner in (("Pass@k", "30.33"), ("Maj@k", "27.33")):  # at K = 2
        table = page.partition(f"AIME2024, {metric}:")[2]
        header, _, own, *rows = (line.split("|") for line in table.strip().splitlines()[:9])
        assert [cell.strip() for cell in own[2:5]] == ["100.00", "100.00", "-"]
        assert rows[-1][1].strip() == "Paper: MINER" and rows[-1][3].strip() == of_miner
    score_folder(folder, paper="Qwen3-8B-Base")
    assert "K = 2" not in (folder / "scores.md").read_text()


def test_scores_stand_by_level_where_the_problems_have_levels(tmp_path, capsys):
    """Level 2: (2/4 + 1/4) / 2; level 10: 4/4."""
    folder = write_folder(tmp_path / "one")
    path = write_benchmark(folder, "math500", [*TWO, ("7", box(7, 7, 7, 7))], title="MATH500")
    problems = [json.loads(line) for line in (path / "problems.jsonl").read_text().splitlines()]
    for problem, level in zip(problems, ("2", "2", "10"), strict=True):
        problem["level"] = level
    (path / "problems.jsonl").write_text("".join(json.dumps(one) + "\n" for one in problems))
    levels = score_folder(folder)["benchmarks"]["math500"]["levels"]
    assert levels == [("2", 2, 0.375), ("10", 1, 1.0)]
    assert main(["score", str(folder), "--quiet"]) == 0
    for text in ((folder / "scores.md").read_text(), capsys.readouterr().out):
        rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| 2 ")]
        assert [cell.strip() for cell in rows[0]] == ["2", "2", "37.50"]


def test_names_are_no_markup(tmp_path):
    image, html = "![x](http://evil/a.png)", "<img src=http://evil/b.png>"
    folder = write_folder(tmp_path / "one", model=f"me{image}|\n# {html}")
    write_benchmark(folder, "own", TWO, title=f"{image} | {html}\n\n## New")
    score_folder(folder)
    text = (folder / "scores.md").read_text()
    assert "![x](" not in text and "<img" not in text and "!\\[x](http" in text
    assert not [line for line in text.splitlines() if line.startswith(("## New", "# &lt;"))]


def pair(tmp_path, **settings):
    first, second = (
        write_folder(tmp_path / "first"),
        write_folder(tmp_path / "second", seed=1, **settings),
    )
    golds = ["1", "2", "3"]
    write_benchmark(first, "aime24", [(gold, box(gold, 9)) for gold in golds])
    write_benchmark(second, "aime24", [(gold, box(gold, gold, 9, gold)) for gold in golds])
    return first, second


def test_compare_by_hand(tmp_path):
    first, second = pair(tmp_path)
    one, two = compare_folders([first, second])
    # pass@1 is 1/2 and 3/4 on each of three problems; of the eight swaps +++ and --- are as extreme
    assert one.startswith(
        f"{second} against {first}, AIME2024, Pass@1 75.00 % against 50.00 %, 3 problems: +25.00 "
    )
    assert "95 % +25.00 to +25.00: no difference shown (p 0.2" in one
    # pass@2, the largest that both have: 1, and 1 - C(1,2)/C(4,2) = 1
    assert "Pass@2 100.00 % against 100.00 %" in two and "(p 1.0000)" in two
    assert sorted(path.name for path in first.iterdir()) == ["aime24", "settings.json"]


@pytest.mark.parametrize(
    ("effect", "said"),
    [
        ((0.05, 0.01, 0.09, 0.02), "+5.00 points, 95 % +1.00 to +9.00: better"),
        ((-0.05, -0.09, -0.01, 0.02), "-5.00 points, 95 % -9.00 to -1.00: worse"),
        ((0.05, 0.01, 0.09, 0.06), "+5.00 points, 95 % +1.00 to +9.00: no difference shown"),
        ((0.05, -0.01, 0.11, 0.04), "+5.00 points, 95 % -1.00 to +11.00: no difference shown"),
    ],
)
def test_a_difference_is_shown_where_interval_and_test_agree(effect, said):
    assert effect_text(*effect) == said


def test_score_prints_sentences_and_the_paper_on_demand(tmp_path, capsys):
    first, second = pair(tmp_path)
    call = ["score", str(first), str(second), "--quiet"]
    assert main(call) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines[1] == (
        "AIME2024: Pass@1 50.00 % (95 %: 50.00 to 50.00), Pass@2 100.00 % (95 %: 100.00 to 100.00),"
        " Maj@2 " + lines[1].partition("Maj@2 ")[2]
    )
    rest = (
        "3 problems, 2 samples of each, of 4 tokens on average; 16.67 % cut off, 0 without an"
        " answer."
    )
    assert lines[1].endswith(rest) and lines[1] in (first / "scores.md").read_text()
    assert "Pass@1 75.00 % against 50.00 %" in lines[4] and len(lines) == 6
    assert main([*call, "--paper", "Qwen3-4B-Base"]) == 0
    assert "| Paper: MINER" in capsys.readouterr().out


def test_compare_warns_of_other_settings_and_needs_the_same_problems(tmp_path):
    first, second = pair(tmp_path, temperature=1.0)
    write_benchmark(first, "amc23", [("1", box(1))], title="AMC23")
    warnings = [said for said in compare_folders([first, second]) if said.startswith("Warning")]
    assert (
        len(warnings) == 2 and "temperature 0.7 and 1.0" in warnings[0] and "amc23" in warnings[1]
    )
    assert "seed" not in warnings[0]
    path = second / "aime24" / "benchmark.json"
    path.write_text(path.read_text().replace("of aime24", "other"))
    with pytest.raises(ValueError, match="aime24 has other problems in"):
        compare_folders([first, second])


def test_folders_that_cannot_be_scored_or_compared_are_named(tmp_path, result):
    with pytest.raises(FileNotFoundError, match="settings.json is missing"):
        score_folder(tmp_path)
    other = write_folder(tmp_path / "other")
    with pytest.raises(FileNotFoundError, match="No evaluation results in "):
        score_folder(other)
    write_benchmark(other, "amc23", [("1", box(1))])
    with pytest.raises(ValueError, match="share no benchmark"):
        compare_folders([result, other])
