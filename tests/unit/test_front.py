"""The front before the engine: the real nginx with the role's own configuration, against a small engine that streams slowly."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import http.server
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
from ansible.errors import AnsibleFilterError
from ansible.module_utils import sglang_keys
from helpers import serving

from filter_plugins.sglang_front import sglang_front_keys

TEMPLATES = Path(__file__).resolve().parents[2] / "roles/sglang_server/templates"
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
needs_nginx = pytest.mark.skipif(not NGINX, reason="nginx is not installed: tools/setup --system")
# As the role's defaults have them.
PATHS = ["/v1/", "/generate", "/health", "/health_generate", "/get_model_info", "/model_info"]
KEY, NEXT_KEY = "sk-Front.Key+1234567890/ab=", "sk-the-next-key-0987654321"
PROMPT = "a-prompt-that-nobody-may-read"
NOBODY = 65534


def render(template: str, **variables: Any) -> str:
    """As Ansible renders it."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    values = {
        "sglang_server_name": "sglang",
        "sglang_server_front_host": "127.0.0.1",
        "sglang_server_front_port": 8000,
        "sglang_server_front_paths": PATHS,
        "sglang_server_front_gateway": False,
        "sglang_server_front_keys": [KEY],
        "sglang_server_front_key_file": "",
        "sglang_server_front_metrics_keys": [],
        "sglang_server_front_metrics_port": 9100,
        "sglang_server_front_certificate": "",
        "sglang_server_front_certificate_key": "",
        "__sglang_server_front_user": "sglang-front",
        **variables,
    }
    return environment.get_template(template).render(values)


# --- an engine --------------------------------------------------------------------------------------------------------


