# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Text for terminals: what pages of plans and reports of the doctor share."""

from __future__ import annotations

import textwrap

WIDTH = 80


def wrap(text: str, first: str = "  ", rest: str | None = None) -> list[str]:
    """A paragraph within WIDTH columns; words longer than a line stay whole. An empty text is one line."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]
