"""A gateway: what is refused before anything is touched, what its router is told, and whether it does its work.

The router here is a stand-in that answers as sglang-router 0.3.2 was seen to answer (2026-11-30): what is asked of it is queued and
done a moment later, only workers that joined are listed, and those that are down are waited for.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sglang_gateway as module
import sglang_gateway_workers as documented
import yaml
from ansible.module_utils import sglang_inventory
from ansible.module_utils import sglang_node as node
from helpers import documentation, run_module, serving
from sglang_gateway import Worker

from action_plugins import sglang_gateway_workers as action
from filter_plugins.sglang_gateway import sglang_gateway_workers

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "roles/sglang_gateway/files"
KEY = "the-key-of-all-workers-0123"


@pytest.mark.parametrize("text", [module.DOCUMENTATION, module.EXAMPLES, module.RETURN])
def test_documentation_is_yaml_and_matches_the_arguments(text: str) -> None:
    documentation(module, text)


def test_documentation_of_the_action_names_its_arguments() -> None:
    assert set(yaml.safe_load(documented.DOCUMENTATION)["options"]) == set(action.ActionModule._VALID_ARGS)


def test_a_front_is_where_its_role_puts_it() -> None:
    told = yaml.safe_load((ROOT / "roles/sglang_server/defaults/main.yml").read_text())
    assert told["sglang_server_front_port"] == sglang_inventory.FRONT_PORT


# --- what the inventory says ------------------------------------------------------------------------------------------


def host(**more: Any) -> dict[str, Any]:
    return {
        "ansible_host": "192.0.2.1",
        "sglang_server_front": True,
        "sglang_server_front_keys": [KEY],
        "sglang_model_path": "/var/lib/sglang/models/m",
        "sglang_env_stack": "sglang-cpu-0.5.23",
        **more,
    }


def judged(hosts: dict[str, Any], key: str = KEY, mixed: bool = False, workers: list[str] | None = None) -> Any:
    return action.judged(sglang_gateway_workers(list(hosts) if workers is None else workers, hosts), key, mixed)


def test_a_worker_is_reached_at_its_front() -> None:
    hosts = {
        "a": host(sglang_server_front_certificate="/c.pem", sglang_server_front_port="8443"),
        "b": host(ansible_host="2001:db8::1"),
        "c": {"sglang_server_front": "true", "sglang_server_model_name": "x"},
    }
    found = sglang_gateway_workers([*hosts, "https://h:1/"], hosts)
    assert [worker["url"] for worker in found] == [
        *("https://192.0.2.1:8443", "http://[2001:db8::1]:8000", "http://c:8000", "https://h:1"),
    ]
    assert [worker["model"] for worker in found] == ["m", "m", "x", ""]


def test_good_workers_pass_and_a_key_in_clear_text_is_warned_of() -> None:
    wrong, warnings = judged({"a": host(), "b": host(ansible_host="192.0.2.2")})
    assert wrong == [] and len(warnings) == 2
    assert "goes in clear text over the network to a (http://192.0.2.1:8000)" in warnings[0]
    assert "sglang_server_front_certificate" in warnings[0]
    assert judged({"a": host(sglang_server_front_certificate="/c.pem")}) == ([], [])
    assert judged({"a": host(ansible_host="127.0.0.1")}) == ([], [])
    assert judged({"a": host(ansible_host="127.0.0.1", sglang_server_front_keys=[])}, key="") == ([], [])


@pytest.mark.parametrize(
    ("hosts", "more", "words"),
    [
        ({}, {}, ["has no worker", "gpu_nodes", "sglang_gateway_workers"]),
        ({"a": host()}, {"workers": []}, ["has no worker"]),
        ({"a": host()}, {"workers": ["a", "lost"]}, ["lost is no host of this inventory", "http://HOST:PORT"]),
        ({"a": host()}, {"workers": ["a", "http://h"]}, ["http://h is no address of a front"]),
        ({"a": host()}, {"workers": ["a", "http://h:1/v1"]}, ["http://h:1/v1 is no address of a front", "no path"]),
        ({"a": host()}, {"workers": ["a", "http://u:p@h:1"]}, ["is no address of a front"]),
        ({"a": host()}, {"workers": ["a", "http://h:port"]}, ["is no address of a front"]),
        ({"a": host(sglang_server_front=False)}, {}, ["a has no front", "sglang_server_front: true"]),
        (
            {"a": host(), "b": host()},
            {},
            ["a and b have one address: http://192.0.2.1:8000", "ansible_host or sglang_server_front_port"],
        ),
        (
            {"a": host(), "b": host(ansible_host="h2", sglang_model_path="/models/other")},
            {},
            ["different models (m: a; other: b)", "sglang_gateway_workers"],
        ),
        (
            {"a": host(), "b": host(ansible_host="h2", sglang_env_stack="sglang-cpu-0.5.9")},
            {},
            ["different versions of SGLang in the inventory (0.5.23: a; 0.5.9: b)", "-e sglang_gateway_mixed=true"],
        ),
        ({"a": host()}, {"key": ""}, ["no key for the workers (a)", "sglang_gateway_worker_key"]),
        ({"a": host()}, {"key": "short"}, ["sglang_gateway_worker_key has 5 characters"]),
        (
            {"a": host(), "b": host(ansible_host="h2", sglang_server_front_keys=["another-key-0123456789"])},
            {},
            ["none of the sglang_server_front_keys of b", "sglang_gateway_worker_key"],
        ),
    ],
)
def test_what_is_refused_from_the_inventory_alone(
    hosts: dict[str, Any], more: dict[str, Any], words: list[str]
) -> None:
    wrong, _ = judged(hosts, **more)
    assert len(wrong) == 1 and all(word in wrong[0] for word in words), wrong
    assert KEY not in wrong[0]


@pytest.mark.parametrize(
    ("host", "keyed", "ports", "words"),
    [
        ("0.0.0.0", False, {}, "listens on 0.0.0.0 and has no key"),
        ("::", False, {}, "Set sglang_gateway_keys"),
        ("127.0.0.1", True, {"sglang_gateway_port": "1", "b": 1, "c": 2}, "sglang_gateway_port and b are both 1"),
    ],
)
def test_what_is_refused_of_the_gateway_itself(host: str, keyed: bool, ports: dict[str, Any], words: str) -> None:
    (wrong,) = action.own_problems(host, keyed, ports)
    assert words in wrong


@pytest.mark.parametrize(("host", "keyed"), [("0.0.0.0", True), ("127.0.0.1", False), ("::1", False)])
def test_gateways_that_may_be(host: str, keyed: bool) -> None:
    assert action.own_problems(host, keyed, {"a": 1, "b": 2}) == []


def test_of_a_model_over_several_nodes_the_head_is_the_worker() -> None:
    hosts = {
        "head": host(sglang_server_replica={"rank": 0, "head": "head"}),
        "rank": host(ansible_host="h2", sglang_server_front=False, sglang_server_replica={"rank": 1, "head": "head"}),
        "alone": host(ansible_host="h3", sglang_server_replica={}),
    }
    assert [worker["name"] for worker in sglang_gateway_workers(list(hosts), hosts)] == ["head", "alone"]


def test_everything_that_is_wrong_is_said_at_once() -> None:
    wrong, _ = judged({"a": host(), "b": host(sglang_server_front=False)}, key="")
    assert len(wrong) == 3


def test_versions_may_differ_for_a_while() -> None:
    hosts = {"a": host(), "b": host(ansible_host="h2", sglang_env_stack="sglang-cpu-0.5.9")}
    assert judged(hosts, mixed=True)[0] == []
    # Another stack of the same release, and one that this project does not have.
    assert judged({"a": host(), "b": host(ansible_host="h2", sglang_env_stack="sglang-0.5.23-cu130")})[0] == []
    assert judged({"a": host(), "b": host(ansible_host="h2", sglang_env_stack="mine")})[0] == []


# --- the playbook itself ----------------------------------------------------------------------------------------------


def play(
    folder: Path, gateway: dict[str, Any], nodes: dict[str, Any], playbook: str = "gateway.yml"
) -> tuple[int, str]:
    """Against this machine, in check mode; what is refused is refused before the first task that asks it anything."""
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    inventory = {
        "all": {"vars": local},
        "gateways": {"hosts": {"gw": {"sglang_gateway_keys": ["a-key-of-clients-0123"], **gateway}}},
        "gpu_nodes": {"children": {"cpu_demo": {"hosts": nodes}}},
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
    (folder / "group_vars").symlink_to(ROOT / "group_vars")
    done = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(folder / "hosts.yml"), "--check", playbook],
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    ("gateway", "nodes", "words"),
    [
        ({}, {}, "The gateway has no worker"),
        ({}, {"a": {}, "b": {}}, "The workers a and b have one address: http://127.0.0.1:8000"),
        ({"sglang_gateway_workers": ["a", "c"]}, {"a": {}}, "The worker c is no host of this inventory"),
        ({"sglang_gateway_keys": []}, {"a": {}}, "The gateway listens on 0.0.0.0 and has no key"),
        ({"sglang_gateway_polcy": "random"}, {"a": {}}, "did you mean sglang_gateway_policy?"),
        ({"sglang_gateway_policy": "best"}, {"a": {}}, "value of sglang_gateway_policy must be one of"),
    ],
)
def test_the_playbook_refuses_before_it_asks_anybody(
    tmp_path: Path, gateway: dict[str, Any], nodes: dict[str, Any], words: str
) -> None:
    front = {"ansible_host": "127.0.0.1", "sglang_server_front": True, "sglang_server_front_keys": [KEY]}
    code, told = play(tmp_path, gateway, {name: {**front, **node} for name, node in nodes.items()})
    assert code == 2 and words in told and "Ask the workers" not in told, told
    assert KEY not in told


# --- what the router is told ------------------------------------------------------------------------------------------

A, B, C = (Worker(f"http://{name}:8000", f"id-{name}", True, 0, "m") for name in "abc")


def ill(worker: Worker) -> Worker:
    return worker._replace(healthy=False)


def test_what_the_router_says_of_its_workers() -> None:
    # As 0.3.2 answered, shortened.
    document = {
        "workers": [
            {"id": "c0942b88", "url": "http://127.0.0.1:30009/", "model_id": "m", "is_healthy": True, "load": 2},
            {"id": "2664c808", "url": "http://127.0.0.1:30023", "model_id": "n", "is_healthy": False, "load": 0},
        ]
    }
    assert module.parse(document) == [
        Worker("http://127.0.0.1:30009", "c0942b88", True, 2, "m"),
        Worker("http://127.0.0.1:30023", "2664c808", False, 0, "n"),
    ]
    with pytest.raises(module.GatewayError, match="another form than 0.3.2"):
        module.parse({"workers": [{"address": "x"}]})


@pytest.mark.parametrize(
    ("workers", "least", "removed", "words"),
    [
        ([A, B, C], 2, [A], "2 others serve"),
        ([A, B, C], 1, [A], "2 others serve"),
        ([A], 0, [A], "0 others serve"),
        ([B, C], 3, [], "is not in the gateway's list: nothing to drain"),
        ([ill(A), B], 9, [], "not healthy, so that it gets no requests: nothing to drain"),
    ],
)
def test_draining(workers: list[Worker], least: int, removed: list[Worker], words: str) -> None:
    step = module.plan_drained(workers, A.url + "/", least)
    assert step.remove == removed and step.changed == bool(removed) and not step.refused and words in step.reason


@pytest.mark.parametrize(
    ("workers", "least", "words"),
    [
        ([A, B, C], 3, ["2 of 3 workers would be left", "sglang_fleet_min_serving is 3", "=2"]),
        ([A, ill(B), C], 2, ["1 of 3 workers would be left", "Not healthy: http://b:8000", "=1"]),
        ([A], 1, ["0 of 1 workers", "add a node", "-e sglang_fleet_min_serving=0"]),
    ],
)
def test_draining_that_would_leave_too_few(workers: list[Worker], least: int, words: list[str]) -> None:
    step = module.plan_drained(workers, A.url, least)
    assert step.refused and not step.changed and step.remove == [] and all(word in step.reason for word in words), step


def test_coming_back() -> None:
    assert module.plan_serving([B], A.url + "/") == module.Plan(
        f"{A.url} comes into the list", add=[A.url], changed=True
    )
    assert not module.plan_serving([A], A.url).changed and module.plan_serving([ill(A)], A.url).add == []


@pytest.mark.parametrize(
    ("workers", "told", "wanted", "up", "added", "removed"),
    [
        ([A, B], "ab", "ab", "", "", ""),
        ([A], "ab", "ab", "", "", ""),  # b is down, and the router knows
        ([A], "ab", "ab", "b", "b", ""),  # given up, or just coming
        ([A], "a", "ab", "", "b", ""),  # new and down
        ([A], "a", "ab", "b", "b", ""),
        ([A, B], "ab", "a", "", "", "b"),
        ([A, ill(B)], "ab", "ac", "c", "c", "b"),
        ([], "", "a", "a", "a", ""),
    ],
)
def test_matching(workers: list[Worker], told: str, wanted: str, up: str, added: str, removed: str) -> None:
    def urls(names: str) -> list[str]:
        return [f"http://{name}:8000" for name in names]

    step = module.plan_matched(workers, urls(told), [url + "/" for url in urls(wanted)], urls(up))
    assert step.add == urls(added) and [worker.url for worker in step.remove] == urls(removed)
    assert step.changed == bool(added or removed) and step.warnings == []


def test_a_worker_that_is_waited_for_and_no_longer_wanted() -> None:
    step = module.plan_matched([A], [A.url, B.url], [A.url], [])
    assert not step.changed and len(step.warnings) == 1 and "only a restart makes it forget" in step.warnings[0]


def said(url: str, model: str = "m", version: str = "0.5.23", **more: Any) -> dict[str, Any]:
    return {"url": url, "up": True, "models": [model], "version": version, "error": "", **more}


def test_workers_that_serve_the_same() -> None:
    assert module.compared([said("a"), said("b"), said("c", version="")], False) == ([], [])
    wrong, warnings = module.compared([said("a"), said("b", model="", up=False, error="Connection refused")], False)
    assert wrong == [] and "b does not answer (Connection refused); the gateway starts without it" in warnings[0]


def test_workers_that_serve_something_else() -> None:
    wrong, _ = module.compared([said("a"), said("b"), said("c", model="n")], True)
    assert len(wrong) == 1 and "m (a, b); n (c)" in wrong[0] and "sglang_gateway_workers" in wrong[0]
    versions = [said("a"), said("b", version="0.5.9")]
    wrong, _ = module.compared(versions, False)
    assert len(wrong) == 1 and "0.5.23 (a); 0.5.9 (b)" in wrong[0] and "-e sglang_gateway_mixed=true" in wrong[0]
    assert module.compared(versions, True) == ([], [])


# --- against a router -------------------------------------------------------------------------------------------------


class Http(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def key(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def answer(self, status: int, document: Any = None) -> None:
        text = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class Front:
    """A worker: a node's front and the engine behind it."""

    def __init__(self) -> None:
        self.status, self.key, self.open, self.info = 200, KEY, True, {"version": "0.5.23"}
        self.model, self.url = "m", ""

    def handler(self) -> type[Http]:
        front = self

        class Handler(Http):
            def do_GET(self) -> None:
                keyed = self.path != "/health" or not front.open
                if keyed and self.key() != front.key:
                    self.answer(401)
                elif self.path == "/health" or front.status != 200:
                    self.answer(front.status)
                elif self.path == "/v1/models":
                    self.answer(200, {"data": [{"id": front.model}]})
                elif self.path == "/server_info" and front.info:
                    self.answer(200, front.info)
                else:
                    self.answer(404)

        return Handler


