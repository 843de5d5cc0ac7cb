# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Read what an SGLang server logs: the stages of its start, and the error it died of.

The one place that knows SGLang's log lines. Pure and streaming: every function takes an iterable of lines and keeps a
bounded amount of them, so that a log of gigabytes can be read on the node. Plain log files and `journalctl`'s short
formats are read alike.

The strings were checked in the sources of sglang 0.5.9 and 0.5.23 and against recorded logs of 0.5.9, 0.5.15.post1,
0.5.23 and of SGLang main of January 2026 on eight cards.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from typing import Deque, Iterable, List, NamedTuple, Optional, Pattern, Tuple, Union

# Lines kept with an error, and the longest line shown to a person (server_args= alone has several thousand characters).
CONTEXT_LINES = 15
LINE_LIMIT = 400


class Line(NamedTuple):
    """One log line without its prefixes.

    text: what was said; source: who said it ("python3[369]", "systemd[1]", "" for a plain file);
    opens: whether a log record starts here, as opposed to the continuation of one.
    """

    text: str
    source: str = ""
    opens: bool = False

    @property
    def from_systemd(self) -> bool:
        return self.source.startswith("systemd")


# "2026-11-29T17:52:14+0000 host python3[174]: text", "Nov 29 17:52:14 host …", "[ 1234.567890] host …" (short-monotonic)
JOURNAL_PREFIX = re.compile(
    r"^(?:\d{4}-\d\d-\d\dT\S+|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|\[ *\d+\.\d+\]) \S+ "
    r"(?P<source>[^\s:\[]+(?:\[\d+\])?): ?"
)
# "[2026-01-29 00:51:38 TP0] text", "[2026-11-29 17:14:01] WARNING server_args.py:1934: text"
RECORD_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?(?P<rank>(?: [A-Z]+\d+)*)\] ?")


def parse_line(raw: str, source: str = "") -> Line:
    """Take the prefixes off a line of a log file or of `journalctl`'s short output.

    A progress bar overwrites itself with carriage returns: only what it shows last is kept.
    """
    text = raw.rstrip("\r\n").rsplit("\r", 1)[-1]
    if not source:
        journal = JOURNAL_PREFIX.match(text)
        if journal:
            source = journal.group("source")
            text = text[journal.end() :]
    record = RECORD_PREFIX.match(text)
    if record:
        text = text[record.end() :]
    return Line(text, source, record is not None)


def shorten(text: str, limit: int = LINE_LIMIT) -> str:
    """Cut a line for display, saying so."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


# --- stages of a start ------------------------------------------------------------------------------------------------


class Stage(NamedTuple):
    """A moment of the start.

    name: the moment, unique within a start ("weights loaded"); doing: what the server is busy with from here on
    ("allocating the KV cache"); pattern: the line that marks it. A group `kind` in the pattern (which CUDA graph)
    is put in place of {kind} in both texts.
    """

    name: str
    doing: str
    pattern: Pattern[str]


STARTED = "process started"
READY = "ready"
_GRAPH = r"(?:(?P<kind>[\w][\w -]*?) )?(?:cuda|cpu|npu|xpu) graph"

# In the order of a start; the first match of a line counts.
STAGES: Tuple[Stage, ...] = (
    Stage("arguments resolved", "starting the scheduler processes", re.compile(r"^server_args=")),
    Stage("distributed init begun", "joining the ranks", re.compile(r"^Init (?:torch distributed|parallel) begin\b")),
    Stage(
        "distributed init done",
        "importing the model's code",
        re.compile(r"^Init (?:torch distributed|parallel) ends\b"),
    ),
    Stage("weights loading", "loading weights", re.compile(r"^Load weight begin\b")),
    Stage("weights loaded", "allocating the KV cache", re.compile(r"^Load weight end\b")),
    Stage("KV cache allocated", "allocating memory pools", re.compile(r"^KV Cache is allocated\b")),
    Stage("memory pool allocated", "preparing kernels", re.compile(r"^Memory pool end\b")),
    Stage(
        "autotuning",
        "autotuning kernels",
        re.compile(r"^Running FlashInfer autotune\b|\[Auto[Tt]uner\]: Autotuning process starts\b"),
    ),
    Stage("autotuned", "preparing CUDA graphs", re.compile(r"^FlashInfer autotune completed\b")),
    Stage(
        "CUDA graph capture begun{kind}",
        "capturing CUDA graphs{kind}",
        re.compile(rf"^Capture (?:{_GRAPH}|single-CG draft extend) begin\b", re.IGNORECASE),
    ),
    Stage(
        "CUDA graph capture ended{kind}",
        "finishing the scheduler",
        re.compile(rf"^Capture (?:{_GRAPH}|single-CG draft extend) end\b", re.IGNORECASE),
    ),
    Stage("scheduler ready", "starting the HTTP server", re.compile(r"^max_total_num_tokens=\d+")),
    Stage("HTTP server started", "answering the warm-up request", re.compile(r"^INFO: +Uvicorn running on\b")),
    Stage(READY, "serving", re.compile(r"^The server is fired up and ready to roll!")),
)


class Found(NamedTuple):
    """A stage seen in a log: its texts with {kind} filled in, and the line that showed it."""

    name: str
    doing: str
    line: str


def find_stage(text: str) -> Optional[Found]:
    """The stage that a line (without prefixes) marks, or None."""
    for stage in STAGES:
        match = stage.pattern.search(text)
        if match:
            kind = match.groupdict().get("kind")
            suffix = f" ({kind.lower()})" if kind else ""
            line = shorten(text.strip())
            return Found(stage.name.format(kind=suffix), stage.doing.format(kind=suffix), line)
    return None


class StageReader:
    """Recognise stages in a stream of lines: each once, when its first rank reaches it.

    known: names of stages seen already, for a reader that goes on where another stopped.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self.known = set(known)

    def feed(self, line: Line) -> List[Found]:
        """The stages that this line adds, mostly none. The server's very first line is its own stage."""
        if line.from_systemd:
            return []
        new = []
        if STARTED not in self.known:
            new.append(Found(STARTED, "importing the engine", shorten(line.text.strip())))
        found = find_stage(line.text)
        if found and found.name not in self.known:
            new.append(found)
        self.known.update(stage.name for stage in new)
        return new


