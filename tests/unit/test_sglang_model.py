"""Complete, cut, partial and unreadable model folders."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest
import sglang_model as module
from helpers import run_module


def shard(path: Path, size: int = 64) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}, "__metadata__": {}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["Glm4MoeForCausalLM"]}')
    (folder / "tokenizer_config.json").write_text("{}")
    for name in ("a.safetensors", "b.safetensors"):
        shard(folder / name)
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_complete(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = run_module(module, capsys, path=str(model))
    assert told["architectures"] == ["Glm4MoeForCausalLM"] and told["shards"] == 2 and not told["changed"]


def test_a_shard_that_the_index_names_is_missing(model: Path) -> None:
    (model / "b.safetensors").unlink()
    assert module.problems(str(model)) == ["b.safetensors is missing"]


def test_a_cut_shard_is_found_by_its_own_header(model: Path) -> None:
    data = (model / "a.safetensors").read_bytes()
    (model / "a.safetensors").write_bytes(data[:-10])
    assert "a.safetensors has" in module.problems(str(model))[0]
    (model / "a.safetensors").write_bytes(data[:20])
    assert "its header is cut or broken" in module.problems(str(model))[0]
    (model / "a.safetensors").write_bytes(b"")
    assert "no header" in module.problems(str(model))[0]
    (model / "a.safetensors").write_bytes(b"<html>not found</html>")
    assert "no safetensors header" in module.problems(str(model))[0]


def test_partial_downloads(model: Path) -> None:
    (model / ".cache").mkdir()
    (model / "x.incomplete").touch()
    assert module.problems(str(model)) == ["x.incomplete is a partial download"]
    (model / "x.incomplete").rename(model / ".cache/y.incomplete")
    assert module.problems(str(model)) == [".cache/y.incomplete is a partial download"]


def test_a_cut_config(model: Path) -> None:
    (model / "config.json").write_text('{"architectures": [')
    assert module.problems(str(model)) == ["config.json cannot be read"]


def test_what_was_not_made_here_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of other models, or a download of hours that is not complete."""
    (tmp_path / "models/other").mkdir(parents=True)
    told = run_module(
        module, capsys, path=str(tmp_path / "models"), python=sys.executable, generator="raise SystemExit(1)"
    )
    assert "was left alone" in told["msg"] and (tmp_path / "models/other").is_dir()


def test_absent_without_a_generator_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = run_module(module, capsys, path=str(tmp_path / "none"))
    assert "does not exist" in told["msg"] and "sglang_model_path" in told["msg"]


@pytest.mark.parametrize(
    ("mode", "uid", "readable"),
    [(0o100600, 0, True), (0o100600, 5, False), (0o100644, 5, True), (0o040750, 5, False), (0o040755, 5, True)],
)
def test_who_may_read(mode: int, uid: int, readable: bool) -> None:
    assert module.may_read(mode, 1, 1, uid, {99}) is readable


def test_a_file_of_another_user_is_told_before_the_loader_calls_it_missing(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (model / "a.safetensors").chmod(0o600)
    told = run_module(module, capsys, path=str(model), user="nobody")
    assert "a.safetensors (mode 0600) cannot be read by nobody" in told["msg"]
    # The first deployment makes the user only after this.
    told = run_module(module, capsys, path=str(model), user="not-there-yet")
    assert "a.safetensors (mode 0600) cannot be read by not-there-yet" in told["msg"]


def test_a_generator_that_fails_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {
        "path": str(tmp_path / "m/model"),
        "python": "/usr/bin/env",
        "generator": "raise SystemExit('no memory')",
    }
    told = run_module(module, capsys, **{**arguments, "python": sys.executable})
    assert "no memory" in told["msg"]
    assert list((tmp_path / "m").iterdir()) == []


def test_a_generator_that_leaves_a_hole_is_not_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = "import pathlib, sys; pathlib.Path(sys.argv[1]).mkdir()"
    told = run_module(module, capsys, path=str(tmp_path / "model"), python=sys.executable, generator=program)
    assert "left it incomplete" in told["msg"] and not (tmp_path / "model").exists()
