"""Write the page of settings from the fields of the configuration classes: `python .ci/settings.py`.

`--check` fails if the page is stale.
"""

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from trl_miner.data.settings import DataArguments
from trl_miner.recipe.settings import RunArguments
from trl_miner.trainer.config import MinerGRPOConfig

PAGE = Path(__file__).parent.parent / "docs" / "source" / "reference" / "settings.md"
GROUPS = {
    "Of the trainer": (
        MinerGRPOConfig,
        "Fields of `MinerGRPOConfig`, beside those of TRL's `GRPOConfig`, which keep their defaults.",
    ),
    "Of the data": (DataArguments, "Keys of a recipe, and options of `trl-miner eval`."),
    "Of the run": (RunArguments, "Keys of a recipe."),
}
HEAD = """# Settings

A recipe is a YAML file of settings; on a command line, `--NAME VALUE` overrides one. The settings of TRL's
`GRPOConfig` and `ModelConfig` and of transformers' `TrainingArguments` can be set, too. `env` is a mapping of
environment variables, and `datasets` a mixture, as in TRL.
"""


def kind_of(annotation: Any) -> str:
    """Return a type as it is written in a recipe."""
    names = [getattr(each, "__name__", str(each)) for each in get_args(annotation) or [annotation]]
    return " or ".join(name for name in names if name != "NoneType")


def markdown() -> str:
    """Return the page."""
    lines = [HEAD]
    for title, (kind, about) in GROUPS.items():
        lines += [f"## {title}", "", about, ""]
        hints = get_type_hints(kind)
        for field in fields(kind):
            if field.name in kind.__annotations__:
                shown = f", default `{field.default}`".lower()
                about = kind_of(hints[field.name]) + (field.default is not None) * shown
                lines += [f"### {field.name}", "", f"{about}. {field.metadata['help']}", ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(markdown(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != markdown():
        sys.exit("docs/source/reference/settings.md is stale. Run: python .ci/settings.py")
