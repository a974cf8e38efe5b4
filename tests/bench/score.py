"""How long `trl-miner score` takes for six benchmarks of 30 problems with 512 samples each.

    python tests/bench/score.py [--write]

The whole command, imports included. Target: 15 seconds of processor time.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import processor_seconds, report_table

TITLES = ("AIME2024", "AIME2025", "AMC23", "HMMT25", "MATH500", "OlympiadBench")
PROBLEMS = 30
WORDING = "First we compare the terms, then we add them up. " * 10


def write_folder(folder, num_samples):
    """Write a result folder: answers are whole numbers, the right ones as likely as a random share of the problem."""
    rng = random.Random(0)
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps({"model": "a/model", "temperature": 0.7, "top_p": 0.95}))
    for title in TITLES:
        benchmark = folder / title.lower()
        benchmark.mkdir()
        about = {"title": title, "grader": "math", "samples": num_samples, "fingerprint": title, "source": {}}
        (benchmark / "benchmark.json").write_text(json.dumps({"format": 1, **about}))
        problems, samples = [], []
        for place in range(PROBLEMS):
            gold, share = rng.randrange(1000), rng.random()
            problems.append(
                {"id": f"p{place}", "question": "How many?", "solution": str(gold), "level": str(place % 5)}
            )
            for number in range(num_samples):
                answer = gold if rng.random() < share else rng.randrange(gold, gold + 20)
                text = f"{WORDING}So it is \\boxed{{{answer}}}."
                samples.append({"problem": f"p{place}", "sample": number, "seed": 0, "text": text, "tokens": 120})
                samples[-1] |= {"truncated": False, "limit": 8192}
        for name, lines in (("problems", problems), ("samples", samples)):
            (benchmark / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def main():
    rows = []
    for num_samples in (16, 128, 512):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "samples"
            write_folder(folder, num_samples)
            start, used = time.perf_counter(), processor_seconds()
            command = [sys.executable, "-m", "trl_miner.cli", "score", str(folder)]
            subprocess.run(command, check=True, capture_output=True)
            used = processor_seconds() - used
            rows.append([num_samples, f"{used:.1f}", f"{time.perf_counter() - start:.1f}"])
    header = ["samples of each problem", "processor, s", "elapsed, s"]
    text = (
        f"The whole command, imports included, for {len(TITLES)} benchmarks of {PROBLEMS} problems, whose answers are "
        "whole numbers.\nTarget: 15 seconds of processor time for 512 samples of each."
    )
    report_table("score", "`trl-miner score`", text, header, rows)


if __name__ == "__main__":
    main()
