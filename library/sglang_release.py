#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Build a release of SGLang: a virtual environment of its own from a hash-locked stack."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_release
short_description: Build a release of SGLang from a hash-locked stack
version_added: "0.1.0"
description:
  - A release is a folder with its own virtual environment. It is built at its final path under the mark C(incomplete);
    patches and tuning files go in while the mark is there; O(state=sealed) takes the mark away, and from then on the
    release is never changed.
  - Everything is installed by a pinned uv from wheels whose hashes the lock names. uv keeps its cache beside the releases,
    so that releases share files by hard links and the next one is built in seconds.
  - A build that was interrupted is thrown away and made anew.
  - A sealed release in which a watched file has changed since is V(drifted). It may be what serves, so it is left as it is, and
    the release is built beside it as C(<path>.2), C(<path>.3) and so on. The path in use is returned.
options:
  path:
    description: The release's folder, as long as it has not drifted.
    type: path
    required: true
  state:
    description:
      - V(inspected) tells what is there.
      - V(built) makes the environment unless it is there. The mark stays.
      - V(sealed) takes the mark away. The release must be built.
    type: str
    choices: [inspected, built, sealed]
    default: built
  python:
    description: The interpreter that the environment is made from, a path or a name on PATH.
    type: str
    default: python3
  requirements:
    description: Text of the lock. Every requirement is pinned and carries its hashes. Needed with O(state=built).
    type: str
  torch:
    description:
      - Exact version of torch where the lock leaves torch out, as CPU stacks do. A local version such as V(2.13.0+cpu) can
        never match PyPI's CUDA build of several gigabytes.
    type: str
  cpu:
    description: Whether this is a stack without CUDA. A torch with CUDA in it is then refused.
    type: bool
    default: false
  wheelhouse:
    description: Folder of wheels on the node. When given, no index is asked.
    type: path
  index_url:
    description: Index (PEP 503) for everything but torch, when there is no O(wheelhouse).
    type: str
    default: https://pypi.org/simple
  torch_index_url:
    description: Index (PEP 503) for O(torch), when there is no O(wheelhouse).
    type: str
  uv:
    description: The pinned uv. C(version), C(file) (name of the wheel) and C(sha256).
    type: dict
  uv_dir:
    description: Where uv and its cache are kept.
    type: path
    default: /opt/sglang/uv
  files:
    description: Small files to put into site-packages. Each has C(path) (relative) and C(content).
    type: list
    elements: dict
    default: []
  links:
    description:
      - Symbolic links to make in site-packages, path to target. CUDA's wheels lack the names that linkers look for, such as
        C(libcudart.so).
    type: dict
    default: {}
  watch:
    description: Files of the release that were edited after the build. Their hashes are noted by O(state=sealed).
    type: list
    elements: path
    default: []
  describe:
    description: Facts to keep in C(release.json), such as the stack's name.
    type: dict
    default: {}
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Tells what would be built., details: []}
  diff_mode: {support: none, description: A release is built whole., details: []}
"""

EXAMPLES = r"""
- name: Build the release from wheels on the node
  sglang_release:
    path: /opt/sglang/releases/sglang-0.5.23-cu130-1a2b3c4d5e6f
    python: python3.12
    requirements: "{{ lookup('ansible.builtin.file', 'stacks/sglang-0.5.23-cu130/requirements-3.12.txt') }}"
    wheelhouse: /opt/sglang/wheelhouse
    uv: "{{ lookup('ansible.builtin.file', 'stacks/uv.yml') | from_yaml }}"

- name: Seal it
  sglang_release:
    path: /opt/sglang/releases/sglang-0.5.23-cu130-1a2b3c4d5e6f
    state: sealed
"""

RETURN = r"""
status:
  description: V(absent), V(incomplete) (a build that was interrupted), V(built) (under the mark) or V(sealed), after this run.
  type: str
  returned: always
path:
  description: The release's folder, with its number where earlier ones drifted.
  type: str
  returned: always
python:
  description: Path of the release's interpreter.
  type: str
  returned: always
site_packages:
  description: Path of the release's site-packages. Empty while there is no environment.
  type: str
  returned: always
