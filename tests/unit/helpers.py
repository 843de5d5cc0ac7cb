"""What several unit tests need: a module run in this process, as Ansible's own unit tests do, a small HTTP server, sources."""

from __future__ import annotations

import contextlib
import http.server
import importlib.machinery
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args


def tool(name: str) -> ModuleType:
    """Import a program of tools/, which have no .py suffix."""
    loader = importlib.machinery.SourceFileLoader(
        f"tool_{name}", str(Path(__file__).resolve().parents[2] / "tools" / name)
    )
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look their module up
    wrote, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = wrote
    return module


def documentation(module: Any, text: str) -> dict[str, Any]:
    """A module's DOCUMENTATION, EXAMPLES or RETURN, which is YAML; the first says of each option what the arguments do."""
    loaded = yaml.safe_load(text)
    if text is module.DOCUMENTATION:
        assert set(loaded["options"]) == set(module.SPEC)
        for name, option in loaded["options"].items():
            for key in ("type", "default", "required", "choices", "elements"):
                assert option.get(key) == module.SPEC[name].get(key), (name, key)
    return loaded


def run_module(module: Any, capsys: pytest.CaptureFixture[str], check: bool = False, **args: Any) -> dict[str, Any]:
    """The module's result, whether it ended well or failed."""
    with patch_module_args({**args, "_ansible_check_mode": check}), pytest.raises(SystemExit):
        module.main()
    return json.loads(capsys.readouterr().out)


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a small HTTP server on this machine's loopback, which ends with the block."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


SOURCES = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "sglang-rtxpro/sources"


def download(pin: str, name: str, kept: re.Pattern[str], *words: str) -> Path:
    """The folder `name` of the cache with the few files of a package (name==version) that are needed; the wheel is not kept."""
    folder = SOURCES / name
    if folder.is_dir():
        return folder
    SOURCES.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=SOURCES))
    try:
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        argv += ["--python-version", "3.12", *words, "--dest", str(scratch), pin]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        (wheel,) = scratch.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(scratch / "site", [name for name in archive.namelist() if kept.match(name)])
        try:
            (scratch / "site").rename(folder)
        except OSError:
            assert folder.is_dir(), "another test run was quicker"
    finally:
        shutil.rmtree(scratch)
    return folder


def scan_text(text: str, rules: list[dict[str, Any]], kernel: str = "", version: str = "") -> list[dict[str, Any]]:
    """What the doctor finds in the text of a log, and of kernel messages."""
    # Here, since the scenario weights takes this file without the project's own module_utils on Ansible's path.
    from ansible.module_utils import sglang_diagnose

    wanted = sglang_diagnose.signatures(rules)
    scans = [sglang_diagnose.scan(io.BytesIO(text.encode()), wanted)]
    if kernel:
        scans.append(sglang_diagnose.scan(io.BytesIO(kernel.encode()), wanted, "kernel"))
    return sglang_diagnose.findings(scans, rules, version)
