"""The HTML templates in `page/`: jinja2 with autoescape, so that text from files stays text."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..text import one_line

if TYPE_CHECKING:
    from jinja2 import Environment, Template


def template(name: str) -> "Template":
    """Return a template of `page/`, which escapes all but `Markup` and makes control characters visible."""
    return _environment().get_template(name)


def asset(name: str) -> str:
    """Return a file of `page/` as it is: a style or a script, which a template must not escape."""
    return (Path(__file__).parent / "page" / name).read_text(encoding="utf-8")


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader

    loader = PackageLoader(__package__, "page")
    return Environment(loader=loader, autoescape=True, finalize=_shown, trim_blocks=True, lstrip_blocks=True)


def _shown(value: Any) -> Any:
    return value if hasattr(value, "__html__") else one_line(value)
