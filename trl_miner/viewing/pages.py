"""A report as one self-contained HTML page, and as Markdown with the same content."""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.tables import Table
from ..common.text import for_markdown, one_line
from .figures import COLORS, GRID, INK, PAPER, as_svg, view_boxes

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from markupsafe import Markup

# of report.css, for light and for dark
_VARIABLES = {INK: "--ink", PAPER: "--paper", GRID: "--grid"}
_VARIABLES |= {color: f"--c{place}" for place, color in enumerate(COLORS) if color != INK}


@dataclass(frozen=True)
class Picture:
    """A figure, which is written as `figures/NAME.svg`, and how to read it."""

    name: str
    title: str
    caption: str
    figure: Any

    @functools.cached_property
    def svg(self) -> str:
        """The figure as SVG, drawn when it is asked for first."""
        return as_svg(self.figure, self.name)

    @functools.cached_property
    def panels(self) -> list[str]:
        """The view boxes of its panels and of its legend in the SVG; empty: it has one panel."""
        return view_boxes(self.figure) if self.svg and len(self.figure.axes) > 1 else []

    def inline_svg(self) -> "Markup":
        """Return the SVG as elements of a page, in the page's colors: the whole, and for a phone
        panel by panel."""
        from markupsafe import Markup, escape

        svg = re.sub(
            r"<metadata>.*?</metadata>",
            "",
            self.svg[self.svg.index("<svg") :],
            count=1,
            flags=re.DOTALL,
        )
        # in styles alone: a name may look like a color
        svg = re.sub(
            r'style="[^"]*"', lambda style: re.sub(r"#[0-9a-f]{6}", _page_color, style[0]), svg
        )
        whole = svg.replace(
            "<svg", f'<svg role="img" aria-label="{escape(one_line(self.title))}"', 1
        )
        use = f'<use href="#{self.name}-figure_1"/>'
        views = (
            f'<svg class="panel" viewBox="{box}" aria-hidden="true">{use}</svg>'
            for box in self.panels
        )
        return Markup("\n".join([whole, *views]))


Block = list[str] | Table | Picture | None  # a list is one of points; None is left out


@dataclass(frozen=True)
class Section:
    """A part of a report."""

    title: str
    blocks: Sequence[Block]
    is_warning: bool = False

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def html_page(
    title: str, lead: str, sections: Sequence[Section], *, refresh: int | None = None
) -> str:
    """Return the page: all text escaped, pictures inside as SVG, in colors that follow light and
    dark. A browser loads it anew every `refresh` seconds."""
    from markupsafe import Markup

    style = Markup(asset("report.css"))
    return (
        template("report.html").render(
            title=title, lead=lead, sections=sections, style=style, refresh=refresh
        )
        + "\n"
    )


def markdown_page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return the same as Markdown, with relative links to the pictures."""
    parts = [f"# {for_markdown(title)}\n\n{for_markdown(lead)}\n"]
    for section in sections:
        parts.append(f"## {for_markdown(section.title)}\n")
        parts += [_markdown_block(block) for block in section.blocks]
    return "\n".join(parts)


def _markdown_block(block: Block) -> str:
    if isinstance(block, Table):
        return f"### {for_markdown(block.title)}\n\n{block.markdown()}"
    if isinstance(block, Picture):
        title, caption = for_markdown(block.title), for_markdown(block.caption)
        # a bracket could end it
        alt = for_markdown(block.title.replace("[", "(").replace("]", ")"))
        return f"### {title}\n\n![{alt}](figures/{block.name}.svg)\n\n{caption}\n"
    return "".join(f"- {for_markdown(point)}\n" for point in block or ())


def _page_color(match: re.Match[str]) -> str:
    return f"var({_VARIABLES[match[0]]})" if match[0] in _VARIABLES else match[0]


def template(name: str) -> "Template":
    """Return a template of `page/`, which escapes all but `Markup` and makes control characters
    visible."""
    return _environment().get_template(name)


def asset(name: str) -> str:
    """Return a file of `page/` as it is: a style or a script, which a template must not escape."""
    return (Path(__file__).parent / "page" / name).read_text(encoding="utf-8")


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader

    loader = PackageLoader(__package__, "page")
    return Environment(
        loader=loader, autoescape=True, finalize=_shown, trim_blocks=True, lstrip_blocks=True
    )


def _shown(value: Any) -> Any:
    return value if hasattr(value, "__html__") else one_line(value)
