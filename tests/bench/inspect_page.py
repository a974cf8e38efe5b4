"""Size and speed of the page of `trl-miner inspect`.

    python tests/bench/inspect_page.py [--write] [--rounds 5] [--rollouts 2000 6400] [--tokens 1000]

Synthetic records: numbers without any regularity, token texts by Zipf's law from 50,000, eight
rollouts a prompt. Targets: under 40 MB, and open in under 3 s.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import machine, report, table

sys.path.insert(0, str(Path(__file__).parents[1]))
from browser import open_page
from credit_files import SCHEMA

from trl_miner.viewing.credit import read_credit
from trl_miner.viewing.inspect import MOST_TOKENS, write_inspect_page

GENERATIONS, VOCABULARY = 8, 50_000
LISTS = ("old_logps", "weights", "advantages_before", "advantages")
# Until it is there to be looked at: drawn, not only computed.
DRAWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def write_run(folder, num_rollouts, num_tokens, num_steps=25):
    random = np.random.default_rng(0)
    texts = np.array([f" word{place}" for place in range(VOCABULARY)], dtype=object)
    (folder / "credit").mkdir(parents=True)
    for step in range(1, num_steps + 1):
        rows = []
        for place in range(num_rollouts // GENERATIONS // num_steps * GENERATIONS):
            group, index = divmod(place, GENERATIONS)
            ids = np.minimum(random.zipf(1.2, num_tokens), VOCABULARY) - 1
            lists = dict(
                zip(LISTS, random.standard_normal((4, num_tokens)).astype(np.float32), strict=True)
            )
            kind, tokens = ("PH", "HE", "NH", "PH")[group % 4], texts[ids].tolist()
            rows.append(
                lists
                | dict.fromkeys(
                    ("reward", "verifier_reward", "grpo_advantage", "advantage", "nll"), 0.5
                )
                | {
                    "step": step,
                    "group": group,
                    "rollout": index,
                    "kind": kind,
                    "length": num_tokens,
                }
                | {"prompt": "".join(tokens[:60]), "completion": "".join(tokens)}
                | {"tokens": tokens, "token_ids": ids.tolist()}
            )
        meta = {b"trl_miner": b'{"step": %d}' % step}
        written = pa.Table.from_pylist(rows, schema=SCHEMA).replace_schema_metadata(meta)
        pq.write_table(
            written, folder / "credit" / f"credit_{step:05d}.parquet", compression="zstd"
        )


def measure(run, rounds):
    """Bytes, and medians in seconds."""
    writing = []
    for _ in range(rounds):
        start = time.perf_counter()
        path = write_inspect_page(read_credit(run), run / "inspect.html")
        writing.append(time.perf_counter() - start)
    opening, showing, searching = [], [], []
    with open_page(path) as page:
        for _ in range(rounds):
            page.goto("about:blank")
            start = time.perf_counter()
            page.goto(path.resolve().as_uri())
            page.evaluate(f"() => ready.then(() => {DRAWN})")
            opening.append(time.perf_counter() - start)
            for jump in (1, 60, 120):  # prompts that are not unpacked yet
                start = time.perf_counter()
                page.evaluate(
                    f"() => choose(prompts[Math.min({jump}, prompts.length - 1)]).then(() =>"
                    f" {DRAWN})"
                )
                showing.append(time.perf_counter() - start)
            start = time.perf_counter()
            page.evaluate("() => search('no such text')")
            searching.append(time.perf_counter() - start)
    return path.stat().st_size, *map(statistics.median, (writing, opening, showing, searching))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rollouts", type=int, nargs="+", default=[2000, 6400])
    parser.add_argument("--tokens", type=int, default=1000)
    args = parser.parse_args()
    rows = []
    for num_rollouts in args.rollouts:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            write_run(run, num_rollouts, args.tokens)
            parquet = sum(path.stat().st_size for path in run.rglob("*.parquet"))
            size, *seconds = measure(run, args.rounds)
        megabytes = [f"{parquet / 1e6:.1f}", f"{size / 1e6:.1f}"]
        rows.append([f"{num_rollouts:,}", *megabytes, *(f"{one:.2f}" for one in seconds)])
    header = ["rollouts recorded", "Parquet, MB", "page, MB"]
    header += ["write, s", "open, s", "another prompt, s", "search all, s"]
    report(
        "inspect_page",
        f"# The page of `trl-miner inspect`: rollouts of {args.tokens:,} tokens\n\nMedians of"
        f" {args.rounds} rounds, in headless Chromium. Open: until the first prompt is drawn."
        f" Another prompt: one that is not unpacked yet, {GENERATIONS} rollouts. Targets: under 40"
        f" MB, open in under 3 s.\nA page shows at most {MOST_TOKENS:,} tokens.\n\n{machine()}."
        f" `python tests/bench/inspect_page.py --write`\n\n{table(header, rows)}",
    )


if __name__ == "__main__":
    main()
