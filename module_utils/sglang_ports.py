# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Who listens on a TCP port of this host, from /proc."""

from __future__ import annotations

import os
import re
from typing import List, NamedTuple, Set, Tuple


class Process(NamedTuple):
    pid: int
    name: str
    cgroups: str
    ancestors: Tuple[int, ...]

    @property
    def units(self) -> List[str]:
        """Services and scopes of systemd that it belongs to, its own last."""
        return re.findall(r"/([^/\n]+\.(?:service|scope))", self.cgroups)


def listening_inodes(table: str, port: int) -> Set[str]:
    """Socket inodes that listen on a port, from the text of /proc/net/tcp or tcp6 (state 0A is LISTEN)."""
    rows = (line.split() for line in table.splitlines()[1:])
    return {row[9] for row in rows if len(row) > 9 and row[3] == "0A" and int(row[1].rsplit(":", 1)[1], 16) == port}


def read(path: str) -> str:
    """A file of /proc; empty when it is gone or may not be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def parent(pid: int) -> int:
    """The parent of a process, 0 when it is gone. The name in /proc/PID/stat may hold spaces and brackets."""
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def describe(pid: int) -> Process:
    ancestors: List[int] = []
    up = parent(pid)
    while up > 1 and up not in ancestors:
        ancestors.append(up)
        up = parent(up)
    return Process(pid, read(f"/proc/{pid}/comm").strip(), read(f"/proc/{pid}/cgroup"), tuple(ancestors))


def listeners(port: int) -> List[Process]:
    """Processes of this host that listen on a TCP port; those that this user may not look at are left out."""
    inodes = {inode for name in ("tcp", "tcp6") for inode in listening_inodes(read(f"/proc/self/net/{name}"), port)}
    links = {f"socket:[{inode}]" for inode in inodes}
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()) if links else ():
        try:
            with os.scandir(f"/proc/{pid}/fd") as files:
                holds = any(_link(file.path) in links for file in files)
        except OSError:
            continue
        if holds:
            found.append(describe(pid))
    return found


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
