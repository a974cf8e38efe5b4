"""`held_out.json` of a run's folder: how many samples of each held-out problem were correct.

{"before": {"step": 0, "num_samples": 8, "num_correct": [5, 0, ...], "problems": "3193fc..."},
 "step 50": ..., "after": ...}
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from .metrics import pass_at_k

FILE = "held_out.json"
BEFORE = "before"


@dataclass(frozen=True)
class Moment:
    """One scoring of the held-out problems."""

    step: int  # optimizer steps done
    num_samples: int  # n, of each problem
    num_correct: list[int]  # of each problem
    problems: str = ""  # a hash: equal for runs that were scored on the same ones

    @property
    def scores(self) -> dict[str, float]:
        """Pass@1 and Pass@n in [0, 1]: {"pass@1": 0.5, "pass@8": 0.75}."""
        n = self.num_samples
        return {f"pass@{k}": float(pass_at_k(n, self.num_correct, k).mean()) for k in (1, n)}


def write_held_out(run: str | Path, moments: dict[str, Moment]) -> None:
    """Write `held_out.json` into a run's folder, whole or not at all."""
    part = Path(run, f"{FILE}.part")
    part.write_text(json.dumps({name: asdict(moment) for name, moment in moments.items()}))
    part.replace(Path(run, FILE))


def read_held_out(run: str | Path) -> dict[str, Moment]:
    """Return the scorings of a run's folder by name, in their order; empty: there are none."""
    path = Path(run, FILE)
    content = json.loads(path.read_text()) if path.is_file() else {}
    return {name: Moment(**values) for name, values in content.items()}
