"""What is wrong with image bytes, as data."""

from __future__ import annotations

_DETAIL_CHARACTERS = 200


class Defect(Exception):
    """The bytes give no usable picture. `reason` is one word of a closed set, `detail` a short text for people.

    Reasons: empty, not_an_image, unsupported_format, too_many_pixels, truncated, corrupt, out_of_memory.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = " ".join(detail.split())[:_DETAIL_CHARACTERS]

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason
