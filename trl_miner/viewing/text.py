"""Text from files, made safe to show: in HTML, in Markdown, in a picture."""

import html
import re

from .visible import visible

_ACTIVE = re.compile(r"[\\`\[\]|~$]|\*(?=\S)|(?<=\S)\*|(?<!\w)_|_(?!\w)|^#|^[-+](?=\s)")


def one_line(text: object, limit: int | None = None) -> str:
    """One line in which control characters are seen and do nothing.

    Args:
        text: Whatever a file held.
        limit: Characters to keep; None: all.
    """
    known = str(text).encode("utf-8", "backslashreplace").decode("utf-8")  # JSON may hold half a character
    shown = visible(known).replace("\n", " ") if known else ""
    return shown if limit is None or len(shown) <= limit else shown[: max(0, limit - 1)] + "…"


def for_html(text: object) -> str:
    """Text as the content, or a quoted attribute, of an HTML element."""
    return html.escape(one_line(text))


def for_markdown(text: object) -> str:
    """Text that Markdown shows as it is, also in the cell of a table."""
    return _ACTIVE.sub(lambda found: "\\" + found[0], html.escape(one_line(text), quote=False))


def for_picture(text: object, limit: int = 44) -> str:
    """Text for matplotlib, which takes dollars for mathematics and leaves a leading underscore out of legends.

    Args:
        text: Whatever a file held.
        limit: Characters to keep, of the beginning and of the end, where names differ.
    """
    shown = one_line(text)
    if len(shown) > limit:
        shown = f"{shown[: limit // 2]}…{shown[-(limit // 2 - 1) :]}"
    shown = shown.replace("$", r"\$")
    return "\u200b" + shown if shown.startswith("_") else shown
