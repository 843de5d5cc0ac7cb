# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""From a log to its cause: find the lines that rules know, tell causes from what follows of them, and rank them.

A log is read once, in pieces, with a bounded amount of it kept, so that gigabytes can be read on a node. Literal texts are searched
for first (`find` of a signature), which is fast; a regular expression is tried on the lines that hold one. Log files, journald's
short and JSON formats, and lines that Docker or Kubernetes put a prefix before are read alike.

`rules/README.md` describes a signature. `scan` needs nothing but plain Python; `findings` renders texts and needs Jinja.
"""

from __future__ import annotations

import bisect
import difflib
import itertools
import json
import re
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from . import sglang_log

CHUNK = 1 << 20
# Of a line, and of a rule's lines in a piece, what is looked at more closely.
LINE = 2000
CLOSELY = 200
# The end of a log, in which its last error and its last words are looked for.
TAIL = 1 << 20
# The words of rules, the first weighs most.
KINDS = ("cause", "consequence", "slow", "benign")
SEVERITIES = ("error", "warning", "note")
CONFIDENCES = ("measured", "code", "reported", "derived")
# A line that begins a new start of a server: systemd's, or the engine's first one.
STARTS = [b"systemd[1]: Starting ", b"systemd[1]: Started ", b"server_args="]
STAGE_TEXTS = [
    *(b"Init torch distributed ", b"Init parallel ", b"Load weight ", b"KV Cache is allocated", b"Memory pool end"),
    *(b"Running FlashInfer autotune", b"Autotuning process starts", b"FlashInfer autotune completed", b"apture "),
    *(b"max_total_num_tokens=", b"Uvicorn running on", b"The server is fired up and ready to roll!"),
]  # fmt: skip

STEADY = [b"Decode batch", b"Prefill batch", b'" 200 OK']

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# "2026-01-29T01:28:40.123456789Z text" (docker logs -t), "sglang-1  | text" (docker compose), "pod/x text" is left as it is.
DOCKER = re.compile(r"^(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z |[\w.-]+ +\| )")
RANK = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?((?: [A-Z]+\d+)+)\]")

WORD = re.compile(rb"[A-Za-z_]{5,}")

Rule = Dict[str, Any]
Signature = Dict[str, Any]
Hit = Dict[str, Any]


def signatures(rules: List[Rule]) -> List[Signature]:
    """What a scan needs of the rules, as plain data that can be sent to a node."""
    keys = ("find", "match", "unless", "source", "kind", "stage", "last", "times", "sglang")
    return [
        {"id": rule["id"], **{key: rule["signature"][key] for key in keys if key in rule["signature"]}}
        for rule in rules
        if "signature" in rule
    ]


def clean(raw: bytes) -> Tuple[str, str, str]:
    """A line's text without the prefixes of whoever carried it, the rank that said it, and its source as journald has it."""
    text = raw[: 4 * LINE].decode("utf-8", "replace")
    if text.startswith("{") and ('"MESSAGE"' in text or '"log"' in text):
        try:
            entry = json.loads(raw.decode("utf-8", "replace"))
            said = entry.get("MESSAGE", entry.get("log", ""))
            text = said if isinstance(said, str) else bytes(said).decode("utf-8", "replace")
        except (ValueError, TypeError):
            pass  # cut in the middle: what is there is read as text
    text = DOCKER.sub("", ANSI.sub("", text))
    line = sglang_log.parse_line(text)
    if line.source:
        text = text[text.index(": ") + 2 :] if ": " in text else text
    rank = RANK.match(text)
    return line.text[:LINE], rank.group(1).strip() if rank else "", line.source


def whole_word(literal: bytes) -> bytes:
    """The longest word that stands whole inside a literal: a piece of a log without it holds no such literal. May be empty."""
    inside = [found.group() for found in WORD.finditer(literal) if found.start() > 0 and found.end() < len(literal)]
    return max(inside, key=len, default=b"")