class Engine:
    """What the engine saw, and what lets its streams go on."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.finish = threading.Event()
        self.streaming = threading.Event()
        self.aborted = threading.Event()
        self.url = ""

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")

    def handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        engine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 5  # an idle connection, as uvicorn has it

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                engine.seen.append((self.command, self.path, dict(self.headers), body))
                if self.path == "/v1/stream":
                    self.stream()
                elif self.path == "/v1/die":
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                else:
                    self.answer(500 if self.path == "/v1/error" else 200, json.dumps({"path": self.path}).encode())

            do_POST = do_GET

            def answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def stream(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                try:
                    for number in range(3000):
                        self.chunk(f"data: {number}\n\n".encode())
                        engine.streaming.set()
                        if engine.finish.wait(0.01):
                            break
                    self.chunk(b"data: [DONE]\n\n")
                    self.chunk(b"")
                except OSError:
                    engine.aborted.set()
                    self.close_connection = True

            def chunk(self, data: bytes) -> None:
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

            def log_message(self, *args: Any) -> None:
                pass

        return Handler


@contextlib.contextmanager
def engines() -> Iterator[Engine]:
    made = Engine()
    with serving(made.handler()) as made.url:
        yield made
        made.finish.set()


@pytest.fixture
def engine() -> Iterator[Engine]:
    with engines() as made:
        yield made


# --- the front --------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Front:
    """nginx with the rendered configuration, its paths below a folder of the test; unprivileged as in its unit."""

    def __init__(self, folder: Path, engine: str, **variables: Any) -> None:
        self.folder = folder
        self.port = free_port()
        self.context: ssl.SSLContext | None = None
        self.journal = b""
        self.name = {"sglang_server_front_port": self.port, **variables}
        for name in ("etc/sglang/sglang", "var/lib/sglang/sglang", "run/sglang/sglang", "run/sglang-front", "dev"):
            (folder / name).mkdir(parents=True)
        self.configuration = folder / "etc/sglang/sglang/front.conf"
        self.gate = folder / "var/lib/sglang/sglang/closed"
        self.keys(KEY)
        (folder / "var/lib/sglang/sglang/upstream.conf").write_text(f"server {engine};\n")
        text = render("front.conf.j2", **self.name)
        for place in ("/etc/sglang/", "/var/lib/sglang/", "/run/sglang/", "/dev/log"):
            text = text.replace(place, f"{folder}{place}")
        self.configuration.write_text(text)
        if os.geteuid() == 0:
            for path in (folder / "run/sglang-front", folder / "etc/sglang/sglang/keys.conf"):
                os.chown(path, NOBODY, NOBODY)
        self.syslog = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.syslog.bind(str(folder / "dev/log"))
        (folder / "dev/log").chmod(0o666)
        self.syslog.setblocking(False)

    def words(self, *more: str) -> list[str]:
        assert NGINX
        return [NGINX, "-e", "stderr", "-p", f"{self.folder}/run/sglang-front/", "-c", str(self.configuration), *more]

    def popen(self, *more: str, **how: Any) -> subprocess.Popen[str]:
        who: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        return subprocess.Popen(self.words(*more), text=True, **who, **how)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with (self.folder / "log").open("w") as log:
            self.master = self.popen(stdout=log, stderr=log)
        try:
            until(lambda: self.master.poll() is not None or connects(self.port))
            assert self.master.poll() is None, (self.folder / "log").read_text()
            yield
        finally:
            self.master.send_signal(signal.SIGTERM)
            self.master.wait(10)
            self.syslog.close()

    def reload(self) -> None:
        """As the unit's ExecReload. It returns before the new workers are there, so wait for them."""
        before = self.workers()
        with self.popen("-s", "reload", stderr=subprocess.PIPE) as done:
            _out, err = done.communicate(timeout=10)
        assert done.returncode == 0, err
        until(lambda: len(self.workers() - before) == 2)
        # Old workers that have nothing to do are gone, or about to go.
        until(lambda: self.workers() - before == self.listening(), 5)

    def workers(self) -> set[int]:
        return children(self.master.pid)

    def listening(self) -> set[int]:
        """Workers that are not on their way out, which nginx writes into their title."""
        titles = {pid: Path(f"/proc/{pid}/cmdline") for pid in self.workers()}
        return {pid for pid, path in titles.items() if path.exists() and "shutting down" not in path.read_text()}

    def keys(self, *keys: str) -> None:
        path = self.folder / "etc/sglang/sglang/keys.conf"
        path.write_text(sglang_front_keys(list(keys), metrics=self.name.get("sglang_server_front_metrics_keys", [])))
        path.chmod(0o640)

    def connection(self) -> http.client.HTTPConnection:
        if self.context:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=10, context=self.context)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)

    def ask(
        self, path: str = "/v1/models", key: str | None = KEY, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON of an answer."""
        own = {} if key is None else {"Authorization": f"Bearer {key}"}
        with contextlib.closing(self.connection()) as connection:
            connection.request(
                "POST" if body is not None else "GET", path, body=body, headers={**own, **(headers or {})}
            )
            answer = connection.getresponse()
            text = answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, json.loads(text)

    def stream(self) -> http.client.HTTPResponse:
        """A stream under way: its first token is there."""
        self.held = self.connection()
        self.held.request("GET", "/v1/stream", headers={"Authorization": f"Bearer {KEY}"})
        answer = self.held.getresponse()
        assert answer.status == 200 and answer.readline() == b"data: 0\n"
        return answer

    def said(self) -> str:
        """What went to the unit's stderr and to journald."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.journal += self.syslog.recv(65536) + b"\n"
        return (self.folder / "log").read_text() + self.journal.decode()


def children(pid: int) -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.add(int(path.parent.name))
    return found


def connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def until(true: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


@contextlib.contextmanager
def folders() -> Iterator[Path]:
    """Below /tmp, since pytest's own folder cannot be entered by another user."""
    path = Path(tempfile.mkdtemp(prefix="sglang-front-", dir="/tmp"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture
def folder() -> Iterator[Path]:
    with folders() as path:
        yield path


@pytest.fixture
def front(folder: Path, engine: Engine) -> Iterator[Front]:
    made = Front(folder, engine.address)
    with made.running():
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Front, Engine]]:
    with engines() as behind, folders() as path:
        made = Front(path, behind.address)
        with made.running():
            yield made, behind


@pytest.fixture
def steady(shared: tuple[Front, Engine]) -> Front:
    """A front whose files and engine nobody changes; many tests use it one after the other."""
    shared[1].seen.clear()
    return shared[0]


@pytest.fixture
def seen(steady: Front, shared: tuple[Front, Engine]) -> list[tuple[str, str, dict[str, str], bytes]]:
    """What the engine behind it got."""
    return shared[1].seen


# --- what is passed on ------------------------------------------------------------------------------------------------


@needs_nginx
def test_a_request_reaches_the_engine_without_what_is_ours(steady: Front, seen: list[Any]) -> None:
    headers = {"X-Api-Key": "k", "Api-Key": "k", "Cookie": "c=k", "X-Forwarded-For": "1.2.3.4", "X-Request-Id": "7"}
    status, _, answer = steady.ask("/v1/chat/completions?api_key=k", body=PROMPT, headers=headers)
    assert status == 200 and answer == {"path": "/v1/chat/completions"}
    method, path, sent, body = seen[0]
    assert (method, path, body) == ("POST", "/v1/chat/completions", PROMPT.encode())
    assert not {"Authorization", "X-Api-Key", "Api-Key", "Cookie", "Connection"} & set(sent)
    assert sent["X-Forwarded-For"] == "127.0.0.1" and sent["X-Request-Id"] == "7"
    assert sent["Host"] == f"127.0.0.1:{steady.port}"


@needs_nginx
def test_errors_of_the_engine_pass_as_they_are(steady: Front) -> None:
    assert steady.ask("/v1/error")[::2] == (500, {"path": "/v1/error"})


@needs_nginx
def test_tokens_come_as_they_are_made_and_bodies_go_as_they_come(front: Front, engine: Engine) -> None:
    stream = front.stream()  # reads the first token of an answer that is not over
    engine.finish.set()
    assert stream.read().endswith(b"data: [DONE]\n\n")
    assert front.ask("/v1/embeddings", body=b"x" * 5_000_000)[0] == 200
    assert len(engine.seen[-1][3]) == 5_000_000
    left = [path for path in (front.folder / "run/sglang-front").rglob("*") if path.is_file()]
    assert [path.name for path in left] == ["nginx.pid"]


@needs_nginx
@pytest.mark.parametrize(
    "path",
    [
        "/flush_cache",
        "//flush_cache",
        "/FLUSH_CACHE",
        "/flush_cache/",
        "/v1/../flush_cache",
        "/v1/./../flush_cache",
        "/v1/%2e%2e/flush_cache",
        "/v1/..%2fflush_cache",
        "/v1%2f..%2fflush_cache",
        "/%66lush_cache",
        "/update_weights_from_disk",
        "/abort_request",
        "/server_info",
        "/get_server_info",
        "/start_profile",
        "/generate/../abort_request",
        "/generate/",
        "/generate_from_file",
        "/healthz",
        "/v1",
        "/V1/models",
        "/",
        "/metrics",
        "/.front/unknown",
    ],
)
def test_everything_else_is_unknown(steady: Front, seen: list[Any], path: str) -> None:
    status, _, answer = steady.ask(path)
    assert status == 404 and answer["error"]["code"] == "unknown_url" and seen == []


@needs_nginx
def test_before_a_front_stands_a_gateway(folder: Path, engine: Engine) -> None:
    """Its router asks for the health without a key when a worker joins, and for the model's name with one."""
    made = Front(folder, engine.address, sglang_server_front_gateway=True)
    with made.running():
        assert made.ask("/health", key=None)[0] == 200
        for path in ("/server_info", "/get_server_info", "/model_info", "/v1/models", "/health_generate"):
            assert (made.ask(path, key=None)[0], made.ask(path)[0]) == (401, 200), path
        made.gate.touch()
        assert made.ask("/health", key=None)[0] == 503, "a worker that is not proved does not join"


@needs_nginx
def test_a_gateways_own_front_is_open_for_load_balancers(folder: Path, engine: Engine) -> None:
    """SGLang's router would pass a key on beside its own, and the nodes' nginx refuses two."""
    made = Front(
        folder,
        engine.address,
        __sglang_server_front_open=["/readiness"],
        sglang_server_front_paths=[*PATHS, "/readiness"],
    )
    with made.running():
        assert made.ask("/readiness", key=None)[0] == made.ask("/v1/models")[0] == 200
        assert made.ask("/health", key=None)[0] == 401
    assert not any("Authorization" in headers for *_, headers, _ in engine.seen)


@needs_nginx
@pytest.mark.parametrize(
    ("sent", "judged"),
    [
        ("/flush_cache/../v1/models", "/v1/models"),
        ("//v1//models", "/v1/models"),
        ("/%761/models", "/v1/models"),
        ("/abort_request/%2e%2e/health", "/health"),
        ("/v1/..;/flush_cache/../x", "/v1/..;/x"),
        ("/v1/models/org%2Fname%20x%0d%0aX:y", "/v1/models/org/name%20x%0D%0AX:y"),
    ],
)
def test_the_engine_gets_what_was_judged(steady: Front, seen: list[Any], sent: str, judged: str) -> None:
    assert steady.ask(sent)[0] == 200
    assert seen[0][1] == judged


@needs_nginx
def test_requests_that_cannot_be_read(steady: Front, seen: list[Any]) -> None:
    with socket.create_connection(("127.0.0.1", steady.port), 10) as raw:
        raw.sendall(b"GET /v1/../../flush_cache HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = raw.recv(65536)
        assert answer.startswith(b"HTTP/1.1 400 ") and b'"code": "bad_request"' in answer
    status, _, told = steady.ask("/v1/completions", headers={"Content-Length": str(300 << 20)}, body=b"")
    assert status == 413 and told["error"]["code"] == "request_too_large"
    assert seen == []


# --- keys -------------------------------------------------------------------------------------------------------------


@needs_nginx
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong-key-1234567890"}, 401),
        ({"Authorization": f"Bearer {KEY.swapcase()}"}, 401),
        ({"Authorization": f"Bearer {KEY}x"}, 401),
        ({"Authorization": f"Bearer x{KEY}"}, 401),
        ({"Authorization": f"Bearer {KEY.replace('.', 'x')}"}, 401),
        ({"Authorization": f"Bearer {KEY} {KEY}"}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
        ({"Authorization": KEY}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"X-Api-Key": ""}, 401),
        ({"X-Api-Key": KEY.swapcase()}, 401),
        ({"Authorization": f"Bearer {KEY}"}, 200),
        ({"Authorization": f"bearer  {KEY} "}, 200),
        ({"X-Api-Key": KEY}, 200),
    ],
)
def test_keys(steady: Front, seen: list[Any], headers: dict[str, str], status: int) -> None:
    found, answered, answer = steady.ask(key=None, headers=headers)
    assert found == status and len(seen) == (status == 200)
    if status == 401:
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert answer["error"]["code"] == "invalid_api_key"
        assert answered["content-type"] == "application/json" and answered["www-authenticate"] == "Bearer"
    # A key in the query is none.
    assert steady.ask(f"/v1/models?api_key={KEY}", key=None)[0] == 401


@needs_nginx
def test_keys_are_changed_by_a_reload_while_a_request_is_in_flight(front: Front, engine: Engine) -> None:
    stream = front.stream()
    front.keys(NEXT_KEY)
    front.reload()
    assert front.ask()[0] == 401 and front.ask(key=NEXT_KEY)[0] == 200
    engine.finish.set()
    assert stream.read().endswith(b"data: [DONE]\n\n")


@needs_nginx
def test_without_keys_everybody_may_ask(folder: Path, engine: Engine) -> None:
    front = Front(folder, engine.address, sglang_server_front_keys=[])
    with front.running():
        assert front.ask(key=None)[0] == 200
        assert front.ask("/flush_cache", key=None)[0] == 404


@needs_nginx
def test_an_empty_list_of_keys_lets_nobody_in(folder: Path, engine: Engine) -> None:
    """As when the keys are in a file on the node alone, and that file's were not added."""
    front = Front(folder, engine.address, sglang_server_front_keys=[], sglang_server_front_key_file="/root/keys")
    front.keys()
    with front.running():
        assert front.ask(key=None)[0] == 401 and front.ask()[0] == 401


# --- the gate and the drain -------------------------------------------------------------------------------------------


@needs_nginx
def test_the_gate_refuses_what_is_new_and_lets_end_what_is_in_flight(front: Front, engine: Engine) -> None:
    stream = front.stream()
    before = front.workers()
    front.gate.write_text("return 503;\n")
    front.reload()
    busy = before & front.workers()
    assert len(busy) == 1
    for path in ("/v1/models", "/health", "/generate"):
        status, headers, answer = front.ask(path)
        assert status == 503 and headers["retry-after"] == "30" and answer["error"]["code"] == "server_closed"
    # Strangers learn nothing, and what is unknown stays unknown.
    assert front.ask(key=None)[0] == 401 and front.ask("/flush_cache")[0] == 404
    assert len(engine.seen) == 1
    time.sleep(0.3)
    assert busy <= front.workers()
    engine.finish.set()
    assert stream.read().endswith(b"data: [DONE]\n\n")
    until(lambda: not busy & front.workers())
    # It opens, and closes, without a reload: one that fails must not keep clients out.
    front.gate.unlink()
    assert front.ask()[0] == 200
    front.gate.touch()
    assert front.ask()[0] == 503
    front.gate.unlink()


@needs_nginx
def test_an_idle_connection_of_a_client_does_not_hold_the_drain(front: Front) -> None:
    with contextlib.closing(front.connection()) as idle:
        idle.request("GET", "/v1/models", headers={"Authorization": f"Bearer {KEY}"})
        assert idle.getresponse().read()
        before = front.workers()
        front.reload()
        until(lambda: not before & front.workers(), 3)


@needs_nginx
def test_a_reload_with_wrong_files_says_so_and_leaves_the_front_alone(front: Front) -> None:
    front.configuration.write_text(front.configuration.read_text() + "retrun 503;\n")
    before = front.workers()
    with front.popen("-s", "reload", stderr=subprocess.PIPE) as done:
        _out, err = done.communicate(timeout=10)
    assert done.returncode and 'unknown directive "retrun"' in err
    assert front.workers() == before and front.ask()[0] == 200


# --- the engine is down, the client is gone ---------------------------------------------------------------------------


@needs_nginx
@pytest.mark.parametrize("body", [None, b"x" * 3_000_000])
def test_an_engine_that_is_down(folder: Path, body: bytes | None) -> None:
    front = Front(folder, f"127.0.0.1:{free_port()}")
    with front.running():
        status, headers, answer = front.ask("/v1/completions", body=body)
        assert status == 503 and headers["retry-after"] == "30"
        assert answer["error"]["code"] == "engine_unavailable" and headers["content-type"] == "application/json"
        until(lambda: "gave 502" in front.said())


@needs_nginx
@pytest.mark.parametrize("body", [None, "{}"])
def test_a_request_is_never_sent_twice(front: Front, engine: Engine, body: str | None) -> None:
    assert front.ask()[0] == 200  # leaves an open connection to the engine, which others would retry on
    assert front.ask("/v1/die", body=body)[0] == 503
    assert [path for _, path, _, _ in engine.seen] == ["/v1/models", "/v1/die"]


@needs_nginx
@pytest.mark.parametrize("gate", [False, True])
def test_a_client_that_goes_ends_the_engines_work(front: Front, engine: Engine, gate: bool) -> None:
    stream = front.stream()
    if gate:  # in an old worker too
        front.gate.write_text("return 503;\n")
        front.reload()
    stream.close()
    front.held.close()
    assert engine.aborted.wait(5)


@needs_nginx
def test_a_client_that_goes_before_the_first_token(front: Front) -> None:
    """The engine notices by the connection alone."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        (front.folder / "var/lib/sglang/sglang/upstream.conf").write_text(
            f"server 127.0.0.1:{mute.getsockname()[1]};\n"
        )
        front.reload()
        mute.settimeout(2)
        request = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Api-Key: {KEY}\r\nContent-Length: 2\r\n\r\n{{}}".encode()
        )
        for _ in range(10):
            client = socket.create_connection(("127.0.0.1", front.port), 10)
            client.sendall(request)
            with contextlib.suppress(TimeoutError):
                taken, _ = mute.accept()
                break
            client.close()  # an old worker took it, on a busy machine
        taken.settimeout(5)
        text = b""
        while not text.endswith(b"{}"):
            text += taken.recv(65536)
        client.close()
        assert taken.recv(1) == b""  # closed, not timed out
        taken.close()


# --- logs and TLS -----------------------------------------------------------------------------------------------------


@needs_nginx
def test_no_key_and_no_prompt_reaches_a_log(folder: Path, engine: Engine) -> None:
    front = Front(folder, engine.address)
    secrets = [KEY, "query-key-1234567890", "header-key-1234567890", "path-key-1234567890", PROMPT]

    def everything() -> None:
        for path in ("/v1/models", "/v1/die", "/v1/error", "/flush_cache", "/v1/path-key-1234567890"):
            for headers in ({}, {"X-Api-Key": secrets[2]}, {"Referer": f"http://x/?key={secrets[1]}"}):
                front.ask(
                    f"{path}?key={secrets[1]}&prompt={PROMPT}", body=json.dumps({"prompt": PROMPT}), headers=headers
                )
                front.ask(f"{path}?key={secrets[1]}", key=secrets[2])
        for raw in (
            f"GET /v1/models?{KEY} HTTP/9\r\n\r\n",
            f"{KEY}\r\n\r\n",
            f"GET /v1/x HTTP/1.1\r\n{'K: ' + KEY * 2000}\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", front.port), 10) as broken, contextlib.suppress(OSError):
                broken.sendall(raw.encode())
                broken.recv(65536)

    with front.running():
        everything()
        (folder / "var/lib/sglang/sglang/upstream.conf").write_text(f"server 127.0.0.1:{free_port()};\n")
        front.gate.write_text("return 503;\n")
        front.reload()
        everything()
        front.gate.unlink()
        front.reload()
        everything()
        until(lambda: "gave 502" in front.said())
        said = front.said()
    assert "reconfiguring" in said  # it does say what concerns itself
    for secret in secrets:
        assert secret not in said
        for path in folder.rglob("*"):
            if path.is_file() and path.name != "keys.conf":
                assert secret not in path.read_text(errors="replace")


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "front")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "front.pem", folder / "front.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


@needs_nginx
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
def test_tls(folder: Path, engine: Engine) -> None:
    chain, key = certificate(folder)
    front = Front(
        folder,
        engine.address,
        sglang_server_front_certificate=str(chain),
        sglang_server_front_certificate_key=str(key),
    )
    with front.running():
        front.context = ssl.create_default_context(cafile=str(chain))
        status, _, _ = front.ask()
        assert status == 200 and engine.seen[0][2]["X-Forwarded-Proto"] == "https"
        front.stream()
        engine.finish.set()
        front.context.maximum_version = ssl.TLSVersion.TLSv1_2
        assert front.ask()[0] == 200
        front.context.set_ciphers("ALL:@SECLEVEL=0")
        front.context.minimum_version = front.context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(ssl.SSLError, match="(?i)alert.protocol.version"):
            front.ask()
        front.context = None
        status, _, answer = front.ask()
        assert status == 400 and "https" in answer["error"]["message"]


@needs_nginx
def test_half_of_a_certificate_is_refused(folder: Path) -> None:
    front = Front(folder, "127.0.0.1:9", sglang_server_front_certificate=str(certificate(folder)[0]))
    with front.popen("-t", "-q", stderr=subprocess.PIPE) as done:
        _out, err = done.communicate(timeout=10)
    assert done.returncode and "certificate" in err


@needs_nginx
@pytest.mark.parametrize(
    "variables",
    [
        {"sglang_server_front_host": "::"},
        {"sglang_server_front_host": "::1"},
        {"sglang_server_front_host": "0.0.0.0"},
        {"sglang_server_front_paths": ["/"]},
        {"sglang_server_front_paths": ["/v1/", "/v1", "/v1/", "/metrics"]},
        {"sglang_server_name": "two", "sglang_server_front_keys": []},
    ],
)
def test_nginx_takes_every_form(folder: Path, variables: dict[str, Any]) -> None:
    front = Front(folder, "127.0.0.1:9", **variables)
    for kind in ("etc", "var/lib"):
        shutil.copytree(folder / kind / "sglang/sglang", folder / kind / "sglang/two")
    with front.popen("-t", "-q", stderr=subprocess.PIPE) as done:
        _out, err = done.communicate(timeout=10)
    # What the unit's LimitNOFILE gives, the shell of a test may lack.
    assert done.returncode == 0 and not [line for line in err.splitlines() if "open file resource limit" not in line], (
        err
    )


# --- the unit ---------------------------------------------------------------------------------------------------------


@needs_nginx
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
@pytest.mark.parametrize(("port", "most"), [(8000, 1.1), (443, 1.4)])
def test_the_unit_is_sound_and_tight(tmp_path: Path, port: int, most: float) -> None:
    unit = tmp_path / "sglang-front.service"
    unit.write_text(render("front.service.j2", sglang_server_front_port=port))
    assert unit.read_text().startswith("# Written by sglang-rtxpro")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "sglang-front.service" not in done.stderr, done.stderr
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    exposure = float(done.stdout.rsplit("sglang-front.service:", 1)[1].split()[0])
    assert exposure <= most, done.stdout


def test_only_a_low_port_needs_a_capability() -> None:
    for port, wanted in ((443, True), (1023, True), (1024, False), ("8000", False)):
        text = render("front.service.j2", sglang_server_front_port=port)
        assert ("AmbientCapabilities=CAP_NET_BIND_SERVICE" in text) is wanted
        assert ("PrivateUsers=true" in text) is not wanted


def test_another_address_is_another_unit() -> None:
    """So that it is a restart: nginx's reload cannot take the same port at another address."""
    assert render("front.service.j2") != render("front.service.j2", sglang_server_front_host="127.0.0.2")


def test_the_units_certificates_can_be_read() -> None:
    for path, wanted in (("/etc/ssl/front.pem", "true"), ("/home/me/front.pem", "read-only")):
        assert f"ProtectHome={wanted}\n" in render("front.service.j2", sglang_server_front_certificate=path)


# --- keys as nginx reads them -----------------------------------------------------------------------------------------


def test_keys_become_lines() -> None:
    text = sglang_front_keys(["abcdefghijklmnop", "a.b+c(d)e[f]g{h}i|", "abcdefghijklmnop"])
    assert text.splitlines()[1:] == ['"~^abcdefghijklmnop\\z" 1;', '"~^a\\.b\\+c\\(d\\)e\\[f\\]g\\{h\\}i\\|\\z" 1;']
    assert sglang_front_keys([]).splitlines() == [sglang_keys.HEAD.strip()]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("short", "has 5 characters, expected 16 to 512"),
        ("x" * 513, "has 513 characters"),
        ("a space in the key", "a space"),
        ("tab\tin-the-key-here", "a control character"),
        ("line-break-at-the-end\n", "a control character"),
        ("nul\0in-the-key-here", "a control character"),
        ('quote"in-the-key-here', "a quote"),
        ("quote'in-the-key-here", "a quote"),
        ("back\\slash-in-the-key", "a backslash"),
        ("dollar$in-the-key-here", "a \\$"),
        ("ümlaut-in-the-key-here", "beyond ASCII"),
        ("#begins-with-a-hash-sign", "begins with #"),
        (1234567890123456, "is no text"),
        (None, "is no text"),
    ],
)
def test_keys_that_are_refused_and_not_told(key: Any, reason: str) -> None:
    with pytest.raises(AnsibleFilterError, match=f"Key 2 of sglang_server_front_keys .*{reason}") as raised:
        sglang_front_keys([KEY, key])
    assert str(key).strip() not in str(raised.value) and KEY not in str(raised.value)


