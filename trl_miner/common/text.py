"""Text from files and models, made safe to show: nothing hides, nothing turns the rest around, no
markup acts."""

import codecs
import html
import re
import unicodedata

# Brackets act in Markdown only as a link, a definition, or a task list
_MARKDOWN = re.compile(
    r"[\\`|~$]|\[(?=.*\][\[(:])|^\[(?=[ xX]\])|\*(?=\S)|(?<=\S)\*|(?<!\w)_|_(?!\w)|^#|^[-+](?=\s)"
)


def decode(content: bytes) -> str:
    """Return the text of a file: UTF-8, or UTF-16 as spreadsheets write it, which begins with a
    mark."""
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if is_utf16 else "utf-8-sig")


def one_line(text: object, limit: int | None = None) -> str:
    """Return the text on one line, its control characters visible, cut to `limit` characters."""
    # JSON may hold half a character
    encodable = str(text).encode("utf-8", "backslashreplace").decode("utf-8")
    shown = "".join(map(_visible, encodable))
    return shown if limit is None or len(shown) <= limit else shown[: max(0, limit - 1)] + "…"


def for_markdown(text: object) -> str:
    """Escape text so that Markdown shows it as it is, also in the cell of a table."""
    return _MARKDOWN.sub(lambda match: "\\" + match[0], html.escape(one_line(text), quote=False))


def code_for_markdown(text: object) -> str:
    """Return text as code, also for the cell of a table; escaped instead where it would end the
    code or the cell."""
    shown = one_line(text)
    return (
        for_markdown(shown) if "`" in shown or "|" in shown or not shown.strip() else f"`{shown}`"
    )


def for_picture(text: object, limit: int = 44) -> str:
    """Escape text for matplotlib, which reads dollars as mathematics and hides labels with a
    leading underscore.

    Of a long text both ends are kept, as names differ there.
    """
    shown = one_line(text)
    if len(shown) > limit:
        shown = f"{shown[: limit // 2]}…{shown[-(limit // 2 - 1) :]}"
    shown = shown.replace("$", r"\$")
    return "\u200b" + shown if shown.startswith("_") else shown


def _visible(character: str) -> str:
    code = ord(character)
    if character == "\n":
        return "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS} "
    if code < 0x20:
        return chr(0x2400 + code)  # Unicode's own pictures of the control characters
    if code == 0x7F:
        return "\N{SYMBOL FOR DELETE}"
    if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp"):
        return (
            f"\N{MATHEMATICAL LEFT ANGLE BRACKET}U+{code:04X}\N{MATHEMATICAL RIGHT ANGLE BRACKET}"
        )
    return character
