"""What happens to files: links, owners, line ends, compiled files, full disks, kills, two runs at once."""

from __future__ import annotations

import base64
import collections
import contextlib
import hashlib
import json
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ansible
import pytest
import python_source_patch as module
from ansible.module_utils.testing import patch_module_args
from helpers import run_module
from test_python_source_patch import GATE, enable, replace

ROOT = Path(__file__).resolve().parents[2]
FIXED = GATE.replace('# "flashinfer_cutlass"', '"flashinfer_cutlass"')
OLD_PYTHON = next(iter(sorted(Path("~/.pyenv/versions").expanduser().glob("3.9.*/bin/python"))), None)
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts, other owners")


class Site:
    """A virtual environment's site-packages with one package, sglang 0.5.9, of one file."""

    def __init__(self, home: Path, source: bytes = GATE.encode()) -> None:
        self.home = home
        self.path = home / "lib/python3.12/site-packages"
        self.file = self.path / "sglang/gate.py"
        self.info = self.path / "sglang-0.5.9.dist-info"
        self.kept = home / "kept"
        self.file.parent.mkdir(parents=True)
        self.info.mkdir()
        self.file.with_name("__init__.py").write_text("")
        (self.info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.9\n")
        self.ship(source)

    def ship(self, source: bytes) -> None:
        """As a (re)install: the file and its hash in RECORD."""
        self.file.unlink(missing_ok=True)
        self.file.write_bytes(source)
        digest = base64.urlsafe_b64encode(hashlib.sha256(source).digest()).rstrip(b"=").decode()
        (self.info / "RECORD").write_text(f"sglang/__init__.py,,\nsglang/gate.py,sha256={digest},{len(source)}\n")

    def args(self, state: str = "present", **more: Any) -> dict[str, Any]:
        patch = {
            "name": "autotune",
            "package": "sglang",
            "file": "sglang/gate.py",
            "why": "to try",
            "tried": ["0.5.9"],
            "edits": [
                enable("flashinfer_cutlass", "ModelRunner._should_run_flashinfer_autotune", ("flashinfer_trtllm",))
            ],
            "show": [
                {"file": "sglang/gate.py", "in": "ModelRunner._flashinfer_autotune"},
                {"file": "other/x.py", "in": "f"},
            ],
            **more.pop("patch", {}),
        }
        return {"site_packages": str(self.path), "backup_dir": str(self.kept), "state": state, "patch": patch, **more}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "venv")


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings given; Ansible itself collects them for the whole process."""
    texts: list[str] = []
    monkeypatch.setattr(module.AnsibleModule, "warn", lambda _, text, **__: texts.append(text))
    return texts


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def command(site: Site, state: str = "present", python: str | Path = sys.executable) -> list[str]:
    """The module as a process of its own."""
    arguments = site.home / f"args-{state}.json"
    arguments.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": site.args(state)}))
    return [str(python), str(ROOT / "library/python_source_patch.py"), str(arguments)]


# --- present, absent, inspected


def test_present_then_absent_gives_the_package_back(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    first = run_module(module, capsys, **site.args())
    assert (first["status"], first["changed"], first["pristine"]) == ("not_applied", True, False)
    assert (first["package_version"], first["tried"], first["install"]) == ("0.5.9", True, "wheel")
    assert first["path"] == str(site.file)
    assert site.file.read_text() == FIXED
    assert first["sha256_before"] == sha(GATE.encode())
    assert first["sha256_after"] == sha(FIXED.encode())
    assert Path(first["backup"]).read_text() == GATE
    assert Path(first["backup"]).name == f"{sha(GATE.encode())}-gate.py"
    assert first["edits"][0]["state"] == "absent"

    second = run_module(module, capsys, **site.args())
    assert (second["status"], second["changed"], second["backup"]) == ("applied", False, first["backup"])

    third = run_module(module, capsys, **site.args("absent"))
    assert (third["status"], third["changed"], third["pristine"]) == ("applied", True, True)
    assert site.file.read_bytes() == GATE.encode()
    assert run_module(module, capsys, **site.args("absent"))["changed"] is False


def test_excerpt_shows_what_is_there_now(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    before = run_module(module, capsys, **site.args("inspected"))["excerpt"]
    assert '   16              # "flashinfer_cutlass",' in before
    assert "== sglang/gate.py: ModelRunner._flashinfer_autotune\n   22      def _flashinfer_autotune(self):" in before
    assert "== other/x.py: f\n       (no such file)" in before
    assert run_module(module, capsys, check=True, **site.args())["excerpt"] == before
    after = run_module(module, capsys, **site.args())["excerpt"]
    assert '   16              "flashinfer_cutlass",' in after


def test_excerpt_of_a_replaced_line_shows_the_function_around_it(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    edits = [replace("        return not self.is_draft_worker", "        return True")]
    found = run_module(module, capsys, **site.args("inspected", patch={"edits": edits, "show": []}))
    assert found["excerpt"].startswith("== sglang/gate.py: ModelRunner._should_run_flashinfer_autotune\n    5 ")


def test_check_mode_and_diff_write_nothing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    seen = run_module(module, capsys, check=True, **site.args(), _ansible_diff=True)
    assert seen["changed"] is True
    assert seen["sha256_after"] == sha(FIXED.encode())
    assert seen["pristine"] is True
    assert "would be put into" in seen["message"]
    assert seen["diff"] == {
        "before_header": str(site.file),
        "after_header": str(site.file),
        "before": GATE,
        "after": FIXED,
    }
    assert site.file.read_text() == GATE
    assert not site.kept.exists()
    done = run_module(module, capsys, **site.args(), _ansible_diff=True)
    assert done["diff"] == seen["diff"]
    undone = run_module(module, capsys, check=True, **site.args("absent"), _ansible_diff=True)
    assert (undone["diff"]["before"], undone["diff"]["after"]) == (FIXED, GATE)
    looked = run_module(module, capsys, **site.args("inspected"), _ansible_diff=True)
    assert looked["diff"]["before"] == looked["diff"]["after"] == FIXED


def test_message_is_one_sentence(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    for state in ("inspected", "present", "present", "absent", "absent"):
        text = run_module(module, capsys, **site.args(state))["message"]
        assert "\n" not in text
        assert text.endswith(".")
        assert "autotune" in text
        assert "0.5.9" in text


def test_a_reinstall_shows_as_not_applied_again(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    run_module(module, capsys, **site.args())
    site.ship(GATE.encode())
    assert run_module(module, capsys, **site.args("inspected"))["status"] == "not_applied"


def test_a_file_edited_elsewhere_keeps_its_edits(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    mine = GATE + "\nMINE = 1\n"
    site.file.write_text(mine)
    found = run_module(module, capsys, **site.args())
    assert (found["status"], found["pristine"]) == ("not_applied", False)
    assert site.file.read_text() == FIXED + "\nMINE = 1\n"
    run_module(module, capsys, **site.args("absent"))
    assert site.file.read_text() == mine


def test_somebodys_sed_is_applied(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["sed", "-i", 's/# "flashinfer_cutlass"/"flashinfer_cutlass"/', str(site.file)], check=True)
    assert run_module(module, capsys, **site.args())["status"] == "applied"
    assert run_module(module, capsys, **site.args("absent"))["pristine"] is True


def test_a_version_that_ships_the_item_is_not_needed(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.ship(FIXED.encode())
    for state in ("present", "absent"):
        found = run_module(module, capsys, **site.args(state))
        assert (found["status"], found["changed"]) == ("not_needed", False)
    assert site.file.read_text() == FIXED


def test_drift_fails_with_what_to_do(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.ship(GATE.replace("flashinfer_trtllm", "other").encode())
    before = site.file.stat()
    for state in ("present", "absent"):
        found = run_module(module, capsys, **site.args(state))
        assert found["failed"] is True
        assert found["status"] == "drifted"
        for part in ("0.5.9", "Expected", "Nearest lines", "Tried on: 0.5.9", "Nothing was changed"):
            assert part in found["msg"]
        assert "flashinfer_mxfp4" in found["nearest"]
    assert run_module(module, capsys, **site.args("inspected")).get("failed") is not True
    assert site.file.stat() == before


def test_an_untried_version_is_warned_about_or_refused(
    site: Site, capsys: pytest.CaptureFixture[str], warned: list[str]
) -> None:
    other = {"tried": ["0.5.8"]}
    refused = run_module(module, capsys, **site.args(patch=other), strict=True)
    assert refused["failed"] is True
    assert "not tried on it and strict is set; tried on 0.5.8" in refused["msg"]
    assert (refused["changed"], site.file.read_text()) == (False, GATE)
    assert not warned
    made = run_module(module, capsys, **site.args(patch=other))
    assert (made["changed"], made["tried"]) == (True, False)
    assert "was not tried on this version" in warned.pop()
    again = run_module(module, capsys, **site.args(patch=other), strict=True)
    assert (again["status"], again["changed"], warned) == ("applied", False, [])
    run_module(module, capsys, **site.args("absent"))
    run_module(module, capsys, **site.args())
    assert not warned


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        ({"edits": [{}]}, "one of the following is required"),
        ({"edits": [{**enable(), **replace("a", "b")}]}, "mutually exclusive"),
        ({"edit": []}, "Unsupported parameters"),
        ({"file": "../x.py"}, "relative to site-packages"),
    ],
)
def test_wrong_patches(site: Site, capsys: pytest.CaptureFixture[str], patch: dict[str, Any], says: str) -> None:
    assert says in run_module(module, capsys, **site.args(patch=patch))["msg"]


# --- how the package is installed


@pytest.mark.parametrize("missing", ["package", "site-packages"])
def test_a_package_that_is_not_there(site: Site, capsys: pytest.CaptureFixture[str], missing: str) -> None:
    args = site.args(patch={"package": "vllm", "file": "vllm/x.py"} if missing == "package" else {})
    if missing == "site-packages":
        args["site_packages"] = str(site.home / "no")
    found = run_module(module, capsys, **args)
    assert found["failed"] is True
    assert "vllm is not installed in" in found["msg"] or "is not a directory" in found["msg"]
    planned = run_module(module, capsys, check=True, **args)
    assert (planned["status"], planned["changed"]) == ("not_installed", True)


def test_metadata_twice_is_refused(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(site.info, site.path / "sglang-0.5.10.dist-info")
    assert "more than once" in run_module(module, capsys, **site.args())["msg"]


def test_a_name_spelt_otherwise(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.info.rename(site.path / "SG_Lang-0.5.9.dist-info")
    assert run_module(module, capsys, **site.args(patch={"package": "sg.lang"}))["package_version"] == "0.5.9"


def editable(site: Site, checkout: Path, how: str) -> None:
    """Turn the site's package into an editable install of a checkout."""
    (checkout / "python").mkdir(parents=True)
    shutil.move(site.file.parent, checkout / "python/sglang")
    record = ["sglang-0.5.9.dist-info/METADATA,,"]
    if how == "pth":
        (site.path / "__editable__.sglang-0.5.9.pth").write_text(f"{checkout}/python\n")
        record.append("__editable__.sglang-0.5.9.pth,,")
    elif how == "finder":
        (site.path / "__editable__.sglang-0.5.9.pth").write_text(
            "import __editable___sglang_finder; __editable___sglang_finder.install()\n"
        )
        (site.path / "__editable___sglang_finder.py").write_text(
            f"MAPPING: dict[str, str] = {{'sglang': '{checkout}/python/sglang'}}\n"
        )
        record += ["__editable__.sglang-0.5.9.pth,,", "__editable___sglang_finder.py,,"]
    elif how == "direct_url":
        (site.info / "direct_url.json").write_text(
            json.dumps({"url": f"file://{checkout}/python", "dir_info": {"editable": True}})
        )
    elif how == "egg-link":
        shutil.rmtree(site.info)
        (site.path / "sglang.egg-link").write_text(f"{checkout}/python\n.\n")
        (checkout / "python/sglang.egg-info").mkdir()
        (checkout / "python/sglang.egg-info/PKG-INFO").write_text("Name: sglang\nVersion: 0.5.9\n")
    if site.info.exists():
        (site.info / "RECORD").write_text("\n".join(record) + "\n")


