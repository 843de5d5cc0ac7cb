# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""From the log of one start to what was tuned: which kernels ran with tuned configurations, from what, and which fell back.

`scan` reads a log in pieces and keeps a bounded amount of it; `judge` makes verdicts of what was found and of what is known
besides (versions, arguments, environment). Both are plain Python. Fixed texts are searched for first, expressions are tried only
on lines that hold one; FlashInfer's DEBUG lines, of which there may be millions, are told apart by how they begin.

What each version says, read in the sources (wheels of FlashInfer 0.6.1, 0.6.3 to 0.6.8, 0.6.10 to 0.6.12, 0.6.14, 0.6.18, 0.7.2 and
0.7.4, of SGLang 0.5.8 to 0.5.10, 0.5.12, 0.5.13, 0.5.15, 0.5.20, 0.5.23). "all" is each of these. FlashInfer's logger has a
level (FLASHINFER_LOGGING_LEVEL, info) and a handler of its own: SGLang's log-level does not change it, and its lines have no rank.

    FlashInfer  level    line
    all         INFO     [Autotuner]: Autotuning process starts ...
    all         INFO     [Autotuner]: Autotuning process ends                        (after an exception too)
    to 0.6.7    DEBUG    [AutoTunner]: Using fallback tactic for OP with input shapes S        (each call)
    from 0.6.8  DEBUG    [AutoTuner]: Using fallback tactic for OP with input shapes S         (from 0.7.2 "; generated key K")
    from 0.6.11 WARNING  [AutoTuner]: No tuned config covers OP input_shapes=S; falling back to runner=R tactic=-1
                         (once a profile, and only for an OP that holds tuning data; one that was never tuned is DEBUG everywhere)
    all         INFO     [Autotuner]: Loading configs for K from file.               (a tuning module; once a key)
    all         INFO     [Autotuner]: Loading configs for K from file failed; Using default configs instead.
    from 0.6.7  INFO     [Autotuner]: Loaded N configs from PATH                     (a JSON file)
    from 0.6.7  INFO     [Autotuner]: Saved N configs to PATH (X new, Y from previous config)
    from 0.6.7  INFO     [Autotuner]: Config cache hit for OP (runner=R, source=config file)   (from 0.7.2 also "managed cache")
    from 0.6.7  WARNING  [Autotuner]: Cache file PATH was created in a different environment (D). Ignoring cached configs.
    from 0.6.18 WARNING  [Autotuner]: Not saving configs to PATH: the file was created in a different environment (D).
    from 0.6.8  stderr   [AutoTuner]: Tuning OP:  NN%|###| i/n [                     (a bar)
    to 0.6.7    WARNING  [Autotuner]: Skipping tactic R T, due to failure while profiling: E   (from 0.6.8 DEBUG)
    from 0.6.8  INFO     [Autotuner]: Skipped N unsupported tactic(s) for OP         (once a profile)
    from 0.6.3  WARNING  [Autotuner]: OOM detected, falling back to default tactic
    from 0.7.2  WARNING  [Autotuner]: cached tactic T for OP (runner=R, source=S) failed revalidation; treating as a cache miss.
    from 0.7.2  INFO     Building JIT module NAME; this can take several minutes on first use.
    all         DEBUG    filelock: Lock N acquired on .../cached_ops/tmp/NAME.lock   (held while it builds; log-level debug)

Up to 0.6.6 FLASHINFER_AUTOTUNER_LOAD_FROM_FILE=1 makes search_cache return before it looks at what was tuned in this process.

    SGLang           line (INFO or WARNING, each rank)
    0.5.8 to 0.5.10  Running FlashInfer autotune...
    from 0.5.12      Running FlashInfer autotune with cache: PATH
    from 0.5.13      Running FlashInfer autotune (cache reuse DISABLED via V); writing fresh result to: PATH
    all              FlashInfer autotune completed.
    from 0.5.20      FlashInfer autotune: per-rank caches disagree, discarding them ...
    from 0.5.20      FlashInfer autotune: extra EXTEND pass at N tokens; FlashInfer extend autotune skipped: W
    all              Using MoE kernel config from PATH.
    all              Config file not found at PATH. Fallback to triton version V and use MoE kernel config from P.
    all              Using default MoE kernel config. Performance might be sub-optimal! Config file not found at PATH, ...
    to 0.5.15        Using MoE kernel config with down_moe=False. ... Config file not found at PATH, ...
    from 0.5.20      Down MoE config file not found at PATH; reusing the tuned up-projection config without TMA.
    all              Using configuration from PATH for W8A8 Block FP8 kernel.; Using default W8A8 Block FP8 kernel config.
    all              Entering DeepGEMM JIT Pre-Compile session.; Try DeepGEMM JIT Compiling for <KIND> N=N, ...; bar DeepGEMM warmup
    to 0.5.13        Capture [KIND ]cuda graph begin. ...; ... end. Time elapsed: S s. mem usage=G GB.
    from 0.5.15      Capture KIND CUDA graph begin. backend=B, ...; ... end. elapsed=S s, mem usage=G GB, ...
    all              KV Cache is allocated. #tokens: N, ...  (from 0.5.13 "dtype: D, #tokens: N")
    to 0.5.15        server_args=ServerArgs(name='value', ...)       from 0.5.20  server_args={'name': 'value', ...}