def timeless(line: bytes) -> bytes:
    """A line without journald's time and the engine's own: lines that differ in nothing else hold the same texts."""
    if line[:2] == b"20":
        line = line[line.find(b" ") + 1 :]
    at = line.find(b"[20", 0, 200)
    # "[2026-01-29 00:51:38 TP0] text"
    return line[: at + 1] + line[at + 20 :] if at >= 0 and line[at + 14 : at + 15] == b":" else line


class _Reader:
    """Position, stage and start while a log goes by."""

    def __init__(self, wanted: List[Signature]) -> None:
        self.wanted = {
            signature["id"]: {
                **signature,
                "regex": re.compile(signature["match"]) if signature.get("match") else None,
                "not": re.compile(signature["unless"]) if signature.get("unless") else None,
            }
            for signature in wanted
        }
        texts = [(signature["id"], text.encode()) for signature in wanted for text in signature["find"]]
        texts += [("", text) for text in [*STARTS, *STAGE_TEXTS]]
        self.literals = [(name, text, whole_word(text)) for name, text in texts]
        self.hits: Dict[Tuple[int, str], Hit] = {}
        self.number = 0  # lines before this piece
        self.bytes = 0
        self.start = 0
        self.engine_started = False
        self.began = 1  # the line with which the last start begins
        self.reached = 0  # the line of the last stage
        self.marked = 0  # the line of systemd's last "Starting" or "Started"
        self.stage: Optional[sglang_log.Found] = None
        self.arguments = ""
        self.tail = b""
        self.earlier: List[Dict[str, Any]] = []

    def piece(self, data: bytes) -> None:
        """Whole lines."""
        lines = data.split(b"\n")
        # What a busy server says all the time is most of a long log, and is left out before anything is looked for.
        decode, prefill, served = STEADY
        said: Dict[bytes, List[int]] = {}
        for number, line in enumerate(lines):
            if not (decode in line or prefill in line or served in line):
                said.setdefault(timeless(line), []).append(number)
        # Ranks, and a server that starts again and again, say the same: it is searched once.
        groups = list(said.values())
        looked: List[Tuple[int, str, int]] = []  # number in the piece, rule (none for what a start says), group
        more: Dict[str, int] = {}
        for name, holding in self._holding(list(said)).items():
            numbers = sorted((number, group) for group in holding for number in groups[group])
            if name and len(numbers) > CLOSELY:
                more[name] = len(numbers) - CLOSELY
                del numbers[CLOSELY:]
            looked += [(number, name, group) for number, group in numbers]
        cleaned: Dict[int, Tuple[str, str, str]] = {}
        for number, name, group in sorted(looked):
            if group not in cleaned:
                cleaned[group] = clean(lines[number])
            text, rank, source = cleaned[group]
            if name:
                self._hit(self.wanted[name], text, rank, self.number + number + 1)
            else:
                self._event(text, source, self.number + number + 1)
        for name, count in more.items():
            if (self.start, name) in self.hits:
                self.hits[self.start, name]["count"] += count
        self.number += data.count(b"\n")
        self.bytes += len(data)
        self.tail = (self.tail + data)[-TAIL:]

    def _holding(self, texts: List[bytes]) -> Dict[str, Set[int]]:
        """Which of the texts hold a literal of a rule, by its id; of "" those by which a start is followed."""
        data = b"\n".join(texts)
        ends = list(itertools.accumulate(len(text) + 1 for text in texts))
        # Collecting the words costs as much as a few searches, and spares most of them.
        words = {b"", *WORD.findall(data)}
        held: Dict[str, Set[int]] = {}
        for name, literal, word in self.literals:
            at = data.find(literal) if word in words else -1
            while at >= 0:
                text = bisect.bisect_right(ends, at)
                held.setdefault(name, set()).add(text)
                at = data.find(literal, ends[text])
        return held

    def _hit(self, signature: Signature, text: str, rank: str, number: int) -> None:
        if signature["not"] and signature["not"].search(text):
            return
        match = signature["regex"].search(text) if signature["regex"] else None
        if signature["regex"] and not match:
            return
        if signature.get("stage") and (self.stage.name if self.stage else "") not in signature["stage"]:
            return
        key = (self.start, signature["id"])
        if key in self.hits:
            self.hits[key]["count"] += 1
            self.hits[key]["last"] = number
            return
        self.hits[key] = {
            "id": signature["id"],
            "line": sglang_log.shorten(text.strip()),
            "number": number,
            "last": number,
            "count": 1,
            "rank": rank,
            "start": self.start,
            "stage": self.stage.doing if self.stage else "",
            "match": {name: value or "" for name, value in (match.groupdict() if match else {}).items()},
        }

    def _event(self, text: str, source: str, number: int) -> None:
        """A new start, or a stage of the present one."""
        if source.startswith("systemd"):
            if sglang_log.NEW_START.match(text):
                # "Starting" and "Started" are one; what stands before the first of them is a start of its own.
                if number - self.marked > 1:
                    self._new_start(number)
                self.marked = number
            return
        stage = sglang_log.find_stage(text)
        if stage is None:
            return
        self.reached = number
        if text.startswith("server_args="):
            if self.engine_started:
                self._new_start(number)
            self.engine_started = True
            self.arguments = text
        self.stage = stage

    def _new_start(self, number: int) -> None:
        if number > 1:
            self.start += 1
        self.began = number
        self.engine_started, self.stage = False, None


