"""Logs and what is read of them: hits, starts, stages, prefixes, and in which order findings come."""

from __future__ import annotations

import io
import json
import random
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import sglang_diagnose as module
from helpers import scan_text

LOGS = Path(__file__).parent / "data/sglang_log"


def rule(name: str, *find: str, **more: Any) -> dict[str, Any]:
    signature = {key: more.pop(key) for key in list(more) if key not in ("severity", "confidence", "when")}
    return {
        "id": name,
        "severity": "error",
        "cause": "it is {{ match.x | default('') }}",
        "remedy": "mend it",
        "sources": ["here"],
        "confidence": "code",
        **more,
        "signature": {"find": list(find), **signature},
    }


def scanned(text: str | bytes, *rules: dict[str, Any], source: str = "log") -> dict[str, Any]:
    data = text.encode() if isinstance(text, str) else text
    return module.scan(io.BytesIO(data), module.signatures(list(rules)), source)


BOOM = rule("boom", "went boom", match=r"went boom at (?P<x>\w+)")


@pytest.mark.parametrize(
    "line",
    [
        "went boom at noon",
        "[2026-01-29 00:51:38 TP3] went boom at noon",
        "2026-11-29T17:52:14+0000 host python3[174]: [2026-11-29 17:52:14 TP3] went boom at noon",
        "Nov 29 17:52:14 host python3[174]: went boom at noon",
        "2026-01-29T01:28:40.123456789Z [2026-01-29 01:28:40 TP3] went boom at noon",
        "sglang-1  | went boom at noon",
        "\x1b[31m[2026-01-29 00:51:38 TP3] went boom at noon\x1b[0m",
        "[2026-01-29 00:51:38] went boom at noon\r",
        json.dumps({"MESSAGE": "[2026-01-29 00:51:38 TP3] went boom at noon", "PRIORITY": "3"}),
        json.dumps({"log": "went boom at noon\n", "stream": "stderr"}),
    ],
)
def test_prefixes_of_whoever_carried_the_line_are_taken_off(line: str) -> None:
    [hit] = scanned(f"first\n{line}\nlast\n", BOOM)["hits"]
    assert hit["line"] == "went boom at noon" and hit["number"] == 2 and hit["match"] == {"x": "noon"}
    assert hit["rank"] in ("", "TP3") and ("TP3" not in line or hit["rank"] == "TP3")


def test_lines_that_a_busy_server_says_all_the_time_count_for_numbers() -> None:
    busy = "[2026-01-29 00:51:38 TP0] Decode batch. #running-req: 8\n" * 1000
    [hit] = scanned(f"{busy}went boom at noon\n{busy}", BOOM)["hits"]
    assert hit["number"] == 1001


def test_ranks_that_say_the_same_make_one_hit() -> None:
    text = "".join(f"[2026-01-29 00:51:38 TP{rank}] went boom at noon\n" for rank in range(8))
    [hit] = scanned(text, BOOM)["hits"]
    assert hit["count"] == 8 and hit["rank"] == "TP0" and hit["number"] == 1


def test_more_lines_than_are_looked_at_closely_are_counted() -> None:
    [hit] = scanned("went boom at noon\n" * 5000, BOOM)["hits"]
    assert hit["count"] >= 4999 - module.CLOSELY


def test_unless_and_stage_and_times() -> None:
    text = "Load weight begin. avail mem=94 GB\nwent boom at noon\nwent boom at night, as it should\n"
    assert scanned(text, rule("a", "went boom", unless="as it should"))["hits"][0]["count"] == 1
    assert scanned(text, rule("a", "went boom", times=3))["hits"] == []
    assert scanned(text, rule("a", "went boom", stage=["weights loading"]))["hits"]
    assert scanned(text, rule("a", "went boom", stage=["weights loaded"]))["hits"] == []


def test_a_last_word_is_one_only_while_nothing_follows() -> None:
    hang = rule("hang", "Init torch distributed begin", last=True)
    ranks = "".join(f"[2026-01-29 00:51:38 TP{rank}] Init torch distributed begin.\n" for rank in range(8))
    assert [hit["id"] for hit in scanned(ranks, hang)["hits"]] == ["hang"]
    assert scanned(ranks + "[2026-01-29 00:51:40 TP0] Init torch distributed ends.\na\nb\n", hang)["hits"] == []


def test_a_hang_is_one_though_systemd_killed_it_and_none_when_the_stage_was_left() -> None:
    hang = rule("hang", "Load weight begin", last=True)
    begun = "2026-11-29T17:00:00+0000 h python[1]: Load weight begin. avail mem=94 GB\n"
    killed = "".join(f"2026-11-29T17:09:0{second}+0000 h systemd[1]: x.service: Killing\n" for second in range(5))
    assert scanned(begun + killed, hang)["hits"]
    assert not scanned(begun + begun.replace("begin.", "end."), hang)["hits"]


def test_starts_are_told_apart_and_the_last_one_speaks_first() -> None:
    journal = (
        "2026-11-29T17:00:00+0000 h systemd[1]: Starting sglang.service - SGLang...\n"
        "2026-11-29T17:00:00+0000 h systemd[1]: Started sglang.service - SGLang.\n"
        "2026-11-29T17:00:05+0000 h python[1]: went boom at noon\n"
        "2026-11-29T17:00:06+0000 h systemd[1]: Starting sglang.service - SGLang...\n"
        "2026-11-29T17:00:06+0000 h systemd[1]: Started sglang.service - SGLang.\n"
        "2026-11-29T17:00:07+0000 h python[2]: out of something else\n"
    )
    rules = [BOOM, rule("other", "out of something else", severity="warning")]
    told = scanned(journal, *rules)
    assert told["starts"] == 2
    assert [(one["id"], one["earlier"]) for one in module.findings([told], rules)] == [("other", 0), ("boom", 1)]