"""

from __future__ import annotations

import bisect
import fnmatch
import itertools
import json
import re
from collections import Counter, OrderedDict
from datetime import datetime
from typing import Any, Dict, List, NamedTuple, Optional, Pattern, Set, Tuple

from . import sglang_diagnose, sglang_log

TUNED, LOADED, PARTIAL, FALLBACK, OFF, SILENT = "tuned", "loaded", "partial", "fallback", "off", "silent"
COMPILED = "compiled"  # of layers that compile at the start

# Bounds: of a line that is looked at, of proof lines, of different matches, operations and shapes kept, of lines a text and piece.
LINE = 4000
PROOFS = 4
MATCHES = 64
OPERATIONS = 64
SHAPES = 1000
CLOSELY = 500
SPANS = 512
# A prefix longer than this may hold a bar before FlashInfer's record; and different calls whose reading is kept.
BAR_ROOM = 70
READINGS = 20_000
# A lock held longer than this was held to compile; loading a module that is built takes less.
COMPILE_SECONDS = 3.0

FIRST_WARNING = (0, 6, 11)  # "No tuned config covers"
FIRST_JSON = (0, 6, 7)  # "Saved N configs"; results in memory are looked at before a tuning module
FIRST_BUILDING = (0, 7, 2)  # "Building JIT module"

# "[2026-01-29 00:51:38 TP0] text"; also "[…] INFO server_args.py:1750: text" and logging's "[…] name LEVEL text".
STAMP = re.compile(
    r"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)((?: [A-Z]+\d+)*)\] ?"
    r"(?:[\w.]+ (?:DEBUG|INFO|WARNING|ERROR) |(?:DEBUG|INFO|WARNING|ERROR) [\w.]+:\d+: )?"
)
FLASHINFER = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+) - ([A-Z]+) - [\w.]+:\d+ - flashinfer\.jit: ")
SOURCE = re.compile(r"([^\s\[\]:]+\[\d+\]): ")
RANK_OF_FILE = re.compile(r"rank_tp(\d+)_pp(\d+)_dp(\d+)")
VERSION_OF_PATH = re.compile(r"flashinfer/(?:autotune/)?(\d+\.\d+\.\d+[\w.]*)/")
FI_MARK = b"flashinfer.jit: "
BAR = re.compile(rb"\[AutoTuner\]: Tuning ([^\r\n]+?): +\d+%\|[^\r\n]*?\| *(\d+)/\d+ \[")
FALLBACK_CALL = re.compile(r"Using fallback tactic for (\S+) with input shapes (.*?)(?:; generated key .*)?$", re.S)
CHOSEN = re.compile(rb" for (?:\w+\()?\(?(?:custom_op=)?'([^']+)', ?(.*)", re.S)
BUCKET = re.compile(r"\((\(.*?\))\)")
MISSED = re.compile(r"^\('([^']+)', .*?\((\(.*?\))\)")
CALL_MARKS = (b"[AutoTuner]: Using fallback tactic for ", b"[AutoTunner]: Using fallback tactic for ")


class Event(NamedTuple):
    """A line to recognise: its fixed text, and the expression that it must match. Groups are kept."""

    name: str
    find: str
    match: Pattern[str]


def _events(*rows: Tuple[str, str, str]) -> Tuple[Event, ...]:
    return tuple(Event(name, find, re.compile(pattern)) for name, find, pattern in rows)


# What FlashInfer says at INFO and above, behind its own prefix.
FI_EVENTS = _events(
    ("begin", "Autotuning process starts", r"^\[Autotuner\]: Autotuning process starts"),
    ("end", "Autotuning process ends", r"^\[Autotuner\]: Autotuning process ends"),
    (
        "file_miss",
        "from file failed",
        r"^\[Autotuner\]: Loading configs for (?P<key>.+) from file failed; Using default",
    ),
    ("file_hit", "Loading configs for ", r"^\[Autotuner\]: Loading configs for (?P<key>.+) from file\.$"),
    ("loaded", "Loaded ", r"^\[Autotuner\]: Loaded (?P<configs>\d+) configs from (?P<path>.+)$"),
    (
        "saved",
        "Saved ",
        r"^\[Autotuner\]: Saved (?P<configs>\d+) configs to (?P<path>.+) \((?P<new>\d+) new, (?P<old>\d+) from previous",
    ),
    (
        "hit",
        "Config cache hit",
        r"^\[Autotuner\]: Config cache hit for (?P<op>\S+) \(runner=(?P<runner>\w+), source=(?P<from>[^)]+)\)",
    ),
    (
        "stale",
        "created in a different environment",
        r"^\[Autotuner\]: Cache file (?P<path>.+?) was created in a different environment \((?P<why>.*?)\)\. Ignoring",
    ),
    ("unsaved", "Not saving configs to", r"^\[Autotuner\]: Not saving configs to (?P<path>.+?): (?P<why>.+)$"),
    (
        "uncovered",
        "No tuned config covers",
        r"^\[AutoTuner\]: No tuned config covers (?P<op>\S+) input_shapes=(?P<shapes>.*?); falling back to runner=(?P<runner>\w+)",
    ),
    ("tactic", "Skipping tactic", r"^\[Autotuner\]: Skipping tactic (?P<which>.{0,200}?), due to failure"),
    (
        "skipped",
        "unsupported tactic(s)",
        r"^\[Autotuner\]: Skipped (?P<count>\d+) unsupported tactic\(s\) for (?P<op>\S+)",
    ),
    ("oom", "OOM detected", r"^\[Autotuner\]: OOM detected, falling back to default tactic"),
    ("invalid", "failed revalidation", r"^\[Autotuner\]: cached tactic .* for (?P<op>\S+) \(.* failed revalidation"),
    ("blocklist", "TacticsBlocklist]: Loaded", r"^\[TacticsBlocklist\]: Loaded (?P<count>\d+) invalid tactic\(s\)"),
    ("no_blocklist", "blocklist file not found", r"^\[Autotuner\]: Tactics blocklist file not found at (?P<path>.+)$"),
    ("building", "Building JIT module ", r"^Building JIT module (?P<module>[^;]+);"),
)

# What SGLang and others say.
EVENTS = _events(
    (
        "sg_begin",
        "Running FlashInfer autotune",
        r"^Running FlashInfer autotune(?:\.\.\.| with cache: (?P<path>\S+)| \(cache reuse DISABLED .* to: (?P<fresh>\S+))",
    ),
    ("sg_end", "FlashInfer autotune completed.", r"^FlashInfer autotune completed\."),
    ("sg_disagree", "per-rank caches disagree", r"^FlashInfer autotune: per-rank caches disagree"),
    ("sg_extend", "extra EXTEND pass at", r"^FlashInfer autotune: extra EXTEND pass at (?P<tokens>\d+) tokens"),
    ("sg_extend_skipped", "FlashInfer extend autotune skipped", r"^FlashInfer extend autotune skipped: (?P<why>.+)"),
    ("moe_used", "Using MoE kernel config from ", r"^Using MoE kernel config from (?P<path>.+?)\.$"),
    (
        "moe_other",
        "Fallback to triton version ",
        r"^Config file not found at (?P<wanted>.+?)\. Fallback to triton version (?P<triton>\S+) and use MoE kernel config from "
        r"(?P<path>.+?)\. Performance",
    ),
    ("moe_default", "Using default MoE kernel config.", r"Config file not found at (?P<wanted>.+?)(?:, you can|$)"),
    ("moe_down", "down_moe=False. Performance", r"Config file not found at (?P<wanted>.+?)(?:, you can|$)"),
    ("moe_down", "Down MoE config file not found at ", r"^Down MoE config file not found at (?P<wanted>.+?); "),
    (
        "moe_deterministic",
        "using default MoE kernel config.",
        r"^Deterministic inference is enabled, using default MoE",
    ),
    ("fp8_used", " W8A8 Block FP8 kernel.", r"^Using configuration from (?P<path>.+?) for W8A8 Block FP8 kernel\."),
    (
        "fp8_default",
        "Using default W8A8 Block FP8 kernel config",
        r"(?:Config file not found at (?P<wanted>.+?))?(?:, you can|$)",
    ),
    ("dg_session", "Entering DeepGEMM JIT Pre-Compile", r"^Entering DeepGEMM JIT Pre-Compile session"),
    (
        "dg_kernel",
        "Try DeepGEMM JIT Compiling for",
        r"^Try DeepGEMM JIT Compiling for <(?P<kind>[^>]+)> (?P<shape>.+?) with",
    ),
    (
        "dg_bar",
        "DeepGEMM warmup: 100%",
        r"DeepGEMM warmup: 100%\|[^|]*\| *(?P<done>\d+)/(?P<total>\d+) \[(?P<time>[\d:]+)<",
    ),
    ("ninja_failed", "Ninja build failed", r"Ninja build failed"),
    (
        "lock",
        "/cached_ops/",
        r"^Lock \d+ (?P<what>acquired|released) on \S*/cached_ops/(?:\S*/)?(?P<module>[^/\s]+)\.lock",
    ),
    (
        "graph_begin",
        " graph begin",
        r"(?i)^Capture (?:(?P<kind>.+?) )?(?:cuda|cpu|npu) graph begin\b.*?(?:backend=(?P<backend>\w+)|$)",
    ),
    (
        "graph_end",
        " graph end",
        r"(?i)^Capture (?:(?P<kind>.+?) )?(?:cuda|cpu|npu) graph end\b"
        r"(?:.*?(?:elapsed[=:] ?)(?P<seconds>[\d.]+) s)?(?:.*?mem usage=(?P<gb>-?[\d.]+) GB)?",
    ),
    ("graph_failed", "graph failed", r"(?i)^(?:Exception: )?Capture .{0,40}graph failed: (?P<why>.+)"),
    (
        "kv",
        "KV Cache is allocated",
        r"^KV Cache is allocated\.(?: dtype: (?P<dtype>[^,]+),)? #tokens: (?P<tokens>\d+)(?:, (?P<sizes>.+))?",
    ),
    (
        "total",
        "max_total_num_tokens=",
        r"^max_total_num_tokens=(?P<tokens>\d+),.*?max_running_requests=(?P<requests>\d+)",
    ),
    ("kv_dtype", "Using KV cache dtype: ", r"^Using KV cache dtype: (?P<dtype>\S+)"),
    (
        "attention",
        "Attention backend not specified",
        r"Attention backend not specified\. (?:Use|Falling back to) '?(?P<backend>[\w.]+)'?",
    ),
    (
        "attention",
        "hybrid attention backend for decode",
        r"^Using hybrid attention backend .*decode_backend=(?P<decode>\w+), prefill_backend=(?P<backend>\w+)",
    ),
    (
        "attention",
        " attention backend",
        r"[Uu]s(?:e|ing) (?P<backend>\w+) (?:as )?(?:the )?(?:default )?attention backend\b",
    ),
    ("moe", " as MoE runner backend", r"\bUse (?P<backend>\w+) as MoE runner backend"),
    ("moe", "(moe_runner_backend=", r"\(moe_runner_backend=(?P<backend>\w+),"),
    ("fp4_gemm", "auto-selecting fp4-gemm-backend=", r"auto-selecting fp4-gemm-backend=(?P<backend>\w+)"),
    ("fp4_gemm", "as FP4 GEMM runner backend", r"\bUse (?P<backend>\w+) as FP4 GEMM runner backend"),
    ("fp8_gemm", "as FP8 GEMM backend", r"\bUse (?P<backend>\w+) as FP8 GEMM backend"),
    ("disabled", " is disabled", r"^(?P<what>[^.=]{3,120}?) is disabled\b[ .,]*(?:because |due to |\()?(?P<why>[^.]*)"),
    ("disabled", "usion optimization is disabled", r"^(?P<why>.+?)\. (?P<what>[^.]+ optimization) is disabled"),
    ("disabled", "Disable ", r"^(?:\w+ )?Disable (?P<what>.{3,80}?) (?:because|due to|for) (?P<why>.+)"),
    ("suppressed", "Suppressed ", r"Suppressed (?P<count>\d+) messages from"),
    ("blob", " blob data]", r"\[[\d.]+[KMG]?B? ?blob data\]"),
)
START = b"server_args="
READY = b"The server is fired up and ready to roll!"
SYSTEMD = (b"systemd[1]: Starting ", b"systemd[1]: Started ")
TRAFFIC = (b"Prefill batch", b"Decode batch")
# A piece is searched for these few texts; each literal above holds one. That is much faster than a search for each.
ANCHORS = (
    *(
        b"MoE kernel config",
        b"Down MoE config file",
        b"FlashInfer",
        b"W8A8 Block FP8 kernel",
        b"DeepGEMM",
        b"Ninja build",
    ),
    *(
        b"/cached_ops/",
        b" graph ",
        b"KV ",
        b"max_total_num_tokens=",
        b"ackend",
        b"isable",
        b"per-rank caches",
        b"EXTEND pass",
    ),
    *(b"Suppressed ", b" blob data]", b"server_args=", b"fired up", b"systemd[1]: Start", b"[AutoTuner]: Tuning "),
)
LITERALS = sorted({event.find.encode() for event in EVENTS} | {START, READY, *SYSTEMD, b"[AutoTuner]: Tuning "})
UNDER = {anchor: [literal for literal in LITERALS if anchor in literal] for anchor in ANCHORS}
# Literals of lines in which an anchor stands elsewhere.
UNDER[b"MoE kernel config"] += [b"Fallback to triton version ", b"down_moe=False. Performance"]
UNDER[b" graph "] += [b"graph failed"]


class Said(NamedTuple):
    """A line without what carried it. at: seconds, by the stamp of the program that wrote it; None without one."""

    text: str
    rank: str
    source: str
    at: Optional[float]


def _seconds(stamp: str) -> Optional[float]:
    stamp = stamp.replace("T", " ").replace(",", ".")
    try:
        form = "%Y-%m-%d %H:%M:%S.%f" if "." in stamp else "%Y-%m-%d %H:%M:%S"
        return (datetime.strptime(stamp, form) - datetime(2000, 1, 1)).total_seconds()
    except ValueError:
        return None


def told(raw: bytes) -> Said:
    """A line as it was written, whatever carried it: journald in any locale, Docker, Kubernetes, JSON, a progress bar before it.

    The program's own stamp is looked for anywhere near the line's begin; it has the same form in every locale.
    """
    text = raw[:LINE].decode("utf-8", "replace").rstrip("\r\n")
    source = ""
    if text.startswith("{"):
        try:
            entry = json.loads(raw.decode("utf-8", "replace"))
            said = entry.get("MESSAGE", entry.get("log", ""))
            text = said if isinstance(said, str) else bytes(said).decode("utf-8", "replace")
            text = text[:LINE].rstrip("\r\n")
            source = f"{entry.get('SYSLOG_IDENTIFIER', '')}[{entry.get('_PID', '')}]" if entry.get("_PID") else ""
        except (ValueError, TypeError, AttributeError):
            pass  # cut in the middle: what is there is read as text
    text = sglang_diagnose.ANSI.sub("", text)
    text = text.rsplit("\r", 1)[-1]
    logged = STAMP.search(text) or FLASHINFER.search(text)
    begin = logged.start() if logged else 200
    carried = SOURCE.search(text, 0, begin)
    source = source or (carried.group(1) if carried else "")
    if logged:
        rank = logged.group(2).strip() if logged.re is STAMP else ""
        return Said(text[logged.end() :], rank, source, _seconds(logged.group(1)))
    line = sglang_log.parse_line(sglang_diagnose.DOCKER.sub("", text))
    return Said(text[carried.end() :] if carried and not line.source else line.text, "", source or line.source, None)


class Sight:
    """Lines of one kind: how many, the first of them, of which ranks, and what was in them."""

    def __init__(self) -> None:
        self.count = 0
        self.lines: List[str] = []
        self.ranks: Counter[str] = Counter()
        self.matches: OrderedDict[Tuple[Tuple[str, str], ...], int] = OrderedDict()
        self.first: Optional[float] = None
        self.last: Optional[float] = None

    def add(self, said: Said, rank: str, groups: Dict[str, str]) -> None:
        self.count += 1
        line = sglang_log.shorten(said.text.strip())
        if len(self.lines) < PROOFS and line not in self.lines:
            self.lines.append(line)
        if rank:
            self.ranks[rank] += 1
        key = tuple(sorted((name, value) for name, value in groups.items() if value))
        if key in self.matches or len(self.matches) < MATCHES:
            self.matches[key] = self.matches.get(key, 0) + 1
        if said.at is not None:
            self.first = said.at if self.first is None else self.first
            self.last = said.at

    def found(self) -> List[Dict[str, str]]:
        return [dict(key) for key in self.matches]


class Calls:
    """Calls of one operation that fell back: a bounded number of different shapes, all of them counted."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()  # each, from DEBUG
        self.warned: Counter[str] = Counter()  # once a profile, from WARNING
        self.more = 0
        self.lines: List[str] = []

    def add(self, shapes: str, line: str, warned: bool, count: int = 1) -> None:
        into = self.warned if warned else self.calls
        if shapes in into or len(into) < SHAPES:
            into[shapes] += count
        else:
            self.more += count
        if len(self.lines) < PROOFS:
            self.lines.append(sglang_log.shorten(line))


