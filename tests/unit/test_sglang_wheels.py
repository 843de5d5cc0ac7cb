"""Which wheels are sent, and that a damaged one is not taken."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import sglang_wheels as module
from ansible.module_utils import sglang_transfer
from helpers import run_module

from action_plugins import sglang_wheels as plugin


def wheel(folder: Path, name: str, data: bytes = b"wheel") -> dict:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_missing_by_name_and_size() -> None:
    wheels = [{"name": "a.whl", "size": 1}, {"name": "b.whl", "size": 2}, {"name": "c.whl", "size": 3}]
    assert [w["name"] for w in module.missing(wheels, {"a.whl": 1, "b.whl": 1})] == ["b.whl", "c.whl"]


def test_taken_and_then_nothing_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheels = [wheel(tmp_path / "sent", "a-1-py3-none-any.whl")]
    arguments = {"src": "/x", "dest": str(tmp_path / "dest"), "wheels": wheels}
    assert run_module(module, capsys, **arguments)["missing"] == ["a-1-py3-none-any.whl"]
    assert run_module(module, capsys, **arguments, sent=str(tmp_path / "sent"))["changed"]
    assert (tmp_path / "dest/a-1-py3-none-any.whl").stat().st_mode & 0o777 == 0o644
    assert not run_module(module, capsys, **arguments)["changed"]


def test_a_damaged_wheel_is_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = wheel(tmp_path / "sent", "a-1-py3-none-any.whl")
    wheel(tmp_path / "sent", "a-1-py3-none-any.whl", b"whale")
    told = run_module(module, capsys, src="/x", dest=str(tmp_path / "dest"), wheels=[good], sent=str(tmp_path / "sent"))
    assert "arrived damaged" in told["msg"]
    assert list((tmp_path / "dest").iterdir()) == []


def test_listing_believes_the_index_only_where_sizes_agree(tmp_path: Path) -> None:
    real = wheel(tmp_path / "w", "a.whl")
    (tmp_path / "w/wheelhouse.json").write_text('{"files": [{"name": "a.whl", "size": 1, "sha256": "stale"}]}')
    assert plugin.listing(tmp_path / "w") == [real]
    (tmp_path / "w/wheelhouse.json").write_text('{"files": [{"name": "a.whl", "size": 5, "sha256": "noted"}]}')
    assert plugin.listing(tmp_path / "w")[0]["sha256"] == "noted"


def test_batches_keep_the_order_and_hold_one_at_least() -> None:
    wheels = [{"name": str(size), "size": size} for size in (1, 2, 9, 1)]
    assert [[w["size"] for w in batch] for batch in sglang_transfer.batches(wheels, "size", 3)] == [[1, 2], [9], [1]]
    assert list(sglang_transfer.batches([], "size", 3)) == []
