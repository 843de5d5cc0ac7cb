"""Put one load after the other on a server through the module sglang_bench, and keep each on the controller as it comes."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import time
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import sglang_job, sglang_results, sglang_rules

OWN = {"results", "run", "loads", "repeats", "seed", "resume"}
# Of what a server says of itself, what is nobody's business or has thousands of entries.
LEFT_OUT = {"internal_states", "api_key", "admin_api_key", "scheduler_info"}
SECRET = ("key", "token", "password", "secret")


def describe(load: dict[str, Any]) -> str:
    """A load in a few words."""
    lengths = f", {load['input_len']} in, {load['output_len']} out" if load["input_len"] else ""
    rate = f", {load['request_rate']:g} requests/s" if load["request_rate"] else ""
    return f"{load['concurrency']} at once{lengths}{rate}"


def outcome(one: dict[str, Any]) -> str:
    """A rung's result in a line."""
    if one["status"] != "measured":
        return f"{one['status'].replace('_', ' ')}: {one['problems'][0]}"
    figures = one["metrics"]
    said = f"{figures['output_throughput_tokens_per_s'] or 0:.1f} output tok/s"
    if (figures["ttft_ms"]["median"] or 0) > 0:
        said += f", TTFT {figures['ttft_ms']['median']:.0f} ms"
    power = (one["telemetry"] or {}).get("power_of_limit")
    said += f", {100 * power:.0f} % of the power limit" if power else ""
    return said if one["valid"] else f"{said}, INVALID: {one['problems'][0]}"


def said_of_itself(raw: str) -> dict[str, Any]:
    """Server arguments by the server's own word, from the client's result (base64 of gzip); empty where it has none."""
    try:
        info = json.loads(gzip.decompress(base64.b64decode(raw))).get("server_info")
    except (OSError, ValueError, EOFError, AttributeError):
        return {}
    return {
        name: value
        for name, value in (info if isinstance(info, dict) else {}).items()
        if name not in LEFT_OUT and not (value and any(name.endswith(word) for word in SECRET))
    }


class Ladder:
    """The rungs of one run, from what is there to what was asked for."""

    def __init__(self, folder: Path, run: dict[str, Any], rules: list[dict[str, Any]]) -> None:
        self.folder, self.run, self.rules = folder, run, rules

    def take(self, asked: dict[str, Any], step: dict[str, Any], began: float) -> dict[str, Any]:
        """Keep what the node measured of one load."""
        one = sglang_results.rung(asked, step, began, time.time())
        if one["status"] == "measured":
            contents = step.get("files") or {}
            one["files"] = sglang_results.files(self.folder, one, contents)
            if not self.run["server"]["arguments"]:
                told = said_of_itself(contents.get("raw", ""))
                self.run["server"].update(
                    arguments=told, sglang=str(told.get("version") or self.run["server"]["sglang"])
                )
            one["findings"] = sglang_rules.findings(self.rules, one, self.run["server"]["arguments"])
        self.keep(one)
        return one

    def keep(self, one: dict[str, Any]) -> None:
        sglang_results.keep(self.run, one)
        sglang_results.save(self.folder, sglang_results.judged(self.run))


class ActionModule(ActionBase):
    """Says each rung as it begins, what it has come to, and what it came to."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = {**super().run(tmp, task_vars), "changed": False}
        args = dict(self._task.args)
        own = {name: args.pop(name) for name in OWN if name in args}
        lacking = sorted(OWN - {"seed", "resume", "repeats"} - set(own))
        if lacking:
            raise AnsibleActionFail(f"sglang_ladder: {', '.join(lacking)} is missing.")
        if not own["loads"]:
            raise AnsibleActionFail("sglang_ladder: loads is empty. Expected at least one load.")
        self._host = (task_vars or {}).get("inventory_hostname", "")
        if self._task.check_mode:
            return {**result, "skipped": True, "msg": "Check mode: not measuring."}
        repeats = int(own.get("repeats") or 1)
        began = time.time()
        seed = int(own.get("seed") or began % 1_000_000)
        run = {
            **own["run"],
            "schema": sglang_results.SCHEMA,
            "host": self._host,
            "started": sglang_results.stamp(began),
            "finished": None,
            "seed": seed,
            "repeats": repeats,
            "rungs": [],
            "valid": False,
            "problems": [],
        }
        run["target"] = {**run["target"], "loads": [sglang_results.complete(load) for load in own["loads"]]}
        parent = Path(own["results"]).expanduser()
        try:
            ladder, resumed = self._begin(parent, run, own, began)
            self._climb(ladder, args, task_vars or {})
        except OSError as error:
            raise AnsibleActionFail(
                f"The results cannot be kept in {parent}: {error}. Make room, or name another sglang_bench_results_dir; the same "
                "command then goes on with the first load that is not kept."
            ) from error
        return {**result, "folder": str(ladder.folder), "resumed": resumed, "run": sglang_results.judged(ladder.run)}

    def _begin(self, parent: Path, run: dict[str, Any], own: dict[str, Any], now: float) -> tuple[Ladder, int]:
        """A folder for the run, written to before anything is measured; and how many rungs of it are there already."""
        rules = sglang_rules.load(str(ROOT / "rules"))
        found = None
        if own.get("resume", True):
            found = sglang_results.broken(parent, sglang_results.fingerprint(run, own["loads"]), now)
        if found is None:
            run["id"] = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{self._host}"
            sglang_results.save(parent / run["id"], run)
            return Ladder(parent / run["id"], run, rules), 0
        old = json.loads((found / "run.json").read_text(encoding="utf-8"))
        ladder = Ladder(found, {**old, "answers": run["answers"]}, rules)
        kept = sum(rung["status"] == "measured" and rung["valid"] for rung in old["rungs"])
        self._say(f"goes on with the ladder that was broken ({found.name}): {kept} measured already")
        return ladder, kept

    def _climb(self, ladder: Ladder, args: dict[str, Any], task_vars: dict[str, Any]) -> None:
        run = ladder.run
        wanted = sglang_results.ladder(run["target"]["loads"], run["repeats"], run["seed"])
        left = sglang_results.to_do(run, wanted)
        for place, asked in enumerate(wanted, 1):
            if asked not in left:
                continue
            where = f"load {place} of {len(wanted)} ({describe(asked['load'])})"
            self._say(f"{where} begins")
            began = time.time()
            step = self._measure(where, {**args, **self._module_args(asked["load"])}, task_vars)
            one = ladder.take(asked, step, began)
            self._say(f"{where}: {outcome(one)}")
            if step.get("server_gone"):
                for later in left[left.index(asked) + 1 :]:
                    ladder.keep(sglang_results.not_run(later, "not run: the server was gone before it", time.time()))
                break

    def _module_args(self, load: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in load.items() if value is not None}

    def _measure(self, where: str, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        def execute(given: dict[str, Any]) -> dict[str, Any]:
            return self._execute_module(module_name="sglang_bench", module_args=given, task_vars=task_vars)

        def say(text: str) -> None:
            if text:
                self._say(f"{where}: {text}")

        return sglang_job.follow(execute, say, args)

    def _say(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._display.display(f"{self._host}: {text}")
