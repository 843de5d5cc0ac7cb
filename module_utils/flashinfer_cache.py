# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Kernels that one node built, kept on the controller for the others. The controller's side of `flashinfer_kernels`.

The cache is a folder. NAME-KEY/ in it, KEY being the begin of what the library is made of as a node said it, holds `record.json`,
the library under its own SHA-256, and `lock`, which the host that builds it holds. Whether a library is what a node wants is
decided on that node.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import functools
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import sglang_job, sglang_transfer
from .flashinfer_builder import sha256_of

SCHEMA = 1
NAME = re.compile(r"[A-Za-z0-9_][\w.+-]*")
HEX = re.compile(r"[0-9a-f]{64}")


def replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def kernels(count: int) -> str:
    return f"{count} kernel{'s' * (count != 1)}"


def megabytes(count: int) -> str:
    return f"{count / (1 << 20):.0f}" if count >= 10 << 20 else f"{count / (1 << 20):.1f}"


def apart(record: dict[str, Any], node: dict[str, Any]) -> str:
    """Why a library of the same name is not what this node would build."""
    sides = [("FlashInfer", "flashinfer"), ("nvcc", "nvcc"), ("architectures", "architectures")]
    differ = [
        f"{word} {words(record.get(key))} there and {words(node.get(key))} here"
        for word, key in sides
        if words(record.get(key)) != words(node.get(key))
    ]
    return ", ".join(differ) or "other sources, headers or flags, or another machine"


def words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


