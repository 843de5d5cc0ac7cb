"""Signatures of rules: each is found first in its own log, stays quiet next to it and on others' logs, and costs little time."""

from __future__ import annotations

import re
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.sglang_rules import load
from helpers import scan_text

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/unit/data/doctor"
LOGS = ROOT / "tests/unit/data/sglang_log"
HEALTHY = ["cpu-0.5.9.log", "cpu-0.5.23.log", "h200-0.5.15.post1.log", "sm120-k2-thinking-5816.log"]

RULES = load(str(ROOT / "rules"))
BY_ID = {rule["id"]: rule for rule in RULES}
SIGNED = [rule for rule in RULES if "signature" in rule]
CATALOGUE = yaml.safe_load((DATA / "catalogue.yml").read_text())
CASES = {
    case["rule"]: case
    for path in sorted(DATA.glob("*.yml"))
    if path.stem != "catalogue"
    for case in yaml.safe_load(path.read_text())
}
FIRES = [(name, text) for name, case in CASES.items() for text in case["fires"]]
QUIET = [(name, text) for name, case in CASES.items() for text in case["quiet"]]
FIRES_IDS = [f"{name}-{number}" for number, (name, _) in enumerate(FIRES)]
QUIET_IDS = [f"{name}-{number}" for number, (name, _) in enumerate(QUIET)]


def kind(name: str) -> str:
    return str(BY_ID[name]["signature"].get("kind", "cause"))


@cache
def _found(text: str, kernel: bool) -> list[dict[str, Any]]:
    return scan_text("" if kernel else text, SIGNED, kernel=text if kernel else "")


def found(name: str, text: str) -> list[dict[str, Any]]:
    """Findings of all rules on a text of this rule's case, best first."""
    return _found(text, CASES[name].get("kernel", False))


def test_every_signature_has_logs_that_fire_it_and_near_misses() -> None:
    assert {rule["id"] for rule in SIGNED} == set(CASES)
    assert not [name for name, case in CASES.items() if not case["fires"] or not case["quiet"]]


def test_cases_are_written_once_and_name_rules() -> None:
    written = [
        case["rule"]
        for path in DATA.glob("*.yml")
        if path.stem != "catalogue"
        for case in yaml.safe_load(path.read_text())
    ]
    assert len(written) == len(set(written))
    assert not {other for case in CASES.values() for other in case.get("with", [])} - set(BY_ID)
    for name, case in CASES.items():
        assert case.get("kernel", False) is (BY_ID[name]["signature"].get("source") == "kernel"), name


@pytest.mark.parametrize(("name", "text"), FIRES, ids=FIRES_IDS)
def test_is_found_first(name: str, text: str) -> None:
    findings = found(name, text)
    assert name in [finding["id"] for finding in findings]
    if kind(name) in ("cause", "slow"):
        assert findings[0]["id"] == name


@pytest.mark.parametrize(("name", "text"), FIRES, ids=FIRES_IDS)
def test_texts_are_whole(name: str, text: str) -> None:
    """No name that the line did not give, and no hole where a value should stand."""
    [finding] = [finding for finding in found(name, text) if finding["id"] == name]
    for key in ("cause", "remedy"):
        said = finding[key]
        assert said and "{{" not in said and "…" not in said and "None" not in said
        assert not re.search(r"(?<!\w)\(\s*\)|  |``| [.,;:] ", said.replace("\n", " ")), said
    assert finding["sources"]


@pytest.mark.parametrize(("name", "text"), QUIET, ids=QUIET_IDS)
def test_is_quiet_next_to_it(name: str, text: str) -> None:
    assert name not in [finding["id"] for finding in found(name, text)]


@pytest.mark.parametrize("name", CASES)
def test_a_near_miss_is_near(name: str) -> None:
    """A near miss shares a word with what is searched for, or it would prove nothing."""
    words = {word for text in BY_ID[name]["signature"]["find"] for word in re.findall(r"[A-Za-z]{3,}", text.lower())}
    assert any(words & set(re.findall(r"[a-z]{3,}", text.lower())) for text in CASES[name]["quiet"])


@pytest.mark.parametrize(("name", "text"), FIRES, ids=FIRES_IDS)
def test_no_other_cause_is_named(name: str, text: str) -> None:
    """The cross table: on this rule's log only it, and what its data names, is an error's cause."""
    others = {
        finding["id"] for finding in found(name, text) if finding["kind"] == "cause" and finding["severity"] == "error"
    }
    assert others - {name} <= set(CASES[name].get("with", []))


@pytest.mark.parametrize("log", HEALTHY)
def test_a_healthy_log_gives_notes_at_most(log: str) -> None:
    findings = scan_text((LOGS / log).read_text(), SIGNED)
    assert {finding["severity"] for finding in findings} <= {"note"}, findings


