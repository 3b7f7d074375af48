"""What counts as a caption: null stays null, text stays as it was written, and what no reader can use is removed."""

from __future__ import annotations

import re

LONE_SURROGATES = re.compile("[\ud800-\udfff]")
LINE_ENDS = re.compile("\r\n?")
# Unicode category Cc without line feed and tab.
CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean_caption(value: object) -> str | None:
    """The caption as valid Unicode text, or None where there is none.

    None, NaN (any float, pandas' NA and NaT), "" and whitespace alone give None; the string "nan" is text and stays.
    Bytes are UTF-8, each bad sequence becoming U+FFFD, as does each lone surrogate. Line ends become "\\n"; NUL and
    the other control characters but "\\n" and "\\t" go. Letter case, spaces, combining and format characters are
    untouched. Other values (numbers) become their text. Never raises.
    """
    if _is_missing(value):
        return None
    text = bytes(value).decode("utf-8-sig", "replace") if isinstance(value, bytes | bytearray | memoryview) else str(value)
    text = LINE_ENDS.sub("\n", LONE_SURROGATES.sub("\ufffd", text))
    text = CONTROL_CHARACTERS.sub("", text)
    return text if text.strip() else None


def _is_missing(value: object) -> bool:
    if value is None:
        return True
    if isinstance(value, str | bytes | bytearray | memoryview | list | tuple | dict):
        return False
    # pandas' NA refuses to say whether it equals itself; NaN and NaT say that they do not.
    return type(value).__name__ == "NAType" or bool(value != value)