class Start:
    """What one start of a server said."""

    def __init__(self) -> None:
        self.seen: Dict[str, Sight] = {}
        self.arguments = ""
        self.began = False
        self.ready = False
        self.traffic = 0
        self.debug = 0
        self.generated = self.timed = 0
        self.tuned: Dict[str, Set[str]] = {}  # operation to profiles that were tuned, from DEBUG
        self.failed = 0
        self.bars: Dict[str, int] = {}
        self.after: Dict[str, Calls] = {}
        self.before: Counter[str] = Counter()
        self.rank_of: Dict[str, str] = {}
        self.open: Dict[str, float] = {}
        self.spans: List[Tuple[str, float]] = []
        self.held: Dict[Tuple[str, str], float] = {}
        self.compiled: Dict[str, float] = {}
        self.versions: Counter[str] = Counter()
        self.typo = False


class Reader:
    """A log going by, piece by piece."""

    def __init__(self) -> None:
        self.start = Start()
        self.starts = 1
        self.lines = self.bytes = self.binary = self.counted = 0
        self.marked = False
        self.ready_at = -1  # in this piece
        self.readings: Dict[bytes, Tuple[str, str, str]] = {}
        self.last = b""

    # --- pieces -------------------------------------------------------------------------------------------------------

    def piece(self, data: bytes) -> None:
        """Whole lines. Order is kept, since what was said before tuning and after it means different things."""
        self.bytes += len(data)
        self._bytes(data)
        lines = data.split(b"\n")
        self.last = data[-1:]
        if not lines[-1]:
            lines.pop()
        self.lines += len(lines)
        rest: List[int] = []
        served: List[int] = []
        self.ready_at = -1
        events: List[Tuple[int, bool]] = []
        for number, line in enumerate(lines):
            mark = line.find(FI_MARK)
            if mark >= 0:
                events.append((number, True))
                if mark > BAR_ROOM and b"[AutoTuner]: Tuning " in line[:mark]:
                    rest.append(number)
            elif TRAFFIC[0] in line or TRAFFIC[1] in line:
                served.append(number)
            else:
                rest.append(number)
        text = b"\n".join([lines[number] for number in rest])
        ends = list(itertools.accumulate(len(lines[number]) + 1 for number in rest))
        wanted: Set[int] = set()
        for anchor in ANCHORS:
            if not self._lines_with(text, anchor, ends, rest, wanted, False):
                # Too many lines hold it to look at each: those that hold what it stands for, so many of a kind.
                for literal in UNDER[anchor]:
                    self._lines_with(text, literal, ends, rest, wanted, True)
        events += [(number, False) for number in wanted]
        # A line with a bar and a record of FlashInfer's behind it is both.
        for number, flashinfer in sorted(events):
            if flashinfer:
                self._flashinfer(lines[number])
            else:
                self._line(lines[number], number)
        if self.start.ready:
            self.start.traffic += len(served) - bisect.bisect_right(served, self.ready_at)

    def _lines_with(
        self, text: bytes, literal: bytes, ends: List[int], rest: List[int], wanted: Set[int], last: bool
    ) -> bool:
        """Add the lines that hold a text; False when there are more than CLOSELY, which are then counted."""
        at, found = text.find(literal), []
        while at >= 0:
            place = bisect.bisect_right(ends, at)
            found.append(rest[place])
            if len(found) > CLOSELY:
                if last:
                    self.counted += text.count(literal, ends[place])
                    wanted.update(found)
                return False
            at = text.find(literal, ends[place])
        wanted.update(found)
        return True

    def _bytes(self, data: bytes) -> None:
        try:
            data.decode("utf-8")
            if b"\0" not in data:
                return
        except UnicodeDecodeError:
            pass
        for line in data.split(b"\n"):
            try:
                line.decode("utf-8")
                self.binary += b"\0" in line
            except UnicodeDecodeError:
                self.binary += 1

    # --- FlashInfer ---------------------------------------------------------------------------------------------------

    def _flashinfer(self, line: bytes) -> None:
        start = self.start
        head, _, message = line.partition(FI_MARK)
        if b" - DEBUG - " in head:
            start.debug += 1
            if message.startswith(b"[Autotuner]: profiling chosen runner"):
                self._chosen(message)
            elif message.startswith(b"[Autotuner]: profiling "):
                start.timed += 1
            elif message.startswith(CALL_MARKS):
                self._call(message)
            elif message.startswith(b"[Autotuner]: Skipping tactic"):
                start.failed += 1
            elif message.startswith(b"[Autotuner]: generated profile"):
                start.generated += 1
            return
        said = told(line)
        for event in FI_EVENTS:
            if event.find in said.text:
                match = event.match.search(said.text)
                if match:
                    self._fi_event(event.name, said, match.groupdict())
                    return

    def _chosen(self, message: bytes) -> None:
        match = CHOSEN.search(message[:LINE])
        if not match:
            return
        op = match.group(1).decode("utf-8", "replace")
        if op in self.start.tuned or len(self.start.tuned) < OPERATIONS:
            tuned = self.start.tuned.setdefault(op, set())
            bucket = BUCKET.search(match.group(2).decode("utf-8", "replace"))
            if bucket and len(tuned) < SHAPES:
                tuned.add(bucket.group(1))

    def _call(self, message: bytes) -> None:
        start = self.start
        read = self.readings.get(message)
        if read is None:
            start.typo = start.typo or message.startswith(b"[AutoTunner]")
            match = FALLBACK_CALL.search(message[:LINE].decode("utf-8", "replace"))
            if not match:
                return
            read = (match.group(1), match.group(2), match.group(0))
            if len(self.readings) < READINGS and len(message) < LINE:
                self.readings[message] = read
        self._fell_back(*read, False)

    def _fell_back(self, op: str, shapes: str, line: str, warned: bool) -> None:
        if op not in self.start.after and len(self.start.after) >= OPERATIONS:
            op = "(other operations)"
        self.start.after.setdefault(op, Calls()).add(shapes, line.strip(), warned)

    def _fi_event(self, name: str, said: Said, groups: Dict[str, str]) -> None:
        start = self.start
        path = groups.get("path") or ""
        rank = start.rank_of.get(said.source, "") if said.source else ""
        file_rank = RANK_OF_FILE.search(path)
        if file_rank and not rank:
            rank = f"TP{file_rank.group(1)}"
        self._version(path)
        if name == "begin":
            # What fell back before a pass of tuning says nothing of its result.
            for op, calls in start.after.items():
                start.before[op] += sum(calls.calls.values()) or sum(calls.warned.values())
            start.after = {}
        if name == "uncovered":
            self._fell_back(groups["op"], groups["shapes"], said.text, True)
        if name == "file_miss":
            key = MISSED.search(groups["key"])
            self._fell_back(
                key.group(1) if key else "(unread)", key.group(2) if key else groups["key"], said.text, True
            )
        if name in ("begin", "end"):
            self._span("fi", name == "begin", rank or said.source, said.at)
        start.seen.setdefault(f"fi_{name}", Sight()).add(said, rank, {k: v or "" for k, v in groups.items()})

    def _span(self, kind: str, begin: bool, key: str, at: Optional[float]) -> None:
        start = self.start
        key = f"{kind} {key}"
        if at is None:
            return
        if begin:
            start.open[key] = at
        elif key in start.open and len(start.spans) < SPANS:
            start.spans.append((key, max(0.0, at - start.open.pop(key))))

    def _version(self, text: str) -> None:
        match = VERSION_OF_PATH.search(text)
        if match and len(self.start.versions) < MATCHES:
            self.start.versions[match.group(1)] += 1

    # --- SGLang and others --------------------------------------------------------------------------------------------

    def _line(self, raw: bytes, number: int) -> None:
        if any(mark in raw for mark in SYSTEMD):
            # "Starting" and "Started" are one.
            if not self.marked:
                self._new_start()
            self.marked, self.start.began = True, True
            return
        for op, done in BAR.findall(raw):
            name = op.decode("utf-8", "replace").strip()
            if name in self.start.bars or len(self.start.bars) < OPERATIONS:
                self.start.bars[name] = max(self.start.bars.get(name, 0), int(done))
        said = told(raw)
        if START in raw and said.text.startswith("server_args="):
            if self.start.arguments:
                self._new_start()
            self.start.arguments = raw[: 1 << 20].decode("utf-8", "replace")
            self.start.began, self.marked = True, False
            return
        start = self.start
        if READY in raw and said.text.startswith(READY.decode()):
            start.ready, self.ready_at = True, number
            return
        if said.rank and said.source and len(start.rank_of) < SPANS:
            start.rank_of.setdefault(said.source, said.rank.split()[-1])
        for event in EVENTS:
            if event.find not in said.text:
                continue
            match = event.match.search(said.text)
            if match:
                groups = {name: value or "" for name, value in match.groupdict().items()}
                self._event(event.name, said, groups)

    def _event(self, name: str, said: Said, groups: Dict[str, str]) -> None:
        start = self.start
        if name == "lock":
            self._version(said.text)
            key = (said.source, groups["module"])
            if groups["what"] == "acquired" and said.at is not None and len(start.held) < SPANS:
                start.held[key] = said.at
            elif key in start.held and said.at is not None and len(start.compiled) < SPANS:
                seconds = said.at - start.held.pop(key)
                if seconds >= COMPILE_SECONDS:
                    start.compiled[key[1]] = max(seconds, start.compiled.get(key[1], 0.0))
        if name in ("sg_begin", "sg_end"):
            self._span("sg", name == "sg_begin", said.rank or said.source, said.at)
            self._version(groups.get("path", "") + groups.get("fresh", ""))
        rank = said.rank or start.rank_of.get(said.source, "")
        start.seen.setdefault(name, Sight()).add(said, rank, groups)

    def _new_start(self) -> None:
        if self.start.began or self.start.seen or self.start.debug:
            self.start = Start()
            self.starts += 1


