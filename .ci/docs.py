"""Build the documentation: `python .ci/docs.py OUTPUT`.

Its pages are in docs/source, with a table of contents, in the form that Hugging Face's doc-builder
reads. mkdocs builds them here, with the pages elsewhere that `ELSEWHERE` names, and with every page
and file that one of these links to.
"""

import contextlib
import io
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
# What a section of the table of contents has besides its pages in docs/source.
ELSEWHERE = {
    "Tutorials": sorted(path.relative_to(ROOT) for path in ROOT.glob("notebooks/*.ipynb")),
    "Research": [
        Path("recipes", page)
        for page in (
            "RESULTS.md",
            *("forks/README.md", "two-procedures/README.md", "probe/README.md", "study/README.md"),
            *("SmolLM2-135M-Instruct/README.md", "arithmetic/comparison.md"),
            "check-the-paper/README.md",
        )
    ],
    "Reference": [Path("recipes", "README.md")],
    "Contributing": [Path("CONTRIBUTING.md"), Path("AGENTS.md"), Path("CHANGELOG.md")],
}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
ALERT = re.compile(r"^> \[!([A-Z]+)\]\n((?:>.*\n)+)", re.MULTILINE)
TAB = re.compile(r'<hfoption id="([^"]+)">\n(.*?)</hfoption>\n', re.DOTALL)
AUTODOC = re.compile(r"^\[\[autodoc\]\] (\S+)\n((?:    - \S+\n)*)", re.MULTILINE)


# --- Pages


def contents() -> list[dict]:
    """Return the table of contents: sections, each with its pages."""
    return yaml.safe_load((SOURCE / "_toctree.yml").read_text(encoding="utf-8"))


def place_of(path: Path) -> Path:
    """Return where a file of the repository stands in the site: docs/source is its root."""
    return path.relative_to(SOURCE if path.is_relative_to(SOURCE) else ROOT)


def linked(page: Path) -> dict[str, Path]:
    """Return the files that a page links to, by the link as it is written: of a folder its
    README.md, and of the repository the site's first page."""
    files = {}
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / link).resolve()
        target = target / "README.md" if target.is_dir() else target
        files[link] = SOURCE / "index.md" if target == ROOT / "README.md" else target
    return files


def moved(page: Path) -> str:
    """Return the text of a page with links that are true in the site."""
    files, folder = linked(page), place_of(page).parent

    def link_of(match: re.Match[str]) -> str:
        if not files[match[1]].is_file():  # a folder without a page
            return "#"
        place = Path(os.path.relpath(place_of(files[match[1]]), folder))
        if page.suffix == ".ipynb" and place.suffix in (".md", ".ipynb"):  # mkdocs leaves these
            place = place.with_name(place.name.replace("README.md", "index.md"))
            place = place.with_suffix(".html")
        return place.as_posix()

    return LINK.sub(link_of, page.read_text(encoding="utf-8"))


# --- From doc-builder's form into that of mkdocs


def indented(text: str) -> str:
    return textwrap.indent(text.strip("\n"), "    ") + "\n"


def alert(match: re.Match[str]) -> str:
    text = re.sub(r"^> ?", "", match[2], flags=re.MULTILINE)
    return f"!!! {match[1].lower()}\n{indented(text)}"


def tab(match: re.Match[str]) -> str:
    return f'=== "{match[1]}"\n\n{indented(match[2])}'


def autodoc(match: re.Match[str]) -> str:
    """The class or function, with the methods that are listed below it, under the page's sections
    if it has some."""
    level = 3 if "\n## " in match.string else 2
    members = "".join(f"        {line.strip()}\n" for line in match[2].splitlines())
    options = f"    options:\n      heading_level: {level}\n"
    return f"::: trl_miner.{match[1]}\n{options}" + (members and f"      members:\n{members}")


def as_mkdocs(text: str) -> str:
    """Return a page of doc-builder's form in that of mkdocs."""
    text = ALERT.sub(alert, text)
    text = re.sub(r"</?hfoptions[^>]*>\n", "", TAB.sub(tab, text))
    return AUTODOC.sub(autodoc, text)


def commands() -> str:
    """Return the `--help` of every command."""
    from trl_miner.cli import main

    def printed(*words: str) -> str:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            main([*words, "--help"])
        return shown.getvalue()

    os.environ["COLUMNS"] = "84"
    names = dict.fromkeys(re.findall(r"`trl-miner (\w+)`", cli_page()))
    return "\n".join(f"## trl-miner {name}\n\n```text\n{printed(name)}```\n" for name in names)


def cli_page() -> str:
    return (SOURCE / "reference" / "cli.md").read_text(encoding="utf-8")


# --- The site


def write_pages(folder: Path) -> list[dict]:
    """Write the pages of the table of contents, and what they link to; return mkdocs' own table."""
    table, waiting = [], []
    for section in contents():
        pages = [SOURCE / f"{page['local']}.md" for page in section["sections"]]
        titles = {
            page: entry["title"] for page, entry in zip(pages, section["sections"], strict=True)
        }
        pages += [ROOT / page for page in ELSEWHERE.get(section["title"], [])]
        waiting += pages
        table.append(
            {
                section["title"]: [
                    {titles[page]: str(place_of(page))} if page in titles else str(place_of(page))
                    for page in pages
                ]
            }
        )
    done: set[Path] = set()
    while waiting:
        page = waiting.pop()
        if page in done or not page.is_file():
            continue
        done.add(page)
        place = folder / place_of(page)
        place.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix not in (".md", ".ipynb"):
            shutil.copyfile(page, place)
            continue
        text = moved(page)
        if page.is_relative_to(SOURCE):
            text = as_mkdocs(text)
        place.write_text(text, encoding="utf-8")
        waiting += linked(page).values()
    return table


def build(output: Path) -> None:
    """Write the whole site; it starts at `index.html`."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, "docs")
        table = write_pages(folder)
        with Path(folder, "reference", "cli.md").open("a", encoding="utf-8") as page:
            page.write(commands())
        shutil.copyfile(ROOT / ".ci" / "site.css", folder / "site.css")
        settings = yaml.safe_load((ROOT / ".ci" / "mkdocs.yml").read_text(encoding="utf-8"))
        settings |= {"nav": table, "site_dir": str(output.resolve())}
        for plugin in settings["plugins"]:
            if "mkdocstrings" in plugin:
                python = plugin["mkdocstrings"]["handlers"]["python"]
                python["paths"] = [str(ROOT)]
                python["options"]["extensions"] = [
                    f"{ROOT / '.ci' / 'docstrings.py'}:TrlDocstrings"
                ]
        Path(work, "mkdocs.yml").write_text(yaml.safe_dump(settings, sort_keys=False))
        command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
        subprocess.run(command, cwd=work, check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
