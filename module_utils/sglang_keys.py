# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Keys of the front as nginx reads them. The filter of a vault's keys and the module that reads a node's key file share it."""

from __future__ import annotations

import re
from typing import Any, Iterable, List

HEAD = "# Written by sglang-rtxpro. Keys that the front lets in.\n"
SHORTEST, LONGEST = 16, 512
# Printable ASCII without what nginx or systemd's users would have to quote.
ALLOWED = re.compile(r"(?!#)[!-~]+")
REFUSED = "\"'\\$"


class KeyFault(ValueError):
    """A key that cannot be used. The text never holds the key."""


def parse(text: str) -> List[str]:
    """Keys of a key file: one a line, empty lines and those that begin with # left out."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def fault(key: Any) -> str:
    """What is wrong with a key, in words that do not hold it; empty for a good one."""
    if not isinstance(key, str):
        return "is no text: put it in quotes"
    if not SHORTEST <= len(key) <= LONGEST:
        return f"has {len(key)} characters, expected {SHORTEST} to {LONGEST}: make one with `openssl rand -hex 32`"
    if not ALLOWED.fullmatch(key) or any(mark in key for mark in REFUSED):
        return (
            "holds a space, a control character, a quote, a backslash, a $ or a character beyond ASCII, or begins with #; "
            "expected letters, digits and other marks: make one with `openssl rand -hex 32`"
        )
    return ""


def lines(keys: Iterable[Any], where: str) -> str:
    """A line of nginx's map for each key.

    An expression, since nginx compares plain words without regard to case.
    """
    made = []
    for number, key in enumerate(keys, 1):
        wrong = fault(key)
        if wrong:
            raise KeyFault(f"Key {number} of {where} {wrong}.")
        made.append('"~^{}\\z" 1;\n'.format(re.sub(r"[.^*+?()\[\]{}|]", r"\\\g<0>", key)))
    return "".join(dict.fromkeys(made))


def words(text: str) -> List[str]:
    """What in a secret's text must show nowhere: each longer word, with nginx's quoting and without."""
    found = set()
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        for word in re.findall(r"[^\s\"';]{8,}", line):
            bare = word[2:] if word.startswith("~^") else word
            bare = bare[:-2] if bare.endswith("\\z") else bare
            found |= {word, bare, bare.replace("\\", "")}
    return sorted((word for word in found if len(word) >= 8), key=len, reverse=True)
