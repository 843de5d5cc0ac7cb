#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""A gateway's workers: look at them, take one out before its node is changed, put it back, match them to the inventory."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_gateway
short_description: Look at the workers of a gateway, take one out, put it back
version_added: "0.1.0"
description:
  - Runs on the gateway's host and speaks to SGLang's router (0.3.2) at its own address, which is loopback.
  - The router forgets at a restart what it was told here; its unit's list of workers then counts again.
options:
  state:
    description:
      - V(inspected) tells which workers the router has, and how they are.
      - V(drained) takes O(worker) out of the router's list, so that no new request goes to it. Requests in flight end as they
        would; the worker's own front waits for them. A worker that is not in the list, or not healthy, is not drained.
      - V(serving) puts O(worker) into the list unless it is there, and waits until the router finds it healthy.
      - V(matched) makes the list what O(workers) says, without a restart. Workers that are down are waited for by the router.
      - V(asked) asks each of O(workers) itself what it serves, and fails when they do not serve the same. A worker that is down is
        a warning. The router need not be there.
    type: str
    choices: [inspected, drained, serving, matched, asked]
    default: inspected
  name:
    description: Name of the gateway. Its unit is C(<name>.service).
    type: str
    default: sglang-gateway
  url:
    description: Where the router listens.
    type: str
    default: http://127.0.0.1:30100
  key_file:
    description:
      - File with the one key that the router takes and sends to its workers. C(/etc/sglang/<name>/worker.key) by default; none is
        sent where there is no such file.
    type: path
  worker:
    description: URL of the worker's front, without a path. Needed with V(drained) and V(serving).
    type: str
  workers:
    description: URLs of all workers. Needed with V(matched) and V(asked).
    type: list
    elements: str
    default: []
  key:
    description: Key of the workers' fronts for V(asked), which comes before there is a key file.
    type: str
  ca:
    description: File with certificates (PEM) that workers' certificates are checked with, in place of the system's.
    type: path
  mixed:
    description: Let workers with different versions of SGLang pass V(asked), as there are in the middle of a roll.
    type: bool
    default: false
  min_serving:
    description: How many healthy workers V(drained) must leave.
    type: int
    default: 1
  timeout:
    description: Seconds until the worker must be gone, or healthy.
    type: float
    default: 60
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Tells what would be done., details: []}
  diff_mode: {support: full, description: Shows the list of workers before and after., details: []}
"""

EXAMPLES = r"""
- name: Take a worker out of the list
  sglang_gateway:
    state: drained
    worker: http://192.0.2.10:8000
    min_serving: 2

- name: Put it back
  sglang_gateway:
    state: serving
    worker: http://192.0.2.10:8000
    timeout: 120
"""

RETURN = r"""
deployed:
  description: Whether a gateway of this name is on the host and answers. Where it is not, nothing was done.
  type: bool
  returned: success, but not with V(asked)
reason:
  description: Why nothing was, or had to be, done; what was, otherwise.
  type: str
  returned: success, but not with V(asked)
workers:
  description:
    - What the router knows of its workers, by URL. C(url), C(id) (the router's own), C(healthy), C(load) (requests in flight; the
      router counts them with the policy C(cache_aware) alone, and says 0 otherwise), C(model).
    - With V(asked), what they said themselves. C(url), C(up), C(models), C(version) (empty where they do not tell), C(error).
  type: list
  elements: dict
  returned: success
healthy:
  description: How many workers the router finds healthy.
  type: int
  returned: success, but not with V(asked)
waiting:
  description: Workers that the router was told and that have not joined yet, as they are down. By URL.
  type: list
  elements: str
  returned: success, but not with V(asked)