class Cache:
    """The controller's folder. What lies in it is read as what it may be, cut or edited."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def entry(self, name: str, made_of: str) -> Path:
        if not NAME.fullmatch(name) or not HEX.fullmatch(made_of):
            raise OSError(f"The node names a kernel {name!r}, made of {made_of!r}.")
        return self.folder / f"{name}-{made_of[:20]}"

    @staticmethod
    def read(entry: Path) -> dict[str, Any]:
        """A record; empty where there is none that makes sense."""
        try:
            record = json.loads((entry / "record.json").read_text(encoding="utf-8"))
            sound = record["schema"] == SCHEMA and HEX.fullmatch(record["sha256"]) and int(record["bytes"]) > 0
            return record if sound else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def library(self, record: dict[str, Any]) -> Path:
        return self.entry(record["name"], record["made_of"]) / f"{record['sha256']}.so"

    def find(self, name: str, made_of: str) -> tuple[dict[str, Any], str]:
        """The record of a library that is whole, and what is wrong with one that is not. The next build replaces that."""
        entry = self.entry(name, made_of)
        record = self.read(entry)
        if not record or (record.get("name"), record.get("made_of")) != (name, made_of):
            return {}, ""
        library = self.library(record)
        with contextlib.suppress(OSError):
            if library.stat().st_size == record["bytes"] and sha256_of(str(library)) == record["sha256"]:
                return record, ""
        return {}, f"{library} is not what was put there"

    def others(self, name: str, made_of: str) -> dict[str, Any]:
        """The newest record of this name that is made of something else."""
        found = [self.read(path) for path in self.folder.glob(f"{name}-*")]
        found = [record for record in found if record.get("name") == name and record.get("made_of") != made_of]
        return max(found, key=lambda record: str(record.get("at")), default={})

    def put(self, record: dict[str, Any], fetch: Callable[[Path], None]) -> None:
        """Fetch a library, verify it, and put it there with its record; a reader sees the old one or the new one."""
        entry = self.entry(record["name"], record["made_of"])
        entry.mkdir(parents=True, exist_ok=True)
        partial = entry / f".{os.getpid()}.part"
        try:
            fetch(partial)
            if sha256_of(str(partial)) != record["sha256"]:
                raise OSError("it arrived damaged")
            partial.replace(self.library(record))
        finally:
            partial.unlink(missing_ok=True)
        replace(entry / "record.json", json.dumps({"schema": SCHEMA, **record}, indent=2) + "\n")
        for old in set(entry.glob("*.so")) - {self.library(record)}:
            old.unlink(missing_ok=True)

    def claim(self, wanted: dict[str, str], host: str, held: contextlib.ExitStack) -> dict[str, str]:
        """Take the right to build these, all or none. Otherwise who builds one of them already (name to words).

        The locks go with `held`, or with the process. In the order of names, so that two hosts never wait for each other.
        """
        with contextlib.ExitStack() as taken:
            for name in sorted(wanted):
                entry = self.entry(name, wanted[name])
                entry.mkdir(parents=True, exist_ok=True)
                stream = taken.enter_context((entry / "lock").open("a+", encoding="utf-8"))
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    stream.seek(0)
                    return {name: stream.read().strip() or "another host"}
                stream.truncate(0)
                stream.write(f"{host} {time.time_ns()}\n")
                stream.flush()
            held.push(taken.pop_all())
        return {}


class Shipping:
    """One task on one host: what it lacks is taken from the cache, or built and put there."""

    def __init__(
        self,
        cache: Cache,
        host: str,
        args: dict[str, Any],
        execute: Callable[[dict[str, Any]], dict[str, Any]],
        say: Callable[[str], None],
        send: Callable[[list[tuple[Path, str]], Callable[[str], dict[str, Any]]], dict[str, Any]],
        fetch: Callable[[str, Path], None],
    ) -> None:
        self.cache, self.host, self.args = cache, host, args
        self.execute, self.say, self.send, self.fetch = execute, say, send, fetch
        self.refused: dict[str, str] = {}
        self.warnings: list[str] = []

    def run(self, check: bool) -> dict[str, Any]:
        looked = self.execute({**self.args, "stage": "look"})
        going_on, lacking = looked.pop("unfinished", False), looked.pop("lacking", None)
        if check and not looked.get("failed"):
            self.foretell(looked)
            return looked
        received: dict[str, dict[str, Any]] = {}
        with contextlib.ExitStack() as held:
            result = looked
            if going_on and lacking:
                received, result = self.supplied(lacking, looked, held)
            if going_on and (not received or result.pop("unfinished", False)):
                result = sglang_job.follow(self.execute, self.say, self.args)
            if not result.get("failed"):
                self.summary(result, received)
                self.collect(result)
        if self.warnings:
            result["warnings"] = [*result.get("warnings", []), *self.warnings]
        return {**result, "refused": {**result.get("refused", {}), **self.refused}}

    def supplied(
        self, lacking: dict[str, str], looked: dict[str, Any], held: contextlib.ExitStack
    ) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        """What the node took (name to record), and its answer to that."""
        offers = self.offers(lacking, held)
        for name in sorted(set(lacking) - set(offers)):
            other = self.cache.others(name, lacking[name])
            if other:
                self.say(f"{name}: what the cache has of {other.get('host')} does not fit: {apart(other, looked)}")
        if not offers:
            return {}, {}
        answer = self.sent(offers, set(looked.get("staged", [])))
        if answer.get("failed"):
            # The build says it as well, where it is not about what was sent.
            self.warn(f"The node does not take what the cache has, and compiles: {answer.get('msg', '')}")
            return {}, {}
        for name, why in answer.get("refused", {}).items():
            self.refuse(name, f"What {offers[name].get('host')} built is not used: {why}. It is compiled.", why)
        left = answer.pop("lacking", {})
        return {name: offer for name, offer in offers.items() if name not in left and name not in self.refused}, answer

    def offers(self, lacking: dict[str, str], held: contextlib.ExitStack) -> dict[str, dict[str, Any]]:
        """What the cache has of it. What it has not, this host may build when this returns: nobody else does, or who did failed."""
        parent, began, spoke = os.getppid(), time.monotonic(), 0.0
        builders: dict[str, str] = {}
        last: dict[str, str] = {}
        while True:
            found = self.found(lacking)
            missing = {name: key for name, key in lacking.items() if name not in found}
            try:
                busy = self.cache.claim(missing, self.host, held)
            except OSError as error:
                self.warn(f"The kernels' cache cannot be written: {error}.")
                return found
            if not busy:
                # Put there between the two.
                return {**found, **self.found(missing)}
            ((name, builder),) = busy.items()
            late = time.monotonic() - began > int(self.args.get("timeout", 7200))
            if builders.get(name, builder) != builder or late:
                # The one that was waited for came to nothing. Not one after the other: a fault of all would take that many times.
                found = self.found(lacking)
                if name not in found:
                    return found
                continue
            if last.get(name) == builder:  # who has just begun may not have written it yet
                builders[name] = builder
            last[name] = builder
            if time.monotonic() - spoke >= sglang_job.QUIET or not spoke:
                self.say(f"waits for {builder.split()[0]}, which builds {name}")
                spoke = time.monotonic()
            if os.getppid() != parent:
                raise RuntimeError("The run that this task belongs to has ended.")
            time.sleep(sglang_job.PACE)

    def found(self, wanted: dict[str, str]) -> dict[str, dict[str, Any]]:
        offers = {}
        for name, made_of in wanted.items():
            record, wrong = self.cache.find(name, made_of)
            if record:
                offers[name] = record
                self.refused.pop(name, None)  # healed by the host that was waited for
            if wrong:
                self.refuse(name, f"The cache's {name} is not used: {wrong}.", wrong)
        return offers

    def sent(self, offers: dict[str, dict[str, Any]], staged: set[str]) -> dict[str, Any]:
        due = [offer for offer in offers.values() if f"{offer['sha256']}.so" not in staged]
        total, done = sum(offer["bytes"] for offer in due), 0
        answer: dict[str, Any] = {}
        refused: dict[str, str] = {}
        for batch in list(sglang_transfer.batches(due, "bytes")) or [[]]:
            if batch:
                self.say(f"{megabytes(done)} of {megabytes(total)} MB of kernels sent")

            def take(folder: str, offers: dict[str, dict[str, Any]] = offers) -> dict[str, Any]:
                return self.execute({**self.args, "stage": "take", "offers": offers, "sent": folder})

            files = [(self.cache.library(offer), f"{offer['sha256']}.so") for offer in batch]
            answer = self.send(files, take)
            if answer.get("failed"):
                break
            refused.update(answer.get("refused", {}))
            # What did not arrive whole is not waited for.
            offers = {name: offer for name, offer in offers.items() if name not in refused}
            done += sum(offer["bytes"] for offer in batch)
        return {**answer, "refused": refused}

    def summary(self, result: dict[str, Any], received: dict[str, Any]) -> None:
        told = result.get("kernels", {})
        for name in received:
            # The build saw it as one that is there.
            if told.get(name, {}).get("state") == "present":
                told[name]["state"] = "received"
        states = [kernel["state"] for kernel in told.values()]
        built = states.count("built")
        took = f" in {result.get('seconds', 0):.0f} s"
        if built or "received" in states:
            result["changed"] = True
            result["message"] = (
                f"{kernels(states.count('received'))} from the controller's cache, {built} compiled"
                f"{took if built else ''}; FlashInfer finds them without compiling."
            )
            self.say(result["message"].partition(";")[0])

    def collect(self, result: dict[str, Any]) -> None:
        """Keep what the node has and the cache has not. What cannot be kept costs the next node a build, and this one nothing."""
        about = {key: result.get(key) for key in ("flashinfer", "nvcc", "architectures", "machine")}
        for name, kernel in result.get("kernels", {}).items():
            if kernel["state"] not in ("built", "present") or not kernel.get("made_of"):
                continue
            try:
                # What was refused here is replaced: one that an older system can load, newer ones can.
                if name not in self.refused and self.cache.find(name, kernel["made_of"])[0]:
                    continue
                record = {
                    "name": name,
                    **{key: kernel[key] for key in ("made_of", "sha256", "bytes", "objects", "seconds")},
                    "host": kernel.get("origin") or self.host,
                    "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                    **about,
                }
                self.cache.put(record, functools.partial(self.fetch, kernel["path"]))
                self.say(f"{name} ({megabytes(kernel['bytes'])} MB) is in the controller's cache")
            except OSError as error:
                self.warn(f"{name} could not be kept in {self.cache.folder}, so the next node compiles it: {error}")

    def foretell(self, looked: dict[str, Any]) -> None:
        missing = {name: one["made_of"] for name, one in looked["kernels"].items() if one["state"] == "missing"}
        found = {name for name, key in missing.items() if self.cache.find(name, key)[0]}
        if found:
            left = sorted(set(missing) - found)
            looked["message"] = f"Would take {', '.join(sorted(found))} from the controller's cache" + (
                f", and build {', '.join(left)}." if left else "."
            )

    def refuse(self, name: str, text: str, why: str) -> None:
        self.refused[name] = why
        self.warn(text)

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)
