"""Weights from a hub (stand-in), a folder and another node; hashes kept beside them; what is wrong, cut off, or not ours."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sglang_model
import sglang_weights as module
from ansible.module_utils import sglang_job
from ansible.module_utils import sglang_weights as weights
from helpers import run_module, serving
from hub import COMMIT, StandInHub, client

BIG = 3 << 20


def shard(size: int, seed: int = 1) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes([seed]) * size


def model_files() -> dict[str, bytes]:
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    return {
        "config.json": b'{"architectures": ["Glm4MoeForCausalLM"]}',
        "tokenizer_config.json": b"{}",
        "model.safetensors.index.json": json.dumps(index).encode(),
        "a.safetensors": shard(BIG, 1),
        "b.safetensors": shard(BIG, 2),
    }


def lay(folder: Path, files: dict[str, bytes] | None = None) -> Path:
    folder.mkdir(parents=True)
    for name, data in (files or model_files()).items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "models/model"


def left_over(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir() if entry != path)


# Hashes that are kept


def hashed(path: Path, capsys: pytest.CaptureFixture[str], **more: Any) -> dict[str, Any]:
    return run_module(module, capsys, path=str(path), state="hashed", **more)


def test_hashes_are_made_once(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay(path)
    (path / "README.md").write_text("words")
    told = hashed(path, capsys)
    assert told["complete"] and told["changed"] and told["hashed"] == 5, "a page is no part of a model"
    assert hashed(path, capsys) == {**told, "changed": False, "hashed": 0, "bytes": 0}
    assert hashed(path, capsys, again=True)["hashed"] == 5
    assert left_over(path) == []


def test_a_file_that_was_touched_is_hashed_again_and_only_it(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay(path)
    first = hashed(path, capsys)
    os.utime(path / "a.safetensors", (1, 1))
    looked = run_module(sglang_model, capsys, path=str(path), fetch=True)
    assert looked["complete"] and looked["doubtful"] == ["a.safetensors"] and looked["digest"] == first["digest"]
    told = hashed(path, capsys)
    assert (told["hashed"], told["corrupt"]) == (1, {})
    assert run_module(sglang_model, capsys, path=str(path), fetch=True)["doubtful"] == []


def test_a_file_that_went_bad_is_named_and_stays_known(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay(path)
    digest = hashed(path, capsys)["digest"]
    facts = os.stat(path / "b.safetensors")
    with (path / "b.safetensors").open("r+b") as stream:
        stream.seek(-5, os.SEEK_END)
        stream.write(b"rot!!")
    os.utime(path / "b.safetensors", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert hashed(path, capsys)["hashed"] == 0, "a disk that turns bits tells nobody"
    told = hashed(path, capsys, again=True)
    assert not told["complete"] and list(told["corrupt"]) == ["b.safetensors"]
    assert told["digest"] == digest, "what is right is still what was hashed first"
    assert run_module(sglang_model, capsys, path=str(path), fetch=True)["doubtful"] == ["b.safetensors"]
    (path / "b.safetensors").unlink()
    assert hashed(path, capsys)["corrupt"] == {"b.safetensors": "it is missing"}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"schema": 1, "files": {"../x": {"sha256": "0", "bytes": 1}}}', '{"schema": 9, "files": {}}'],
)
def test_a_record_that_cannot_be_read_is_none(path: Path, text: str) -> None:
    lay(path)
    (path / weights.MANIFEST).write_text(text)
    assert weights.read_manifest(str(path)) == {}


# The hub


class Fetching:
    """A node that asks the stand-in with the real client."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str], hub: StandInHub, url: str) -> None:
        self.path, self.capsys, self.hub, self.url = path, capsys, hub, url

    def __call__(self, **more: Any) -> dict[str, Any]:
        args = {
            "kind": "hub",
            "python": sys.executable,
            "repository": "someone/model",
            "revision": COMMIT,
            "endpoint": self.url,
        }
        return run_module(module, self.capsys, path=str(self.path), **{**args, "patience": 3, **more})

    def content(self) -> dict[str, bytes]:
        return {name: (self.path / name).read_bytes() for name in weights.names_of(str(self.path))}

    def gets(self, name: str) -> list[str]:
        """Ranges that were asked for of a file."""
        return [ask[2] for ask in self.hub.asked if ask[0] == "GET" and ask[1].endswith(name)]


