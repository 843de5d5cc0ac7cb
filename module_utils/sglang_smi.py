# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""The text of `nvidia-smi -q`, for whoever asks: the module gpu_info, the collector of metrics. Plain Python 3.9."""

from __future__ import annotations

import re
from typing import Optional

CARD = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")
SICK = re.compile(r"GPU is lost|GPU requires reset|Unknown Error|ERR!")
# What the recovery action says of a sound card, or where it cannot be read.
NO_ACTION = (
    "",
    "None",
    "N/A",
    "Not Supported",
    "Unknown Error",
    "Insufficient Permissions",
    "Requested functionality has been deprecated",
)
# Fields that a card which answers always has. Others may say Unknown Error on a sound card.
VITAL = [
    ("Product Name",),
    ("GPU UUID",),
    ("PCI", "GPU Link Info", "PCIe Generation", "Current"),
    ("FB Memory Usage", "Total"),
    ("Temperature", "GPU Current Temp"),
    ("GPU Power Readings", "Current Power Limit"),
]


def tree(text: str) -> list:
    """A tree by indentation, as nested lists of (key, value, what lies below). A list, since keys repeat."""
    root: list = []
    above = [(-1, root)]
    for line in text.expandtabs().splitlines():
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        key, _colon, value = (line.strip() + " ").partition(" : ")
        while above[-1][0] >= depth:
            above.pop()
        below: list = []
        above[-1][1].append((key.strip(), value.strip(), below))
        above.append((depth, below))
    return root


def told(nodes: list, *path: str) -> str:
    """The value at a path of keys, without the brackets that some drivers put round a word; empty when there is none."""
    for key, value, below in nodes:
        if key == path[0]:
            found = told(below, *path[1:]) if path[1:] else value.strip("[]")
            if found:
                return found
    return ""


def number(text: str) -> Optional[float]:
    """A value with or without its unit (MiB, MHz, W, C, lanes x, %); None for N/A and every other word."""
    found = re.fullmatch(r"(-?\d+(?:\.\d+)?)\s*(?:MiB|MHz|W|C|x|%)?", text)
    return float(found.group(1)) if found else None


def integer(text: str) -> Optional[int]:
    value = number(text)
    return None if value is None else int(value)


def whether(text: str) -> Optional[bool]:
    return {"Enabled": True, "Disabled": False}.get(text)


def cards(nodes: list) -> list[tuple[str, list]]:
    """Bus id and fields of each card that `nvidia-smi -q` describes."""
    found = [(CARD.fullmatch(key), below) for key, _value, below in nodes]
    return [(match.group(1), below) for match, below in found if match]


def fault(card: list) -> str:
    for path in VITAL:
        if SICK.search(told(card, *path)):
            return f"{path[-1]}: {told(card, *path)}"
    action = told(card, "GPU Recovery Action")
    return "" if action in NO_ACTION else f"GPU Recovery Action: {action}"