"""

import concurrent.futures
import json
import os
import ssl
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ansible.module_utils import sglang_http
from ansible.module_utils import sglang_node as node
from ansible.module_utils.basic import AnsibleModule

SPEC: Dict[str, Any] = {
    "state": {
        "type": "str",
        "choices": ["inspected", "drained", "serving", "matched", "asked"],
        "default": "inspected",
    },
    "name": {"type": "str", "default": "sglang-gateway"},
    "url": {"type": "str", "default": "http://127.0.0.1:30100"},
    "key_file": {"type": "path", "no_log": False},
    "worker": {"type": "str"},
    "workers": {"type": "list", "elements": "str", "default": []},
    "key": {"type": "str", "no_log": True},
    "ca": {"type": "path"},
    "mixed": {"type": "bool", "default": False},
    "min_serving": {"type": "int", "default": 1},
    "timeout": {"type": "float", "default": 60},
}
ETC = "/etc/sglang"
RUNTIME = "/run"
# What the router was told at its start (files/router.py writes it), and since.
TOLD = "told.json"
# Seconds for one answer; of a worker, whose /health makes a token first.
PATIENCE = 10.0
WORKER_PATIENCE = 15.0
# Seconds in which a router that systemd has just started begins to listen.
START = 15.0
STEP = 0.25


class GatewayError(Exception):
    """What went wrong. The text names the thing, what was expected and the remedy."""


class Silent(Exception):
    """Nobody answers at the address."""


# --- decisions, from data alone -------------------------------------------------------------------------------------------


class Worker(NamedTuple):
    """A worker as the router knows it."""

    url: str
    id: str
    healthy: bool
    load: int
    model: str

    def facts(self) -> Dict[str, Any]:
        return dict(self._asdict())


class Plan(NamedTuple):
    """What the router is to be told."""

    reason: str
    remove: List[Worker] = []
    add: List[str] = []
    refused: bool = False
    changed: bool = False
    warnings: List[str] = []


def parse(document: Any) -> List[Worker]:
    """Workers from the answer of GET /workers."""
    try:
        found = [
            Worker(
                bare(str(entry["url"])),
                str(entry["id"]),
                bool(entry["is_healthy"]),
                int(entry.get("load") or 0),
                str(entry.get("model_id") or ""),
            )
            for entry in document["workers"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise GatewayError(
            f"the router's list of workers has another form than 0.3.2 gives it ({type(error).__name__}: {error}). "
            "Expected entries with url, id and is_healthy."
        ) from error
    return sorted(found)


def bare(url: str) -> str:
    """An address without the slash behind it: with one a worker never joins."""
    return url.rstrip("/")


def of(workers: List[Worker], url: str) -> Optional[Worker]:
    return next((worker for worker in workers if worker.url == bare(url)), None)


def plan_drained(workers: List[Worker], url: str, min_serving: int) -> Plan:
    url = bare(url)
    worker = of(workers, url)
    if worker is None:
        return Plan(f"{url} is not in the gateway's list: nothing to drain")
    if not worker.healthy:
        return Plan(f"{url} is in the gateway's list and not healthy, so that it gets no requests: nothing to drain")
    left = sum(other.healthy for other in workers) - 1
    if left < min_serving:
        ill = [other.url for other in workers if not other.healthy]
        return Plan(
            f"{left} of {len(workers)} workers would be left to serve without {url}, and sglang_fleet_min_serving is "
            f"{min_serving}. "
            + (f"Not healthy: {', '.join(ill)}; see to them first" if ill else "All others are healthy: add a node")
            + f", or allow it with -e sglang_fleet_min_serving={left}.",
            refused=True,
        )
    return Plan(f"{url} goes out of the list; {left} others serve", remove=[worker], changed=True)


def plan_serving(workers: List[Worker], url: str) -> Plan:
    url = bare(url)
    worker = of(workers, url)
    if worker is None:
        return Plan(f"{url} comes into the list", add=[url], changed=True)
    return Plan(f"{url} is in the list" + ("" if worker.healthy else " and not healthy yet"))


def plan_matched(workers: List[Worker], told: List[str], wanted: List[str], up: List[str]) -> Plan:
    """`told` are URLs that the router was told since its start, `up` those wanted ones that answer and are not in its list."""
    wanted = list(dict.fromkeys(bare(url) for url in wanted))
    listed = [worker.url for worker in workers]
    remove = [worker for worker in workers if worker.url not in wanted]
    # One that was told and is up was given up (worker-startup-timeout-secs), or joins in a moment: told twice does no harm.
    add = [url for url in wanted if url not in listed and (url not in told or url in up)]
    lost = [url for url in told if url not in wanted and url not in listed]
    reasons = [f"{worker.url} goes out of the list" for worker in remove]
    reasons += [f"{url} comes into the list" if url in up else f"{url} is waited for" for url in add]
    warnings = [
        f"{url} is no longer wanted, but the router waits for it and takes it when it comes back: only a restart makes it forget."
        for url in lost
    ]
    return Plan("; ".join(reasons) or "the list is as wanted", remove, add, changed=bool(reasons), warnings=warnings)


def compared(answers: List[Dict[str, Any]], mixed: bool) -> Tuple[List[str], List[str]]:
    """What is wrong with what workers serve, and warnings."""
    wrong: List[str] = []
    warnings = [
        f"The worker {answer['url']} does not answer ({answer['error']}); the gateway starts without it and takes it when it does."
        for answer in answers
        if not answer["up"]
    ]
    for answer in answers:
        if answer["up"] and answer["error"]:
            wrong.append(f"The worker {answer['url']} {answer['error']}")
    models = groups(answers, lambda answer: ", ".join(answer["models"]))
    if len(models) > 1:
        wrong.append(
            f"The workers serve different models: {spoken(models)}. A gateway has one model, since requests go to any of them. "
            "Deploy one model on all, or name those of one model in sglang_gateway_workers."
        )
    versions = groups(answers, lambda answer: answer["version"])
    if len(versions) > 1 and not mixed:
        wrong.append(
            f"The workers run different versions of SGLang: {spoken(versions)}. Bring them to one with deploy.yml, leave the odd "
            "one out of sglang_gateway_workers, or accept it for a while with -e sglang_gateway_mixed=true."
        )
    return wrong, warnings


def groups(answers: List[Dict[str, Any]], key: Any) -> Dict[str, List[str]]:
    """URLs by what their workers said; what was not said is left out."""
    found: Dict[str, List[str]] = {}
    for answer in answers:
        said = key(answer) if answer["up"] else ""
        if said:
            found.setdefault(said, []).append(answer["url"])
    return found


def spoken(found: Dict[str, List[str]]) -> str:
    return "; ".join(f"{said} ({', '.join(urls)})" for said, urls in sorted(found.items()))


# --- HTTP -----------------------------------------------------------------------------------------------------------------


def ask(url: str, timeout: float = PATIENCE, *more: Any, **how: Any) -> sglang_http.Answer:
    """As sglang_http.ask; Silent where there is no answer."""
    answer = sglang_http.ask(url, timeout, *more, **how)
    if not answer.status:
        raise Silent(answer.text)
    return answer


def ask_worker(url: str, key: str, context: Optional[ssl.SSLContext]) -> Dict[str, Any]:
    """What a worker says of itself. `up` is whether its front and its engine answer."""
    found: Dict[str, Any] = {"url": url, "up": False, "models": [], "version": "", "error": ""}

    def get(path: str, with_key: str) -> Tuple[int, str]:
        return ask(url + path, WORKER_PATIENCE, with_key, context=context)

    try:
        status, _ = get("/health", "")
        if status in (401, 403):
            found["up"] = True
            found["error"] = (
                f"wants a key for /health (HTTP {status}), which the router asks for without one when a worker joins. Set "
                "sglang_server_front_gateway to true for the node and deploy it (group_vars/gpu_nodes.yml does that where the "
                "inventory has the group gateways)."
            )
            return found
        if status != 200:
            found["error"] = f"/health says HTTP {status}"
            return found
        status, text = get("/v1/models", key)
        if status in (401, 403):
            found["up"] = True
            found["error"] = (
                f"does not take the gateway's key (HTTP {status} for /v1/models). Set sglang_gateway_worker_key to one of the "
                "node's sglang_server_front_keys, and deploy the node if its keys are new."
            )
            return found
        if status != 200:
            found["error"] = f"/v1/models says HTTP {status}"
            return found
        found["models"] = sorted(str(entry["id"]) for entry in json.loads(text)["data"])
        for path in ("/server_info", "/get_server_info"):
            status, text = get(path, key)
            if status == 200:
                found["version"] = str(json.loads(text).get("version") or "")
                break
        found["up"] = True
    except Silent as error:
        found["error"] = str(error)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        found["error"] = f"it speaks another language ({type(error).__name__}: {error})"
    return found


def ask_all(urls: List[str], key: str, context: Optional[ssl.SSLContext]) -> List[Dict[str, Any]]:
    """At once: one that does not answer takes its time."""
    with concurrent.futures.ThreadPoolExecutor(len(urls) or 1) as pool:
        return list(pool.map(lambda url: ask_worker(url, key, context), urls))


def well(url: str, ca: Optional[str]) -> bool:
    """Whether its /health says 200, which is asked without a key."""
    try:
        return ask(url + "/health", WORKER_PATIENCE, context=context_of(url, ca)).status == 200
    except Silent:
        return False


def alive(urls: List[str], ca: Optional[str]) -> List[str]:
    with concurrent.futures.ThreadPoolExecutor(len(urls) or 1) as pool:
        return [url for url, up in zip(urls, pool.map(lambda url: well(url, ca), urls)) if up]


def context_of(url: str, ca: Optional[str]) -> Optional[ssl.SSLContext]:
    if not url.startswith("https:"):
        return None
    try:
        return ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        raise GatewayError(
            f"The certificates in {ca} cannot be read: {error}. Expected a file in PEM on the gateway's host."
        ) from error


# --- the gateway ----------------------------------------------------------------------------------------------------------


class Gateway:
    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.name: str = self.params["name"]
        self.url = bare(self.params["url"])
        self.unit = f"{self.name}.service"
        self.note = os.path.join(RUNTIME, self.name, TOLD)
        self.result: Dict[str, Any] = {"changed": False}
        self.key = self.read_key()

    def read_key(self) -> str:
        path = self.params["key_file"] or os.path.join(ETC, self.name, "worker.key")
        try:
            with open(path, encoding="utf-8") as stream:
                key = stream.read().strip()
        except FileNotFoundError:
            if self.params["key_file"]:
                raise GatewayError(
                    f"The key file {path} is not there. Expected the key of the workers' fronts in it."
                ) from None
            return ""
        except (OSError, UnicodeError) as error:
            raise GatewayError(f"The key file {path} cannot be read: {error}.") from error
        self.module.no_log_values.add(key)
        return key

    # --- what the router says

    def workers(self) -> List[Worker]:
        status, text = ask(f"{self.url}/workers", key=self.key)
        if status in (401, 403):
            raise GatewayError(
                f"the router at {self.url} does not take the key in its key file (HTTP {status}): they differ, as after a run that "
                "was cut off. Run gateway.yml."
            )
        try:
            document = json.loads(text) if status == 200 else None
        except ValueError:
            document = None
        if document is None:
            raise GatewayError(
                f"{self.url}/workers says HTTP {status}, expected the router's list of workers. Another program may have its port."
            )
        return parse(document)

    def there(self) -> Optional[List[Worker]]:
        """The router's workers, or nothing where there is no router. One that was just started gets a moment."""
        if not os.path.lexists(os.path.join(node.UNITS, self.unit)):
            self.result.update(
                deployed=False, reason=f"there is no {self.unit} on this host: the gateway is not deployed"
            )
            return None
        until = time.monotonic() + START
        while True:
            try:
                return self.workers()
            except Silent as error:
                active = node.show(self.unit, ("ActiveState",)).get("ActiveState", "unknown")
                if active not in ("active", "activating") or time.monotonic() > until:
                    reason = f"the gateway at {self.url} does not answer ({error}); its unit {self.unit} is {active}"
                    self.result.update(deployed=False, reason=reason)
                    return None
                time.sleep(STEP)

    def told(self) -> List[str]:
        return [str(url) for url in node.read_json(self.note).get("workers") or []]

    def tell(self, told: List[str]) -> None:
        if os.path.isdir(os.path.dirname(self.note)):
            node.write(self.note, json.dumps({"workers": sorted(set(told))}) + "\n", 0o644)

    def show(self, workers: List[Worker], told: List[str]) -> None:
        listed = [worker.url for worker in workers]
        self.result.update(
            deployed=True,
            workers=[worker.facts() for worker in workers],
            healthy=sum(worker.healthy for worker in workers),
            waiting=sorted(url for url in set(told) if url not in listed),
        )

    # --- what it is told

    def add(self, url: str) -> None:
        body = {"url": url, **({"api_key": self.key} if self.key else {})}
        status, text = ask(f"{self.url}/workers", key=self.key, body=body)
        # 409: it is there already, as another run was quicker.
        if status not in (200, 201, 202, 409):
            raise GatewayError(f"the router does not take the worker {url}: HTTP {status} {text[:300]}")

    def remove(self, worker: Worker) -> None:
        status, text = ask(f"{self.url}/workers/{worker.id}", key=self.key, method="DELETE")
        if status not in (200, 202, 204, 404):
            raise GatewayError(f"the router does not let the worker {worker.url} go: HTTP {status} {text[:300]}")

    def wait(self, done: Any, what: str, remedy: str) -> List[Worker]:
        """Until what was queued is done: the router answers before it is."""
        timeout = self.params["timeout"]
        until = time.monotonic() + timeout
        while True:
            try:
                workers = self.workers()
            except Silent as error:
                raise GatewayError(
                    f"the gateway at {self.url} went away meanwhile ({error}). See journalctl -u {self.unit}."
                ) from None
            if done(workers):
                return workers
            if time.monotonic() > until:
                raise GatewayError(f"{what} after {timeout:.0f} s. {remedy}")
            time.sleep(STEP)

    def run(self) -> None:
        workers = self.there()
        if workers is None:
            self.result.update(workers=[], healthy=0, waiting=[])
            return
        told = self.told()
        self.show(workers, told)
        step = self.plan(workers, told)
        if step.refused:
            raise GatewayError(step.reason)
        before = [worker.url for worker in workers]
        gone = [worker.url for worker in step.remove]
        after = sorted([url for url in before if url not in gone] + step.add)
        self.result.update(changed=step.changed, reason=step.reason)
        if step.changed:
            self.result["diff"] = {
                "before_header": f"workers of {self.name}",
                "after_header": f"workers of {self.name}",
                "before": "".join(f"{url}\n" for url in before),
                "after": "".join(f"{url}\n" for url in after),
            }
        for text in step.warnings:
            self.module.warn(text)
        if not self.module.check_mode:
            self.act(step, told)

    def plan(self, workers: List[Worker], told: List[str]) -> Plan:
        state = self.params["state"]
        if state == "drained":
            return plan_drained(workers, self.params["worker"], self.params["min_serving"])
        if state == "serving":
            return plan_serving(workers, self.params["worker"])
        if state == "matched":
            listed = [worker.url for worker in workers]
            unlisted = [bare(url) for url in self.params["workers"] if bare(url) not in listed]
            return plan_matched(workers, told, self.params["workers"], alive(unlisted, self.params["ca"]))
        return Plan("looked only")

    def act(self, step: Plan, told: List[str]) -> None:
        gone = [worker.url for worker in step.remove]
        for worker in step.remove:
            self.remove(worker)
        for url in step.add:
            self.add(url)
        if step.add or step.remove:
            # At once: a run that is cut off while it waits has told all the same.
            told = [url for url in [*told, *step.add] if url not in gone]
            self.tell(told)
        state, workers = self.params["state"], None
        if gone:
            workers = self.wait(
                lambda workers: not {worker.url for worker in workers} & set(gone),
                f"{', '.join(gone)} is still in the list",
                "Ten or more workers that are down fill the router's queue: take them out of sglang_gateway_workers.",
            )
        if state == "serving":
            url = bare(self.params["worker"])
            workers = self.wait(
                lambda workers: bool((of(workers, url) or Worker(url, "", False, 0, "")).healthy),
                f"the gateway does not find {url} healthy",
                f"It takes a worker whose /health says 200 without a key. Ask it from the gateway's host: curl -i {url}/health",
            )
        elif state == "matched" and step.add:
            up = alive(step.add, self.params["ca"])
            workers = self.wait(
                lambda workers: set(up) <= {worker.url for worker in workers},
                f"{', '.join(up)} did not join",
                f"See journalctl -u {self.unit}.",
            )
        if workers is not None:
            self.show(workers, told)


def asked(module: AnsibleModule) -> Dict[str, Any]:
    urls = [bare(url) for url in module.params["workers"]]
    secure = next((url for url in urls if url.startswith("https:")), "")
    context = context_of(secure, module.params["ca"]) if secure else None
    answers = ask_all(urls, module.params["key"] or "", context)
    wrong, warnings = compared(answers, module.params["mixed"])
    for text in warnings:
        module.warn(text)
    if wrong:
        raise GatewayError(" ".join(wrong))
    return {"changed": False, "workers": answers}


def main() -> None:
    module = AnsibleModule(
        argument_spec=SPEC,
        required_if=[("state", "drained", ["worker"]), ("state", "serving", ["worker"])],
        supports_check_mode=True,
    )
    result: Dict[str, Any] = {}
    try:
        if module.params["state"] == "asked":
            result = asked(module)
        else:
            gateway = Gateway(module)
            result = gateway.result
            gateway.run()
    except (GatewayError, Silent, OSError) as error:
        module.fail_json(
            msg=f"{module.params['name']}: {error}", **{k: v for k, v in result.items() if k not in ("changed", "diff")}
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