@pytest.fixture(params=["1.33.0", "0.36.2"])
def fetching(
    request: pytest.FixtureRequest, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Fetching]:
    monkeypatch.setenv("PYTHONPATH", str(client(request.param)))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as the server's environment may say; not for this
    monkeypatch.setenv("HF_TOKEN", "hf_not_this_one")
    hub = StandInHub({**model_files(), "README.md": b"words", "pytorch_model.bin": b"the same again"})
    with serving(hub.handler()) as url:
        yield Fetching(path, capsys, hub, url)


@pytest.mark.slow
def test_from_the_hub(fetching: Fetching) -> None:
    told = fetching()
    assert told["complete"] and told["changed"], told
    assert fetching.content() == model_files(), "pages and other forms stay there"
    assert left_over(fetching.path) == []
    manifest = weights.read_manifest(str(fetching.path))
    assert manifest["origin"] == f"someone/model@{COMMIT}"
    assert weights.doubtful(str(fetching.path), manifest["files"]) == []
    looked = run_module(sglang_model, fetching.capsys, path=str(fetching.path), fetch=True, revision=manifest["origin"])
    assert looked["complete"] and looked["origin"] == manifest["origin"] and looked["digest"] == told["digest"]
    other = run_module(
        sglang_model, fetching.capsys, path=str(fetching.path), fetch=True, revision="someone/model@" + 40 * "f"
    )
    assert "was left alone" in other["msg"]
    assert all(ask[3] == "" for ask in fetching.hub.asked), "nobody's token"


@pytest.mark.slow
def test_a_connection_that_ends_goes_on_where_it_was(fetching: Fetching) -> None:
    # The client writes pieces of 10 MiB.
    fetching.hub.files["a.safetensors"] = shard(25 << 20)
    fetching.hub.told["a.safetensors"] = hashlib.sha256(shard(25 << 20)).hexdigest()
    fetching.hub.cut_after = {"a.safetensors": 21 << 20}
    assert fetching()["complete"]
    assert fetching.gets("a.safetensors") == ["", f"bytes={20 << 20}-"]
    assert (fetching.path / "a.safetensors").read_bytes() == shard(25 << 20)


@pytest.mark.slow
def test_a_job_that_was_killed_goes_on_where_it_was(fetching: Fetching) -> None:
    """What an earlier job left: a whole file that was verified, and a piece of another."""
    data = model_files()
    folder = Path(f"{fetching.path}.incomplete")
    lay(folder, {"a.safetensors": data["a.safetensors"], "b.safetensors.incomplete": data["b.safetensors"][:1000000]})
    told = fetching()
    assert told["complete"], told
    assert fetching.gets("a.safetensors") == [], "it is hashed, not fetched"
    assert fetching.gets("b.safetensors") == ["bytes=1000000-"]
    assert fetching.content() == data


@pytest.mark.slow
def test_what_is_there_is_used_and_what_is_corrupt_replaced(fetching: Fetching) -> None:
    data = model_files()
    bad = data["b.safetensors"][:-1] + b"!"
    lay(fetching.path, {**data, "b.safetensors": bad, "README.md": b"mine"})
    told = fetching()
    assert told["complete"], told
    assert fetching.gets("a.safetensors") == [] and len(fetching.gets("b.safetensors")) == 1
    assert fetching.content() == {**data, "README.md": b"mine"}