def scan(stream: Any) -> Reader:
    """Read a log from what has `read`; the last start in it is the reader's `start`."""
    reader = Reader()
    for data in sglang_diagnose.pieces(stream):
        reader.piece(data)
    return reader


# --- verdicts ---------------------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """What is known besides the log. All of it may be empty; the log's own word is taken where it says it."""

    sglang: str = ""
    flashinfer: str = ""
    arguments: Dict[str, Any] = {}
    gate: Dict[str, Any] = {}
    environment: Dict[str, str] = {}
    accept: List[Dict[str, Any]] = []


NOTHING = Known()


def numbers(version: str) -> Tuple[int, ...]:
    """A version's numbers; empty when there are none."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part or 0) for part in match.groups()) if match else ()


def logged_arguments(text: str) -> Dict[str, Any]:
    """Plain values of `server_args=ServerArgs(name='value', …)`; from 0.5.20 on it is `server_args={'name': 'value', …}`."""
    if "server_args={" not in text:
        return sglang_diagnose.fields(text)
    return sglang_diagnose.fields(re.sub(r"'(\w+)': ", r"\1=", text).replace("}", ")"))


def tokens_of(shapes: str) -> Optional[int]:
    """Tokens of a call, from its inputs' shapes: rows of the first input that has two dimensions or more."""
    for text in re.findall(r"\[([\d, ]*)\]" if "[" in shapes else r"\(([\d, ]*)\)", shapes):
        sizes = [int(size) for size in text.replace(" ", "").split(",") if size]
        if len(sizes) > 1:
            return sizes[-2]
    return None


