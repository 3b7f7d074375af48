"""text -> language, one of 97, by a naive Bayes model over byte sequences (langid: Lui and Baldwin, 2012). Needs no download."""

from __future__ import annotations

import py3langid


def language(text: str) -> str | None:
    """The likeliest language, ISO 639-1 such as "en"; None for a text without a letter. A word or two is little to go by."""
    if not any(char.isalpha() for char in text):
        return None
    code, _ = py3langid.classify(text)
    return str(code)