def pieces(stream: Any) -> Iterator[bytes]:
    """Whole lines, some CHUNK bytes at a time; a line without an end is cut."""
    rest = b""
    while True:
        data = stream.read(CHUNK)
        if not data:
            break
        data = rest + data.replace(b"\r\n", b"\n")
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) > 4 * CHUNK:
            cut = len(data)
        rest = data[cut:]
        if cut:
            yield data[:cut]
    if rest:
        yield rest


class Tail:
    """A stream whose last MiB are kept as they go by."""

    def __init__(self, stream: Any, mib: int) -> None:
        self.stream, self.room, self.kept = stream, mib << 20, b""

    def read(self, size: int) -> bytes:
        data: bytes = self.stream.read(size)
        if self.room:
            self.kept = (self.kept + data)[-self.room :]
        return data

    def text(self) -> str:
        return self.kept.decode("utf-8", "replace")


def scan(stream: Any, wanted: List[Signature], source: str = "log") -> Dict[str, Any]:
    """Hits and facts of a log, from what has `read`: plain data.

    hits: one entry a start and rule; lines, bytes, starts: what was read; stage: what the last start was busy with;
    ready: whether it was reached; error: the last start's own error (`error`, `lines`) or nothing; arguments: fields of
    server_args; last_lines: 20 at most, without their prefixes.
    """
    reader = _Reader([signature for signature in wanted if signature.get("source", "log") == source])
    for data in pieces(stream):
        reader.piece(data)
    tail = reader.tail.decode("utf-8", "replace").splitlines()
    # An error of a start before the last one explains nothing of it.
    last = tail[max(0, reader.began - 1 - (reader.number - len(tail))) :]
    failure = sglang_log.last_error(clean(line.encode())[0] if line.startswith("{") else line for line in last)
    kept = [hit for hit in reader.hits.values() if _counts(hit, reader, tail)]
    return {
        "hits": kept,
        "lines": reader.number,
        "bytes": reader.bytes,
        "starts": reader.start + 1,
        "stage": reader.stage.doing if reader.stage else "",
        "ready": bool(reader.stage and reader.stage.name == sglang_log.READY),
        "error": {"error": failure.error, "lines": failure.lines} if failure else {},
        "arguments": fields(reader.arguments),
        "last_lines": [sglang_log.shorten(clean(line.encode())[0]) for line in tail[-20:]],
    }


def _counts(hit: Hit, reader: _Reader, tail: List[str]) -> bool:
    """Whether a hit has the number of lines, and the place in the log, that its signature asks for."""
    signature = reader.wanted[hit["id"]]
    if hit["count"] < signature.get("times", 1):
        return False
    if signature.get("last"):
        # A stage that was reached after it ends the silence.
        if hit["start"] != reader.start or reader.reached > hit["last"]:
            return False
        after = tail[-max(0, reader.number - hit["last"]) :] if reader.number > hit["last"] else []
        others = [
            line
            for line in after
            if line.strip() and "systemd[1]: " not in line and not any(text in line for text in signature["find"])
        ]
        # What systemd says of a kill does not end it.
        return len(others) <= 2
    return True