seconds:
  description: Seconds that the build took, C(environment) and C(install) apart.
  type: dict
  returned: when built
packages:
  description: Number of packages that the lock pins.
  type: int
  returned: when built
torch:
  description: Wheel of torch that was installed beside the lock, C(file) and C(sha256).
  type: dict
  returned: when O(torch) is given and the release is there
"""

import contextlib
import fcntl
import glob
import hashlib
import html.parser
import http.client
import json
import os
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator

from ansible.module_utils.basic import AnsibleModule

MARK = "incomplete"
RECORD = "release.json"
LOCK_SECONDS, POLL_SECONDS = 3600, 0.5  # a CUDA release is 11 GB from an index


class ReleaseError(Exception):
    """A build that cannot go on. The text names the thing, what was expected and the remedy."""


def status(path: str) -> str:
    """What the folder holds: absent, incomplete, built, sealed or drifted."""
    if not os.path.isdir(path):
        return "absent"
    if not recorded(path) or not os.path.exists(os.path.join(path, "venv/bin/python")):
        return "incomplete"
    if os.path.exists(os.path.join(path, MARK)):
        return "built"
    watched = recorded(path).get("watched", {})
    return "drifted" if any(hash_or_nothing(file) != digest for file, digest in watched.items()) else "sealed"


def current(path: str) -> str:
    """The first of PATH, PATH.2, PATH.3 … that has not drifted."""
    number, candidate = 1, path
    while status(candidate) == "drifted":
        number += 1
        candidate = f"{path}.{number}"
    return candidate


def pinned(requirements: str) -> dict[str, str]:
    """Names (normalised as in PEP 503) and versions that a lock pins."""
    found = re.findall(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", requirements, re.M)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def missing_wheels(pins: dict[str, str], files: list[str]) -> list[str]:
    """Pins that no wheel file of a folder serves, as name==version."""
    have = set()
    for name in files:
        parts = os.path.basename(name).split("-")
        if name.endswith(".whl") and len(parts) >= 5:
            have.add((re.sub(r"[-_.]+", "-", parts[0]).lower(), parts[1]))
    return sorted(f"{n}=={v}" for n, v in pins.items() if (n, v) not in have)


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hrefs += [value for name, value in attrs if tag == "a" and name == "href" and value]


def index_file(page: str, base: str, pattern: str) -> tuple[str, str]:
    """URL and sha256 of the first file on an index page (PEP 503) whose name matches, or two empty texts."""
    links = _Links()
    links.feed(page)
    for href in links.hrefs:
        url = urllib.parse.urljoin(base, href)
        split = urllib.parse.urlsplit(url)
        name = urllib.parse.unquote(os.path.basename(split.path))
        digest = re.search(r"sha256=([0-9a-f]{64})", split.fragment)
        if re.fullmatch(pattern, name) and digest:
            return urllib.parse.urlunsplit(split._replace(fragment="")), digest.group(1)
    return "", ""


def torch_pattern(version: str, python: str) -> str:
    """Names that the wheel of this torch may have for CPython `python` (as 3.11) on Linux x86_64."""
    tag = "cp" + python.replace(".", "")
    return rf"torch-{re.escape(version)}-{tag}-{tag}-(?:manylinux\w+_|linux_)x86_64\.whl"


def torch_cuda(version_py: str) -> str | None:
    """The CUDA version that a torch/version.py declares; None for a CPU build."""
    found = re.search(r"^cuda\s*(?::[^=]*)?=\s*(.+)$", version_py, re.M)
    value = found.group(1).strip().strip("'\"") if found else "None"
    return None if value == "None" else value


def sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def hash_or_nothing(path: str) -> str:
    try:
        return sha256(path)
    except OSError:
        return ""


def fetch(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.read()
    except OSError as error:
        raise ReleaseError(
            f"{url} cannot be fetched: {error}. Check the node's network and index, or send the wheels: sglang_env_wheelhouse."
        ) from error


class Build:
    """One build; every step raises ReleaseError with its own words."""

    def __init__(self, module: AnsibleModule, path: str) -> None:
        self.params = module.params
        self.path = path
        self.venv = os.path.join(path, "venv")
        self.python_version = ""
        self.wheelhouse: str | None = module.params["wheelhouse"]

    def judge(self) -> None:
        """Raise what stands against it before anything is sent, fetched or made."""
        if self.params["torch"] and not self.wheelhouse and not self.params["torch_index_url"]:
            stack = self.params["describe"].get("stack", "STACK")
            raise ReleaseError(
                f"This stack runs on torch=={self.params['torch']}, a CPU build; the default index has only the CUDA build of "
                f"several gigabytes, so nothing is fetched. Fill a folder on the controller (tools/wheelhouse {stack}) and name it "
                "with sglang_env_wheelhouse, or name an index that has this build with sglang_env_torch_index_url."
            )

    def run(self) -> None:
        self.judge()
        pins = pinned(self.params["requirements"])
        if not pins:
            raise ReleaseError(
                "The lock pins nothing. Expected lines name==version with hashes, as `make locks` writes them."
            )
        python = self.interpreter()
        if self.wheelhouse:
            self.check_wheelhouse(pins)
        torch = self.find_torch() if self.params["torch"] else None
        uv = self.uv()
        if os.path.isdir(self.path):
            shutil.rmtree(self.path)
        os.makedirs(self.path)
        open(os.path.join(self.path, MARK), "w").close()
        started = time.monotonic()
        self.command([uv, "venv", "--quiet", "--no-config", "--no-python-downloads", "--python", python, self.venv])
        made = time.monotonic()
        self.install(uv, torch)
        site = site_packages(self.path)
        if self.params["cpu"]:
            self.refuse_cuda(site)
        for extra in self.params["files"]:
            target = os.path.join(site, extra["path"])
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "w", encoding="utf-8") as stream:
                stream.write(extra["content"])
        for name, target in self.params["links"].items():
            link(os.path.join(site, name), target)
        facts = {
            "packages": len(pins) + bool(torch),
            "seconds": {"environment": round(made - started, 1), "install": round(time.monotonic() - made, 1)},
            "torch": {"file": torch["file"], "sha256": torch["sha256"]} if torch else None,
            "lock_sha256": hashlib.sha256(self.params["requirements"].encode()).hexdigest(),
            **self.params["describe"],
        }
        record(self.path, facts)

    def interpreter(self) -> str:
        python = self.params["python"]
        found = shutil.which(python)
        if not found:
            raise ReleaseError(
                f"The node has no {python}, which this stack's lock was made for. Install it, or choose another of the stack's "
                "locks with sglang_env_python_version."
            )
        code = "import sys, platform; print('%d.%d' % sys.version_info[:2], platform.machine())"
        self.python_version, machine = self.command([found, "-c", code]).split()
        if machine != "x86_64":
            raise ReleaseError(f"The node is {machine}; the locks are for x86_64.")
        return found

    def check_wheelhouse(self, pins: dict[str, str]) -> None:
        files = os.listdir(self.wheelhouse) if os.path.isdir(str(self.wheelhouse)) else []
        lacking = missing_wheels(pins, files)
        if lacking:
            some = ", ".join(lacking[:8]) + (f" and {len(lacking) - 8} more" if len(lacking) > 8 else "")
            raise ReleaseError(
                f"The wheelhouse {self.wheelhouse} lacks {len(lacking)} of {len(pins)} wheels: {some}. "
                f"Fill it on the controller: tools/wheelhouse {self.params['describe'].get('stack', 'STACK')}"
            )

    def find_torch(self) -> dict[str, str]:
        """File name, URL and sha256 of torch's wheel: the version must match to the local part."""
        version = self.params["torch"]
        pattern = torch_pattern(version, self.python_version)
        if self.wheelhouse:
            for name in sorted(os.listdir(self.wheelhouse)):
                if re.fullmatch(pattern, name):
                    path = os.path.join(self.wheelhouse, name)
                    return {"file": name, "url": "file://" + urllib.parse.quote(path), "sha256": sha256(path)}
            raise ReleaseError(
                f"The wheelhouse {self.wheelhouse} has no torch=={version} for Python {self.python_version}. "
                "Fill it on the controller with tools/wheelhouse, --torch-index naming an index that has this build."
            )
        base = self.params["torch_index_url"].rstrip("/") + "/torch/"
        url, digest = index_file(fetch(base).decode(errors="replace"), base, pattern)
        if not url:
            raise ReleaseError(f"{base} lists no torch=={version} for Python {self.python_version} with a sha256.")
        return {"file": urllib.parse.unquote(os.path.basename(url)), "url": url, "sha256": digest}

    def uv(self) -> str:
        """The pinned uv binary, taken out of its wheel once."""
        pin, folder = self.params["uv"], self.params["uv_dir"]
        binary = os.path.join(folder, f"uv-{pin['version']}")
        if os.path.isfile(binary):
            return binary
        os.makedirs(folder, exist_ok=True)
        wheel = os.path.join(self.wheelhouse, pin["file"]) if self.wheelhouse else os.path.join(folder, pin["file"])
        if not self.wheelhouse:
            base = self.params["index_url"].rstrip("/") + "/uv/"
            url, _digest = index_file(fetch(base).decode(errors="replace"), base, re.escape(pin["file"]))
            if not url:
                raise ReleaseError(f"{base} does not list {pin['file']}, the uv that stacks/uv.yml pins.")
            with open(wheel, "wb") as stream:
                stream.write(fetch(url))
        if not os.path.isfile(wheel):
            raise ReleaseError(
                f"The wheelhouse {self.wheelhouse} lacks {pin['file']}. Fill it on the controller: tools/wheelhouse."
            )
        if sha256(wheel) != pin["sha256"]:
            raise ReleaseError(f"{wheel} does not have the sha256 that stacks/uv.yml names. Delete it and run again.")
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
            data = archive.read(member)
        temporary = f"{binary}.{os.getpid()}"
        with open(temporary, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, 0o755)
        os.replace(temporary, binary)
        if not self.wheelhouse:
            os.unlink(wheel)
        return binary

    def install(self, uv: str, torch: dict[str, str] | None) -> None:
        lock = os.path.join(self.path, "requirements.txt")
        with open(lock, "w", encoding="utf-8") as stream:
            stream.write(self.params["requirements"].rstrip("\n") + "\n")
            if torch:
                stream.write(f"torch @ {torch['url']} --hash=sha256:{torch['sha256']}\n")
        source = (
            ["--no-index", "--find-links", self.wheelhouse]
            if self.wheelhouse
            else ["--index-url", self.params["index_url"]]
        )
        argv = [uv, "pip", "install", "--quiet", "--no-config", "--python", self.venv, "--no-deps", "--require-hashes"]
        self.command([*argv, "--only-binary", ":all:", "--compile-bytecode", *source, "-r", lock])

    def refuse_cuda(self, site: str) -> None:
        version_py = os.path.join(site, "torch", "version.py")
        if not os.path.isfile(version_py):
            raise ReleaseError("The stack is for a CPU and brings no torch. Set torch in its stack.yml.")
        with open(version_py, encoding="utf-8") as stream:
            cuda = torch_cuda(stream.read())
        if cuda:
            raise ReleaseError(f"torch in {site} is built for CUDA {cuda}; this stack is for a CPU build.")

    def command(self, argv: list[str]) -> str:
        # A cache on the releases' own file system is what makes hard links possible.
        cache = os.path.join(self.params["uv_dir"], "cache")
        # The node's own certificates: an index may stand behind a company's authority.
        environment = dict(os.environ, UV_CACHE_DIR=cache, UV_COMPILE_BYTECODE_TIMEOUT="600", UV_SYSTEM_CERTS="1")
        done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            told = "\n".join((done.stderr or done.stdout).strip().splitlines()[-20:])
            raise ReleaseError(f"`{os.path.basename(argv[0])} {' '.join(argv[1:3])}` failed in {self.path}: {told}")
        return done.stdout


