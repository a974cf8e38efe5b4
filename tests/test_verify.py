"""`trl-miner verify`: verdicts on the same answers, side by side."""

import json

import pytest
from harness import build_policy, config, problems
from trl import GRPOConfig, GRPOTrainer

from trl_miner.cli import main
from trl_miner.viewing.verdicts import verify_file

CSV = """question,answer,response,score
1+1?,2,"So it is \\boxed{2}.",1
half?,0.5,"It is \\boxed{\\frac{1}{2}}.",0
2+2?,4,So it is 4.,0
3+3?,6,\\boxed{7},1
"""


@pytest.fixture
def csv(tmp_path):
    (tmp_path / "answers.csv").write_text(CSV)
    return tmp_path / "answers.csv"


def test_disagreements_come_first(csv):
    verdicts = verify_file(csv)
    rows = verdicts.table[["gold", "recorded", "ours", "math-verify"]].values.tolist()
    assert [row[1:] for row in rows] == [[0, 1, 1], [0, 1, 1], [1, 0, 0], [1, 1, 1]]
    assert verdicts.sentences() == [
        "Right for trl-miner, wrong for the recorded reward: 2 of 4.",
        "Right for the recorded reward, wrong for trl-miner: 1 of 4.",
        "Without \\boxed{}: 1. They were read here; math_reward does so only with"
        " math_accept_unboxed.",
    ]
    assert verdicts.notes == [
        "Answers are in the column response, reference answers in answer, recorded rewards in score."
    ]


def test_the_command_prints_them_and_writes_a_page(csv, capsys, tmp_path):
    text = CSV + "x,<script>x</script>,\\boxed{<b>x</b>},0\n"
    csv.write_text(text)
    assert main(["verify", str(csv), "--show", "2", "--output", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().out
    assert "wrong for the recorded reward: 2 of 5" in said and said.count("| wrong") == 2
    page = (tmp_path / "page.html").read_text()
    assert "&lt;script&gt;x" in page and "<script>x" not in page


def test_columns_can_be_named_and_a_missing_one_is_told(csv, tmp_path, capsys):
    csv.write_text("q,a,said,r\n1+1,2,\\boxed{2},2\n")
    assert main(["verify", str(csv)]) == 2
    assert "there are q, a, said, r. Name it with --completion COLUMN" in capsys.readouterr().err
    columns = {"completion": "said", "gold": "a", "reward": "r"}
    assert verify_file(csv, columns, threshold=2).table["recorded"].tolist() == [1]
    assert verify_file(csv, columns, threshold=3).table["recorded"].tolist() == [0]
    assert verify_file(csv, {"completion": "said"}).table["recorded"].isna().all()


def test_rollouts_of_verl_are_verified(tmp_path):
    rows = [
        {"input": "p", "output": f"\\boxed{{{answer}}}", "gts": "1/2", "score": -1.0, "acc": False, "step": 1}
        for answer in ("0.5", "0.7")
    ]  # fmt: skip
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    verdicts = verify_file(tmp_path)
    assert (
        verdicts.table["ours"].tolist() == [1, 0] and len(verdicts.differ("ours", "recorded")) == 1
    )
    assert len(verify_file(tmp_path, samples=1).table) == 1


def with_golds(completions, solution, log_extra, **kwargs):
    log_extra("solution", list(solution))  # as TRL's own accuracy_reward does
    return [0.0 for _ in completions]


def test_a_run_of_trl_needs_golds_beside_the_completions(tmp_path):
    def train(reward, name):
        args = config(tmp_path / name, cls=GRPOConfig, log_completions=True, max_steps=2)
        GRPOTrainer(build_policy(tmp_path / "policy"), reward, args, problems()).train()
        return tmp_path / name

    verdicts = verify_file(train(with_golds, "golds"))
    assert {*verdicts.table["gold"]} <= {*problems()["solution"]} and len(verdicts.table) == 24
    with pytest.raises(ValueError, match="has no reference answers. .*log_extra"):
        verify_file(train(lambda completions, **_: [0.0] * len(completions), "none"))