def git(folder: Path, *argv: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "core.autocrlf=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *argv], check=True, capture_output=True)


@pytest.mark.parametrize("how", ["pth", "finder", "direct_url", "egg-link"])
def test_an_editable_install_is_followed_to_its_source(
    site: Site, capsys: pytest.CaptureFixture[str], tmp_path: Path, how: str
) -> None:
    checkout = tmp_path / "src"
    editable(site, checkout, how)
    source = checkout / "python/sglang/gate.py"
    found = run_module(module, capsys, **site.args())
    assert (found["install"], found["path"], found["package_version"]) == ("editable", str(source), "0.5.9")
    assert found["pristine"] is None
    assert source.read_text() == FIXED

    run_module(module, capsys, **site.args("absent"))
    git(checkout, "init", "-q")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "x")
    assert run_module(module, capsys, **site.args("inspected"))["pristine"] is True
    assert run_module(module, capsys, **site.args())["pristine"] is False
    assert run_module(module, capsys, **site.args("absent"))["pristine"] is True
    assert source.read_text() == GATE


def test_an_edit_committed_to_a_fork_is_the_packages_own(
    site: Site, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    editable(site, tmp_path / "src", "pth")
    (tmp_path / "src/python/sglang/gate.py").write_text(FIXED)
    git(tmp_path / "src", "init", "-q")
    git(tmp_path / "src", "add", ".")
    git(tmp_path / "src", "commit", "-qm", "x")
    assert run_module(module, capsys, **site.args("absent"))["status"] == "not_needed"


def test_a_source_checkout_without_metadata(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(site.info)
    found = run_module(module, capsys, **site.args())
    assert (found["install"], found["package_version"], found["changed"]) == ("checkout", None, True)
    site.file.with_name("version.py").write_text('__version__ = "0.5.9"\n')
    assert run_module(module, capsys, **site.args())["package_version"] == "0.5.9"


# --- what is kept


def test_a_hard_link_is_never_written_through(site: Site, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cache, other = tmp_path / "cache.py", tmp_path / "other-venv.py"
    os.link(site.file, cache)
    os.link(site.file, other)
    inode = cache.stat().st_ino
    run_module(module, capsys, **site.args())
    assert site.file.read_text() == FIXED
    assert (cache.read_text(), other.read_text()) == (GATE, GATE)
    assert cache.stat().st_ino == other.stat().st_ino == inode != site.file.stat().st_ino
    run_module(module, capsys, **site.args("absent"))
    assert (cache.stat().st_ino, cache.stat().st_nlink) == (inode, 2)


@pytest.mark.parametrize(
    "source",
    [
        GATE.encode(),
        GATE.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + GATE.encode(),
        b"\xef\xbb\xbf" + GATE.replace("\n", "\r\n").encode(),
        GATE.rstrip("\n").encode(),
        ("# -*- coding: latin-1 -*-\n# \xe9\n" + GATE).encode("latin-1"),
    ],
    ids=["plain", "crlf", "bom", "bom and crlf", "no final newline", "latin-1"],
)
def test_line_ends_and_encoding_survive(site: Site, capsys: pytest.CaptureFixture[str], source: bytes) -> None:
    site.ship(source)
    run_module(module, capsys, **site.args())
    assert site.file.read_bytes() == source.replace(b'# "flashinfer_cutlass"', b'"flashinfer_cutlass"')
    assert run_module(module, capsys, **site.args("absent"))["pristine"] is True
    assert site.file.read_bytes() == source


@pytest.mark.parametrize("mode", [0o640, 0o444, 0o755])
def test_mode_survives(site: Site, capsys: pytest.CaptureFixture[str], mode: int) -> None:
    site.file.chmod(mode)
    run_module(module, capsys, **site.args())
    assert site.file.read_text() == FIXED
    assert site.file.stat().st_mode & 0o7777 == mode


@root_only
def test_owner_survives(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    os.chown(site.file, 12345, 54321)
    site.file.chmod(0o2755)
    run_module(module, capsys, **site.args())
    found = site.file.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (12345, 54321, 0o2755)


def test_extended_attributes_survive(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        os.setxattr(site.file, "user.note", b"kept")
    except OSError as error:
        pytest.skip(f"no extended attributes here: {error}")
    run_module(module, capsys, **site.args())
    assert site.file.read_text() == FIXED
    assert os.getxattr(site.file, "user.note") == b"kept"


def test_selinux_context_is_set_as_an_attribute(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SELinux keeps the context in security.selinux; machines without it are stood in for."""
    attributes = {"origin": {"security.selinux": b"system_u:object_r:lib_t:s0"}, "new": {"security.selinux": b"tmp_t"}}
    monkeypatch.setattr(os, "listxattr", lambda path: list(attributes[path]))
    monkeypatch.setattr(os, "getxattr", lambda path, name: attributes[path][name])
    monkeypatch.setattr(os, "setxattr", lambda path, name, value: attributes[path].update({name: value}))
    module.copy_attributes("origin", "new")
    assert attributes["new"] == attributes["origin"]


def test_an_owner_that_cannot_be_kept_is_refused(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchmod", refuse)
    found = run_module(module, capsys, **site.args())
    assert "Operation not permitted" in found["msg"]
    monkeypatch.undo()
    assert site.file.read_text() == GATE
    assert set(os.listdir(site.file.parent)) == {"gate.py", "__init__.py"}


def test_links_are_followed_and_stay_links(
    site: Site, capsys: pytest.CaptureFixture[str], tmp_path: Path, warned: list[str]
) -> None:
    real = tmp_path / "elsewhere/gate.py"
    real.parent.mkdir()
    site.file.rename(real)
    site.file.symlink_to(real)
    alias = tmp_path / "site"
    alias.symlink_to(site.path)
    found = run_module(module, capsys, **{**site.args(), "site_packages": str(alias)})
    assert found["path"] == str(real)
    assert site.file.is_symlink()
    assert alias.is_symlink()
    assert real.read_text() == FIXED
    assert "sees the change too" in warned[0]
    run_module(module, capsys, **{**site.args("absent"), "site_packages": str(alias)})
    assert site.file.is_symlink()
    assert real.read_text() == GATE


def test_a_linked_site_packages_alone_is_no_reason_to_warn(
    site: Site, capsys: pytest.CaptureFixture[str], tmp_path: Path, warned: list[str]
) -> None:
    (tmp_path / "site").symlink_to(site.path)
    found = run_module(module, capsys, **{**site.args(), "site_packages": str(tmp_path / "site")})
    assert (found["changed"], warned) == (True, [])


def test_a_damaged_kept_copy_is_not_trusted(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    kept = Path(run_module(module, capsys, **site.args())["backup"])
    kept.write_text("broken")
    run_module(module, capsys, **site.args("absent"))
    assert site.file.read_text() == GATE
    run_module(module, capsys, **site.args())
    assert kept.read_text() == GATE


# --- compiled files

FLAGS = ["TIMESTAMP", "CHECKED_HASH", "UNCHECKED_HASH"]
COUNT = "def value():\n    return 1\n"


def value(site: Site) -> str:
    """What an interpreter that imports the package gets."""
    program = "import sglang.gate; print(sglang.gate.value())"
    environment = {**os.environ, "PYTHONPATH": str(site.path)}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("flag", FLAGS)
def test_stale_compiled_files_go(site: Site, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    """Same size, and the old file's time is the very second of the edit."""
    site.ship(COUNT.encode())
    soon = int(time.time()) + 1
    os.utime(site.file, (soon, soon))
    for level in (0, 1, 2):
        py_compile.compile(str(site.file), optimize=level, invalidation_mode=py_compile.PycInvalidationMode[flag])
    assert value(site) == "1"
    time.sleep(max(0.0, soon + 0.05 - time.time()))
    edits = [replace("    return 1", "    return 2")]
    run_module(module, capsys, **site.args(patch={"edits": edits}))
    assert module.compiled_files(str(site.file)) == []
    assert value(site) == "2"
    run_module(module, capsys, **site.args("absent", patch={"edits": edits}))
    assert value(site) == "1"


def test_a_stale_unchecked_file_is_found_on_a_later_run(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """As left by a hand edit, or by a run that was killed after the rename."""
    site.ship(COUNT.encode())
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(site.file), invalidation_mode=mode)
    site.file.write_text(COUNT.replace("1", "2"))
    assert value(site) == "1", "the old text is run: the reason for all this"
    args = site.args(patch={"edits": [replace("    return 1", "    return 2")]})
    seen = run_module(module, capsys, check=True, **args)
    assert (seen["status"], seen["changed"]) == ("applied", True)
    assert value(site) == "1"
    found = run_module(module, capsys, **args)
    assert (found["status"], found["changed"]) == ("applied", True)
    assert "compiled files" in found["message"]
    assert value(site) == "2"
    py_compile.compile(str(site.file), invalidation_mode=mode)
    assert run_module(module, capsys, **args)["changed"] is False, "a current one stays"
    assert len(module.compiled_files(str(site.file))) == 1


# --- what goes wrong


def processes(commands: list[list[str]]) -> list[dict[str, Any]]:
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    return [json.loads(process.communicate()[0]) for process in running]


def test_two_runs_at_once(site: Site) -> None:
    results = processes([command(site)] * 4)
    assert sorted(result["changed"] for result in results) == [False, False, False, True]
    assert site.file.read_text() == FIXED
    results = processes([command(site), command(site, "absent")] * 2)
    assert not any(result.get("failed") for result in results)
    assert site.file.read_text() in (GATE, FIXED)
    assert {path.name for path in site.file.parent.iterdir()} - {"__pycache__"} == {"gate.py", "__init__.py"}


def test_a_run_waits_for_the_other_one(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.1)
    with (
        module.locked(str(site.file), True),
        pytest.raises(module.Refused, match="locked by another run"),
        module.locked(str(site.file), True),
    ):
        pytest.fail("the lock was given twice")
    with module.locked(str(site.file), True):
        pass


def test_somebody_else_writes_in_between(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = module.fill_temporary

    def pip_comes_by(folder: str, name: str, *rest: Any) -> str:
        temporary = fill(folder, name, *rest)
        if folder == str(site.file.parent):
            site.ship(b"x = 1\n")
        return temporary

    monkeypatch.setattr(module, "fill_temporary", pip_comes_by)
    found = run_module(module, capsys, **site.args())
    assert "changed by somebody else" in found["msg"]
    assert site.file.read_text() == "x = 1\n"
    assert set(os.listdir(site.file.parent)) == {"gate.py", "__init__.py"}


@contextlib.contextmanager
def mounted(path: Path, options: str) -> Iterator[None]:
    path.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


@root_only
def test_a_read_only_mount(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mounted(tmp_path / "mnt", "size=1m"):
        site = Site(tmp_path / "mnt/venv")
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "mnt")], check=True)
        args = site.args(backup_dir=str(tmp_path / "kept"))
        found = run_module(module, capsys, **args)
        assert "Read-only file system" in found["msg"]
        assert "nothing was changed" in found["msg"]
        assert site.file.read_text() == GATE
        assert run_module(module, capsys, check=True, **args)["changed"] is True
        kept = run_module(module, capsys, **site.args(backup_dir=str(tmp_path / "mnt/kept")))
        assert "cannot be kept in" in kept["msg"]


@root_only
@pytest.mark.parametrize("full", ["site", "kept"])
def test_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str], full: str) -> None:
    with mounted(tmp_path / "mnt", "size=256k"):
        source = (GATE + "# filler\n" * 2000).encode()
        site = Site(tmp_path / ("mnt/venv" if full == "site" else "venv"), source)
        kept = tmp_path / ("mnt/kept" if full == "kept" else "kept")
        with contextlib.suppress(OSError), (tmp_path / "mnt/filler").open("wb", buffering=0) as handle:
            while True:
                handle.write(b"x" * 4096)
        found = run_module(module, capsys, **site.args(backup_dir=str(kept)))
        assert "No space left on device" in found["msg"]
        assert "nothing was changed" in found["msg"]
        assert site.file.read_bytes() == source
        assert set(os.listdir(site.file.parent)) == {"gate.py", "__init__.py"}
        (tmp_path / "mnt/filler").unlink()
        assert run_module(module, capsys, **site.args(backup_dir=str(kept)))["changed"] is True
        assert site.file.read_bytes() == source.replace(b'# "flashinfer_cutlass"', b'"flashinfer_cutlass"')


CALLS = [
    "open",
    "fsync",
    "fchmod",
    "fchown",
    "utime",
    "replace",
    "unlink",
    "close",
    "listdir",
    "stat",
    "mkdir",
    "listxattr",
]


def run_and_die(site: Site, at: int) -> bool:
    """Run the module in a child that kills itself before its call number `at` to the operating system; False if it ended."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        count = 0

        def counted(call: Any) -> Any:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **kwargs)

            return wrapper

        try:
            with patch_module_args(site.args()):
                for name in CALLS:
                    setattr(os, name, counted(getattr(os, name)))
                module.main()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def check_recovery(site: Site, capsys: pytest.CaptureFixture[str]) -> str:
    """After a kill the file is whole, and the next run ends the work and leaves nothing behind."""
    found = site.file.read_text()
    assert found in (COUNT, COUNT.replace("1", "2"))
    after = run_module(module, capsys, **site.args())
    assert "failed" not in after
    assert site.file.read_text() == COUNT.replace("1", "2")
    assert {path.name for path in site.file.parent.iterdir()} - {"__pycache__"} == {"gate.py", "__init__.py"}
    assert value(site) == "2"
    again = run_module(module, capsys, **site.args())
    assert (again["status"], again["changed"]) == ("applied", False)
    return "old" if found == COUNT else "new"


class CountSite(Site):
    """A site whose stale compiled file would be run unasked."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, COUNT.encode())
        py_compile.compile(str(self.file), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)

    def args(self, state: str = "present", **more: Any) -> dict[str, Any]:
        return super().args(state, patch={"edits": [replace("    return 1", "    return 2")], "show": []}, **more)


def test_killed_before_any_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: collections.Counter[str] = collections.Counter()
    at = 1
    while True:
        site = CountSite(tmp_path / str(at))
        if not run_and_die(site, at):
            break
        seen[check_recovery(site, capsys)] += 1
        at += 1
    assert at > 25
    assert seen["old"] > 10
    assert seen["new"] > 3


CHANGING = {"openat", "write", "fsync", "fchmod", "utimensat", "rename", "unlink", "mkdir"}


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_killed_between_any_two_system_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same with the kernel's own calls, every one that changes something after the lock is taken."""
    site = CountSite(tmp_path / "traced")
    trace = tmp_path / "trace"
    done = subprocess.run(["strace", "-o", str(trace), *command(site)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"strace does not work here: {done.stderr.decode()[:200]}")
    counts: collections.Counter[str] = collections.Counter()
    kills, armed = [], False
    for line in trace.read_text().splitlines():
        name = line.partition("(")[0]
        counts[name] += 1
        armed = armed or name == "flock"
        if armed and name in CHANGING:
            kills.append((name, counts[name]))
    assert len(kills) > 15
    seen: collections.Counter[str] = collections.Counter()
    for index, (name, when) in enumerate(kills):
        site = CountSite(tmp_path / f"run{index:03d}")
        inject = f"inject={name}:signal=KILL:when={when}"
        done = subprocess.run(
            ["strace", "-o", os.devnull, "-e", inject, *command(site)], capture_output=True, check=False
        )
        assert done.returncode == -signal.SIGKILL, (name, when)
        seen[check_recovery(site, capsys)] += 1
    assert seen["old"]
    assert seen["new"]


# --- interpreters

NEW_SYNTAX = GATE + '\n\ndef f(x):\n    match x:\n        case 1:\n            return f"{x!r}"\n'


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter here that can parse nothing but list literals: as an old one meets new syntax."""
    monkeypatch.setattr(module.Parser, "_here", lambda *_: "Python 3.0 cannot parse it: invalid syntax (line 1)")


@pytest.mark.usefixtures("blind")
def test_source_newer_than_this_interpreter_is_read_with_the_environments(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = run_module(module, capsys, **site.args())
    assert lost["status"] == "drifted"
    assert "Python 3.0 cannot parse it" in lost["msg"]
    assert run_module(module, capsys, **site.args(python=sys.executable))["changed"] is True
    assert site.file.read_text() == FIXED
    site.ship((GATE + "def f(:\n").encode())
    found = run_module(module, capsys, **site.args(python=sys.executable))
    assert (
        f"Python {sys.version_info[0]}.{sys.version_info[1]} cannot parse it: invalid syntax (line 25)" in found["msg"]
    )


@pytest.mark.usefixtures("blind")
def test_the_environments_interpreter_is_found(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    (site.home / "bin").mkdir()
    (site.home / "bin/python").symlink_to(sys.executable)
    (site.home / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert run_module(module, capsys, **site.args())["changed"] is True


def test_an_interpreter_that_does_not_run(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    for python in ("/no/such/python", "/bin/false"):
        assert "give its path as 'python'" in run_module(module, capsys, **site.args(python=python))["msg"]
    assert site.file.read_text() == GATE


@pytest.mark.skipif(OLD_PYTHON is None, reason="no Python 3.9 here")
def test_on_python_39(site: Site) -> None:
    site.ship(NEW_SYNTAX.encode())
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(ansible.__file__).parents[1]),
    }
    lost = json.loads(
        subprocess.run(
            command(site, "present", OLD_PYTHON or ""), env=environment, capture_output=True, check=False
        ).stdout
    )
    assert "Python 3.9 cannot parse it" in lost["msg"]
    (site.home / "bin").mkdir()
    (site.home / "bin/python").symlink_to(sys.executable)
    (site.home / "pyvenv.cfg").write_text("home = /usr/bin\n")
    for state, changed in (("present", True), ("present", False), ("absent", True)):
        done = subprocess.run(command(site, state, OLD_PYTHON or ""), env=environment, capture_output=True, check=True)
        assert json.loads(done.stdout)["changed"] is changed
    assert site.file.read_text() == NEW_SYNTAX


def test_as_ansible_runs_it(site: Site, tmp_path: Path) -> None:
    """Out of a zip file, with a patch file by lookup, and the module's own source sent to another interpreter."""
    text = "def gate(name):\n    return f'{{ {name} }}'\n"
    site.ship(text.encode())
    edits = [replace("    return f'{{ {name} }}'", "    return f'{{ {name!r} }}'")]
    (tmp_path / "patch.yml").write_text(json.dumps({**site.args()["patch"], "edits": edits, "show": []}))
    task = {
        "python_source_patch": {
            "site_packages": str(site.path),
            "backup_dir": str(site.kept),
            "python": sys.executable,
            "patch": "{{ lookup('ansible.builtin.file', 'patch.yml') | from_yaml }}",
        },
        "register": "patch",
        "failed_when": "patch.status != 'not_applied' or not patch.changed",
    }
    play = {"hosts": "localhost", "gather_facts": False, "tasks": [task]}
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    argv = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", "-c", "local", "-vv"]
    argv += ["-e", f"ansible_python_interpreter={sys.executable}", str(tmp_path / "play.yml")]
    environment = {**os.environ, "ANSIBLE_LIBRARY": str(ROOT / "library"), "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(argv, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.file.read_text() == text.replace("{name}", "{name!r}")
