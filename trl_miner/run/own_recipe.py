"""The recipe that a file of one's own is trained with, for the user to edit and run again."""

from pathlib import Path

import yaml

from ..common.redaction import hide_settings
from ..recipe.reading import Recipe

# TRL's defaults that matter most, and what to know of them.
_DEFAULTS = {
    "learning_rate": "small for LoRA and for models below 1 B: try 1e-5",
    "max_completion_length": "tokens; a longer answer is cut off, and seldom right",
    "beta": "no KL term",
    "temperature": "of the sampled answers",
}
_NOT_KEPT = {"output_dir", "resume_from_checkpoint", "quiet"}  # of one start


def recipe_text(recipe: Recipe) -> str:
    """Return the YAML of the settings that made a run, with TRL's most important defaults as
    comments."""
    kept = {name: value for name, value in recipe.given.items() if name not in _NOT_KEPT}
    body = yaml.safe_dump(hide_settings(kept), sort_keys=False, allow_unicode=True)
    lines = [
        f"# {name}: {getattr(recipe.config, name)}  # TRL's default; {about}"
        for name, about in _DEFAULTS.items()
        if name not in recipe.given
    ]
    head = "# What trl-miner train made of a file. Edit it, and give it in the file's place."
    return "\n".join([head, body.rstrip("\n"), *lines, ""])


def told_defaults(recipe: Recipe, path: Path) -> str:
    """Return what to print of the settings: which are ours, which TRL's, and where to change
    them."""
    ours = {
        name: recipe.given[name]
        for name in ("max_steps", "num_generations")
        if name in recipe.given
    }
    of_trl = [
        f"  {name} {getattr(recipe.config, name)}: {about}"
        for name, about in _DEFAULTS.items()
        if name not in recipe.given
    ]
    told = ", ".join(f"{name} {value}" for name, value in ours.items())
    title = [f"Settings: {told}, as {path} says; of TRL's defaults:"]
    return "\n".join([*title, *of_trl, "Change one with --NAME VALUE, or in that file."])