def stages(lines: Iterable[str]) -> List[Found]:
    """Every stage of one start in a log, in the order in which the first rank reached it."""
    reader = StageReader()
    return [found for raw in lines for found in reader.feed(parse_line(raw))]


# --- the error that a server died of ----------------------------------------------------------------------------------


class Failure(NamedTuple):
    """An error to show: its final line, and the lines that lead to it (the final one and its details included)."""

    error: str
    lines: List[str]


TRACEBACK = re.compile(r"Traceback \(most recent call last\):\s*$")
# A record such as "Scheduler hit an exception: Traceback …" ends the process that logs it.
FATAL_TRACEBACK = re.compile(r"hit an exception: Traceback \(most recent call last\):\s*$")
CHAIN = re.compile(
    r"^(?:During handling of the above exception, another exception occurred|"
    r"The above exception was the direct cause of the following exception):"
)
EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:: |:$|$)")

# One line that says by itself why the server ends.
FATAL_LINES = re.compile(
    r"^[\w./ -]+: error: "  # argparse
    r"|^\S*python[\d.]*: (?:No module named|can't open file|Error while finding module)"
    r"|^ERROR: +\[Errno \d+\]"  # uvicorn: the port is taken
    r"|^Fatal Python error: "
    r"|^terminate called after throwing"
    r"|\bwatchdog timeout \("
)
FATAL_SYSTEMD = re.compile(
    r"Failed to (?:locate executable|load environment files|set up|execute|run)|Failed at step |"
    r"killed by the OOM killer|start operation timed out|has no ExecStart|bad unit file setting"
)
# What follows from another process's error. Shown only when nothing better was said.
CONSEQUENCE = re.compile(
    r"Received sigquit from a child process|SIGQUIT received\. |\bscheduler died\b|Rank \d+ .*\bdied\b|"
    r"Connection closed by peer|Connection reset by peer|Broken pipe|ProcessGroup.*(?:abort|timeout)|"
    r"remote process exited|^(?:EOFError|KeyboardInterrupt|SystemExit|asyncio\.exceptions\.CancelledError|BrokenPipeError)"
)
SYSTEMD_RESULT = re.compile(r"Main process exited, |Failed with result |Control process exited, ")
NEW_START = re.compile(r"^(?:Starting|Started) ")

_FRAMES, _MESSAGE, _AFTER = "frames", "message", "after"
_MESSAGE_LINES = 6
_SOURCES = 64


