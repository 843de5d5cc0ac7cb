# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""A model's weights: what a whole folder is, the hashes kept beside it, and the program that brings it from elsewhere.

The folder that is made lies beside the one that is wanted (`PATH.incomplete`) and takes its name only when every file has the hash
that its source says. What was hashed is remembered with size, time and inode of the file, so that it is done once.

This file is a program too: `python sglang_weights.py`, with a question in JSON on its standard input, brings or hashes a folder
(module_utils/sglang_job.py follows it); `python sglang_weights.py serve CONFIG SECONDS` runs a node's rsync daemon for as long as
somebody takes from it. Plain Python 3.9; only a hub is asked with huggingface_hub of the Python that runs it.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterable, Iterator
from urllib.parse import urlsplit

# Beside the weights, hidden: {"schema", "origin", "files": {name: {"bytes", "sha256", "stamp"}}}.
MANIFEST = ".sglang-weights.json"
SCHEMA = 1
# Ends the name of a folder or a file that is not whole; a hub's client uses the same.
PART = ".incomplete"
# A header is JSON of a few MB at the most; a longer one is a file that is no safetensors file.
LONGEST_HEADER = 100 << 20
PIECE = 4 << 20
# A name that is handed to rsync, which would take other characters for patterns, and becomes a path here.
NAME = re.compile(r"(?!.*(?:^|/)\.)[\w.+=@,-]+(?:/[\w.+=@,-]+)*", re.ASCII)
# Other forms of the same weights, which SGLang does not load where there are safetensors; the hub's own pages.
IGNORED = [
    "*.bin",
    "*.pt",
    "*.pth",
    "*.gguf",
    "*.onnx",
    "*.h5",
    "*.msgpack",
    "*.tflite",
    "original/*",
    "*.md",
    "*.png",
    "*.jpg",
]
# Seconds: between two words of progress; that its speed is of.
PACE, WINDOW = 2.0, 20.0
# Seconds that a sender may refuse connections: longer than it takes to start, and then it is not there any more.
REFUSED = 20.0
# rsync's exit statuses (rsync(1)) that a link that comes back heals.
CUT = {10, 12, 20, 30, 35, -signal.SIGPIPE, 255}


class Fault(Exception):
    """What stands against it. The text names the thing, what was expected and the remedy."""


# --- a folder that is whole -----------------------------------------------------------------------------------------------


def safetensors_length(path: str) -> int:
    """Bytes that a safetensors file must have: 8, its header, and the end of the last tensor. ValueError when it is none.

    Format: https://github.com/huggingface/safetensors (8 bytes little-endian length, JSON header, data).
    """
    with open(path, "rb") as stream:
        prefix = stream.read(8)
        if len(prefix) < 8:
            raise ValueError("no header")
        (length,) = struct.unpack("<Q", prefix)
        if length > LONGEST_HEADER:
            raise ValueError("no safetensors header")
        try:
            header = json.loads(stream.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError("its header is cut or broken") from error
    return 8 + length + max(ends, default=0)


def config(path: str) -> dict | None:
    try:
        with open(f"{path}/config.json", encoding="utf-8") as stream:
            found = json.load(stream)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def partial(path: str) -> list[str]:
    """Files that a hub's client had not finished; it keeps them in hidden folders."""
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names if name.endswith(PART)]


def problems(path: str) -> list[str]:
    """What is missing or cut in a model's folder; empty when it is complete."""
    if not os.path.isdir(path):
        return [f"{path} does not exist"]
    found = [
        f"{name} is missing"
        for name in ("config.json", "tokenizer_config.json")
        if not os.path.isfile(f"{path}/{name}")
    ]
    if not found and config(path) is None:
        found.append("config.json cannot be read")
    found += [f"{os.path.relpath(part, path)} is a partial download" for part in partial(path)]
    names = {os.path.basename(name) for name in glob.glob(f"{glob.escape(path)}/*.safetensors")}
    index = f"{path}/model.safetensors.index.json"
    if os.path.isfile(index):
        try:
            with open(index, encoding="utf-8") as stream:
                wanted = set(json.load(stream)["weight_map"].values())
        except (ValueError, KeyError, AttributeError):
            return [*found, "model.safetensors.index.json cannot be read"]
        found += [f"{name} is missing" for name in sorted(wanted - names)]
    elif not names:
        found.append("there is no safetensors file")
    for name in sorted(names):
        size = os.path.getsize(f"{path}/{name}")
        try:
            wanted_size = safetensors_length(f"{path}/{name}")
        except ValueError as error:
            found.append(f"{name}: {error}")
            continue
        if size != wanted_size:
            found.append(f"{name} has {size} bytes, its header says {wanted_size}")
    return found


