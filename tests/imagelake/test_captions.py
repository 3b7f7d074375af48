"""clean_caption: what counts as a caption."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagelake.captions import clean_caption


@pytest.mark.parametrize(
    "value",
    [None, math.nan, np.float32("nan"), np.float64("nan"), Decimal("NaN"), pd.NA, pd.NaT, "", b"", " \n\t", "\u3000", "\x00"],
)
def test_what_says_nothing_is_null(value: object) -> None:
    assert clean_caption(value) is None


@pytest.mark.parametrize("text", ["nan", "None", "null", "N/A"])
def test_words_that_look_like_null_are_words(text: str) -> None:
    assert clean_caption(text) == text


@pytest.mark.parametrize(
    ("value", "caption"),
    [
        ("a\x00b\x07c\x9fd", "abcd"),
        ("one\ttab\nline", "one\ttab\nline"),
        ("dos\r\nmac\rend", "dos\nmac\nend"),
        ("lone \ud800 and \udfff", "lone \ufffd and \ufffd"),
        (b"caf\xc3\xa9", "café"),
        (b"bad \xff byte", "bad \ufffd byte"),
        (b"\xef\xbb\xbfwith a mark", "with a mark"),
        (memoryview(b"view"), "view"),
        ("  Kept AS is  ", "  Kept AS is  "),
        ("e\u0301 \u202eRTL 👩\u200d🚀", "e\u0301 \u202eRTL 👩\u200d🚀"),
        (7, "7"),
        (np.str_("numpy"), "numpy"),
    ],
)
def test_text_is_kept_and_what_no_reader_can_use_is_removed(value: object, caption: str) -> None:
    assert clean_caption(value) == caption


@given(st.text(st.characters()) | st.binary() | st.floats() | st.none())
def test_the_result_is_valid_unicode_and_cleaning_it_again_changes_nothing(value: object) -> None:
    caption = clean_caption(value)
    if caption is not None:
        assert caption.encode().decode() == caption
        assert caption.strip() and "\x00" not in caption
    assert clean_caption(caption) == caption