@pytest.mark.slow
def test_a_piece_of_another_file_is_found_by_the_hash(fetching: Fetching) -> None:
    lay(Path(f"{fetching.path}.incomplete"), {"b.safetensors.incomplete": b"x" * 1000})
    assert fetching()["complete"]
    assert fetching.gets("b.safetensors") == ["bytes=1000-", ""]
    assert fetching.content() == model_files()


@pytest.mark.slow
def test_a_hub_that_sends_something_else_is_not_believed(fetching: Fetching) -> None:
    fetching.hub.wrong = {"b.safetensors"}
    told = fetching()
    assert "b.safetensors" in told["msg"] and "another hash than its source says" in told["msg"]
    assert not fetching.path.exists()
    fetching.hub.wrong = {"tokenizer_config.json"}
    shutil.rmtree(f"{fetching.path}.incomplete")
    assert "tokenizer_config.json" in fetching()["msg"], "small files are compared by git's hash"
    fetching.hub.wrong = set()
    assert fetching()["complete"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"revision": "main"}, ["no pinned revision", f"main is {COMMIT} now"]),
        ({"revision": ""}, ["no pinned revision", f"main is {COMMIT} now"]),
        ({"revision": 40 * "f"}, ["someone/model@ffff", "sglang_model_revision"]),
        ({"repository": "someone/else"}, ["someone/else", "sglang_model_repository"]),
        ({"endpoint": "http://127.0.0.1:9"}, ["http://127.0.0.1:9", "sglang_model_endpoint", "sglang_model_mirror"]),
        ({"python": "/nowhere/python"}, ["/nowhere/python", "sglang_model_python"]),
    ],
)
def test_what_the_hub_is_asked_wrongly(fetching: Fetching, more: dict[str, Any], says: list[str]) -> None:
    told = fetching(**more)
    assert all(text in told["msg"] for text in says), told["msg"]
    assert not fetching.path.exists()


@pytest.mark.slow
def test_a_token_goes_to_the_hub_alone(fetching: Fetching, tmp_path: Path) -> None:
    fetching.hub.token = "hf_secret"
    told = fetching()
    assert "sglang_model_token_file" in told["msg"] and "licence" in told["msg"]
    file = tmp_path / "token"
    file.write_text("hf_secret\n")
    file.chmod(0o644)
    assert f"chmod 0600 {file}" in fetching(token_file=str(file))["msg"]
    file.chmod(0o600)
    told = fetching(token_file=str(file))
    assert told["complete"] and "hf_secret" not in json.dumps(told)
    fetched = [ask for ask in fetching.hub.asked if ask[1].startswith("/elsewhere/")]
    assert fetched and all(ask[3] == "" for ask in fetched), "not to where the hub keeps large files"
    assert not any(
        b"hf_secret" in entry.read_bytes() for entry in tmp_path.rglob("*") if entry.is_file() and entry != file
    )


