"""Locks, wheels and the guard against a CUDA build of torch."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
import sglang_release as module
from helpers import run_module

LOCK = "Foo_Bar==1.2 \\\n    --hash=sha256:aa\nbaz[x]==2.0 ; python_version < '4' \\\n    --hash=sha256:bb\n"
PAGE = """<a href="/f/torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl#sha256={}">cuda</a>
<a href="../f/torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl#sha256={}">cpu</a>""".format("a" * 64, "b" * 64)


def test_pins_of_a_lock() -> None:
    assert module.pinned(LOCK) == {"foo-bar": "1.2", "baz": "2.0"}
    assert module.pinned("# nothing\n") == {}


def test_missing_wheels() -> None:
    files = ["foo_bar-1.2-py3-none-any.whl", "baz-1.0-cp311-cp311-linux_x86_64.whl", "note.txt"]
    assert module.missing_wheels(module.pinned(LOCK), files) == ["baz==2.0"]


def test_only_the_cpu_build_matches_on_an_index() -> None:
    url, digest = module.index_file(PAGE, "https://index/simple/torch/", module.torch_pattern("2.13.0+cpu", "3.11"))
    assert url == "https://index/simple/f/torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert digest == "b" * 64
    assert module.index_file(PAGE, "https://index/", module.torch_pattern("2.13.0+cpu", "3.12")) == ("", "")


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", None),
        ("cuda: Optional[str] = '13.0'\n", "13.0"),
        ("cuda = '12.8'\nhip = None\n", "12.8"),
    ],
)
def test_cuda_of_torch(text: str, cuda: str | None) -> None:
    assert module.torch_cuda(text) == cuda


def test_status(tmp_path: Path) -> None:
    release = tmp_path / "r"
    assert module.status(str(release)) == "absent"
    (release / "venv/bin").mkdir(parents=True)
    (release / "incomplete").touch()
    assert module.status(str(release)) == "incomplete"
    (release / "venv/bin/python").touch()
    (release / "release.json").write_text('{"stack": "s"}')
    assert module.status(str(release)) == "built"
    (release / "incomplete").unlink()
    assert module.status(str(release)) == "sealed"


def sealed(tmp_path: Path) -> Path:
    release = tmp_path / "release"
    (release / "venv/bin").mkdir(parents=True)
    (release / "venv/bin/python").touch()
    (release / "patched.py").write_text("one")
    module.record(str(release), {"watched": {str(release / "patched.py"): module.sha256(str(release / "patched.py"))}})
    return release


def test_a_watched_file_that_changed_is_drift(tmp_path: Path) -> None:
    release = sealed(tmp_path)
    assert module.status(str(release)) == "sealed"
    (release / "patched.py").write_text("two")
    assert module.status(str(release)) == "drifted"
    (release / "patched.py").unlink()
    assert module.status(str(release)) == "drifted"


def test_a_drifted_release_is_left_and_the_next_number_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be what serves at present."""
    release = sealed(tmp_path)
    (release / "patched.py").write_text("two")
    told = run_module(module, capsys, path=str(release), state="inspected")
    assert told["path"] == f"{release}.2" and told["status"] == "absent"
    # A build that fails leaves the drifted one alone, and nothing of itself.
    (tmp_path / "wheels").mkdir()
    for name in ("foo_bar-1.2-py3-none-any.whl", "baz-2.0-py3-none-any.whl"):
        (tmp_path / "wheels" / name).touch()
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv/uv-0").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "uv/uv-0").chmod(0o755)
    told = build(tmp_path, capsys, wheelhouse=str(tmp_path / "wheels"))
    assert "uv-0 venv" in told["msg"] and told["status"] == "absent"
    assert (release / "patched.py").read_text() == "two" and not Path(f"{release}.2").exists()


UV = {"version": "0", "file": "uv-0-py3-none-any.whl", "sha256": "0"}


def build(tmp_path: Path, capsys: pytest.CaptureFixture[str], **more: object) -> dict:
    arguments = {
        "path": str(tmp_path / "release"),
        "requirements": LOCK,
        "uv": UV,
        "uv_dir": str(tmp_path / "uv"),
        **more,
    }
    return run_module(module, capsys, **arguments)


def test_a_wheelhouse_that_lacks_wheels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wheels").mkdir()
    told = build(tmp_path, capsys, wheelhouse=str(tmp_path / "wheels"), describe={"stack": "s1"})
    assert "lacks 2 of 2 wheels: baz==2.0, foo-bar==1.2" in told["msg"] and "tools/wheelhouse s1" in told["msg"]
    assert not (tmp_path / "release").exists()


def test_the_cuda_build_is_never_fetched_by_accident(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = build(tmp_path, capsys, torch="2.13.0+cpu", cpu=True)
    assert "nothing is fetched" in told["msg"] and "sglang_env_torch_index_url" in told["msg"]


def test_a_python_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = build(tmp_path, capsys, python="python3.99")
    assert "The node has no python3.99" in told["msg"]


def test_sealing_what_is_not_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = run_module(module, capsys, path=str(tmp_path / "release"), state="sealed")
    assert "only a built release can be sealed" in told["msg"]


def test_check_mode_builds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = run_module(module, capsys, check=True, path=str(tmp_path / "release"), requirements=LOCK, uv=UV)
    assert told["changed"] and not (tmp_path / "release").exists()


def test_links_that_linkers_look_for(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libcudart.so.13").touch()
    for _ in range(2):  # a second time finds it there
        module.link(str(tmp_path / "lib64"), "lib")
        module.link(str(tmp_path / "lib/libcudart.so"), "libcudart.so.13")
    assert (tmp_path / "lib64/libcudart.so").resolve() == tmp_path / "lib/libcudart.so.13"
    with pytest.raises(module.ReleaseError, match=r"libnvrtc.so.13, which the stack did not install. Correct `links`"):
        module.link(str(tmp_path / "lib/libnvrtc.so"), "libnvrtc.so.13")


def test_a_build_that_hangs_is_waited_for_and_then_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOCK_SECONDS", 0)
    monkeypatch.setattr(module, "POLL_SECONDS", 0)
    with (tmp_path / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        told = run_module(module, capsys, path=str(tmp_path / "stack-0123"), state="sealed")
    assert told["failed"] and f"Another build held {tmp_path}/.lock" in told["msg"] and "fuser" in told["msg"]
