"""Build the documentation: `python .ci/docs.py OUTPUT`.

Its pages are in docs/source, with a table of contents, in the form that Hugging Face's doc-builder
reads. mkdocs builds them here, with the pages elsewhere that `ELSEWHERE` names, and with every page
and file that one of these links to.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "docs" / "source"
# Sections of the table of contents whose pages lie elsewhere.
ELSEWHERE = {
    "Tutorials": sorted(ROOT.glob("notebooks/*.ipynb")),
    "Research": sorted(ROOT.glob("recipes/**/*.md")),
    "Contributing": [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"],
}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
ALERT = re.compile(r"^> \[!([A-Z]+)\]\n((?:>.*\n)+)", re.MULTILINE)
TAB = re.compile(r'<hfoption id="([^"]+)">\n(.*?)</hfoption>\n', re.DOTALL)


def place_of(path: Path) -> Path:
    """Return where a file of the repository stands in the site: docs/source is its root."""
    return path.relative_to(SOURCE if path.is_relative_to(SOURCE) else ROOT)


def linked(page: Path) -> dict[str, Path]:
    """Return the files that a page links to, by the link as it is written: of a folder its
    README.md, and of the repository the site's first page."""
    files = {}
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / link).resolve()
        if page.suffix == ".ipynb" and not target.exists():
            continue  # of a card that a cell has printed
        target = target / "README.md" if target.is_dir() else target
        files[link] = SOURCE / "index.md" if target == ROOT / "README.md" else target
    return files


def moved(page: Path) -> str:
    """Return the text of a page with links that are true in the site."""
    files, folder = linked(page), place_of(page).parent

    def link_of(match: re.Match[str]) -> str:
        if match[1] not in files:
            return match[1]
        if not files[match[1]].is_file():
            raise ValueError(f"{page} links to {match[1]}, which is not there.")
        place = Path(os.path.relpath(place_of(files[match[1]]), folder))
        if page.suffix == ".ipynb" and place.suffix in (".md", ".ipynb"):  # mkdocs leaves these
            place = place.with_name(place.name.replace("README.md", "index.md"))
            place = place.with_suffix(".html")
        return place.as_posix()

    return LINK.sub(link_of, page.read_text(encoding="utf-8"))


def indented(text: str) -> str:
    """Return lines as the content of one of mkdocs' blocks."""
    return textwrap.indent(text.strip("\n"), "    ") + "\n"


def as_mkdocs(text: str) -> str:
    """Return a page of doc-builder's form in that of mkdocs: notes and tabs."""

    def alert(match: re.Match[str]) -> str:
        body = re.sub(r"^> ?", "", match[2], flags=re.MULTILINE)
        return f"!!! {match[1].lower()}\n{indented(body)}"

    def tab(match: re.Match[str]) -> str:
        return f'=== "{match[1]}"\n\n{indented(match[2])}'

    return re.sub(r"</?hfoptions[^>]*>\n", "", TAB.sub(tab, ALERT.sub(alert, text)))


def write_pages(folder: Path) -> list[dict]:
    """Write the pages of the table of contents, and what they link to; return mkdocs' own table."""
    contents = yaml.safe_load((SOURCE / "_toctree.yml").read_text(encoding="utf-8"))
    table: list[dict] = []
    for section in contents:
        pages = {page["title"]: f"{page['local']}.md" for page in section["sections"]}
        table.append({section["title"]: [{title: page} for title, page in pages.items()]})
    waiting = [SOURCE / f"{page['local']}.md" for part in contents for page in part["sections"]]
    for title, elsewhere in ELSEWHERE.items():
        table.append({title: [str(place_of(page)) for page in elsewhere]})
        waiting += elsewhere
    done: set[Path] = set()
    while waiting:
        page = waiting.pop()
        if page in done:
            continue
        done.add(page)
        place = folder / place_of(page)
        place.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix not in (".md", ".ipynb"):
            shutil.copyfile(page, place)
            continue
        text = moved(page)
        place.write_text(as_mkdocs(text) if page.suffix == ".md" else text, encoding="utf-8")
        waiting += linked(page).values()
    return table


def build(output: Path) -> None:
    """Write the whole site; it starts at `index.html`."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, "docs")
        table = write_pages(folder)
        shutil.copyfile(ROOT / ".ci" / "site.css", folder / "site.css")
        settings = yaml.safe_load((ROOT / ".ci" / "mkdocs.yml").read_text(encoding="utf-8"))
        settings |= {"nav": table, "site_dir": str(output.resolve())}
        Path(work, "mkdocs.yml").write_text(yaml.safe_dump(settings, sort_keys=False))
        command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
        subprocess.run(command, cwd=work, check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