class Router:
    """As sglang-router 0.3.2 answers."""

    def __init__(self) -> None:
        self.key, self.delay, self.url = KEY, 0.05, ""
        self.workers: dict[str, dict[str, Any]] = {}
        self.seen: list[tuple[str, str, str]] = []
        self.stuck = False
        self.generate = 200

    def join(self, url: str, healthy: bool = True, load: int = 0) -> None:
        self.workers[url] = {"id": f"id-{len(self.seen)}-{url[-4:]}", "url": url, "is_healthy": healthy, "load": load}

    def later(self, what: Callable[[], Any]) -> None:
        if not self.stuck:
            threading.Timer(self.delay, what).start()

    def handler(self) -> type[Http]:
        router = self

        class Handler(Http):
            def respond(self) -> None:
                body = self.body()
                if self.path == "/health":
                    self.answer(200)
                elif self.path == "/generate":
                    # A key would go to the worker beside the router's own.
                    self.answer(400 if self.key() else router.generate, {"text": "x"})
                elif self.key() != router.key:
                    self.answer(401)
                elif self.command == "GET":
                    self.answer(200, {"workers": list(router.workers.values()), "total": len(router.workers)})
                else:
                    router.seen.append((self.command, self.path, body.decode()))
                    self.change(json.loads(body or b"{}"))

            def change(self, body: dict[str, Any]) -> None:
                if self.command == "POST":
                    assert body["api_key"] == KEY and not body["url"].endswith("/")
                    if alive(body["url"]):
                        router.later(lambda: router.join(body["url"]))
                    self.answer(202, {"status": "accepted"})
                    return
                found = [url for url, worker in router.workers.items() if self.path.endswith(f"/{worker['id']}")]
                if found:
                    router.later(lambda: router.workers.pop(found[0], None))
                self.answer(202 if found else 404, {"status": "accepted"})

            do_GET = do_POST = do_DELETE = respond

        return Handler