def test_one_text_is_no_list() -> None:
    with pytest.raises(AnsibleFilterError, match="is no list") as raised:
        sglang_front_keys(KEY)  # type: ignore[arg-type]
    assert KEY not in str(raised.value)


def test_a_key_file() -> None:
    assert sglang_keys.parse(f"# ours\n\n  {KEY}  \n{NEXT_KEY}\n   # old\n") == [KEY, NEXT_KEY]


def test_words_that_must_show_nowhere() -> None:
    words = sglang_keys.words(sglang_front_keys([KEY]))
    assert KEY in words and all(len(word) >= 8 for word in words)
    assert not [word for word in words if word in sglang_keys.HEAD]


# --- metrics ----------------------------------------------------------------------------------------------------------

METRICS_KEY = "sk-for-metrics-alone"


@needs_nginx
def test_a_key_for_metrics_opens_them_and_nothing_else(folder: Path, engine: Engine) -> None:
    front = Front(folder, engine.address, sglang_server_front_metrics_keys=[METRICS_KEY])
    with front.running():
        assert front.ask("/metrics", METRICS_KEY)[2] == {"path": "/metrics"}
        assert front.ask("/v1/models", METRICS_KEY)[0] == 401
        assert front.ask("/metrics", KEY)[0] == 401, "clients do not see each other's load"
        assert front.ask("/metrics", None)[0] == 401
        assert front.ask("/node/metrics", KEY)[0] == 401
        assert front.ask("/v1/models", KEY)[0] == 200
        assert front.ask("/metrics/x", METRICS_KEY)[0] == 404


