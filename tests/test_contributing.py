"""The worked example of CONTRIBUTING.md: a new advantage estimator is one file and one line."""

import json
import re
import shutil
import sys
from pathlib import Path

from harness import in_a_fork

import trl_miner

ROOT = Path(__file__).parent.parent
PACKAGE = Path(trl_miner.__file__).parent


def train_with(folder, policy):
    """Train with the package in a folder, in a process that has imported another one, and write
    down what came out."""
    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("trl_miner", "harness")
    ]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    from harness import trained

    assert sys.modules["trl_miner"].__file__.startswith(str(folder))
    knobs = dict(advantage_estimator_kwargs={"scale": 0.5})
    trainer = trained(policy, folder / "out", advantage_estimator="rloo", max_steps=2, **knobs)
    both = trained(
        policy, folder / "both", advantage_estimator="rloo", all_right="miner", max_steps=2
    )
    found = {
        "advantages": sorted(
            {
                round(value, 4)
                for batch in trainer.batches
                for value in batch["advantages"].flatten().tolist()
            }
        ),
        "is_recovered": any(log.get("rollouts/recovered", 0) > 0 for log in both.state.log_history),
        "papers": [method.arxiv for method in trainer.args.methods],
    }
    (folder / "found.json").write_text(json.dumps(found))


def test_the_worked_example_is_one_file_and_one_line(policy, tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = re.search(
        r"^### Add an advantage estimator\n(.*?)(?=^##|\Z)", text, re.DOTALL | re.MULTILINE
    )[1]
    file, line = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert line.count("\n") == 1
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    shutil.copytree(PACKAGE, tmp_path / "trl_miner", ignore=shutil.ignore_patterns("__pycache__"))
    methods = tmp_path / "trl_miner" / "methods"
    (methods / re.search(r"`trl_miner/methods/(\w+\.py)`", section)[1]).write_text(file)
    package = (methods / "__init__.py").read_text()
    assert package.count("# isort: on") == 1
    (methods / "__init__.py").write_text(package.replace("# isort: on", f"{line}# isort: on"))
    code, said = in_a_fork(train_with, tmp_path, policy)
    assert code == 0, said[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    # scale .5, G 4: one right of four is .5 * .75 * 4 / 3 = .5, the others .5 * -.25 * 4 / 3 =
    # -.1667; and so on
    assert set(found["advantages"]) <= {-0.5, -0.3333, -0.1667, 0.0, 0.1667, 0.3333, 0.5}
    assert len(found["advantages"]) > 1
    assert found["is_recovered"] and found["papers"] == ["2402.14740"]