# --- hashes that are kept -------------------------------------------------------------------------------------------------


def stamp(path: str) -> list[int]:
    """What tells that a file was not touched since it was hashed: size in bytes, time of change in ns, inode."""
    facts = os.stat(path)
    return [facts.st_size, facts.st_mtime_ns, facts.st_ino]


def read_manifest(folder: str) -> dict[str, Any]:
    """The hashes kept beside a model; empty where there are none that can be read."""
    try:
        with open(os.path.join(folder, MANIFEST), encoding="utf-8") as stream:
            found = json.load(stream)
        for name, entry in found["files"].items():
            if not NAME.fullmatch(name) or not entry["sha256"] or entry["bytes"] < 0:
                return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return found if found.get("schema") == SCHEMA else {}


def write_manifest(folder: str, files: dict[str, dict[str, Any]], origin: str) -> None:
    path = os.path.join(folder, MANIFEST)
    text = json.dumps({"schema": SCHEMA, "origin": origin, "files": dict(sorted(files.items()))}, indent=1)
    with open(path + ".new", "w", encoding="utf-8") as stream:
        stream.write(text + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(path + ".new", path)


def digest(files: dict[str, dict[str, Any]]) -> str:
    """One text for all files of a model: two nodes with the same have the same weights. Empty where there are none."""
    if not files:
        return ""
    lines = [f"{entry['sha256']} {entry['bytes']} {name}\n" for name, entry in sorted(files.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def doubtful(folder: str, files: dict[str, dict[str, Any]]) -> list[str]:
    """Files that are not as they were when they were hashed: to be hashed again."""
    found = []
    for name, entry in files.items():
        try:
            if entry.get("stamp") == stamp(os.path.join(folder, name)):
                continue
        except OSError:
            pass
        found.append(name)
    return found


def work(path: str) -> str:
    """Where a job that brings or hashes a model is kept, beside it."""
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.job")


def names_of(folder: str) -> list[str]:
    """All files of a model, by their path in its folder; hidden ones are a client's or ours."""
    found = []
    for here, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and not name.endswith((PART, ".new")):
                found.append(os.path.relpath(os.path.join(here, name), folder))
    return sorted(found)


def sha256_of(path: str, git: bool = False) -> tuple[str, str]:
    """SHA-256 of a file, and where asked for its hash as a blob of git."""
    whole, blob = hashlib.sha256(), hashlib.sha1(usedforsecurity=False)
    if git:
        blob.update(f"blob {os.path.getsize(path)}\0".encode())
    with open(path, "rb") as stream:
        while piece := stream.read(PIECE):
            whole.update(piece)
            if git:
                blob.update(piece)
    return whole.hexdigest(), blob.hexdigest() if git else ""


# --- words ----------------------------------------------------------------------------------------------------------------


def size_text(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def span_text(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{int(minutes // 60)} h {minutes % 60:.0f} min"


def progress_text(done: int, total: int, how: str, speed: float) -> str:
    """Such as `12.3 of 433.0 GB from node-1, 812 MB/s, 9 min left`: with a host's name in front, below 80 columns."""
    unit, by = ("GB", 1e9) if total >= 1e8 else ("MB", 1e6)
    text = f"{done / by:.1f} of {total / by:.1f} {unit} {how}"
    if done >= total:
        return f"{text}, hashes are compared"
    if speed < 1e3:
        return text
    left = max(0, total - done) / speed
    return f"{text}, {speed / 1e6:.0f} MB/s, {span_text(left)} left"


def say(document: dict[str, Any]) -> None:
    # One write, so that threads do not mix.
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


class Progress:
    """Says how far it is while the block runs. `count` returns bytes that are there."""

    def __init__(self, total: int, how: str, count: Callable[[], int]) -> None:
        self.total, self.how, self.count = total, how, count
        self.seen: list[tuple[float, int]] = []
        self.grown = time.monotonic()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def look(self) -> None:
        now, done = time.monotonic(), self.count()
        if not self.seen or done != self.seen[-1][1]:
            self.grown = now
        self.seen = [entry for entry in self.seen if now - entry[0] <= WINDOW] + [(now, done)]
        since, before = self.seen[0]
        say({"progress": progress_text(done, self.total, self.how, (done - before) / max(0.1, now - since))})

    def _run(self) -> None:
        while not self.ended.wait(PACE):
            self.look()

    def __enter__(self) -> Progress:
        self.look()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()


# --- the folder that is made ----------------------------------------------------------------------------------------------


class Build:
    """`PATH.incomplete`, on its way to PATH. `files` are those that make up the model, with `bytes` and `sha256` (or `git`)."""

    def __init__(self, path: str, files: dict[str, dict[str, Any]], origin: str) -> None:
        self.path, self.folder, self.files, self.origin = path, path + PART, files, origin
        self.lock = threading.Lock()
        wrong = [name for name in files if not NAME.fullmatch(name)]
        if wrong:
            raise Fault(f"{wrong[0]!r} is no name of a file of a model. Look at the source, {origin}.")
        if not any(name.endswith(".safetensors") for name in files):
            raise Fault(f"{origin} holds no safetensors file. Expected a model that SGLang loads.")
        foreign = self.foreign()
        if foreign:
            raise Fault(
                f"{path} holds {', '.join(foreign[:3])}, which is no part of {origin}. It was left alone. Move it away, or name "
                "another folder with sglang_model_path."
            )
        os.makedirs(self.folder, exist_ok=True)
        # What is known of files that are there, ours and those of the folder that is to be replaced.
        self.known = read_manifest(path).get("files", {})
        self.made: dict[str, dict[str, Any]] = read_manifest(self.folder).get("files", {})
        self.right: set[str] = set()
        self.adopt()

    def at(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def foreign(self) -> list[str]:
        """Files of the folder that is to be replaced that the model does not have, and nobody calls a model's."""
        if not os.path.isdir(self.path):
            return []
        known = read_manifest(self.path).get("files", {})
        return [
            name
            for name in names_of(self.path)
            if name not in self.files and name not in known and not ignored(name, IGNORED)
        ]

    def adopt(self) -> None:
        """Take what is there already, by hard links: it is hashed like everything else, and never written to."""
        for name, wanted in self.files.items():
            there, here = os.path.join(self.path, name), self.at(name)
            os.makedirs(os.path.dirname(here), exist_ok=True)
            with contextlib.suppress(OSError):
                if not os.path.exists(here) and os.path.getsize(there) == wanted["bytes"]:
                    os.link(there, here)

    def remembered(self, name: str) -> str:
        """SHA-256 of a file that is there and was hashed before."""
        for files in (self.made, self.known):
            entry = files.get(name, {})
            with contextlib.suppress(OSError):
                if entry.get("stamp") == stamp(self.at(name)):
                    return str(entry["sha256"])
        return ""

    def holds(self, name: str) -> bool:
        """Whether a file is whole. One of its full length is hashed; with another hash it goes, and what was told says so."""
        wanted, here = self.files[name], self.at(name)
        if not os.path.isfile(here) or os.path.getsize(here) != wanted["bytes"]:
            return False
        known = self.remembered(name)
        if known and known == wanted.get("sha256"):
            self.note(name, known)
            return True
        found, blob = sha256_of(here, git="git" in wanted)
        right = blob == wanted["git"] if "git" in wanted else found == wanted["sha256"]
        if right:
            self.note(name, found)
            return True
        os.unlink(here)
        return False

    def note(self, name: str, found: str) -> None:
        with self.lock:
            self.right.add(name)
            entry = {"bytes": self.files[name]["bytes"], "sha256": found, "stamp": stamp(self.at(name))}
            if self.made.get(name) != entry:
                self.made[name] = entry
                write_manifest(self.folder, self.made, self.origin)

    def own(self, name: str) -> None:
        """A file that is to be written to must not be a link to one in use, nor longer than it will be."""
        with contextlib.suppress(FileNotFoundError):
            facts = os.stat(self.at(name))
            if facts.st_nlink > 1 or facts.st_size >= self.files[name]["bytes"]:
                os.unlink(self.at(name))

    def present(self) -> int:
        """Bytes that are there."""
        count = 0
        for name, wanted in self.files.items():
            for path in (self.at(name), self.at(name) + PART):
                with contextlib.suppress(OSError):
                    count += min(os.path.getsize(path), wanted["bytes"])
                    break
        return count

    @property
    def total(self) -> int:
        return sum(int(wanted["bytes"]) for wanted in self.files.values())

    def room(self) -> None:
        need = self.total - self.present()
        facts = os.statvfs(self.folder)
        free = facts.f_bavail * facts.f_frsize
        if need > free:
            raise Fault(no_room(self.path, need, free))

    def finish(self) -> None:
        """The folder takes its name: all of it is there, and right."""
        for part in partial(self.folder):
            os.unlink(part)
        for name in names_of(self.folder):
            if name not in self.files:
                os.unlink(self.at(name))
        for name in names_of(self.path):
            # A page or another form of the weights that somebody put there stays.
            with contextlib.suppress(OSError):
                os.makedirs(os.path.dirname(self.at(name)), exist_ok=True)
                os.link(os.path.join(self.path, name), self.at(name))
        files = {name: self.made[name] for name in self.files}
        left = problems(self.folder)
        if left:
            raise Fault(
                f"Every file has the hash that {self.origin} says, and the model is not whole all the same: {'; '.join(left[:5])}. "
                "Its source is broken, or lacks files; look at it there."
            )
        write_manifest(self.folder, files, self.origin)
        for here, folders, names in os.walk(self.folder):
            os.chmod(here, 0o755)
            for name in names:
                os.chmod(os.path.join(here, name), 0o644)
            folders[:] = [name for name in folders if not os.path.islink(os.path.join(here, name))]
        old = f"{self.path}.old"
        shutil.rmtree(old, ignore_errors=True)
        if os.path.isdir(self.path):
            os.rename(self.path, old)
        os.rename(self.folder, self.path)
        shutil.rmtree(old, ignore_errors=True)


def no_room(path: str, need: int, free: int) -> str:
    return (
        f"{path} needs {size_text(need)} more, and its file system has {size_text(free)} free. Make room, or set sglang_model_path "
        "to a larger one."
    )


def ignored(name: str, patterns: Iterable[str]) -> bool:
    return name.startswith(".") or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def largest_first(files: dict[str, dict[str, Any]]) -> list[str]:
    return sorted(files, key=lambda name: (-files[name]["bytes"], name))


def small_first(files: dict[str, dict[str, Any]]) -> list[str]:
    """What tells soonest that something is wrong with the source; shards in their own order after that."""
    return sorted(files, key=lambda name: (name.endswith(".safetensors"), name))


# --- sources --------------------------------------------------------------------------------------------------------------


def hashed(question: dict[str, Any]) -> dict[str, Any]:
    """Hash what was not hashed yet, or is not as it was; all with `again`. What has another hash than it had is `corrupt`."""
    folder = question["path"]
    manifest = read_manifest(folder)
    kept = manifest.get("files", {})
    if kept:
        names = sorted(kept) if question["again"] else doubtful(folder, kept)
    else:
        names = [name for name in names_of(folder) if not ignored(name, question["ignore"])]
        wrong = [name for name in names if not NAME.fullmatch(name)]
        if wrong:
            raise Fault(
                f"{folder} holds {wrong[0]!r}. Names of a model's files have letters, digits and _.+=@,- alone."
            )
    there = [name for name in names if os.path.isfile(os.path.join(folder, name))]
    total, done = sum(os.path.getsize(os.path.join(folder, name)) for name in there), [0]
    corrupt = {name: "it is missing" for name in names if name not in there}
    files, lock = dict(kept), threading.Lock()

    def one(name: str) -> None:
        path = os.path.join(folder, name)
        before = stamp(path)
        found, _ = sha256_of(path)
        with lock:
            done[0] += before[0]
            if name in kept and found != kept[name]["sha256"]:
                corrupt[name] = f"its sha256 is {found[:16]}…, it was {kept[name]['sha256'][:16]}…"
            elif before == stamp(path):
                files[name] = {"bytes": before[0], "sha256": found, "stamp": before}
            else:
                corrupt[name] = "it was written to while it was hashed"

    if names:
        # hashlib works beside other threads.
        how = f"read{question.get('where', '')}"
        with Progress(total, how, lambda: done[0]), ThreadPoolExecutor(question["streams"]) as pool:
            list(pool.map(one, sorted(there, key=lambda name: -os.path.getsize(os.path.join(folder, name)))))
        for name in corrupt:
            if name in files:
                files[name] = {**files[name], "stamp": []}  # known as wrong until it is replaced
        write_manifest(folder, files, manifest.get("origin") or "put there by hand")
    return {"corrupt": corrupt, "hashed": len(names), "bytes": total, "digest": digest(files)}


def listing(api: Any, question: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Files of a model as its hub has them."""
    repository, revision = question["repository"], question["revision"]
    try:
        info = api.model_info(repository, revision=revision or None, files_metadata=True, timeout=30)
    except Exception as error:
        raise Fault(
            f"The hub {question['endpoint']} does not say what {repository}@{revision or 'main'} is made of: {first_line(error)}. "
            + remedy(error)
        ) from None
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise Fault(
            f"{repository} has no pinned revision, so that another model could come tomorrow. Set sglang_model_revision (or "
            f"revision in models/*.yml) to a commit: {revision or 'main'} is {info.sha} now."
        )
    if info.sha != revision:
        raise Fault(
            f"The hub {question['endpoint']} answers with {info.sha} for {repository}@{revision}. Expected the same."
        )
    files = {}
    for entry in info.siblings or []:
        if ignored(entry.rfilename, question["ignore"]):
            continue
        if entry.size is None:
            raise Fault(
                f"The hub {question['endpoint']} does not say how large {entry.rfilename} is. Ask another endpoint."
            )
        large = entry.lfs and (entry.lfs.get("sha256") if isinstance(entry.lfs, dict) else entry.lfs.sha256)
        files[entry.rfilename] = {"bytes": entry.size, **({"sha256": large} if large else {"git": entry.blob_id})}
    return files


def first_line(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "") or type(error).__name__
    return re.sub(r"\s*\(Request ID: .*?\)|[.:]$", "", text)[:300]


def remedy(error: BaseException) -> str:
    code = getattr(getattr(error, "response", None), "status_code", None)
    if code in (401, 403):
        return (
            "Where the model is gated, accept its licence on the hub, and name a file with a token that may read it "
            "(sglang_model_token_file, on the node, mode 0600)."
        )
    if code == 404:
        return "Correct sglang_model_repository and sglang_model_revision."
    return (
        "Look at the node's way there (sglang_model_endpoint, a proxy in sglang_model_environment), or bring the weights from a "
        "folder (sglang_model_mirror) or another node (sglang_model_peers)."
    )


def token_of(path: str) -> str | bool:
    """A hub's token, from a file on the node that only root reads. False where there is none: nobody's home is searched for one."""
    if not path:
        return False
    try:
        facts = os.stat(path)
        with open(path, encoding="utf-8") as stream:
            token = stream.read().strip()
    except OSError as error:
        raise Fault(f"{path} (sglang_model_token_file) cannot be read: {error.strerror}.") from None
    if facts.st_mode & 0o077:
        raise Fault(f"{path} (sglang_model_token_file) can be read by others. chmod 0600 {path}")
    if not token or re.search(r"\s", token):
        raise Fault(f"{path} (sglang_model_token_file) holds no token. Expected one word.")
    return token


def hub(question: dict[str, Any]) -> dict[str, Any]:
    """From a hub, a file at a time. A file that was cut goes on where it was, which hf_hub_download does not do since 1.0."""
    try:
        from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers
    except ImportError as error:
        raise Fault(f"{sys.executable} has no huggingface_hub ({error}). Name the Python of a release.") from None
    token = token_of(question["token_file"])
    endpoint = question["endpoint"].rstrip("/")
    repository, revision = question["repository"], question["revision"]
    files = listing(HfApi(endpoint=endpoint, token=token), question)
    build = Build(question["path"], files, f"{repository}@{revision}")
    build.room()

    def fetch(name: str) -> None:
        part = build.at(name) + PART
        url = hf_hub_url(repository, name, revision=revision, endpoint=endpoint)
        headers = build_hf_headers(token=token)
        told = get_hf_file_metadata(url, token=token, timeout=30)
        if urlsplit(told.location).netloc != urlsplit(url).netloc:
            headers.pop("authorization", None)  # the token is the hub's, not that of where it keeps large files
        wanted = files[name]["bytes"]
        if os.path.exists(part) and os.path.getsize(part) > wanted:
            os.unlink(part)
        with open(part, "ab") as stream:
            stream.seek(0, os.SEEK_END)
            # Any size but 0 makes it ask for a range; what is whole is not asked for.
            http_get(told.location, stream, resume_size=stream.tell(), headers=headers, expected_size=wanted)
        os.replace(part, build.at(name))

    began = build.present()
    with Progress(build.total, f"from {urlsplit(endpoint).netloc}", build.present) as progress:
        for name in small_first(files):
            bring(build, name, fetch, progress, question)
        build.finish()
    return {"complete": True, "bytes": build.total - began, "digest": digest(build.made)}


def bring(build: Build, name: str, fetch: Callable[[str], None], progress: Progress, question: dict[str, Any]) -> None:
    """One file, until it is there and right. A fault that passes is waited out for as long as `patience` without a byte."""
    pause, again = 1.0, False
    while not build.holds(name):
        resumed = os.path.exists(build.at(name) + PART)
        try:
            fetch(name)
        except Exception as error:
            if isinstance(error, Fault) or (
                isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES)
            ):
                raise
            code = getattr(getattr(error, "response", None), "status_code", None)
            if code in (401, 403, 404) or time.monotonic() - progress.grown > question["patience"]:
                raise Fault(
                    f"{name} of {build.origin} does not come: {first_line(error)}. What is there stays, and the next run goes on. "
                    + remedy(error)
                ) from None
            time.sleep(pause)
            pause = min(2 * pause, 15.0)
            continue
        if not build.holds(name):
            # What was begun before may have been another file; one that came as a whole is the source's fault.
            if again or not resumed:
                raise Fault(
                    f"{name} of {build.origin} came with another hash than its source says. It was thrown away. Run again; if it "
                    "comes so again, the source or the way there is broken."
                )
            again = True


def mirror(question: dict[str, Any]) -> dict[str, Any]:
    """From a folder on the node, such as a network file system. It is read once, and believed where it has no hashes."""
    source = question["mirror"].rstrip("/")
    wrong = problems(source)
    if wrong:
        raise Fault(f"The mirror {source} (sglang_model_mirror) holds no complete model: {'; '.join(wrong[:5])}.")
    told = read_manifest(source).get("files", {})
    files = {
        name: {"bytes": os.path.getsize(os.path.join(source, name)), "sha256": told.get(name, {}).get("sha256", "")}
        for name in names_of(source)
        if name in told or not ignored(name, question["ignore"])
    }
    build = Build(question["path"], files, source)
    build.room()
    began = build.present()
    with Progress(build.total, f"from {source}", build.present):
        for name in small_first(files):
            wanted = files[name]
            if wanted["sha256"] and build.holds(name):
                continue
            build.own(name)
            found = copied(os.path.join(source, name), build.at(name) + PART)
            os.replace(build.at(name) + PART, build.at(name))
            if wanted["sha256"] and found != wanted["sha256"]:
                os.unlink(build.at(name))
                raise Fault(f"{source}/{name} has another hash than {source}/{MANIFEST} says. Bring it anew there.")
            build.note(name, found)
        build.finish()
    return {"complete": True, "bytes": build.total - began, "digest": digest(build.made)}


def copied(source: str, target: str) -> str:
    """Copy a file, and go on where that was cut off; its SHA-256 as it was read."""
    whole = hashlib.sha256()
    size = os.path.getsize(target) if os.path.exists(target) else 0
    with open(source, "rb") as reader, open(target, "r+b" if size else "wb") as writer:
        # What is there must be hashed anyway, and is compared by that.
        while size > 0:
            mine, its = writer.read(min(PIECE, size)), reader.read(min(PIECE, size))
            if mine != its or not mine:
                reader.seek(-len(its), os.SEEK_CUR)
                writer.seek(-len(mine), os.SEEK_CUR)
                break
            whole.update(its)
            size -= len(its)
        writer.truncate()
        while piece := reader.read(PIECE):
            writer.write(piece)
            whole.update(piece)
        writer.flush()
        os.fsync(writer.fileno())
    return whole.hexdigest()


def rsync_command(question: dict[str, Any], name: str, target: str, secret_file: str) -> list[str]:
    """One file of a sender's, appended to what is there: its hash is looked at afterwards, so that nothing is read twice."""
    address = f"[{question['address']}]" if ":" in question["address"] else question["address"]
    bound = question["bandwidth"]
    argv = ["rsync", "--append", "--timeout=20", "--contimeout=10", "--no-motd", f"--password-file={secret_file}"]
    if bound:
        # KiB/s, of each of so many.
        argv.append(f"--bwlimit={max(1, round(bound * 1e6 / 1024 / question['streams']))}")
    return [*argv, f"rsync://weights@{address}:{question['port']}/weights/{name}", target]


class Link:
    """What all streams from one sender know: whether it still answers."""

    def __init__(self, patience: float) -> None:
        self.patience, self.refused, self.error = patience, 0.0, ""

    def told(self, code: int, errors: str, progress: Progress) -> bool:
        """Whether to go on after rsync ended with an error."""
        last = rsync_words(errors) or f"rsync ended with status {code}"
        now = time.monotonic()
        if "Connection refused" in errors:
            self.refused = self.refused or now
            if now - self.refused > REFUSED:
                self.error = self.error or f"it does not serve any more: {last}"
        else:
            self.refused = 0.0
        if code == 11 and "No space" in errors:
            self.error = self.error or f"no space is left: {last}"
        elif code not in CUT and "max connections" not in errors:
            self.error = self.error or last
        elif now - progress.grown > self.patience:
            self.error = self.error or f"nothing came for {span_text(self.patience)}: {last}"
        return not self.error


def rsync_words(errors: str) -> str:
    """The line of rsync's errors that says why, without its place in rsync's source."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    for line in lines:
        if "rsync error:" not in line:
            return re.sub(r"^rsync: (\[\w+\] )?", "", line)[:200]
    return re.sub(r" at \S+\(\d+\).*$", "", lines[0])[:200] if lines else ""


def peer(question: dict[str, Any]) -> dict[str, Any]:
    """From another node, several files at once. What comes with another hash than the sender's is thrown away, and said."""
    if shutil.which("rsync") is None:
        raise Fault("The node has no rsync. Install the distribution's package.")
    build = Build(question["path"], question["files"], question["origin"])
    build.room()
    bad: dict[str, str] = {}
    link = Link(question["patience"])
    began, since = build.present(), time.monotonic()
    secret_file = os.path.join(question["work"], "secret")
    with open(os.open(secret_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
        stream.write(question["secret"] + "\n")

    def one(name: str) -> None:
        again = False
        while not link.error and not build.holds(name):
            build.own(name)
            resumed = os.path.exists(build.at(name))
            pause = 1.0
            while not link.error:
                done = subprocess.run(
                    rsync_command(question, name, build.at(name), secret_file),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    check=False,
                    env={**os.environ, "LC_ALL": "C"},
                )
                if done.returncode == 0:
                    link.refused = 0.0
                    break
                if done.returncode == 23 and "failed" in done.stderr:
                    bad[name] = rsync_words(done.stderr)
                    return
                if not link.told(done.returncode, done.stderr, progress):
                    return
                time.sleep(pause)
                pause = min(2 * pause, 5.0)
            if link.error or build.holds(name):
                return
            # What was begun before may have been of another file, or of another sender.
            if again or not resumed:
                bad[name] = "it came with another sha256 than the sender's own record says"
                return
            again = True

    try:
        with Progress(build.total, f"from {question['sender']}", build.present) as progress:
            with ThreadPoolExecutor(question["streams"]) as pool:
                list(pool.map(one, largest_first(build.files)))
            lacking = set(build.files) - build.right
            if not lacking and not link.error:
                build.finish()
    finally:
        os.unlink(secret_file)
    return {
        "complete": not lacking and not link.error,
        "bad": bad,
        "error": link.error,
        "bytes": build.total - began if not lacking else max(0, build.present() - began),
        "seconds": round(time.monotonic() - since, 1),
        "digest": digest(build.files),
    }


MODES = {"hash": hashed, "hub": hub, "mirror": mirror, "peer": peer}


def answer(question: dict[str, Any]) -> dict[str, Any]:
    try:
        return MODES[question["mode"]](question)
    except Fault as fault:
        return {"failed": str(fault)}
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return {"failed": f"No space is left for {question['path']}. Make room and run again; what is there stays."}
        return {"failed": f"{error.filename or question['path']}: {error.strerror or error}."}


# --- the sender's side ----------------------------------------------------------------------------------------------------

DAEMON = """\
# Written by sglang-rtxpro for one transfer; it goes with it.
port = {port}
use chroot = no
read only = yes
list = no
reverse lookup = no
max connections = {connections}
lock file = {state}/lock
timeout = 30
[weights]
path = {path}
auth users = weights
secrets file = {secret}
hosts allow = {allow}
hosts deny = *
"""


def children(pid: int) -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with (
                contextlib.suppress(OSError, ValueError),
                open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stream,
            ):
                fields = stream.read().rpartition(")")[2].split()
                if int(fields[1]) == pid and fields[0] != "Z":
                    yield int(name)


def serve(config_file: str, seconds: float) -> int:
    """rsync's daemon, until nobody took anything for some time: a transfer whose end nobody told goes away by itself."""
    with subprocess.Popen(["rsync", "--daemon", "--no-detach", f"--config={config_file}"]) as daemon:
        signal.signal(signal.SIGTERM, lambda *_: daemon.terminate())
        used = time.monotonic()
        while daemon.poll() is None:
            if any(children(daemon.pid)):
                used = time.monotonic()
            if time.monotonic() - used > seconds:
                daemon.terminate()
                daemon.wait()
                return 0
            time.sleep(1)
        return max(0, daemon.returncode)


def addresses() -> list[str]:
    """The node's own addresses but loopback: what a connection of its may come from."""
    found = set()
    with contextlib.suppress(OSError), open("/proc/net/fib_trie", encoding="utf-8") as stream:
        last = ""
        for line in stream:
            if "/32 host LOCAL" in line:
                found.add(last)
            elif "|-- " in line:
                last = line.split("|-- ")[1].strip()
    with contextlib.suppress(OSError), open("/proc/net/if_inet6", encoding="utf-8") as stream:
        for line in stream:
            word, _, _, scope = line.split()[:4]
            if scope == "00":
                found.add(":".join(word[start : start + 4] for start in range(0, 32, 4)))
    return sorted(word for word in found if word and not word.startswith("127."))


if __name__ == "__main__":
    os.umask(0o022)
    if sys.argv[1:2] == ["serve"]:
        sys.exit(serve(sys.argv[2], float(sys.argv[3])))
    say({"result": answer(json.load(sys.stdin))})