def alive(url: str) -> bool:
    return module.alive([url], None) == [url]


@contextlib.contextmanager
def fronts(number: int) -> Iterator[list[Front]]:
    with contextlib.ExitStack() as stack:
        made = [Front() for _ in range(number)]
        for front in made:
            front.url = stack.enter_context(serving(front.handler()))
        yield made


@pytest.fixture
def router() -> Iterator[Router]:
    made = Router()
    with serving(made.handler()) as made.url:
        yield made


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(router: Router, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The module on a gateway's host. Nothing that it prints holds the key."""
    for name in ("units", "etc/sglang-gateway", "run/sglang-gateway"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "units/sglang-gateway.service").write_text("")
    (tmp_path / "etc/sglang-gateway/worker.key").write_text(KEY + "\n")
    monkeypatch.setattr(node, "UNITS", str(tmp_path / "units"))
    monkeypatch.setattr(node, "show", lambda *_: {"ActiveState": "inactive"})
    monkeypatch.setattr(module, "ETC", str(tmp_path / "etc"))
    monkeypatch.setattr(module, "RUNTIME", str(tmp_path / "run"))
    monkeypatch.setattr(module, "STEP", 0.02)

    def once(check: bool = False, **more: Any) -> dict[str, Any]:
        told = run_module(module, capsys, check, **{"url": router.url, "timeout": 5, **more})
        assert KEY not in json.dumps(told)
        return told

    return once


def note(tmp_path: Path, *urls: str) -> Path:
    path = tmp_path / "run/sglang-gateway/told.json"
    if urls:
        path.write_text(json.dumps({"workers": urls}))
    return path


def test_looking(run: Run, router: Router, tmp_path: Path) -> None:
    router.join(A.url, load=3)
    router.join(B.url, healthy=False)
    note(tmp_path, A.url, B.url, C.url)
    told = run()
    assert told["deployed"] and not told["changed"] and told["healthy"] == 1 and told["waiting"] == [C.url]
    assert [(worker["url"], worker["healthy"], worker["load"]) for worker in told["workers"]] == [
        *((A.url, True, 3), (B.url, False, 0)),
    ]


def test_a_worker_goes_and_comes_back(run: Run, router: Router, tmp_path: Path) -> None:
    with fronts(2) as (one, other):
        router.join(one.url)
        router.join(other.url)
        note(tmp_path, one.url, other.url)
        told = run(check=True, state="drained", worker=one.url)
        assert told["changed"] and router.seen == [] and told["diff"]["after"] == f"{other.url}\n"
        told = run(state="drained", worker=one.url)
        assert told["changed"] and [worker["url"] for worker in told["workers"]] == [other.url]
        assert told["waiting"] == [] and json.loads(note(tmp_path).read_text()) == {"workers": [other.url]}
        assert not run(state="drained", worker=one.url)["changed"]
        told = run(check=True, state="serving", worker=one.url)
        assert told["changed"] and len(router.seen) == 1
        told = run(state="serving", worker=one.url)
        assert told["changed"] and told["healthy"] == 2 and one.url in json.loads(note(tmp_path).read_text())["workers"]
        assert not run(state="serving", worker=one.url)["changed"]


def test_too_few_would_be_left(run: Run, router: Router) -> None:
    router.join(A.url)
    told = run(state="drained", worker=A.url)
    assert (
        told["failed"] and "0 of 1 workers would be left" in told["msg"] and told["healthy"] == 1 and router.seen == []
    )
    assert run(check=True, state="drained", worker=A.url)["failed"], "a check says it too"


def test_a_worker_that_does_not_become_healthy(run: Run, router: Router) -> None:
    router.join(A.url, healthy=False)
    told = run(state="serving", worker=A.url, timeout=0.1)
    assert told["failed"] and f"curl -i {A.url}/health" in told["msg"] and router.seen == []


def test_a_router_whose_queue_is_full(run: Run, router: Router) -> None:
    router.join(A.url)
    router.join(B.url)
    router.stuck = True
    told = run(state="drained", worker=A.url, timeout=0.1)
    assert told["failed"] and "is still in the list after 0 s. Ten or more workers" in told["msg"]


def test_the_list_is_made_what_is_wanted(run: Run, router: Router, tmp_path: Path) -> None:
    with fronts(2) as (one, other):
        router.join(A.url, healthy=False)
        router.join(one.url)
        note(tmp_path, A.url, one.url)
        wanted = [one.url, other.url, C.url]
        told = run(check=True, state="matched", workers=wanted)
        assert told["changed"] and router.seen == []
        told = run(state="matched", workers=wanted)
        assert told["changed"] and {worker["url"] for worker in told["workers"]} == {one.url, other.url}
        assert told["waiting"] == [C.url] and len(router.seen) == 3
        told = run(state="matched", workers=wanted)
        assert not told["changed"] and told["reason"] == "the list is as wanted" and len(router.seen) == 3


def test_no_gateway_on_the_host(run: Run, tmp_path: Path) -> None:
    (tmp_path / "units/sglang-gateway.service").unlink()
    told = run(state="drained", worker=A.url)
    assert told["deployed"] is False and not told["changed"] and "is not deployed" in told["reason"]


def test_a_gateway_that_does_not_answer(run: Run) -> None:
    told = run(state="drained", worker=A.url, url="http://127.0.0.1:9")
    assert told["deployed"] is False and "does not answer (Connection refused)" in told["reason"]
    assert "its unit sglang-gateway.service is inactive" in told["reason"] and told["workers"] == []


def test_a_gateway_that_was_just_started(run: Run, router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def once_silent(self: Any) -> list[Worker]:
        asked.append("")
        if len(asked) == 1:
            raise module.Silent("Connection refused")
        return [A]

    monkeypatch.setattr(node, "show", lambda *_: {"ActiveState": "activating"})
    monkeypatch.setattr(module.Gateway, "workers", once_silent)
    assert run()["healthy"] == 1 and len(asked) == 2


def test_a_router_with_another_key(run: Run, router: Router) -> None:
    router.key = "another"
    assert "does not take the key in its key file (HTTP 401)" in run()["msg"]


def test_another_program_on_the_routers_port(run: Run) -> None:
    with fronts(1) as (front,):
        assert "expected the router's list of workers" in run(url=front.url)["msg"]


def test_a_key_file_that_is_not_there(run: Run, tmp_path: Path) -> None:
    assert "is not there" in run(key_file=str(tmp_path / "none"))["msg"]


# --- what workers say themselves ----------------------------------------------------------------------------------------


def test_asking_workers(run: Run) -> None:
    with fronts(2) as (one, other):
        other.info = {}
        told = run(state="asked", workers=[one.url, other.url + "/"], key=KEY)
        assert not told["changed"] and [(w["models"], w["version"]) for w in told["workers"]] == [
            *((["m"], "0.5.23"), (["m"], "")),
        ]


def test_asking_workers_that_are_down(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr(module.AnsibleModule, "warn", lambda _, text: warned.append(text))
    with fronts(2) as (one, other):
        other.status = 503
        told = run(state="asked", workers=[one.url, other.url, "http://127.0.0.1:9"], key=KEY)
        assert [worker["up"] for worker in told["workers"]] == [True, False, False]
        assert "/health says HTTP 503" in warned[0] and "Connection refused" in warned[1]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda front: setattr(front, "model", "n"), ["serve different models: m (", "; n ("]),
        (lambda front: setattr(front, "info", {"version": "0.5.9"}), ["different versions of SGLang: 0.5.23 ("]),
        (lambda front: setattr(front, "open", False), ["wants a key for /health", "sglang_server_front_gateway"]),
        (lambda front: setattr(front, "key", "x"), ["does not take the gateway's key", "sglang_server_front_keys"]),
    ],
)
def test_asking_workers_that_do_not_fit(run: Run, spoil: Callable[[Front], Any], words: list[str]) -> None:
    with fronts(2) as (one, other):
        spoil(other)
        told = run(state="asked", workers=[one.url, other.url], key=KEY)
        assert told["failed"] and all(word in told["msg"] for word in words) and other.url in told["msg"]


