"""Write recipes/README.md, the reference of all recipes, from the recipes: `python .ci/recipes_readme.py`."""

import itertools
import re
from pathlib import Path
from typing import NamedTuple

from trl_miner.recipe_files import MODELS, NO_RECIPES, read_machine, read_title

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
INTRODUCTION = """# Recipes

`python .ci/recipes_readme.py` writes this file; a test fails when it is out of date.

A recipe lists what differs from the defaults of `MinerGRPOConfig` and, behind each setting, the source of its value.
The recipes of a model differ only in the method. `trl-miner train --help methods` explains each setting, and the
[guide to launching](../trl_miner/launching/README.md) how to run a recipe on GPUs.

They come with the package: `trl-miner recipes` lists them, `trl-miner recipes --copy arithmetic/miner` copies one to
`recipes/`. Every command that takes a recipe's path also takes its name, such as `arithmetic/miner`. A file of that
name in the current folder, or in its `recipes/`, takes precedence.

A recipe runs code: what it names by an import path, such as a reward function, is imported from an installed package
or, after all packages, from the current folder. Train only recipes that you trust.

```bash
trl-miner train --config recipes/arithmetic/miner.yaml
trl-miner doctor recipes/Qwen3-4B-Base/miner.yaml
trl-miner launch recipes/Qwen3-4B-Base/miner.yaml --learning_rate 1e-6
```

The recipes of off-policy methods cut a batch into more updates than the paper does; `paper/` in a model's folder has
them with the paper's batches, one update on all 128 prompts. The
[guide to evaluation](../trl_miner/evaluation/README.md#the-papers-tables) says which recipe makes which row of its
tables.

`accelerate/` holds configurations of accelerate. A recipe names one as `accelerate_config`:
"""


class Setting(NamedTuple):
    """One line of a recipe, as it is written."""

    value: str
    comment: str


def read_settings(path: Path) -> dict[str, Setting]:
    """Read the settings of a recipe in their order, each with the comment behind it and those in the lines above it.

    Args:
        path: The recipe.

    Returns:
        Settings by key. A comment that is followed by an empty line belongs to no setting.
    """
    settings: dict[str, Setting] = {}
    above: list[str] = []
    for line in _body(path):
        if line.startswith("#"):
            above.append(line.removeprefix("#").strip())
        elif found := re.match(r"(\w+): (.*?)(?:\s+#\s*(.*))?$", line):
            key, value, behind = found.groups()
            note = " ".join(above)
            settings[key] = Setting(value, ". ".join(part.rstrip(".") for part in (behind, note) if part))
            above = []
        else:
            above = []
    return settings


def _body(path: Path) -> list[str]:
    lines = re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8")).splitlines()  # one line per setting
    return lines[next(number for number, line in enumerate(lines) if not line.startswith("#")) :]


def differences(path: Path, base: Path) -> list[str]:
    """List the settings in which a recipe differs from another, each with its comment.

    Args:
        path: The recipe.
        base: The recipe to compare with.

    Returns:
        Markdown entries in the recipe's order, then the settings that it leaves at their default.
    """
    own, other = read_settings(path), read_settings(base)
    entries = [
        _shown(key, setting)
        for key, setting in own.items()
        if key != "output_dir" and (key not in other or setting.value != other[key].value)
    ]
    left_out = [f"`{key}`" for key in other if key not in own]
    return entries + ([f"{', '.join(left_out)}: default"] if left_out else [])


def _shown(key: str, setting: Setting) -> str:
    return f"`{key}: {setting.value}`" + (f" ({setting.comment})" if setting.comment else "")


def _model(model: str) -> list[str]:
    folder = RECIPES / model
    base = next(path for name in ("grpo.yaml", "gsm8k.yaml", "qwen3_4b.yaml") if (path := folder / name).is_file())
    lines = [f"## {model}", "", read_machine(base), "", f"| Recipe | File | Differences from {base.name} |"]
    lines += ["| --- | --- | --- |"]
    for path in sorted(folder.glob("*.yaml")):
        names = (path.name, f"lora/{path.name}", f"paper/{path.name}")
        links = [f"[{name}]({model}/{name})" for name in names if (folder / name).is_file()]
        lines.append(f"| {read_title(path)} | {', '.join(links)} | {'<br>'.join(differences(path, base))} |")
    lines += ["", f"Settings of {base.name}:", "", "| Setting | Value | Source or reason |", "| --- | --- | --- |"]
    lines += [
        f"| `{key}` | `{setting.value}` | {setting.comment} |"
        for key, setting in read_settings(base).items()
        if key not in ("output_dir", "advantage_estimator")
    ]
    if (folder / "README.md").is_file():
        lines += ["", f"Results: [{model}/README.md]({model}/README.md)."]
    for path in sorted(folder.glob("sensitivity/*.yaml")):
        knob = [_shown(key, s) for key, s in read_settings(path).items() if key.startswith("miner_")]
        lines += ([""] if path == min(path.parent.iterdir()) else []) + [
            f"- [{path.stem}]({path.relative_to(RECIPES).as_posix()}): miner.yaml with {', '.join(knob)}"
        ]
    for path in sorted(folder.glob("authors/*.yaml")):
        link = f"[authors/{path.name}]({path.relative_to(RECIPES).as_posix()})"
        lines += ["", f"{read_title(path)}: {link}. Differences from {path.name}:", ""]
        lines += [f"- {entry}" for entry in differences(path, folder / path.name)]
    lora = folder / "lora" / "grpo.yaml"
    if lora.is_file():
        lines += ["", f"LoRA variants (ours, not the paper's): {read_machine(lora)}", ""]
        lines += [f"- {entry}" for entry in differences(lora, base)]
    return [*lines, ""]


def reference() -> str:
    """Return the text of recipes/README.md."""
    lines = [INTRODUCTION, "| File | For |", "| --- | --- |"]
    for path in sorted(RECIPES.rglob("accelerate/*.yaml")):
        name = path.relative_to(RECIPES).as_posix()
        header = itertools.takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
        lines.append(f"| [{name}]({name}) | {' '.join(line.removeprefix('#').strip() for line in header)} |")
    sweep = "[sweeps/one-gpu.yaml](sweeps/one-gpu.yaml) is a sweep with W&B over settings of a recipe."
    lines += ["", f"[slurm/train.slurm](slurm/train.slurm) runs a recipe on several nodes. {sweep}", ""]
    for model in MODELS[: -len(NO_RECIPES)]:  # which have been named
        lines += _model(model)
    return "\n".join(lines)


if __name__ == "__main__":
    (RECIPES / "README.md").write_text(reference(), encoding="utf-8")
