# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Sending files to a node a part at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Bytes that are sent before the node takes them: a link that breaks loses one batch, and the login's home need not hold all.
BATCH = 512 << 20


def batches(entries: list[dict[str, Any]], size: str, limit: int = BATCH) -> Iterator[list[dict[str, Any]]]:
    """Entries in their order, as many at a time as fit into the limit (bytes), at least one; `size` is the key of their bytes."""
    batch: list[dict[str, Any]] = []
    for entry in entries:
        if batch and sum(one[size] for one in batch) + entry[size] > limit:
            yield batch
            batch = []
        batch.append(entry)
    if batch:
        yield batch