class _Block:
    """A traceback being read from one source: its last lines, and the final line of the last exception of its chain."""

    def __init__(self, fatal: bool, lead: List[str]) -> None:
        self.fatal = fatal
        self.state = _FRAMES
        self.error = ""
        self.details = 0
        self.chained = False
        self.lines: Deque[str] = deque(lead, maxlen=CONTEXT_LINES)

    def take(self, line: Line) -> bool:
        """Add a line if it belongs to this traceback; False when the traceback is over."""
        text = line.text
        if self.state == _AFTER:
            if CHAIN.match(text) or not text.strip():
                self.chained = self.chained or bool(text.strip())
                return True
            if self.chained and TRACEBACK.match(text):
                self.state, self.chained = _FRAMES, False
                return True
            return False
        if line.opens or TRACEBACK.search(text):
            return False
        if self.state == _FRAMES:
            if text[:1] in (" ", "\t", ""):
                self._keep(text)
                return True
            if not EXCEPTION.match(text):
                return False
            self.error, self.details, self.state = text.strip(), 0, _MESSAGE
            self._keep(text)
            return True
        if not text.strip():
            self.state = _AFTER
            return True
        if CHAIN.match(text):
            self.state, self.chained = _AFTER, True
            return True
        if self.details >= _MESSAGE_LINES:
            return False
        self.details += 1
        self._keep(text)
        return True

    def _keep(self, text: str) -> None:
        if text.strip():
            self.lines.append(shorten(text.rstrip()))

    def failure(self) -> Failure:
        return Failure(shorten(self.error), list(self.lines))


class _Candidates:
    """The best explanations of one start's end, a fixed number whatever the length of the log."""

    def __init__(self) -> None:
        self.fatal: Optional[Failure] = None
        self.traceback: Optional[Failure] = None
        self.consequence: Optional[Failure] = None
        self.result: Optional[Failure] = None

    def add(self, failure: Failure, fatal: bool) -> None:
        # The first fatal error is the cause; of errors that may have been survived, the last is the likeliest.
        if CONSEQUENCE.search(failure.error):
            self.consequence = self.consequence or failure
        elif fatal:
            self.fatal = self.fatal or failure
        else:
            self.traceback = failure

    def best(self) -> Optional[Failure]:
        return self.fatal or self.traceback or self.consequence or self.result


def last_error(lines: Iterable[Union[str, Line]], context: int = CONTEXT_LINES) -> Optional[Failure]:
    """The error that a server died of, or None if the log shows none.

    Prefers, in this order: the first error that ends a server (an exception of a scheduler or another of SGLang's
    processes, an argument that the parser refuses, the OOM killer, a port in use); the last traceback; consequences
    such as "Received sigquit from a child process"; systemd's own result. In a log of several starts the last one that
    shows an error counts. At most `context` lines (15 or fewer) are returned with it.
    """
    blocks: OrderedDict[str, _Block] = OrderedDict()
    recent: OrderedDict[str, Deque[str]] = OrderedDict()
    now = _Candidates()
    earlier: Optional[Failure] = None

    def close(source: str) -> None:
        block = blocks.pop(source, None)
        if block and block.error:
            now.add(block.failure(), block.fatal)
        elif block and len(block.lines) > 1 and not now.consequence:
            # Killed in mid-sentence: the frames are better than nothing.
            now.consequence = Failure(
                f"a traceback that was cut short at: {block.lines[-1].strip()}", list(block.lines)
            )

    for raw in lines:
        line = raw if isinstance(raw, Line) else parse_line(raw)
        text, source = line.text, line.source
        if line.from_systemd:
            if NEW_START.match(text):
                for other in list(blocks):
                    close(other)
                earlier, now = now.best() or earlier, _Candidates()
            elif FATAL_SYSTEMD.search(text):
                now.add(Failure(shorten(text), [shorten(text)]), fatal=True)
            elif SYSTEMD_RESULT.search(text):
                now.result = now.result or Failure(shorten(text), [shorten(text)])
            continue
        block = blocks.get(source)
        if block and block.take(line):
            continue
        close(source)
        if TRACEBACK.search(text):
            while len(blocks) >= _SOURCES:
                close(next(iter(blocks)))
            blocks[source] = _Block(bool(FATAL_TRACEBACK.search(text)), [shorten(text)])
            continue
        if not text.strip():
            continue
        before = recent.setdefault(source, deque(maxlen=CONTEXT_LINES))
        before.append(shorten(text.rstrip()))
        recent.move_to_end(source)
        if len(recent) > _SOURCES:
            recent.popitem(last=False)
        if FATAL_LINES.search(text):
            now.add(Failure(shorten(text.strip()), list(before)), fatal=True)
        elif CONSEQUENCE.search(text):
            now.add(Failure(shorten(text.strip()), list(before)), fatal=False)
    for source in list(blocks):
        close(source)
    best = now.best() or earlier
    return Failure(best.error, best.lines[-context:]) if best else None