@needs_nginx
def test_metrics_pass_a_gate_that_is_closed(folder: Path, engine: Engine) -> None:
    front = Front(folder, engine.address, sglang_server_front_metrics_keys=[METRICS_KEY])
    with front.running():
        front.gate.touch()
        assert front.ask("/v1/models", KEY)[0] == 503
        assert front.ask("/metrics", METRICS_KEY)[0] == 200


@needs_nginx
def test_node_exporter_is_reached_through_the_front(folder: Path, engine: Engine) -> None:
    with serving(Engine().handler()) as exporter:
        port = int(exporter.rpartition(":")[2])
        front = Front(
            folder,
            engine.address,
            sglang_server_front_metrics_keys=[METRICS_KEY],
            sglang_server_front_metrics_port=port,
        )
        with front.running():
            assert front.ask("/node/metrics", METRICS_KEY)[2] == {"path": "/metrics"}
    assert engine.seen == []


@needs_nginx
def test_clients_see_metrics_where_their_paths_say_so(folder: Path, engine: Engine) -> None:
    front = Front(
        folder,
        engine.address,
        sglang_server_front_metrics_keys=[METRICS_KEY],
        sglang_server_front_paths=[*PATHS, "/metrics"],
    )
    with front.running():
        assert front.ask("/metrics", METRICS_KEY)[0] == front.ask("/metrics", KEY)[0] == 200
        assert front.ask("/metrics", None)[0] == 401


def test_keys_for_metrics_are_their_own() -> None:
    text = sglang_front_keys([KEY], metrics=[METRICS_KEY])
    assert text.startswith(sglang_front_keys([KEY])) and text.endswith(f'"~^{METRICS_KEY}\\z" 2;\n')
    with pytest.raises(AnsibleFilterError, match="one of its own") as refused:
        sglang_front_keys([KEY], metrics=[KEY])
    assert KEY not in str(refused.value)
    with pytest.raises(AnsibleFilterError, match="sglang_server_front_metrics_keys is no list"):
        sglang_front_keys([KEY], metrics="words")  # type: ignore[arg-type]
