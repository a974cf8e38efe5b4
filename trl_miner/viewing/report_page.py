"""A report as one self-contained HTML page and as Markdown with the same content."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from .lines import COLORS, GRID, INK, PAPER
from .tables import Table
from .text import for_html, for_markdown

# Nothing is loaded and nothing runs; styles are in the page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Picture:
    """A figure that has been written.

    Attributes:
        name: Of its files, `figures/NAME.png` and `figures/NAME.svg`.
        title: What it shows.
        caption: How to read it.
        svg: Content of the SVG file.
    """

    name: str
    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        title: Its heading.
        blocks: In order; a text is a paragraph, a list one of points.
        is_warning: It stands out.
    """

    title: str
    blocks: Sequence[str | list[str] | Table | Picture]
    is_warning: bool = False


def html_page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The page. All text is escaped; pictures are in it as SVG, in colors that follow light and dark."""
    style = resources.files(__package__).joinpath("page/report.css").read_text(encoding="utf-8")
    links = "".join(f'<li><a href="#{_anchor(one.title)}">{for_html(one.title)}</a></li>' for one in sections)
    body = "".join(_html_section(section) for section in sections)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{for_html(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{for_html(title)}</h1>\n<p>{for_html(lead)}</p></header>\n"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n<main>\n{body}</main>\n</body>\n</html>\n'
    )


def markdown_page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The same as Markdown, with relative links to the pictures."""
    parts = [f"# {for_markdown(title)}\n\n{for_markdown(lead)}\n"]
    for section in sections:
        parts.append(f"## {for_markdown(section.title)}\n")
        parts += [_markdown_block(block) for block in section.blocks]
    return "\n".join(parts)


def inline_svg(picture: Picture) -> str:
    """The SVG as an element of a page, with the page's colors."""
    svg = picture.svg[picture.svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    colors = {INK: "--ink", PAPER: "--paper", GRID: "--grid"}
    colors |= {color: f"--c{place}" for place, color in enumerate(COLORS) if color != INK}
    svg = re.sub(  # in styles alone: a name may look like a color
        r'style="[^"]*"', lambda found: re.sub(r"#[0-9a-f]{6}", lambda c: _variable(c[0], colors), found[0]), svg
    )
    return svg.replace("<svg", f'<svg role="img" aria-label="{for_html(picture.title)}"', 1)


def _variable(color: str, names: dict[str, str]) -> str:
    return f"var({names[color]})" if color in names else color


def _html_section(section: Section) -> str:
    blocks = "".join(_html_block(block) for block in section.blocks)
    kind = ' class="warnings" role="note"' if section.is_warning else ""
    anchor = _anchor(section.title)
    heading = f'<h2 id="{anchor}">{for_html(section.title)}</h2>'
    return f'<section{kind} aria-labelledby="{anchor}">\n{heading}\n{blocks}</section>\n'


def _html_block(block: Any) -> str:
    if isinstance(block, Table):
        return f"<h3>{for_html(block.title)}</h3>\n{block.html()}"
    if isinstance(block, Picture):
        return (
            f'<figure id="figure-{block.name}"><h3>{for_html(block.title)}</h3>\n{inline_svg(block)}\n'
            f"<figcaption>{for_html(block.caption)}</figcaption></figure>\n"
        )
    if isinstance(block, str):
        return f"<p>{for_html(block)}</p>\n"
    return f"<ul>{''.join(f'<li>{for_html(point)}</li>' for point in block)}</ul>\n"


def _markdown_block(block: Any) -> str:
    if isinstance(block, Table):
        return f"### {for_markdown(block.title)}\n\n{block.markdown()}"
    if isinstance(block, Picture):
        title, caption = for_markdown(block.title), for_markdown(block.caption)
        return f"### {title}\n\n![{title}](figures/{block.name}.png)\n\n{caption} ([SVG](figures/{block.name}.svg))\n"
    if isinstance(block, str):
        return f"{for_markdown(block)}\n"
    return "".join(f"- {for_markdown(point)}\n" for point in block)


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