@pytest.mark.parametrize(
    ("log", "causes"),
    [
        ("sm120-out-of-resources.log", {"triton-attention-sm120"}),
        ("sm120-glm-4.7-fp8.log", set()),
        ("journal-two-failures-0.5.23.log", {"torchvision-mismatch", "weights-unreadable"}),
    ],
)
def test_recorded_failures_are_named(log: str, causes: set[str]) -> None:
    findings = scan_text((LOGS / log).read_text(), SIGNED)
    assert {finding["id"] for finding in findings if finding["kind"] == "cause"} == causes


def test_ranks_and_carriers_make_no_difference() -> None:
    """Eight ranks at once, colours, CRLF and what Docker puts before a line."""
    line = "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 106496, Hardware limit: 101376."
    for text in (
        "".join(f"[2026-01-29 00:51:38 TP{rank}] {line}\n" for rank in range(8)),
        f"\x1b[31m{line}\x1b[0m\r\n",
        f"2026-01-29T00:51:38.123456789Z {line}\n",
        f"sglang-1  | {line}\n",
    ):
        assert [finding["id"] for finding in scan_text(text, SIGNED)] == ["triton-attention-sm120"]


# --- the signatures themselves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", SIGNED, ids=[rule["id"] for rule in SIGNED])
def test_literals_are_specific(rule: dict[str, Any]) -> None:
    for text in rule["signature"]["find"]:
        assert len(text) >= 11, text
        assert not re.fullmatch(r"[\d\s.:-]+", text)
    own = "\n".join(CASES[rule["id"]]["fires"])
    assert not [text for text in rule["signature"]["find"] if text not in own]


@pytest.mark.parametrize("rule", SIGNED, ids=[rule["id"] for rule in SIGNED])
def test_texts_of_a_plan_are_not_the_doctors(rule: dict[str, Any]) -> None:
    """A rule that a plan judges speaks of plans; of a log its signature does."""
    assert ("when" in rule) == ("cause" in rule["signature"]) == ("remedy" in rule["signature"])
    if "when" not in rule:
        assert rule["file"].startswith("log-")
        assert all(re.search(r"20\d\d|code of sglang|code of FlashInfer", source) for source in rule["sources"])


@pytest.mark.parametrize("rule", SIGNED, ids=[rule["id"] for rule in SIGNED])
def test_groups_that_texts_speak_of_exist(rule: dict[str, Any]) -> None:
    signature = rule["signature"]
    named = set(re.compile(signature.get("match", "")).groupindex)
    spoken = {key: signature.get(key, rule[key]) for key in ("cause", "remedy")}
    assert set(re.findall(r"match\.(\w+)", " ".join(spoken.values()))) <= named


@pytest.mark.parametrize("rule", SIGNED, ids=[rule["id"] for rule in SIGNED])
def test_patterns_have_bounded_repeats(rule: dict[str, Any]) -> None:
    for key in ("match", "unless"):
        assert not re.search(r"\.[*+]|\)[*+{]|\{\d+,\}", rule["signature"].get(key, ""))


def hostile(literal: str) -> list[str]:
    """Lines of ten thousand characters that a bad pattern goes astray on."""
    fillers = ["a", "(", " ", "0x", "1.", "a: ", "/a", "'", ",\\", "Error: ", literal]
    texts = [filler * (10_000 // len(filler)) for filler in fillers]
    return [*texts, *(f"{literal}{text}" for text in texts), *(f"{text[:900]}{literal}{text}" for text in texts)]


@pytest.mark.parametrize("rule", SIGNED, ids=[rule["id"] for rule in SIGNED])
def test_no_pattern_is_slow_on_hostile_lines(rule: dict[str, Any]) -> None:
    signature = rule["signature"]
    patterns = [re.compile(signature[key]) for key in ("match", "unless") if key in signature]
    for literal in signature["find"]:
        for text in hostile(literal):
            for pattern in patterns:
                # The shortest of three, and far from what a good one takes (milliseconds): the machine has other things to do as
                # well. One that goes astray takes minutes.
                spent = min(_timed(pattern, text) for _ in range(3))
                assert spent < 0.5, (pattern.pattern, text[:40])


def _timed(pattern: re.Pattern[str], text: str) -> float:
    begin = time.perf_counter()
    pattern.search(text)
    return time.perf_counter() - begin


# --- the catalogue ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", CATALOGUE)
def test_every_row_of_the_catalogue_is_answered(row: str) -> None:
    entry = CATALOGUE[row]
    assert set(entry) <= {"what", "rules", "silent", "outside"}
    assert len(set(entry) & {"rules", "silent", "outside"}) >= 1
    for name in entry.get("rules", []):
        assert "signature" in BY_ID[name]
    for name in entry.get("silent", []):
        assert name == "proof of answers" or "when" in BY_ID[name]
