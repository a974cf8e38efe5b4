"""What doc-builder runs before it reads the pages: it finds an object in a module that is imported."""

import re
from importlib import import_module
from pathlib import Path

for _page in Path(__file__).parent.glob("reference/*.md"):
    for _path in re.findall(r"^\[\[autodoc\]\] (.+)\.\w+$", _page.read_text(), re.MULTILINE):
        import_module(f"trl_miner.{_path}")