def fields(text: str) -> Dict[str, Any]:
    """Plain values of a logged ServerArgs(…)."""
    found = re.findall(r"(\w+)=('(?:[^'\\]|\\.)*'|None|True|False|-?[\d.]+)(?=[,)])", text)
    plain = {"None": None, "True": True, "False": False}
    result: Dict[str, Any] = {}
    for name, value in found:
        if value in plain:
            result[name] = plain[value]
        elif value.startswith("'"):
            result[name] = value[1:-1]
        else:
            result[name] = float(value) if "." in value else int(value)
    return {name: value for name, value in result.items() if "key" not in name and "password" not in name}


def findings(scans: List[Dict[str, Any]], rules: List[Rule], version: str = "") -> List[Dict[str, Any]]:
    """What the hits of one or more scans (server log, kernel log) mean, best first.

    Of the last start before earlier ones, the latest first; causes before what follows from them, what is slow and what only
    looks bad; errors before warnings; then the first in time.
    """
    from jinja2 import StrictUndefined, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    jinja = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
    by_id = {rule["id"]: rule for rule in rules}
    made = []
    for told in scans:
        for hit in told["hits"]:
            rule = by_id[hit["id"]]
            signature = rule["signature"]
            if not _version_fits(signature.get("sglang", ""), version):
                continue
            context = {
                "match": hit["match"],
                "line": hit["line"],
                "stage": hit["stage"],
                "rank": hit["rank"],
                "args": told["arguments"],
                "sglang": version,
            }
            texts = {}
            for key in ("cause", "remedy"):
                template = signature.get(key, rule[key])
                try:
                    texts[key] = jinja.from_string(template).render(context).strip()
                except TemplateError:
                    # A rule that speaks of plans, of a log that does not say as much: its text as it stands.
                    texts[key] = re.sub(r"\{\{.*?\}\}", "…", template).strip()
            made.append(
                {
                    **{key: hit[key] for key in ("id", "line", "number", "count", "rank", "stage", "match")},
                    "source": signature.get("source", "log"),
                    "kind": signature.get("kind", "cause"),
                    "severity": rule["severity"],
                    "confidence": rule["confidence"],
                    "sources": rule["sources"],
                    "earlier": told["starts"] - 1 - hit["start"] if signature.get("source", "log") == "log" else 0,
                    # The same entry has a `when`, so a plan would have said it.
                    "foreseen": "when" in rule,
                    **texts,
                }
            )
    return once(sorted(made, key=rank))


def once(found: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """What an earlier start says again is told once, of the latest of them."""
    kept: Dict[str, Dict[str, Any]] = {}
    for one in found:
        kept.setdefault(one["id"], one)
    return list(kept.values())


def rank(found: Dict[str, Any]) -> Tuple[int, ...]:
    return (
        found["earlier"],
        KINDS.index(found["kind"]),
        SEVERITIES.index(found["severity"]),
        found["number"],
        CONFIDENCES.index(found["confidence"]),
    )


def _version_fits(condition: str, version: str) -> bool:
    """Whether a version condition such as `<0.5.9` holds; one that cannot be judged does not exclude."""
    if not condition or not version:
        return True
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(condition).contains(version, prereleases=True)


def unexplained(told: Dict[str, Any], rules: List[Rule]) -> Dict[str, Any]:
    """The best answer where no rule knows the failure: the error itself, the stage, and the rules that are most like it."""
    failure = told["error"]
    if not failure or told["ready"] and not sglang_log.FATAL_LINES.search(failure["error"]):
        return {}
    texts = {text: rule["id"] for rule in rules if "signature" in rule for text in rule["signature"]["find"]}
    near = difflib.get_close_matches(failure["error"], list(texts), n=3, cutoff=0.35)
    return {
        "error": failure["error"],
        "lines": failure["lines"],
        "stage": told["stage"],
        "near": list(dict.fromkeys(texts[text] for text in near)),
    }