@pytest.mark.slow
def test_no_room(fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    files = fetching.hub.files
    sibling = fetching.hub.sibling
    monkeypatch.setattr(
        fetching.hub, "sibling", lambda name: {**sibling(name), **({"size": 10**15} if name == "a.safetensors" else {})}
    )
    told = fetching()
    assert "needs 1000000.0 GB more" in told["msg"] and "GB free" in told["msg"] and "sglang_model_path" in told["msg"]
    assert len(files) == 7


# A folder


def mirrored(path: Path, capsys: pytest.CaptureFixture[str], source: Path, **more: Any) -> dict[str, Any]:
    return run_module(module, capsys, path=str(path), kind="mirror", mirror=str(source), **more)


def test_from_a_folder(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = lay(tmp_path / "nfs/model", {**model_files(), "pytorch_model.bin": b"no"})
    lay(Path(f"{path}.incomplete"), {"a.safetensors.incomplete": model_files()["a.safetensors"][:99999]})
    assert mirrored(path, capsys, source)["complete"]
    assert {name: (path / name).read_bytes() for name in weights.names_of(str(path))} == model_files()
    assert weights.read_manifest(str(path))["origin"] == str(source) and left_over(path) == []
    assert hashed(path, capsys)["hashed"] == 0
    assert not (source / weights.MANIFEST).exists(), "a mirror is read alone"


def test_a_folder_that_lies_about_a_file(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = lay(tmp_path / "nfs/model")
    hashed(source, capsys)
    (source / "b.safetensors").write_bytes(shard(BIG, 9))
    told = mirrored(path, capsys, source)
    assert f"{source}/b.safetensors has another hash" in told["msg"] and not path.exists()
    (source / "b.safetensors").unlink()
    assert "holds no complete model: b.safetensors is missing" in mirrored(path, capsys, source)["msg"]


def test_what_is_not_this_model_is_left_alone(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = lay(tmp_path / "nfs/model")
    lay(path, {"thesis.odt": b"years of work"})
    told = mirrored(path, capsys, source)
    assert "thesis.odt" in told["msg"] and "left alone" in told["msg"]
    assert (path / "thesis.odt").read_bytes() == b"years of work"


def test_check_mode_brings_nothing(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = mirrored(path, capsys, lay(tmp_path / "nfs/model"), check=True)
    assert told["changed"] and told["complete"] and not path.parent.exists()


# Another node. The real rsync moves files in the scenario `weights`; here is what is made of what it says.

SENDER = {"sender": "node-1", "address": "10.0.0.1", "port": 8730, "streams": 2, "bandwidth": 0.0}


def test_rsyncs_words() -> None:
    argv = weights.rsync_command({**SENDER, "bandwidth": 100.0}, "a.safetensors", "/x/a.safetensors", "/x/secret")
    assert "--bwlimit=48828" in argv, "KiB/s a file, for two of them"
    assert argv[-2:] == ["rsync://weights@10.0.0.1:8730/weights/a.safetensors", "/x/a.safetensors"]
    assert not any(word.startswith("--bwlimit") for word in weights.rsync_command(SENDER, "a", "b", "c"))
    assert "rsync://weights@[fd00::1]:8730/weights/a" in weights.rsync_command(
        {**SENDER, "address": "fd00::1"}, "a", "b", "c"
    )


RSYNC = """#!/bin/sh
# What rsync does with `--append`: it writes behind what is there.
for last; do previous=$target; target=$last; done
name=${previous##*/weights/}
echo "$name $(stat -c %s "$target" 2>/dev/null || echo 0)" >> {log}
if [ -e {fails} ]; then cat {fails} >&2; exit $(cat {fails}.code); fi
have=$(stat -c %s "$target" 2>/dev/null || echo 0)
tail -c +$((have + 1)) "{source}/$name" >> "$target"
"""


class Peer:
    """A receiver whose rsync copies from a folder, as one over a network would."""

    def __init__(
        self, tmp_path: Path, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.path, self.capsys, self.source = path, capsys, lay(tmp_path / "sender/model")
        self.log, self.fails = tmp_path / "log", tmp_path / "fails"
        binary = tmp_path / "bin/rsync"
        binary.parent.mkdir()
        text = (
            RSYNC.replace("{log}", str(self.log))
            .replace("{fails}", str(self.fails))
            .replace("{source}", str(self.source))
        )
        binary.write_text(text)
        binary.chmod(0o755)
        monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
        run_module(module, capsys, path=str(self.source), state="hashed")
        self.files = weights.read_manifest(str(self.source))["files"]

    def __call__(self, **more: Any) -> dict[str, Any]:
        args = {**SENDER, "files": self.files, "origin": "put there by hand", "secret": "s3cret", "patience": 2}
        return run_module(module, self.capsys, path=str(self.path), kind="peer", **{**args, **more})

    def asked(self) -> list[str]:
        return sorted(self.log.read_text().splitlines()) if self.log.exists() else []

    def failing(self, text: str, code: int) -> None:
        self.fails.write_text(text)
        Path(f"{self.fails}.code").write_text(str(code))


@pytest.fixture
def from_peer(tmp_path: Path, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Peer:
    return Peer(tmp_path, path, capsys, monkeypatch)


def test_from_another_node(from_peer: Peer) -> None:
    data = model_files()
    lay(
        Path(f"{from_peer.path}.incomplete"), {"a.safetensors": data["a.safetensors"][:1000], "stale.safetensors": b"?"}
    )
    told = from_peer()
    assert told["complete"] and not told["bad"] and not told["error"], told
    assert "a.safetensors 1000" in from_peer.asked() and "b.safetensors 0" in from_peer.asked()
    assert {name: (from_peer.path / name).read_bytes() for name in weights.names_of(str(from_peer.path))} == data
    assert left_over(from_peer.path) == []
    assert weights.read_manifest(str(from_peer.path))["origin"] == "put there by hand"


def test_a_wrong_file_is_thrown_away_named_and_fetched_from_another(
    from_peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(module.AnsibleModule, "warn", lambda _, text: said.append(text))
    (from_peer.source / "b.safetensors").write_bytes(shard(BIG, 7))
    told = from_peer()
    assert not told["complete"] and list(told["bad"]) == ["b.safetensors"] and not from_peer.path.exists()
    assert len(said) == 1 and said[0].startswith("node-1 has a wrong b.safetensors: it came with another sha256")
    from_peer.log.unlink()
    (from_peer.source / "b.safetensors").write_bytes(model_files()["b.safetensors"])
    told = from_peer(sender="node-2")
    assert told["complete"] and from_peer.asked() == ["b.safetensors 0"], "the rest had come"


def test_a_file_in_use_is_never_written_to(from_peer: Peer) -> None:
    """The good files of a broken copy are taken by hard links; its bad one is replaced and not appended to."""
    data = model_files()
    lay(from_peer.path, {**data, "b.safetensors": data["b.safetensors"][:-1] + b"!"})
    inode = os.stat(from_peer.path / "a.safetensors").st_ino
    with (from_peer.path / "b.safetensors").open("rb") as in_use:
        told = from_peer()
        assert in_use.read() == data["b.safetensors"][:-1] + b"!"
    assert told["complete"] and from_peer.asked() == ["b.safetensors 0"]
    assert os.stat(from_peer.path / "a.safetensors").st_ino == inode
    assert (from_peer.path / "b.safetensors").read_bytes() == data["b.safetensors"]


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (
            "rsync: [Receiver] failed to connect to 10.0.0.1: No route to host (113)\nrsync error: x (code 10) at c.c(9)",
            10,
            "No route to host",
        ),
        (
            "@ERROR: auth failed on module weights\nrsync error: error starting client-server protocol",
            5,
            "@ERROR: auth failed",
        ),
    ],
)
def test_a_sender_that_does_not_give(from_peer: Peer, text: str, code: int, says: str) -> None:
    from_peer.failing(text, code)
    told = from_peer()
    assert not told["complete"] and says in told["error"], told
    assert "changed" in told and not from_peer.path.exists()
    from_peer.fails.unlink()
    assert from_peer()["complete"]


def test_the_secret_is_in_no_argv_and_gone_afterwards(from_peer: Peer) -> None:
    assert "s3cret" not in json.dumps(from_peer())
    assert "s3cret" not in str(weights.rsync_command({**SENDER, "secret": "s3cret"}, "a", "b", "/x/secret"))
    assert left_over(from_peer.path) == []


def test_a_run_that_was_killed_is_followed_by_the_next(from_peer: Peer) -> None:
    from_peer.failing("rsync error: timeout in data send/receive (code 30)", 30)
    told = from_peer(slice=0.1, patience=60)
    assert told["unfinished"]
    looked = run_module(sglang_model, from_peer.capsys, path=str(from_peer.path), fetch=True)
    assert looked["running"] == {"kind": "peer", "sender": "node-1"} and not looked["complete"]
    other = from_peer(sender="node-2", slice=0.1)
    assert "Another job is at" in other["msg"] and "peer node-1" in other["msg"]
    from_peer.fails.unlink()
    told = from_peer(attach=True, files={}, secret="")
    assert told["complete"], told
    # Another run that followed it finds what it wanted.
    assert from_peer(attach=True, files={})["complete"]


def test_a_job_that_was_killed_with_its_node(from_peer: Peer) -> None:
    from_peer.failing("rsync error: timeout in data send/receive (code 30)", 30)
    from_peer(slice=0.1, patience=60)
    work = weights.work(str(from_peer.path))
    keeper = json.loads(Path(work, "job.json").read_text())["pid"]
    for pid in sglang_job.members(keeper):
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    assert run_module(sglang_model, from_peer.capsys, path=str(from_peer.path), fetch=True)["running"] == {}
    from_peer.fails.unlink()
    assert from_peer()["complete"]


# The sender


def test_the_daemon_answers_one_node_and_is_a_user_of_its_own() -> None:
    params = {
        "path": "/srv/model",
        "port": 8731,
        "sender": "node-2",
        "allow": ["10.0.0.2"],
        "patience": 300,
        "secret": "s3cret",
    }
    argv = module.daemon_command(params, "/run/sglang/weights-8731", "/usr/bin/python3")
    assert argv[0] == "systemd-run" and "--unit=sglang-weights-8731" in argv and argv[-1] == "360"
    assert "--property=DynamicUser=yes" in argv and "--property=IPAddressAllow=10.0.0.2" in argv
    assert "s3cret" not in " ".join(argv)
    text = weights.DAEMON.format(
        port=8731, connections=6, state="/run/x", path="/srv/model", secret="/run/y", allow="10.0.0.2"
    )
    assert "read only = yes" in text and "hosts allow = 10.0.0.2\nhosts deny = *" in text and "s3cret" not in text


def test_a_copy_that_is_not_whole_or_corrupt_is_not_given(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay(path)
    hashed(path, capsys)
    (path / "b.safetensors").write_bytes(shard(BIG, 3))
    told = run_module(module, capsys, path=str(path), state="served", sender="node-2")
    assert "corrupt" in told["msg"] and "b.safetensors" in told["msg"]
    (path / "b.safetensors").unlink()
    told = run_module(module, capsys, path=str(path), state="served", sender="node-2")
    assert "not complete" in told["msg"] and "b.safetensors" in told["msg"]


# Words


def test_progress_fits_a_line() -> None:
    text = weights.progress_text(int(123.4e9), int(433e9), "from node-1", 812.4e6)
    assert text == "123.4 of 433.0 GB from node-1, 812 MB/s, 6 min left"
    long = weights.progress_text(0, int(591e9), "from gpu-node-104", 3e6)
    assert len(f"gpu-node-104: {long}") <= 80, long
    assert weights.progress_text(5, 10**6, "from x", 0) == "0.0 of 1.0 MB from x"


@pytest.mark.parametrize(("seconds", "text"), [(12, "12 s"), (600, "10 min"), (3600 * 5.5, "5 h 30 min")])
def test_spans(seconds: float, text: str) -> None:
    assert weights.span_text(seconds) == text


@pytest.mark.parametrize("name", ["../x", "/x", "a/../b", "a b", "a[1]", ".hidden", "a/.b", "", "x*"])
def test_names_that_would_leave_the_folder_or_mean_more(name: str) -> None:
    assert not weights.NAME.fullmatch(name)
    with pytest.raises(weights.Fault):
        weights.Build("/nowhere/model", {name: {"bytes": 1, "sha256": "0"}}, "somewhere")


def test_own_addresses() -> None:
    assert all(not word.startswith("127.") for word in weights.addresses())