def test_asking_with_certificates_that_cannot_be_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("none")
    told = run(state="asked", workers=["https://127.0.0.1:9"], key=KEY, ca=str(tmp_path / "ca.pem"))
    assert "cannot be read" in told["msg"] and "Expected a file in PEM" in told["msg"]


# --- the programs on the host -----------------------------------------------------------------------------------------


@pytest.fixture
def prove(router: Router, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    (tmp_path / "worker.key").write_text(KEY + "\n")

    def once(*urls: str, **more: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "workers.json").write_text(json.dumps({"workers": urls}))
        words = more or {"router": router.url, "folder": str(tmp_path), "seconds": "0.3"}
        argv = [sys.executable, str(FILES / "prove.py")]
        argv += [word for name, value in words.items() for word in (f"--{name}", value)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr and KEY not in done.stdout + done.stderr
        return done

    return once


def test_a_gateway_that_does_its_work(prove: Any, router: Router) -> None:
    with fronts(2) as (one, other):
        other.status = 503
        router.join(one.url)
        done = prove(one.url, other.url)
        assert (done.returncode, done.stdout) == (0, "a request was answered\n")


def test_a_gateway_whose_workers_are_all_down(prove: Any) -> None:
    """It must start all the same."""
    assert prove("http://127.0.0.1:9").stdout == "no worker answers; the router waits for them\n"


def test_gateways_that_do_not_do_their_work(prove: Any, router: Router) -> None:
    with fronts(1) as (one,):
        done = prove(one.url)
        assert done.returncode == 1 and f"does not have {one.url}, which answer" in done.stderr
        router.join(one.url)
        router.generate = 500
        done = prove(one.url)
        assert done.returncode == 1 and "is answered with HTTP 500" in done.stderr
        router.key = "another"
        assert "HTTP 401 when it is asked for its workers" in prove(one.url).stderr
    assert prove(router="http://127.0.0.1:9", folder=".").returncode == 1


def test_the_front_passes_requests_on(prove: Any, router: Router) -> None:
    assert prove(front=router.url).returncode == 0
    with fronts(1) as (closed,):
        closed.status = 503
        assert "the front says HTTP 503" in prove(front=closed.url).stderr
    assert prove(front="http://127.0.0.1:9").returncode == 1


def test_the_key_is_in_no_command_line(tmp_path: Path) -> None:
    """With a router that says what it was started with: the real one is 31 MB."""
    (tmp_path / "sglang_router").mkdir()
    (tmp_path / "sglang_router/__init__.py").touch()
    (tmp_path / "sglang_router/launch_router.py").write_text(
        "import sys\ndef main(): print(sys.argv[1:]); print(open('/proc/self/cmdline').read())\n"
    )
    done = program(tmp_path, "--port", "1")
    words, command = done.stdout.splitlines()
    assert words == str(["--port", "1", "--control-plane-api-keys", f"gateway:gateway:admin:{KEY}"])
    assert KEY not in command and "--port" in command


def test_the_router_is_told_its_workers_with_their_key(router: Router, tmp_path: Path) -> None:
    with fronts(1) as (one,):
        done = program(tmp_path, "tell", router.url, workers=[one.url, A.url])
        assert done.returncode == 0, done.stderr
        assert [json.loads(body)["url"] for _, _, body in router.seen] == [one.url, A.url]
        assert all(json.loads(body)["api_key"] == KEY for _, _, body in router.seen)
    assert json.loads((tmp_path / "told.json").read_text()) == {"workers": [one.url, A.url]}
    router.key = "another"
    assert program(tmp_path, "tell", router.url, workers=[A.url]).returncode == 1


def program(folder: Path, *words: str, workers: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    (folder / "router.py").write_text((FILES / "router.py").read_text())
    (folder / "workers.json").write_text(json.dumps({"workers": workers or []}))
    (folder / "worker-key").write_text(KEY + "\n")
    environment = {"CREDENTIALS_DIRECTORY": str(folder), "RUNTIME_DIRECTORY": str(folder), "PYTHONPATH": str(folder)}
    argv = [sys.executable, str(folder / "router.py"), *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
