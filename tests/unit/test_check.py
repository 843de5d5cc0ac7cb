"""Outcomes are counted from what the layers report, not from what they intend."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools/check"
loader = SourceFileLoader("check", str(TOOL))
spec = importlib.util.spec_from_loader("check", loader)
assert spec
check = importlib.util.module_from_spec(spec)
sys.modules["check"] = check
loader.exec_module(check)


def test_molecules_recap_line() -> None:
    line = (
        "\x1b[32mdefault\x1b[0m : actions=8  \x1b[32msuccessful=6\x1b[0m  disabled=0  skipped=1  missing=0  failed=1\n"
    )
    assert check.recap(line) == check.Count(passed=6, failed=1, skipped=1)
    assert check.recap("gpu-node : ok=5 changed=0 unreachable=0 failed=0 skipped=3 rescued=0 ignored=0\n") is None


def test_counts_add_up_to_the_closing_line() -> None:
    both = check.Count(1, 2, 3, ["a"]) + check.Count(1, 1, names=["b"])
    assert str(both) == "2 passed, 3 failed, 3 skipped"
    assert both.names == ["a", "b"]


def test_a_command_that_fails_is_a_failure(capsys: object) -> None:
    assert check.run("no", [sys.executable, "-c", "raise SystemExit(3)"]) == check.Count(failed=1, names=["no"])
    assert check.run("yes", [sys.executable, "-c", ""]) == check.Count(passed=1)
