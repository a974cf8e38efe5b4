"""The recipe that a file of one's own is trained with, for the user to edit and run again."""

import yaml

from ..common.redaction import hide_settings
from ..recipe.reading import Recipe

# TRL's defaults that matter most, and what to know of them.
_DEFAULTS = {
    "learning_rate": "small for LoRA and for models below 1 B: try 1e-5",
    "max_completion_length": "tokens; a longer completion is cut off, and seldom correct",
    "beta": "no KL term",
    "temperature": "of the sampled completions",
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
    head = (
        "# Made by trl-miner train. To change a setting: --NAME VALUE, or edit and give this file."
    )
    return "\n".join([head, body.rstrip("\n"), *lines, ""])
