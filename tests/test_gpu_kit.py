"""The kit for a GPU ends in time, whatever its parts do; its parts themselves need what run.sh carries."""

import json
import sys
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent / "gpu"))
import kit


def says(code):
    return lambda options: [sys.executable, "-c", code]


WAITS = "import subprocess, time; print('begun', flush=True); subprocess.run(['sleep', '77'])"


@pytest.fixture
def run_kit(monkeypatch, tmp_path, capsys):
    def run(parts, seconds):
        monkeypatch.setattr(kit, "KIT", tmp_path)
        monkeypatch.setattr(kit, "PARTS", parts)
        monkeypatch.setattr(kit, "LEAST_SECONDS", 3)
        monkeypatch.setattr(kit, "machine", lambda: "no GPU")
        monkeypatch.setattr(sys, "argv", ["kit.py", "--seconds", str(seconds)])
        monkeypatch.setenv("OUT", str(tmp_path / "out"))
        kit.main()
        assert capsys.readouterr().out.count("| Part | Predicted |") == 1
        return json.loads((tmp_path / "out" / "results.json").read_text())["parts"]

    return run


def test_a_part_that_fails_or_is_missing_stops_no_other(run_kit, tmp_path):
    parts = [
        kit.Part("fails", says("print('a'); raise ValueError('of this')"), 1),
        kit.Part("lacks a package", says(""), 1, ("no_such_package",)),
        kit.Part("lacks a model", says(""), 1, folder=kit.ROOT / "no_such_folder"),
        kit.Part("table", says(r"print('noise\n| a | b |\n| --- | --- |\n| 1 | 2 |\nend')"), 3),
        kit.Part("beside", says("print('Pass@1 0.5')"), 3, is_beside=True),
    ]
    results = run_kit(parts, 20)
    assert results["fails"]["ended"] == "exit code 1"
    assert results["fails"]["found"][-1] == "ValueError: of this"
    assert results["lacks a package"]["skipped"] == "no_such_package is not there"
    assert results["lacks a model"]["skipped"] == "no_such_folder is not there"
    assert results["table"]["found"] == ["| a | b |", "| 1 | 2 |"]
    assert results["beside"]["found"] == ["Pass@1 0.5"]
    said = (tmp_path / "out" / "logs.txt").read_text()
    assert "== fails" in said and "noise" in said


def test_it_ends_in_time_with_all_that_its_parts_have_started(run_kit):
    """Of 6 seconds the last part keeps 3: the first is stopped after 3, when too few are left to
    begin another."""
    parts = [kit.Part("hangs", says(WAITS), 1), kit.Part("late", says(""), 3)]
    results = run_kit(parts, 6)
    assert results["hangs"]["ended"] == "stopped at its limit"
    assert results["hangs"]["found"] == ["begun"]
    assert results["late"]["skipped"] == "no time was left"
    left = [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "77"]]
    assert not psutil.wait_procs(left, timeout=20)[1]  # killed: the system may need a moment


def test_all_parts_together_keep_less_than_eight_minutes():
    """What is kept for parts that run at the same time is kept once."""
    assert sum(part.seconds for part in kit.PARTS if not part.is_beside) <= 460
    predictions = json.loads((kit.HERE / "predictions.json").read_text())
    assert list(predictions) and {*predictions} == {part.name for part in kit.PARTS}
