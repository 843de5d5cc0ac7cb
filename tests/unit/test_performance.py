"""What `make bench` counts and holds against: its rows themselves need hosts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from ansible.module_utils import sglang_diagnose

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
import performance


def test_commands_over_ssh_are_counted() -> None:
    text = (
        "<10.0.0.1> ESTABLISH SSH CONNECTION FOR USER: root\n"
        "<10.0.0.1> SSH: EXEC ssh -C 10.0.0.1 '/bin/sh -c true'\n"
        "ok: [one] => {'stdout': '<x> SSH: EXEC'}\n"
        "<10.0.0.2> SSH: EXEC ssh -C 10.0.0.2 '/bin/sh -c true'\n"
    )
    assert performance.round_trips(text) == 2


def test_the_plain_playbook_has_60_tasks_of_five_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performance, "FOLDER", tmp_path)
    (play,) = yaml.safe_load(Path(performance.plain_playbook()).read_text())
    kinds = [next(name for name in task if name != "name") for task in play["tasks"]]
    assert len(kinds) == 60 and {kinds.count(kind) for kind in set(kinds)} == {12}
    assert len({str(task) for task in play["tasks"]}) == 60


def test_the_long_log_is_what_a_server_at_work_says() -> None:
    """The doctor leaves such lines out before it looks for anything; its figure is of them."""
    lines = [performance.batch(number) for number in range(400)]
    assert all(any(text in line for text in sglang_diagnose.STEADY) for line in lines)
    assert len(set(lines)) == 400


def test_the_table_says_what_was_met_and_what_was_not() -> None:
    rows = [performance.Row("a", "at most 1", "0.5", True), performance.Row("b", "more", "less", False)]
    text = performance.table([*rows, performance.Row("c", "by stage", "x", None)])
    assert text.splitlines()[2:] == [
        "| a | at most 1 | 0.5 | yes |",
        "| b | more | less | **no** |",
        "| c | by stage | x |  |",
    ]


def test_the_page_has_a_place_for_the_table() -> None:
    text = performance.PAGE.read_text()
    assert text.count(performance.BEGIN) == text.count(performance.END) == 1
    assert text.index(performance.BEGIN) < text.index(performance.END)
