"""A stand-in for a model hub, since none is reached here: what huggingface_hub asks one for, and a hub's faults."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from helpers import SOURCES

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class StandInHub:
    """Files of one model, as a hub serves them: its API for what there is, `resolve` for the files, large ones from elsewhere."""

    def __init__(self, files: dict[str, bytes], repository: str = "someone/model") -> None:
        self.files, self.repository = files, repository
        self.large = {name for name in files if name.endswith(".safetensors")}
        # (method, path, range asked for, whether a token came)
        self.asked: list[tuple[str, str, str, str]] = []
        self.cut_after: dict[str, int] = {}  # bytes of a file after which the connection ends, once
        self.wrong: set[str] = set()  # files that come with other bytes than the API says
        self.token = ""
        self.elsewhere = "localhost"  # the host that large files come from, as a hub's content network
        self.told = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}

    def sibling(self, name: str) -> dict[str, Any]:
        data = self.files[name]
        blob = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
        entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": blob}
        if name in self.large:
            entry["lfs"] = {"sha256": self.told[name], "size": len(data), "pointerSize": 134}
        return entry

    def info(self) -> dict[str, Any]:
        return {
            "_id": "1", "id": self.repository, "modelId": self.repository, "sha": COMMIT, "private": False, "tags": [],
            "siblings": [self.sibling(name) for name in self.files],
        }  # fmt: skip

    def handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def answer(self, code: int, body: bytes = b"", **headers: str) -> None:
                self.send_response(code)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def refused(self, code: int, kind: str, text: str) -> None:
                self.answer(code, b"", X_Error_Code=kind, X_Error_Message=text)

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                path = unquote(urlsplit(self.path).path)
                token = self.headers.get("Authorization", "")
                hub.asked.append((self.command, path, self.headers.get("Range", ""), token))
                if path.startswith("/elsewhere/"):
                    return self.content(path.removeprefix("/elsewhere/"))
                if hub.token and token != f"Bearer {hub.token}":
                    return self.refused(401, "GatedRepo", "Access to model is restricted")
                if found := re.fullmatch(rf"/api/models/{hub.repository}(/revision/(.+))?", path):
                    if found[2] not in (None, COMMIT, "main"):
                        return self.refused(404, "RevisionNotFound", "Invalid rev id")
                    return self.answer(200, json.dumps(hub.info()).encode(), Content_Type="application/json")
                if found := re.fullmatch(rf"/{hub.repository}/resolve/{COMMIT}/(.+)", path):
                    return self.resolve(found[1])
                return self.refused(404, "RepoNotFound", "Repository not found")

            def resolve(self, name: str) -> None:
                if name not in hub.files:
                    return self.refused(404, "EntryNotFound", "Entry not found")
                size = str(len(hub.files[name]))
                if name in hub.large:
                    # Another host, as a hub's content network is: the token does not go there.
                    port = self.headers["Host"].rpartition(":")[2]
                    return self.answer(
                        302, b"", X_Repo_Commit=COMMIT, X_Linked_Size=size, X_Linked_ETag=f'"{hub.told[name]}"',
                        Location=f"http://{hub.elsewhere}:{port}/elsewhere/{name}",
                    )  # fmt: skip
                if self.command == "HEAD":
                    self.send_response(200)
                    for key, value in {
                        "Content-Length": size, "X-Repo-Commit": COMMIT, "ETag": f'"{hub.sibling(name)["blobId"]}"',
                    }.items():  # fmt: skip
                        self.send_header(key, value)
                    return self.end_headers()
                return self.content(name)

            def content(self, name: str) -> None:
                data = hub.files[name]
                if name in hub.wrong:
                    data = bytes(len(data) - 1) + b"!"
                first, code, more = 0, 200, {}
                if found := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
                    first, code = int(found[1]), 206
                    more = {"Content_Range": f"bytes {first}-{len(data) - 1}/{len(data)}"}
                left = data[first:]
                stop = hub.cut_after.pop(name, None) if self.command == "GET" else None
                self.send_response(code)
                self.send_header("Content-Length", str(len(left)))
                for key, value in more.items():
                    self.send_header(key.replace("_", "-"), value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(left[:stop])
                if stop is not None:
                    self.close_connection = True
                    self.connection.close()

        return Handler


def client(version: str) -> Path:
    """A folder with huggingface_hub of that version and what it needs, as the stacks lock it; kept in the cache."""
    folder = SOURCES / f"huggingface_hub-{version}"
    if folder.is_dir():
        return folder
    SOURCES.mkdir(parents=True, exist_ok=True)
    lock = next(
        path
        for path in sorted(ROOT.glob("stacks/*/requirements-3.1*.txt"))
        if f"huggingface-hub=={version} " in path.read_text()
    )
    pins = re.findall(r"^([\w.-]+==[\w.!+]+) \\$", lock.read_text(), re.M)
    scratch = Path(tempfile.mkdtemp(prefix=".hub-", dir=SOURCES))
    (scratch / "constraints").write_text("\n".join(pins))
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(scratch / "site")]
    argv += ["--constraint", str(scratch / "constraints"), f"huggingface_hub=={version}"]
    try:
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        (scratch / "site").rename(folder)
    except OSError:
        assert folder.is_dir(), "another test run was quicker"
    finally:
        shutil.rmtree(scratch)
    return folder
