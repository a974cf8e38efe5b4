"""Text from a model as a reader can see it: no character that hides, and none that turns the rest around."""

import unicodedata

NEWLINE = "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"
NO_TEXT = "\N{WHITE VERTICAL RECTANGLE}"


def visible(text: str, *, spaces: bool = False) -> str:
    """Control, format and zero-width characters by name, newlines as an arrow before the break.

    Args:
        text: Anything.
        spaces: Show spaces too, and no real break: for a label.

    Returns:
        The text; not escaped for HTML. An empty text is NO_TEXT: the token is a part of a character.
    """
    shown = "".join(map(_visible, text)) or NO_TEXT
    return shown.replace(" ", "\N{OPEN BOX}").replace(NEWLINE + "\n", NEWLINE) if spaces else shown


def _visible(character: str) -> str:
    code = ord(character)
    if character == "\n":
        return NEWLINE + "\n"
    if code < 0x20:
        return chr(0x2400 + code)  # Unicode's own pictures of the control characters
    if code == 0x7F:
        return "\N{SYMBOL FOR DELETE}"
    if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp"):
        return f"\N{MATHEMATICAL LEFT ANGLE BRACKET}U+{code:04X}\N{MATHEMATICAL RIGHT ANGLE BRACKET}"
    return character