def link(path: str, target: str) -> None:
    """A link whose target is there: one that dangles would show as a linker's error, minutes into a start."""
    if not os.path.exists(os.path.join(os.path.dirname(path), target)):
        raise ReleaseError(
            f"{path} would be a link to {target}, which the stack did not install. Correct `links` in its stack.yml."
        )
    if not os.path.lexists(path):
        os.symlink(target, path)


def site_packages(path: str) -> str:
    found = sorted(glob.glob(os.path.join(path, "venv/lib/python3*/site-packages")))
    return found[0] if found else ""


def record(path: str, facts: dict) -> None:
    temporary = os.path.join(path, RECORD + ".new")
    with open(temporary, "w", encoding="utf-8") as stream:
        json.dump(facts, stream, indent=1, sort_keys=True)
    os.replace(temporary, os.path.join(path, RECORD))


def recorded(path: str) -> dict:
    try:
        with open(os.path.join(path, RECORD), encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        return {}


def seal(path: str, before: str, watch: list[str]) -> None:
    if before != "built":
        raise ReleaseError(f"it is {before}; only a built release can be sealed. Run deploy.yml from its start.")
    record(path, {**recorded(path), "watched": {file: sha256(file) for file in watch}})
    os.unlink(os.path.join(path, MARK))


@contextlib.contextmanager
def lock(module: AnsibleModule, take: bool) -> Iterator[None]:
    """One build at a time in the folder of the releases. Another one is waited for as long as a build may take."""
    if not take:
        yield
        return
    folder, until = os.path.dirname(module.params["path"]), time.monotonic() + LOCK_SECONDS
    os.makedirs(folder, exist_ok=True)
    name = os.path.join(folder, ".lock")
    with open(name, "w", encoding="utf-8") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    module.fail_json(
                        msg=f"Another build held {name} for {LOCK_SECONDS} s. Let it end and run again; if it hangs, "
                        f"`fuser {name}` on the node names the process to end."
                    )
                time.sleep(POLL_SECONDS)
        yield


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["inspected", "built", "sealed"], "default": "built"},
            "python": {"type": "str", "default": "python3"},
            "requirements": {"type": "str"},
            "torch": {"type": "str"},
            "cpu": {"type": "bool", "default": False},
            "wheelhouse": {"type": "path"},
            "index_url": {"type": "str", "default": "https://pypi.org/simple"},
            "torch_index_url": {"type": "str"},
            "uv": {"type": "dict"},
            "uv_dir": {"type": "path", "default": "/opt/sglang/uv"},
            "files": {"type": "list", "elements": "dict", "default": []},
            "links": {"type": "dict", "default": {}},
            "watch": {"type": "list", "elements": "path", "default": []},
            "describe": {"type": "dict", "default": {}},
        },
        required_if=[("state", "built", ["requirements", "uv"])],
        supports_check_mode=True,
    )
    os.umask(0o022)  # the server's user must be able to run what is made here
    state, changed = module.params["state"], False
    # Two servers on one node may want the same release at the same time: one builds, the other finds it built.
    with lock(module, take=state != "inspected" and not module.check_mode):
        path = current(module.params["path"])
        before = status(path)
        try:
            if state == "built" and before not in ("built", "sealed"):
                changed = True
                build = Build(module, path)
                build.judge() if module.check_mode else build.run()
            elif state == "sealed" and before != "sealed":
                changed = True
                if not module.check_mode:
                    seal(path, before, module.params["watch"])
        except (ReleaseError, OSError, http.client.HTTPException, zipfile.BadZipFile) as error:
            if state == "built":
                # Nothing may be taken for a release that is not one; the next run starts anew.
                shutil.rmtree(path, ignore_errors=True)
            module.fail_json(msg=f"{path}: {error}", status=status(path))
    facts = recorded(path)
    module.exit_json(
        changed=changed,
        status={"built": "built", "sealed": "sealed"}.get(state, before)
        if module.check_mode and changed
        else status(path),
        path=path,
        python=os.path.join(path, "venv/bin/python"),
        site_packages=site_packages(path),
        **{key: facts[key] for key in ("seconds", "packages", "torch") if facts.get(key) is not None},
    )


if __name__ == "__main__":
    main()