def sizes_of(shapes: str) -> List[List[int]]:
    """Every input's shape, from `torch.Size([1, 64])` or `(1, 64)`."""
    found = re.findall(r"\[([\d, ]*)\]" if "[" in shapes else r"\((-?[-\d, ]*)\)", shapes)
    return [[int(size) for size in text.replace(" ", "").split(",") if size] for text in found]


def differs(shapes: str, tuned: Set[str]) -> str:
    """In which input a call differs from every profile that was tuned for as many tokens; empty when it cannot be told."""
    mine, tokens = sizes_of(shapes), tokens_of(shapes)
    for text in sorted(tuned):
        theirs = sizes_of(text)
        if (
            len(theirs) != len(mine)
            or tokens is None
            or not any(len(one) > 1 and one[-2] == tokens for one in theirs[:1])
        ):
            continue
        for place, (one, other) in enumerate(zip(mine, theirs), 1):
            # What is derived from others is -1 in a profile.
            if len(one) != len(other) or any(a != b for a, b in zip(one, other) if b >= 0):
                return f"input {place} is {tuple(one)} and was tuned as {tuple(other)}"
    return ""


def accepted(op: str, tokens: Optional[int], accept: List[Dict[str, Any]]) -> str:
    """Why a fallback of an operation, or a layer, is accepted; empty when it is not."""
    for entry in accept:
        least = int(entry.get("min_tokens") or 0)
        if fnmatch.fnmatchcase(op, str(entry.get("op", ""))) and (
            least == 0 or (tokens is not None and tokens >= least)
        ):
            return str(entry.get("why") or "accepted")
    return ""


