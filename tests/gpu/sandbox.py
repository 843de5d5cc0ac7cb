#!/usr/bin/env python3
"""Run a command as the server's unit would let it run, where there is no systemd: to see what CUDA, Triton and NCCL need.

Applied, as sglang.service.j2 declares it: no new privileges, an empty capability bounding set, another user (--user), and the
seccomp filters behind SystemCallFilter=, SystemCallArchitectures=, RestrictAddressFamilies=, RestrictNamespaces=, RestrictRealtime=
and LockPersonality=. Not applied: what systemd does with mounts (ProtectSystem=, ProtectProc=, PrivateTmp= and the like).

    sandbox.py --user 65534 -- python3 gpu_probe.py
"""

from __future__ import annotations

import argparse
import ctypes
import os
import struct
from pathlib import Path

AUDIT_ARCH_X86_64 = 0xC000003E
LOAD, JEQ, JSET, RET = 0x20, 0x15, 0x45, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
FAMILIES = (1, 2, 10, 16)  # AF_UNIX AF_INET AF_INET6 AF_NETLINK
NAMESPACES = 0x7E020080 | 0x02000000  # CLONE_NEW*
REALTIME = (1, 2, 6)  # SCHED_FIFO, SCHED_RR, SCHED_DEADLINE


def numbers() -> dict[str, int]:
    lines = (Path(__file__).parent / "syscalls.txt").read_text().splitlines()
    return {name: int(number) for name, number in (line.split() for line in lines if not line.startswith("#"))}


def program(allowed: dict[str, int]) -> list[tuple[int, int, int, int]]:
    """The filter: (code, jump if true, jump if false, value) a step."""
    steps: list[tuple[int, int, int, int]] = [
        (LOAD, 0, 0, 4),
        (JEQ, 1, 0, AUDIT_ARCH_X86_64),
        (RET, 0, 0, ERRNO | ENOSYS),
    ]

    def argument(call: str, index: int, tests: list[tuple[int, int]], otherwise: int, hit: int) -> None:
        """When `call` is made, look at the low half of an argument: a test that holds gives `hit`, none gives `otherwise`."""
        block = [(LOAD, 0, 0, 16 + 8 * index)]
        for code, value in tests:
            block += [(code, 0, 1, value), (RET, 0, 0, hit)]
        block.append((RET, 0, 0, otherwise))
        steps.extend([(LOAD, 0, 0, 0), (JEQ, 0, len(block), allowed[call]), *block])

    argument("socket", 0, [(JEQ, family) for family in FAMILIES], ERRNO | EAFNOSUPPORT, ALLOW)
    argument("clone", 0, [(JSET, NAMESPACES)], ALLOW, ERRNO | EPERM)
    argument("sched_setscheduler", 1, [(JEQ, policy) for policy in REALTIME], ALLOW, ERRNO | EPERM)
    argument("personality", 0, [(JEQ, 0), (JEQ, 0xFFFFFFFF)], ERRNO | EPERM, ALLOW)
    # Its flags lie in memory, where a filter cannot look: systemd sends callers back to clone.
    steps += [(LOAD, 0, 0, 0), (JEQ, 0, 1, allowed["clone3"]), (RET, 0, 0, ERRNO | ENOSYS)]
    for name, number in allowed.items():
        if name not in ("unshare", "setns"):
            steps += [(JEQ, 0, 1, number), (RET, 0, 0, ALLOW)]
    return [*steps, (RET, 0, 0, ERRNO | EPERM)]


def confine(user: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def prctl(*words: int) -> None:
        if libc.prctl(*(ctypes.c_ulong(word) for word in words)):
            raise OSError(ctypes.get_errno(), f"prctl{words}")

    for capability in range(64):
        if libc.prctl(24, ctypes.c_ulong(capability), 0, 0, 0):  # PR_CAPBSET_DROP
            break
    if user:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    steps = program(numbers())
    raw = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(raw)))
    prctl(22, 2, ctypes.addressof(header), 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--user", type=int, default=0, help="numeric id of the user to run as")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    confine(options.user)
    os.execvp(options.command[0], options.command)


if __name__ == "__main__":
    main()
