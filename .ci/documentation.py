"""Build the documentation with pdoc: `python .ci/documentation.py FOLDER`.

README.md is the first page; the guides beside the code, the other Markdown files of `PAGES` and every public module
follow. A warning from pdoc, or a link that leads nowhere, is an error.
"""

import contextlib
import importlib
import io
import json
import os
import pkgutil
import re
import shutil
import sys
import types
import warnings
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pdoc.doc
import pdoc.render

ROOT = Path(__file__).resolve().parent.parent
# The guides beside the code, by the name of their page.
GUIDES = {f"guide_{path.parent.name}": path for path in sorted(ROOT.glob("trl_miner/*/README.md"))}
# Name of the page: what it is made of. Links to these files, or to their folder, become links to the page.
PAGES = {
    "trl_miner": ["README.md"],
    **{page: [path.relative_to(ROOT).as_posix()] for page, path in GUIDES.items()},
    "recipes": ["recipes/README.md"],
    "comparison": ["recipes/arithmetic/comparison.md"],
    "study": ["recipes/study/README.md"],
    "benchmarks": sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/bench/results/*.md")),
    "contributing": ["CONTRIBUTING.md"],
    "changelog": ["CHANGELOG.md"],
}
# The pages in the order in which each lists them.
TITLES = {
    "trl_miner": "trl_miner",
    **{page: path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for page, path in GUIDES.items()},
    "commands": "Commands",
    "notebooks": "Notebooks",
    "recipes": "Recipes",
    "comparison": "The methods compared",
    "study": "The study",
    "benchmarks": "Benchmarks",
    "contributing": "Contributing",
    "changelog": "Changelog",
}
PACKAGES = [path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("trl_miner/*/__init__.py")]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LINK = re.compile(r"(\]\()([^)#:\s]+)(#[^)\s]*)?(\))")


def module_names(package: str) -> list[str]:
    """Return the dotted names of a package and all its public modules.

    Args:
        package: The dotted name of an importable package.

    Returns:
        The package first, then the others in alphabetical order.
    """
    path = importlib.import_module(package).__path__
    found = [module.name for module in pkgutil.walk_packages(path, f"{package}.")]
    return [package, *(name for name in found if not any(part.startswith("_") for part in name.split(".")))]


def _modules(package: str) -> dict[str, pdoc.doc.Module]:
    """Return pdoc's view of every module.

    pdoc hides what `__all__` does not name, so submodules are added to it. It does not see names that load on first
    use, so they are loaded.
    """
    names = module_names(package)
    for name in names:
        module = importlib.import_module(name)
        if hasattr(module, "__all__"):
            vars(module).update({public: getattr(module, public) for public in module.__all__})
            children = [other.rpartition(".")[2] for other in names if other.rpartition(".")[0] == name]
            module.__all__ = [*module.__all__, *children]
    return {name: pdoc.doc.Module(importlib.import_module(name)) for name in names}


def _text(page: str) -> list[tuple[str, str]]:
    """Return the Markdown pieces of a page, each with the folder that its links are relative to."""
    if page == "commands":
        return [(_commands(), "")]
    if page == "notebooks":
        return [
            ("# Notebooks\n\nThey run on a laptop, and are shown with their outputs.\n", ""),
            *map(_notebook, NOTEBOOKS),
        ]
    return [((ROOT / file).read_text(encoding="utf-8"), os.path.dirname(file)) for file in PAGES[page]]


def _notebook(path: Path) -> tuple[str, str]:
    """Return the title and first paragraph of a notebook, with a link to it."""
    first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    return f"#{first.strip()}\n\n[{path.name}]({path.name})", "notebooks"


def _linked(text: str, folder: str, output: Path) -> str:
    """Redirect the links of a piece to other pages, and to copies of the other files that they name."""
    pages = {file: f"{name}.html" for name, files in PAGES.items() for file in files}
    pages |= {os.path.dirname(file): target for file, target in pages.items() if os.path.dirname(file)}
    html = {folder: f"{folder}.html" for folder in PACKAGES} | {"notebooks": "notebooks.html"} | pages

    def moved(link: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(folder, link[2]))
        if target not in html and (ROOT / target).is_file():
            (output / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / target, output / target)
        return link[1] + html.get(target, target) + (link[3] or "") + link[4]

    return LINK.sub(moved, text)


def _commands() -> str:
    """Return the `--help` of every command."""
    from trl_miner.cli import main

    def printed(*words: str) -> str:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            main([*words, "--help"])
        return shown.getvalue()

    os.environ["COLUMNS"] = "100"
    names = re.findall(r"^    (\w+) ", printed(), re.MULTILINE)
    texts = [f"## trl-miner {name}\n\n```text\n{printed(name)}```\n" for name in names]
    return "\n".join(["# Commands\n\n`trl-miner COMMAND --help` prints the same.\n", *texts])


def build(output: Path) -> None:
    """Write the whole site.

    Args:
        output: The folder; the site starts at its `index.html`.

    Raises:
        UserWarning: pdoc warned.
        ValueError: A link that leads nowhere.
    """
    output.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("error", module=r"pdoc\b")
    modules = _modules("trl_miner")
    for module in modules.values():  # the legend of shapes, which Markdown would take for headings
        module.obj.__doc__ = re.sub(r"^# ", "    ", module.obj.__doc__ or "", flags=re.MULTILINE)
    for page in TITLES:
        text = "\n\n".join(_linked(piece, folder, output) for piece, folder in _text(page))
        if page in modules:
            modules[page].obj.__doc__ = text
        else:
            modules[page] = pdoc.doc.Module(types.ModuleType(page, text))
    pdoc.render.configure(docformat="google", template_directory=Path(__file__).parent / "templates")
    pdoc.render.env.globals["pages"] = TITLES
    for name, module in modules.items():
        path = output / f"{name.replace('.', '/')}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pdoc.render.html_module(module, modules), encoding="utf-8")
    (output / "search.js").write_text(pdoc.render.search_index(modules), encoding="utf-8")
    (output / "index.html").write_text('<meta http-equiv="refresh" content="0; url=trl_miner.html">', encoding="utf-8")
    check_links(output)


class _Links(HTMLParser):
    """Collects the targets of a page's links and pictures, and the ids of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.add(value)
            elif name == "id" and value:
                self.ids.add(value)


def check_links(output: Path) -> None:
    """Check every link between the pages of a folder.

    Args:
        output: The folder.

    Raises:
        ValueError: A link leads to a file, or to a heading, that does not exist.
    """
    pages = {}
    for path in output.rglob("*.html"):
        pages[path] = _Links()
        pages[path].feed(path.read_text(encoding="utf-8"))
    for path, links in pages.items():
        for target in links.targets:
            if re.match(r"\w+:|//", target):
                continue
            file, _, place = target.partition("#")
            found = (path.parent / unquote(file)).resolve() if file else path
            # A dot: a member of a class. pdoc links to inherited ones that it does not show.
            is_heading = bool(place) and "." not in place and found in pages
            if not found.is_file() or (is_heading and unquote(place) not in pages[found].ids):
                raise ValueError(f"{path.relative_to(output)} must link to what is there: got {target}.")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