def fallbacks(start: Start, accept: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Operations that fell back after tuning, or in a start without it: which shapes, how often, and whether that is accepted."""
    made = []
    for op, calls in sorted(start.after.items()):
        # At DEBUG each call is there, by its own shape; a warning repeats it.
        shapes = calls.calls or calls.warned
        counts = sorted({tokens for tokens in map(tokens_of, shapes) if tokens is not None})
        whys: List[str] = []
        unexplained: List[str] = []
        for text in shapes:
            why = accepted(op, tokens_of(text), accept)
            if why and why not in whys:
                whys.append(why)
            elif not why:
                unexplained.append(text)
        left = sorted({tokens for tokens in map(tokens_of, unexplained) if tokens is not None})
        made.append(
            {
                "op": op,
                "calls": sum(shapes.values()) + calls.more,
                "counted_by": "call" if calls.calls else "profile",
                "shapes": len(shapes),
                "tokens": counts[:20],
                "min_tokens": counts[0] if counts else None,
                "max_tokens": counts[-1] if counts else None,
                "accepted": "; ".join(whys) if whys and not unexplained and not calls.more else "",
                "unexplained": left[:20],
                "explained": not unexplained and not calls.more,
                "differs": next(
                    filter(None, (differs(text, start.tuned.get(op, set())) for text in list(shapes)[:50])), ""
                ),
                "examples": [sglang_log.shorten(text, 300) for text in list(shapes)[:3]],
                "lines": calls.lines,
            }
        )
    return made


def _argument(start_arguments: Dict[str, Any], known: Known, name: str) -> Any:
    """An argument: as the log has it, else as the release resolved it."""
    if name in start_arguments:
        return start_arguments[name]
    return known.arguments.get(name, known.arguments.get(name.replace("_", "-")))


def why_off(known: Known, arguments: Dict[str, Any]) -> str:
    """Why SGLang's gate did not let FlashInfer autotune; empty when nothing known says it."""

    def of(name: str) -> Any:
        return _argument(arguments, known, name)

    if of("device") not in (None, "cuda"):
        return f"by the device: the server runs on {of('device')}"
    if of("disable_flashinfer_autotune"):
        return "by flag: disable-flashinfer-autotune is set"
    if of("enable_deterministic_inference") and (not numbers(known.sglang) or numbers(known.sglang) >= (0, 5, 20)):
        return "by flag: deterministic inference does not autotune"
    if known.gate.get("runs") is False and known.gate.get("why"):
        return f"by the gate: {known.gate['why']}"
    backend = of("moe_runner_backend")
    if backend is None:
        return ""
    if not str(backend).startswith("flashinfer"):
        return f"by backend: the gate looks at moe-runner-backend, which is {backend}"
    if backend == "flashinfer_cutlass" and (not numbers(known.sglang) or numbers(known.sglang) < (0, 5, 13)):
        return "by the gate: SGLang before 0.5.13 leaves flashinfer_cutlass out unless it is patched (flashinfer-cutlass-autotune)"
    return "by the gate, for a reason that the arguments do not show"


def _count(start: Start, name: str) -> int:
    return start.seen[name].count if name in start.seen else 0


def _found(start: Start, name: str) -> List[Dict[str, str]]:
    return start.seen[name].found() if name in start.seen else []


def _sum(start: Start, name: str) -> int:
    """The sum of the counts that lines of one kind say."""
    sight = start.seen.get(name)
    return sum(int(dict(key)["count"]) * times for key, times in sight.matches.items()) if sight else 0


def _proof(start: Start, *names: str) -> List[str]:
    return [line for name in names if name in start.seen for line in start.seen[name].lines]


def _some(items: List[Any], limit: int = 6) -> str:
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(str(item) for item in items[:limit]) + more


class Judge:
    """Verdicts of a log that was read, given what is known besides."""

    def __init__(self, reader: Reader, known: Known) -> None:
        self.reader, self.start = reader, reader.start
        self.arguments = logged_arguments(self.start.arguments)
        if not known.flashinfer and self.start.versions:
            known = known._replace(flashinfer=self.start.versions.most_common(1)[0][0])
        self.known = known
        self.flashinfer = numbers(known.flashinfer)
        self.fallbacks = fallbacks(self.start, known.accept)
        level = known.environment.get("FLASHINFER_LOGGING_LEVEL", "info").lower()
        self.debug = self.start.debug > 0 or level == "debug"
        self.info = level in ("debug", "info") or any(name.startswith("fi_") for name in self.start.seen)
        self.whole = self.start.began and _count(self.start, "total") > 0
        self.from_file = known.environment.get("FLASHINFER_AUTOTUNER_LOAD_FROM_FILE", "0") == "1"

    def argument(self, name: str) -> Any:
        return _argument(self.arguments, self.known, name)

    def shown(self) -> str:
        """Which fallbacks this log can show: all, tuned (of operations that hold tuning data), none, or unknown."""
        if self.debug:
            return "all"
        if not self.info:
            return "none"
        if _count(self.start, "fi_uncovered"):
            return "tuned"
        if self.flashinfer:
            return "tuned" if self.flashinfer >= FIRST_WARNING else "none"
        return "unknown"

    def release(self) -> str:
        if self.known.flashinfer:
            return f"FlashInfer {self.known.flashinfer}"
        if self.start.typo:
            return "FlashInfer before 0.6.8"
        return "FlashInfer of an unknown version"

    # --- FlashInfer's autotuning --------------------------------------------------------------------------------------

    def autotune(self) -> Dict[str, Any]:
        start = self.start
        kind = "sg" if _count(start, "sg_begin") or _count(start, "sg_end") else "fi"
        begun = _count(start, "sg_begin" if kind == "sg" else "fi_begin")
        ended = _count(start, "sg_end" if kind == "sg" else "fi_end")
        names = (f"{kind}_begin", f"{kind}_end")
        ranks: Dict[str, Dict[str, Any]] = {}
        for place, name in enumerate(names):
            for rank, count in (start.seen[name].ranks if name in start.seen else Counter()).items():
                entry = ranks.setdefault(rank, {"begun": 0, "completed": 0, "seconds": None})
                entry["begun" if place == 0 else "completed"] += count
        spans: Dict[str, float] = {}
        for key, seconds in start.spans:
            if key.startswith(f"{kind} "):
                spans[key[3:]] = round(spans.get(key[3:], 0.0) + seconds, 3)
        for rank, entry in ranks.items():
            entry["seconds"] = spans.get(rank)
        saved, loaded = _found(start, "fi_saved"), _found(start, "fi_loaded")
        # Each rank saves and loads its own file, and they are alike: the largest counts.
        new = max([int(one["new"]) for one in saved], default=0)
        configs = max([int(one["configs"]) for one in loaded], default=0)
        profiles = {**start.bars}
        for op, tuned in start.tuned.items():
            profiles[op] = max(profiles.get(op, 0), len(tuned))
        hits, misses = _count(start, "fi_file_hit"), _count(start, "fi_file_miss")
        skipped = _sum(start, "fi_skipped")
        failed = max(start.failed + _count(start, "fi_tactic"), skipped)
        counts = {
            "begun": begun,
            "completed": ended,
            "seconds": max(spans.values()) if spans else None,
            "profiles": sum(profiles.values()) or new or None,
            "operations": dict(sorted(profiles.items())),
            "tactics_failed": failed,
            "configs_saved": max([int(one["configs"]) for one in saved], default=0),
            "configs_new": new,
            "configs_loaded": configs,
            "cache_hits": _count(start, "fi_hit"),
            "file_hits": hits,
            "file_misses": misses,
            "fallbacks": sum(one["calls"] for one in self.fallbacks),
            "fallbacks_before": sum(start.before.values()),
            "out_of_memory": _count(start, "fi_oom"),
            "revalidations_failed": _count(start, "fi_invalid"),
        }
        verdict, why = self._verdict(counts, ranks, kind)
        order = ["fi_file_miss", "fi_uncovered", "fi_oom", "fi_invalid", "fi_stale", "fi_unsaved", "sg_disagree"]
        order += ["sg_begin", "fi_begin", "fi_loaded", "fi_file_hit", "fi_hit", "fi_saved", "fi_skipped", "fi_tactic"]
        order += ["sg_extend", "sg_extend_skipped", "fi_end", "sg_end", "fi_blocklist", "fi_no_blocklist"]
        proof = _proof(start, *order)
        for one in self.fallbacks:
            proof += [line for line in one["lines"] if line not in proof]
        return {
            "verdict": verdict,
            "why": why,
            "counts": counts,
            "proof": proof[:24],
            "ranks": dict(sorted(ranks.items())),
        }

    def _verdict(self, counts: Dict[str, Any], ranks: Dict[str, Any], kind: str) -> Tuple[str, str]:
        start, shown = self.start, self.shown()
        begun, ended = counts["begun"], counts["completed"]
        fell = bool(self.fallbacks)
        unread = self.from_file and bool(self.flashinfer) and self.flashinfer < FIRST_JSON
        cached = any("path" in one or "fresh" in one for one in _found(start, "sg_begin"))
        did = counts["profiles"] or counts["configs_loaded"]
        # With a cache, what was tuned is saved and what was loaded is said, at INFO: neither means that there was nothing.
        nothing = ended and not did and cached and _count(start, "fi_begin") > 0 and not _count(start, "fi_stale")
        size = (self.argument("tp_size") or 1) * (self.argument("pp_size") or 1)
        late = sorted(rank for rank, one in ranks.items() if one["completed"] < one["begun"])
        absent = size - len(ranks) if ranks and kind == "sg" and size > len(ranks) else 0
        counts["ranks_absent"] = absent
        ran = bool(ended) and not nothing and not unread
        file = counts["file_hits"] > 0
        if (ran or counts["configs_loaded"] or file) and (fell or late or absent or counts["out_of_memory"]):
            parts = []
            if fell:
                parts.append("these fell back: " + _some([self._fell(one) for one in self.fallbacks]))
            if late:
                parts.append(f"{_some(late)} began tuning and did not end it")
            if absent:
                parts.append(f"{absent} of {size} ranks say nothing of tuning")
            if counts["out_of_memory"]:
                parts.append(
                    f"memory ran out {counts['out_of_memory']} times while tuning, which leaves the default tactic"
                )
            return PARTIAL, f"{self._ran(counts, file, ran)}, and yet " + "; ".join(parts)
        if begun and not ended and not fell:
            return SILENT, "the log ends while kernels are being tuned; read it again when the server is ready"
        if file and not ran:
            return LOADED, self._ran(counts, file, ran)
        if ran or counts["configs_loaded"]:
            if shown in ("none", "unknown"):
                return SILENT, (
                    f"{self._ran(counts, file, ran)}; whether that is used, this log cannot tell: {self.release()} says a fallback "
                    "at DEBUG only. Set FLASHINFER_LOGGING_LEVEL=debug for one start"
                )
            reused = counts["configs_loaded"] and not counts["configs_new"] and not start.bars and not start.tuned
            return (LOADED if reused else TUNED), self._ran(counts, file, ran)
        if unread and ended:
            why = (
                f"kernels were tuned, but {self.release()} does not look at the result while "
                "FLASHINFER_AUTOTUNER_LOAD_FROM_FILE is 1, and no tuning file was read"
            )
            return FALLBACK, why
        if nothing:
            return FALLBACK, "autotuning ran and tuned nothing: no configuration was loaded, profiled or saved"
        off = why_off(self.known, self.arguments) if self.whole and not begun else ""
        if fell:
            said = [self._fell(one) for one in self.fallbacks]
            return FALLBACK, f"default tactics were used: {_some(said)}" + (f"; autotuning is off {off}" if off else "")
        if off:
            return OFF, off
        explained = why_off(self.known, self.arguments) if not begun else ""
        if explained.startswith(("by flag", "by the device")):
            return OFF, explained
        if not start.began and not self.whole:
            return SILENT, (
                "the begin of the start is not in the log, and nothing of tuning is. Read it again soon after a start; this "
                "version says what falls back with FLASHINFER_LOGGING_LEVEL=debug"
            )
        return SILENT, (
            "the log has no line of tuning, and the start is not over in it. SGLang says at INFO that it tunes (log-level info), "
            f"and {self.release()} what falls back at DEBUG (FLASHINFER_LOGGING_LEVEL=debug)"
        )

    def _fell(self, one: Dict[str, Any]) -> str:
        low, high = one["min_tokens"], one["max_tokens"]
        span = "" if low is None else f" at {low} tokens" if low == high else f" at {low} to {high} tokens"
        note = f", {one['differs']}" if one["differs"] else ""
        note += f", accepted: {one['accepted']}" if one["accepted"] else ""
        return f"{one['op']}{span} ({_many(one['calls'], one['counted_by'])}{note})"

    def _ran(self, counts: Dict[str, Any], file: bool, ran: bool) -> str:
        parts = []
        if file:
            parts.append(f"{_many(counts['file_hits'], 'key')} came from the tuning module")
        if counts["configs_loaded"]:
            paths = [one["path"] for one in _found(self.start, "fi_loaded")]
            parts.append(f"{_many(counts['configs_loaded'], 'configuration')} came from {_some(paths, 2)}")
        if ran:
            took = f" in {counts['seconds']:.0f} s" if counts["seconds"] is not None else ""
            what = f", {_many(counts['profiles'], 'profile')}" if counts["profiles"] else ""
            failed = f", {_many(counts['tactics_failed'], 'tactic')} failed" if counts["tactics_failed"] else ""
            times = f" {counts['completed']} times" if counts["completed"] > 1 else ""
            parts.append(f"autotuning ran and completed{times}{took}{what}{failed}")
        for one in _found(self.start, "fi_stale")[:1]:
            parts.append(f"the cache file {one['path']} was ignored ({one['why']})")
        return "; ".join(parts)

    # --- the other layers ---------------------------------------------------------------------------------------------

    def layer(self, name: str, verdict: str, why: str, counts: Dict[str, Any], *events: str) -> Dict[str, Any]:
        ranks: Counter[str] = Counter()
        for event in events:
            if event in self.start.seen:
                ranks.update(self.start.seen[event].ranks)
        why_accepted = accepted(name, None, self.known.accept) if verdict in (PARTIAL, FALLBACK) else ""
        return {
            "verdict": verdict,
            "why": why,
            "counts": counts,
            "proof": _proof(self.start, *events)[:12],
            "ranks": dict(sorted(ranks.items())),
            **({"accepted": why_accepted} if why_accepted else {}),
        }

    def triton_moe(self) -> Dict[str, Any]:
        events = ("moe_default", "moe_other", "moe_used", "moe_down", "moe_deterministic")
        wanted = {
            name: sorted({one.get("path") or one.get("wanted", "") for one in _found(self.start, name)})
            for name in events
        }
        counts = {
            "loaded": len(wanted["moe_used"]),
            "other_triton": len(wanted["moe_other"]),
            "default": len(wanted["moe_default"]),
            "down_missing": len(wanted["moe_down"]),
        }
        used, other, default = wanted["moe_used"], wanted["moe_other"], wanted["moe_default"]
        backend = self.argument("moe_runner_backend")
        if _count(self.start, "moe_deterministic"):
            return self.layer("triton_moe", OFF, "by flag: deterministic inference takes the default", counts, *events)
        if default and (used or other):
            verdict, why = (
                PARTIAL,
                f"tuned configurations for some sizes, none for {_some([_base(path) for path in default])}",
            )
        elif default:
            verdict, why = (
                FALLBACK,
                f"no configuration for {_some([_base(path) for path in default])}: the default one is used",
            )
        elif other:
            triton = sorted({one["triton"] for one in _found(self.start, "moe_other")})
            verdict, why = PARTIAL, f"the configuration in use was tuned for Triton {_some(triton)}: {_some(other, 2)}"
        elif used:
            verdict, why = LOADED, f"from {_some(used, 2)}"
        elif backend not in (None, "auto", "triton", "triton_kernel"):
            verdict, why = OFF, f"by backend: moe-runner-backend is {backend}"
        else:
            verdict, why = (
                SILENT,
                (
                    "no line about it: either Triton's fused MoE does not run here, or it has not yet. It is said with the first "
                    "batch, at WARNING or INFO (SGLang's log-level info)"
                ),
            )
        if counts["down_missing"] and verdict in (LOADED, PARTIAL):
            why += "; the down projection has no configuration of its own"
        told_of = self.layer("triton_moe", verdict, why, counts, *events)
        folder = self.known.environment.get("SGLANG_MOE_CONFIG_DIR", "")
        if folder:
            told_of["counts"]["from_config_dir"] = sum(
                path.startswith(folder.rstrip("/") + "/") for path in [*used, *other]
            )
        return told_of

    def fp8_gemm(self) -> Dict[str, Any]:
        used = sorted({one.get("path", "") for one in _found(self.start, "fp8_used")})
        default = sorted({one.get("wanted", "") for one in _found(self.start, "fp8_default")})
        counts = {"loaded": len(used), "default": len(default)}
        events = ("fp8_default", "fp8_used")
        if used and default:
            return self.layer(
                "triton_fp8_gemm", PARTIAL, f"none for {_some([_base(path) for path in default])}", counts, *events
            )
        if default:
            return self.layer(
                "triton_fp8_gemm",
                FALLBACK,
                f"no configuration for {_some([_base(path) for path in default])}",
                counts,
                *events,
            )
        if used:
            return self.layer("triton_fp8_gemm", LOADED, f"{len(used)} configurations", counts, *events)
        return self.layer(
            "triton_fp8_gemm", SILENT, "no line about it: it does not run here, or has not yet (log-level info)", counts
        )

    def deep_gemm(self) -> Dict[str, Any]:
        start = self.start
        kernels = len(_found(start, "dg_kernel"))
        counts = {"kernels": kernels, "warmups": _count(start, "dg_bar")}
        events = ("dg_session", "dg_kernel", "dg_bar")
        env = self.known.environment
        off = [
            name
            for name in ("SGLANG_ENABLE_JIT_DEEPGEMM", "SGL_ENABLE_JIT_DEEPGEMM", "SGLANG_ENABLE_DEEP_GEMM")
            if _no(env.get(name))
        ]
        if kernels or _count(start, "dg_session"):
            return self.layer(
                "deep_gemm",
                COMPILED,
                f"compiled and warmed up at the start: {_many(kernels, 'kernel')}",
                counts,
                *events,
            )
        if off:
            return self.layer("deep_gemm", OFF, f"by environment: {_some(off)}", counts)
        return self.layer(
            "deep_gemm", SILENT, "no line about it: DeepGEMM does not run here, or has not yet (log-level info)", counts
        )

    def jit(self) -> Dict[str, Any]:
        """FlashInfer's modules that were compiled while the server started."""
        start = self.start
        named = {one["module"]: 0.0 for one in _found(start, "fi_building")}
        modules = {**named, **{name: round(seconds, 1) for name, seconds in start.compiled.items()}}
        counts = {
            "modules": len(modules),
            "seconds": round(sum(modules.values()), 1),
            "by_module": dict(sorted(modules.items())),
        }
        events = ("ninja_failed", "fi_building", "lock")
        failed = _count(start, "ninja_failed")
        if failed:
            return self.layer(
                "flashinfer_jit", FALLBACK, "a module could not be built: Ninja build failed", counts, *events
            )
        if modules:
            took = f" in {counts['seconds']:.0f} s" if counts["seconds"] else ""
            why = f"{_many(len(modules), 'module')} compiled at the start{took}: {_some(sorted(modules))}"
            return self.layer("flashinfer_jit", COMPILED, why, counts, *events)
        if (self.flashinfer >= FIRST_BUILDING and self.info and self.whole) or _count(start, "lock"):
            return self.layer("flashinfer_jit", LOADED, "nothing was compiled at the start", counts, *events)
        why = f"{self.release()} does not say at INFO that it compiles; SGLang's log-level debug shows it by the locks it takes"
        return self.layer("flashinfer_jit", SILENT, why, counts)

    # --- facts --------------------------------------------------------------------------------------------------------

    def backends(self) -> Dict[str, Dict[str, str]]:
        """What was chosen: the log's last word, else the argument."""
        start, made = self.start, {}
        names = {
            "attention": "attention_backend",
            "prefill_attention": "prefill_attention_backend",
            "decode_attention": "decode_attention_backend",
            "moe": "moe_runner_backend",
            "moe_a2a": "moe_a2a_backend",
            "fp4_gemm": "fp4_gemm_runner_backend",
            "fp8_gemm": "fp8_gemm_runner_backend",
            "sampling": "sampling_backend",
            "kv_cache_dtype": "kv_cache_dtype",
        }
        for name, argument in names.items():
            value = self.argument(argument)
            if value is not None:
                made[name] = {"chosen": str(value), "from": "arguments", "line": ""}
        for name in ("attention", "moe", "fp4_gemm", "fp8_gemm"):
            said = [one["backend"] for one in _found(start, name) if one.get("backend")]
            if said and made.get(name, {}).get("chosen") in (None, "None", "auto", said[-1]):
                made[name] = {"chosen": said[-1], "from": "log", "line": start.seen[name].lines[-1]}
        dtypes = _found(start, "kv_dtype") or [one for one in _found(start, "kv") if "dtype" in one]
        if dtypes:
            source = "kv_dtype" if "kv_dtype" in start.seen else "kv"
            made["kv_cache_dtype"] = {
                "chosen": dtypes[-1]["dtype"],
                "from": "log",
                "line": start.seen[source].lines[-1],
            }
        reduced = [
            one for one in self.disabled() if "allreduce" in one["what"].lower().replace("-", "").replace("_", "")
        ]
        custom = [one for one in reduced if "custom" in one["what"].lower() and "quick" not in one["what"].lower()]
        if custom:
            made["allreduce"] = {"chosen": "nccl", "from": "log", "line": custom[0]["line"]}
        elif self.argument("disable_custom_all_reduce"):
            made["allreduce"] = {"chosen": "nccl", "from": "arguments", "line": ""}
        elif (self.argument("tp_size") or 1) > 1 and self.whole:
            made["allreduce"] = {"chosen": "custom", "from": "arguments", "line": ""}
        return made

    def graphs(self) -> Dict[str, Any]:
        start = self.start
        made: Dict[str, Dict[str, Any]] = {}
        for one in _found(start, "graph_begin"):
            kind = one.get("kind", "decode").lower()
            made.setdefault(kind, {"captured": False, "backend": one.get("backend", ""), "seconds": None, "gb": None})
        for one in _found(start, "graph_end"):
            entry = made.setdefault(
                one.get("kind", "decode").lower(), {"captured": True, "backend": "", "seconds": None, "gb": None}
            )
            entry["captured"] = True
            for name in ("seconds", "gb"):
                if name in one:
                    entry[name] = max(float(one[name]), entry[name] or 0.0)
        why = ""
        if not made:
            if self.argument("disable_cuda_graph"):
                why = "by flag: disable-cuda-graph is set"
            elif self.whole:
                why = "the whole start has no line of a capture"
            else:
                why = "the log does not reach it"
        return {
            "captured": bool(made) and all(one["captured"] for one in made.values()),
            "kinds": made,
            "why": why,
            "failed": [one["why"] for one in _found(start, "graph_failed")],
        }

    def kv(self) -> Dict[str, Any]:
        total = _found(self.start, "total") or _found(self.start, "kv")
        kv = _found(self.start, "kv")
        return {
            "tokens": int(total[-1]["tokens"]) if total else None,
            "sizes": kv[-1].get("sizes", "") if kv else "",
            "max_running_requests": int(total[-1]["requests"]) if total and "requests" in total[-1] else None,
        }

    def disabled(self) -> List[Dict[str, Any]]:
        made: Dict[Tuple[str, str], Dict[str, Any]] = {}
        sight = self.start.seen.get("disabled")
        if sight is None:
            return []
        for key, count in sight.matches.items():
            one = dict(key)
            if "what" not in one:
                continue
            place = (one["what"], one.get("why", ""))
            made[place] = {
                "what": one["what"],
                "why": _closed(one.get("why", "")),
                "count": count,
                "line": _line_of(sight, one),
            }
        return list(made.values())

    def missing(self) -> List[str]:
        reader, start, made = self.reader, self.start, []
        if not reader.bytes:
            return ["The log is empty."]
        if not start.began:
            made.append(
                "The begin of the start is not in the log (neither systemd's line nor server_args): it was rotated away, or the "
                "log was cut, and what was said there is not counted."
            )
        elif not self.whole:
            made.append("The log ends before the scheduler is ready.")
        if not start.traffic and start.ready:
            made.append("No request was served after the start in this log: what falls back shows with traffic.")
        if reader.last not in (b"", b"\n"):
            made.append("The last line has no end: it is cut, or was being written.")
        if reader.binary:
            made.append(f"{reader.binary} lines hold bytes that are no text; they were read as far as they go.")
        lost = _sum(start, "suppressed")
        if lost:
            made.append(f"journald dropped {lost} messages or more (rate limit); raise RateLimitBurst.")
        if _count(start, "blob"):
            made.append(
                f"{_count(start, 'blob')} lines are missing where journalctl wrote [… blob data]; export with --all to have them."
            )
        if reader.counted:
            made.append(f"{reader.counted} further lines like others were counted and not read.")
        return made

    # --- all of it ----------------------------------------------------------------------------------------------------

    def told(self) -> Dict[str, Any]:
        layers = {
            "flashinfer_autotune": self.autotune(),
            "flashinfer_jit": self.jit(),
            "triton_moe": self.triton_moe(),
            "triton_fp8_gemm": self.fp8_gemm(),
            "deep_gemm": self.deep_gemm(),
        }
        main = layers["flashinfer_autotune"]
        verdict = main["verdict"]
        counts = main["counts"]
        explained = (
            verdict == PARTIAL
            and bool(self.fallbacks)
            and all(one["explained"] for one in self.fallbacks)
            and not counts["out_of_memory"]
            and all(one["completed"] >= one["begun"] for one in main["ranks"].values())
            and not counts["ranks_absent"]
        )
        # Named itself, and not by a pattern: whatever is said of it is known and accepted.
        named = verdict not in (TUNED, LOADED) and next(
            (str(entry["why"]) for entry in self.known.accept if entry["op"] == "flashinfer_autotune"), ""
        )
        if named:
            main["accepted"] = named
        said = {
            TUNED: "FlashInfer's kernels are tuned",
            LOADED: "FlashInfer's kernels use loaded configurations",
            PARTIAL: "FlashInfer's kernels are tuned in part",
            FALLBACK: "FlashInfer's kernels run with default tactics",
            OFF: "FlashInfer's autotuning is off",
            SILENT: "The log does not tell whether FlashInfer's kernels are tuned",
        }[verdict]
        joint = " " if verdict == OFF and main["why"].startswith("by ") else ": "
        return {
            "verdict": verdict,
            "proved": verdict in (TUNED, LOADED) or explained or bool(named),
            "explained": explained or bool(named),
            "summary": f"{said}{joint}{main['why']}{f' (accepted: {named})' if named else ''}.".replace("..", "."),
            "layers": layers,
            "fallbacks": [{key: value for key, value in one.items() if key != "lines"} for one in self.fallbacks],
            "fallbacks_shown": self.shown(),
            "set": {} if self.debug else {"FLASHINFER_LOGGING_LEVEL": "debug"},
            "backends": self.backends(),
            "cuda_graphs": self.graphs(),
            "kv_cache": self.kv(),
            "disabled": self.disabled(),
            "traffic": self.start.traffic,
            "versions": {"sglang": self.known.sglang, "flashinfer": self.known.flashinfer},
            "missing": self.missing(),
            "log": {
                "lines": self.reader.lines,
                "bytes": self.reader.bytes,
                "starts": self.reader.starts,
                "ready": self.start.ready,
            },
        }


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1] or "(no name)"


def _closed(text: str) -> str:
    """A reason without the bracket that it stood in."""
    text = text.strip(" .")
    if text.count("(") > text.count(")"):
        return text + ")"
    return text if "(" in text else text.rstrip(")")


def _many(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def _no(value: Optional[str]) -> bool:
    return value is not None and value.strip().lower() in ("0", "false", "no", "off")


def _line_of(sight: Sight, one: Dict[str, str]) -> str:
    """The proof line that a match came from; the match's own words when it is not among the lines that are kept."""
    for line in sight.lines:
        if one["what"] in line:
            return line
    return f"{one['what']}: {one.get('why', '')}"


def judge(reader: Reader, known: Known = NOTHING) -> Dict[str, Any]:
    """Everything that `sglang_evidence` returns but what it read it from."""
    return Judge(reader, known).told()
