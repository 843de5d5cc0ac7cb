"""Stages and errors, on excerpts of recorded logs (data/sglang_log/README.md) and on lines from sglang's sources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible.module_utils import sglang_log as log

DATA = Path(__file__).parent / "data" / "sglang_log"

START = [
    "process started",
    "arguments resolved",
    "distributed init begun",
    "distributed init done",
    "weights loading",
    "weights loaded",
    "KV cache allocated",
    "memory pool allocated",
]
END = ["scheduler ready", "HTTP server started", "ready"]
GRAPHS = [
    "CUDA graph capture begun (target prefill)",
    "CUDA graph capture ended (target prefill)",
    "CUDA graph capture begun (target decode)",
    "CUDA graph capture ended (target decode)",
]


def read(name: str) -> list[str]:
    return (DATA / name).read_text().splitlines()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cpu-0.5.9.log", START + END),
        ("cpu-0.5.23.log", START + END),
        ("h200-0.5.15.post1.log", START + GRAPHS + END),
        ("sm120-k2-thinking-5816.log", START + END),
        ("sm120-glm-4.7-fp8.log", START + END),
        ("sm120-out-of-resources.log", START + END),
        ("journal-two-failures-0.5.23.log", START[:5]),
    ],
)
def test_every_recorded_start_shows_its_stages_once_and_in_order(name: str, expected: list[str]) -> None:
    assert [found.name for found in log.stages(read(name))] == expected


# As the f-strings of 0.5.9 and 0.5.23 (model_runner.py, cuda_graph_setup.py, flashinfer_autotune.py, eagle_worker*.py) write them.
@pytest.mark.parametrize(
    ("text", "name", "doing"),
    [
        (
            "Capture cuda graph begin. This can take up to several minutes. avail mem=9.1 GB",
            "CUDA graph capture begun",
            "capturing CUDA graphs",
        ),
        ("Capture cuda graph end. Time elapsed: 9.1 s. mem usage=1.0 GB.", "CUDA graph capture ended", None),
        ("Capture piecewise CUDA graph begin. avail mem=9.1 GB", "CUDA graph capture begun (piecewise)", None),
        (
            "Capture draft extend cuda graph begin (step 1). This can take",
            "CUDA graph capture begun (draft extend)",
            None,
        ),
        (
            "Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=4",
            "CUDA graph capture begun (target verify)",
            None,
        ),
        ("Capture cpu graph begin. This can take", "CUDA graph capture begun", None),
        (
            "Capture Frozen-KV MTP draft cuda graph begin.",
            "CUDA graph capture begun (frozen-kv mtp draft)",
            None,
        ),
        ("Running FlashInfer autotune...", "autotuning", "autotuning kernels"),
        ("Running FlashInfer autotune with cache: /var/lib/x.json", "autotuning", None),
        ("Running FlashInfer autotune (cache reuse DISABLED via X)", "autotuning", None),
        (
            "2026-01-01 - INFO - autotuner.py:1 - flashinfer.jit: [Autotuner]: Autotuning process starts ...",
            "autotuning",
            None,
        ),
        ("FlashInfer autotune completed.", "autotuned", None),
    ],
)
def test_stage_lines_of_both_eras(text: str, name: str, doing: str | None) -> None:
    found = log.find_stage(text)
    assert found is not None and found.name == name
    assert doing is None or found.doing == doing


@pytest.mark.parametrize(
    "text",
    ["Capture cuda graph failed: CUDA out of memory", "Decode batch, #running-req: 1", "mention of server_args=x", ""],
)
def test_other_lines_are_no_stage(text: str) -> None:
    assert log.find_stage(text) is None


def test_a_reader_goes_on_where_another_stopped() -> None:
    lines = [log.parse_line(line) for line in read("cpu-0.5.23.log")]
    first = log.StageReader()
    before = [found.name for line in lines[:12] for found in first.feed(line)]
    second = log.StageReader(before)
    assert before + [found.name for line in lines[12:] for found in second.feed(line)] == START + END


@pytest.mark.parametrize(
    ("raw", "text", "source", "opens"),
    [
        ("[2026-01-29 00:51:38 TP0] Load weight begin.", "Load weight begin.", "", True),
        ("[2026-01-29 00:51:38 DP0 TP3 EP1] x", "x", "", True),
        (
            "2026-11-29T17:52:14+0000 probe1 python3[174]: [2026-11-29 17:52:14] Received sigquit",
            "Received sigquit",
            "python3[174]",
            True,
        ),
        ("Nov 29 17:52:14 host systemd[1]: Started x.", "Started x.", "systemd[1]", False),
        ("[ 1234.567890] host python3[7]: y", "y", "python3[7]", False),
        ("  0%|  | 0/58\r 50%|# | 29/58\r100%|##| 58/58\n", "100%|##| 58/58", "", False),
        ('  File "x.py", line 1', '  File "x.py", line 1', "", False),
    ],
)
def test_prefixes_are_taken_off(raw: str, text: str, source: str, opens: bool) -> None:
    assert log.parse_line(raw) == log.Line(text, source, opens)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (
            "sm120-out-of-resources.log",
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 106496, Hardware limit: 101376.",
        ),
        (
            "journal-two-failures-0.5.23.log",
            "FileNotFoundError: No such file or directory: /srv/models/tiny-llama/model.safetensors",
        ),
    ],
)
def test_the_cause_of_recorded_deaths(name: str, error: str) -> None:
    failure = log.last_error(read(name))
    assert failure is not None and failure.error.startswith(error)
    assert failure.lines[-1].startswith(error) and 2 < len(failure.lines) <= log.CONTEXT_LINES


def test_the_first_of_two_deaths_alone() -> None:
    failure = log.last_error(read("journal-two-failures-0.5.23.log")[:41])
    assert failure is not None and failure.error == "RuntimeError: operator torchvision::nms does not exist"


@pytest.mark.parametrize("name", ["cpu-0.5.23.log", "h200-0.5.15.post1.log", "sm120-k2-thinking-5816.log"])
def test_a_good_start_has_no_error(name: str) -> None:
    assert log.last_error(read(name)) is None


CHAINED = """\
[2026-01-01 00:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "a.py", line 1, in capture
    self.capture()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in __init__
    raise Exception(
Exception: Capture cuda graph failed: CUDA out of memory.
Possible solutions:
1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)

[2026-01-01 00:00:00] Received sigquit from a child process. It usually means the child failed.
"""


def test_a_chain_ends_with_its_last_exception_and_keeps_the_advice() -> None:
    failure = log.last_error(CHAINED.splitlines())
    assert failure is not None
    assert failure.error == "Exception: Capture cuda graph failed: CUDA out of memory."
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB." in failure.lines
    assert failure.lines[-1].startswith("1. set --mem-fraction-static")


def test_ranks_that_interleave_in_the_journal_are_told_apart() -> None:
    prefix = "2026-01-01T00:00:00+0000 h python3[{}]: "
    one = ["Scheduler hit an exception: Traceback (most recent call last):", '  File "a"', "ValueError: first"]
    two = ["Scheduler hit an exception: Traceback (most recent call last):", '  File "b"', "RuntimeError: Broken pipe"]
    mixed = [prefix.format(pid) + line for pair in zip(two, one) for pid, line in zip((2, 1), pair)]
    failure = log.last_error(mixed)
    assert failure is not None and failure.error == "ValueError: first"
    assert failure.lines == [
        "Scheduler hit an exception: Traceback (most recent call last):",
        '  File "a"',
        "ValueError: first",
    ]


SYSTEMD = "Nov 29 17:52:14 host systemd[1]: "


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (
            ["usage: launch_server.py [-h]", "launch_server.py: error: argument --tp: invalid int value: 'x'"],
            "launch_server.py: error: argument --tp: invalid int value: 'x'",
        ),
        (["/opt/x/bin/python: No module named sglang"], "/opt/x/bin/python: No module named sglang"),
        (
            [
                "[2026-01-01 00:00:00] ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000)"
            ],
            "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000)",
        ),
        (
            [
                SYSTEMD + "x.service: Failed to locate executable /opt/x: No such file or directory",
                SYSTEMD + "x.service: Main process exited, code=exited, status=203/EXEC",
            ],
            "x.service: Failed to locate executable /opt/x: No such file or directory",
        ),
        (
            [
                SYSTEMD + "x.service: A process of this unit has been killed by the OOM killer.",
                "[2026-01-01 00:00:00] Received sigquit from a child process.",
            ],
            "x.service: A process of this unit has been killed by the OOM killer.",
        ),
        (["Fatal Python error: Segmentation fault", "", "Thread 0x1:"], "Fatal Python error: Segmentation fault"),
        (
            ["[2026-01-01 00:00:00 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"],
            "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        ),
        (
            ["[2026-01-01 00:00:00] Received sigquit from a child process. It usually means the child failed."],
            "Received sigquit from a child process. It usually means the child failed.",
        ),
        ([SYSTEMD + "x.service: Failed with result 'exit-code'."], "x.service: Failed with result 'exit-code'."),
        (
            ["Traceback (most recent call last):", '  File "a", line 1', "    f()"],
            "a traceback that was cut short at: f()",
        ),
    ],
)
def test_errors_of_one_line(lines: list[str], error: str) -> None:
    failure = log.last_error(lines)
    assert failure is not None and failure.error == error


def test_a_survived_traceback_gives_way_to_the_fatal_one_and_not_to_its_consequences() -> None:
    survived = ["Traceback (most recent call last):", '  File "a"', "ValueError: survived", ""]
    begin = "[2026-01-01 00:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):"
    fatal = [begin, '  File "b"', "KeyError: 'glm_moe_dsa'", ""]
    after = ["Traceback (most recent call last):", '  File "c"', "RuntimeError: Rank 0 scheduler died", ""]
    for lines in (survived + fatal + after, fatal + after):
        failure = log.last_error(lines)
        assert failure is not None and failure.error == "KeyError: 'glm_moe_dsa'"


def test_memory_stays_bounded() -> None:
    def endless() -> Iterator[str]:
        for number in range(20_000):
            yield f"2026-01-01T00:00:00+0000 h python3[{number}]: Traceback (most recent call last):"
            yield f"2026-01-01T00:00:00+0000 h python3[{number}]: {'x' * 50}"

    assert log.last_error(endless()) is not None


def test_no_lines_no_error() -> None:
    assert log.last_error([]) is None and log.stages([]) == []
