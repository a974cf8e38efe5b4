"""Write the settings into the docstrings of the configuration classes, and onto the page of the
settings: `python .ci/settings.py`.

They come from the fields, each with its help. Tests fail when they are stale.
"""

import inspect
import re
import textwrap
from dataclasses import Field
from pathlib import Path
from typing import Any, get_type_hints

from trl_miner.recipe.parsing import MinerScriptArguments
from trl_miner.recipe.setting_groups import grouped
from trl_miner.trainer.async_config import MinerAsyncGRPOConfig
from trl_miner.trainer.config import MinerGRPOConfig, RunConfig

CLASSES = (MinerGRPOConfig, RunConfig, MinerAsyncGRPOConfig)
PAGE = Path(__file__).parent.parent / "docs" / "source" / "reference" / "settings.md"
MARKED = re.compile(
    r"(?<=<!-- settings: .ci/settings.py -->\n\n).*(?=\n<!-- settings end -->)", re.DOTALL
)


def settings_page() -> str:
    """Return all settings of this package as Markdown, by group: those of `MinerGRPOConfig` and
    `RunConfig`, and those that recipes and command lines have besides."""
    return as_markdown(RunConfig, MinerScriptArguments)


def as_args(kind: Any) -> str:
    """Return the section of a docstring that describes the settings which a class adds to its
    bases, in the form of TRL's docstrings."""
    lines = ["Args:"]
    for title, settings in grouped(kind).items():
        own = [setting for setting in settings if setting.name in kind.__annotations__]
        lines += [f"    > {title}", ""] * bool(own)
        for setting in own:
            annotation = _annotation(setting.name, kind)
            kind_and_default = f"`{annotation}`, *optional*, defaults to `{_default(setting)}`"
            lines += [f"    {setting.name} ({kind_and_default}):"]
            lines += textwrap.wrap(
                setting.metadata["help"],
                width=96,  # of a line, less the indent of a docstring
                initial_indent=" " * 8,
                subsequent_indent=" " * 8,
                break_on_hyphens=False,
            )
            lines += [""]
    return "\n".join(lines)


def as_markdown(*classes: Any) -> str:
    """Return the settings of configuration classes as Markdown: a heading for each group, and for
    each setting its type, default, limits, and meaning."""
    lines = []
    for title, settings in grouped(*classes).items():
        lines += [f"## {title}", ""]
        for setting in settings:
            at_least, one_of, _ = setting.metadata["limits"]
            facts = [f"`{_annotation(setting.name, *classes)}`", f"default `{_default(setting)}`"]
            if at_least is not None:
                facts.append(f"at least {at_least:g}")
            if one_of:
                facts.append("one of " + ", ".join(f"`{value}`" for value in one_of))
            lines += [f"### `{setting.name}`", "", f"*{', '.join(facts)}*", ""]
            lines += [setting.metadata["help"], ""]
    return "\n".join(lines)


def _annotation(name: str, *classes: Any) -> str:
    """Return the type of a setting. Its field may have another one: transformers' parser writes
    there."""
    hints = next(hints for hints in map(get_type_hints, classes) if name in hints)
    return inspect.formatannotation(hints[name]).replace("typing.", "")


def _default(setting: Field[Any]) -> str:
    value = setting.default
    return f'"{value}"' if isinstance(value, str) else repr(value)


def written(source: str, kind: type) -> str:
    """Return the source of a module with the current settings in the docstring of one class."""
    opening, docstring, rest = re.split(
        rf'(class {kind.__name__}\(.*?\n    """.*?""")', source, maxsplit=1, flags=re.DOTALL
    )
    text = docstring.removesuffix('"""').partition("\n    Args:\n")[0].rstrip()
    args = textwrap.indent(as_args(kind), "    ").rstrip()
    return f'{opening}{text}\n\n{args}\n    """{rest}'


if __name__ == "__main__":
    for kind in CLASSES:
        path = Path(inspect.getfile(kind))
        path.write_text(written(path.read_text(encoding="utf-8"), kind), encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(MARKED.sub(lambda _: settings_page(), page), encoding="utf-8")
