#!/usr/bin/env python3
"""Start SGLang's router with what must not stand in a command line, and with the workers of the file beside this program.

Written by sglang-rtxpro. Runs with the Python of the router's release, in the unit's place. The key of the workers comes as
systemd's credential and is put into this process's own list of words, after the command line was made: ps does
not show it, nor does the unit.
"""

from __future__ import annotations

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
KEY = os.path.join(os.environ.get("CREDENTIALS_DIRECTORY", "/nowhere"), "worker-key")
# What the router was told at its start. The module sglang_gateway notes here what it tells it later.
TOLD = os.path.join(os.environ.get("RUNTIME_DIRECTORY", "/nowhere"), "told.json")


def words() -> list[str]:
    with open(os.path.join(HERE, "workers.json"), encoding="utf-8") as stream:
        workers = json.load(stream)["workers"]
    with open(TOLD, "w", encoding="utf-8") as stream:
        json.dump({"workers": workers}, stream)
    more = ["--worker-urls", *workers] if workers else []
    if os.path.exists(KEY):
        with open(KEY, encoding="utf-8") as stream:
            more.append(f"--api-key={stream.read().strip()}")
    return more


if __name__ == "__main__":
    sys.argv += words()
    from sglang_router.launch_router import main

    main()