def test_a_failure_of_many_starts_is_told_once_and_the_latest_first() -> None:
    start = "2026-11-29T17:00:0{0}+0000 h systemd[1]: Starting x\n2026-11-29T17:00:0{0}+0000 h python[{0}]: {1}\n"
    said = ["first thing", "first thing", "second thing", "nothing"]
    journal = "".join(start.format(number, text) for number, text in enumerate(said))
    rules = [rule("first", "first thing"), rule("second", "second thing")]
    assert [(one["id"], one["earlier"]) for one in scan_text(journal, rules)] == [("second", 1), ("first", 2)]


def test_causes_come_before_what_follows_and_the_first_in_time_before_later_ones() -> None:
    rules = [
        rule("follows", "Received sigquit", kind="consequence"),
        rule("second", "second thing"),
        rule("first", "first thing"),
        rule("slow", "slow thing", kind="slow", severity="warning"),
        rule("benign", "benign thing", kind="benign", severity="note"),
    ]
    text = "benign thing\nslow thing\nReceived sigquit\nfirst thing\nsecond thing\n"
    found = scan_text(text, rules)
    assert [one["id"] for one in found] == ["first", "second", "follows", "slow", "benign"]


def test_texts_are_rendered_and_a_plans_text_stays_readable() -> None:
    plan = rule("plan", "a plan's line", when="true")
    plan["cause"] = "the card {{ card.name }} cannot"
    [found] = scan_text("a plan's line\n", [plan])
    assert found["cause"] == "the card … cannot" and found["foreseen"]
    [found] = scan_text("went boom at noon\n", [BOOM])
    assert found["cause"] == "it is noon" and not found["foreseen"]


def test_a_signature_for_other_versions_is_quiet() -> None:
    old = rule("old", "went boom", sglang="<0.5.9")
    assert scan_text("went boom\n", [old], version="0.5.23") == []
    assert scan_text("went boom\n", [old], version="0.5.8.post1")
    assert scan_text("went boom\n", [old]), "an unknown version does not exclude"


def test_kernel_rules_read_the_kernel_only() -> None:
    xid = rule("xid", "NVRM: Xid", source="kernel")
    assert scan_text("NVRM: Xid\n", [xid]) == []
    [found] = scan_text("", [xid], kernel="[ 12.5] NVRM: Xid (PCI:0000:01:00): 79\n")
    assert found["source"] == "kernel"


def test_arguments_are_read_and_no_key_with_them() -> None:
    fields = "model_path='/m', tp_size=8, api_key='hush', mem_fraction_static=0.85, x=None"
    line = f"[2026-01-29 01:28:40] server_args=ServerArgs({fields})\n"
    told = scanned(line)
    assert told["arguments"] == {"model_path": "/m", "tp_size": 8, "mem_fraction_static": 0.85, "x": None}
    assert "hush" not in json.dumps(told["arguments"])


def test_what_no_rule_knows_gets_the_innermost_error_the_stage_and_the_nearest_rules() -> None:
    text = (
        "server_args=ServerArgs(tp_size=8)\nLoad weight begin. avail mem=94 GB\n"
        "[2026-01-29 00:51:38 TP3] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "x.py", line 1, in <module>\n    y()\nValueError: the frobnicator is out of grease\n'
    )
    told = scanned(text, BOOM)
    unknown = module.unexplained(told, [rule("grease", "the frobnicator is out of sight")])
    assert unknown["error"] == "ValueError: the frobnicator is out of grease"
    assert unknown["stage"] == "loading weights" and unknown["near"] == ["grease"]


@pytest.mark.parametrize(
    "name", ["h200-0.5.15.post1.log", "cpu-0.5.23.log", "cpu-0.5.9.log", "sm120-k2-thinking-5816.log"]
)
def test_a_healthy_log_is_read_as_ready_and_explains_nothing(name: str) -> None:
    told = scanned((LOGS / name).read_bytes(), BOOM)
    assert told["ready"] and told["hits"] == [] and module.unexplained(told, [BOOM]) == {}


def test_a_log_cut_anywhere_is_read() -> None:
    data = (LOGS / "journal-two-failures-0.5.23.log").read_bytes()
    for _ in range(30):
        cut = random.randrange(len(data))
        scanned(data[:cut], BOOM)
        scanned(data[cut:] + b"\xff\xfe\x00 went boom at noon", BOOM)


def test_a_long_log_takes_bounded_memory_and_time_like_its_length() -> None:
    line = (
        b"[2026-01-29 00:51:38 TP0] a debug line of a length that such lines have, with numbers 1234567890 and words\n"
    )
    rules = [rule(f"r{number}", f"a literal that is nowhere in it {number}") for number in range(80)]
    wanted = module.signatures(rules)

    class Endless:
        """So many MiB of the same line, without holding them."""

        def __init__(self, mib: int) -> None:
            self.left = mib << 20

        def read(self, size: int) -> bytes:
            size = min(size, self.left) // len(line) * len(line)
            self.left -= size
            return line * (size // len(line))

    seconds = []
    for mib in (4, 16):
        began = time.process_time()
        told = module.scan(Endless(mib), wanted)
        seconds.append(time.process_time() - began)
        assert told["lines"] > 30000
    # Four times the log, not much more than four times the work.
    assert seconds[1] < 12 * seconds[0] + 0.5
    tracemalloc.start()
    module.scan(Endless(24), wanted)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20
