"""Results are strict JSON, whole or not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from action_plugins import sglang_results


def test_written_whole(tmp_path: Path) -> None:
    files = sglang_results.write(tmp_path / "a/b", {"schema": 1}, "# r")
    assert json.loads(Path(files[0]).read_text()) == {"schema": 1} and Path(files[1]).read_text() == "# r"
    assert sorted(path.name for path in (tmp_path / "a/b").iterdir()) == ["report.md", "run.json"]


def test_numbers_that_json_does_not_have_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        sglang_results.write(tmp_path / "a", {"x": float("nan")}, "")
    assert not (tmp_path / "a").exists()
