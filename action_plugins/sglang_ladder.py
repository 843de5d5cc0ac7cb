"""Put one load after the other on a server through the module sglang_bench, and keep each on the controller as it comes."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import json
import statistics
import time
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import sglang_job, sglang_options, sglang_results, sglang_rules, sglang_runs

OWN = {"results", "run", "loads", "repeats", "seed", "resume", "against"}
NEEDED = {"results", "run", "loads"}
# Of a load, what the node does not know: a file has its name and hash there.
KEPT = {"file", "file_sha256"}
# Of what a server says of itself, what is of the moment or has thousands of entries.
LEFT_OUT = {"internal_states", "scheduler_info"}


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


def left_text(seconds: list[float], loads: int) -> str:
    """How long the loads that are left will take, as those before them tell; empty before the first."""
    if not seconds or not loads:
        return ""
    return f"; {loads} left, about {max(1, round(statistics.mean(seconds) * loads / 60))} min"


def said_of_itself(raw: str) -> dict[str, Any]:
    """Server arguments by the server's own word, from the client's result (base64 of gzip); empty where it has none."""
    try:
        info = json.loads(gzip.decompress(base64.b64decode(raw))).get("server_info")
    except (OSError, ValueError, EOFError, AttributeError):
        return {}
    told = {name: value for name, value in (info if isinstance(info, dict) else {}).items() if name not in LEFT_OUT}
    return {name: value for name, value in told.items() if not (value and sglang_options.secret(name))}


def with_file(load: dict[str, Any]) -> dict[str, Any]:
    """A load whose file is on this machine, with its whole path and hash. OSError where it cannot be read."""
    if not load.get("file"):
        return load
    path = Path(load["file"]).expanduser().resolve()
    return {**load, "file": str(path), "file_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


class Ladder:
    """The rungs of one run, from what is there to what was asked for."""

    def __init__(self, folder: Path, run: dict[str, Any], rules: list[dict[str, Any]]) -> None:
        self.folder, self.run, self.rules = folder, run, rules

    def take(self, asked: dict[str, Any], step: dict[str, Any], began: float) -> dict[str, Any]:
        """Keep what the node measured of one load."""
        one = sglang_results.rung(asked, step, began, time.time())
        contents = step.get("files") or {}
        one["files"] = sglang_results.files(self.folder, one, contents)
        if one["status"] == "measured":
            self.know(one, said_of_itself(contents.get("raw", "")))
            one["findings"] = sglang_rules.findings(self.rules, one, self.run["server"]["arguments"])
        self.keep(one)
        return one

    def know(self, one: dict[str, Any], told: dict[str, Any]) -> None:
        """What a server says of itself, where nobody else says it; and whether it is still the same."""
        server = self.run["server"]
        if self.run["target"]["deployed"] or not told:
            return
        if not server["arguments"]:
            server.update(arguments=told, sglang=str(told.get("version") or ""))
        changed = sorted(name for name in told if told[name] != server["arguments"].get(name, told[name]))
        if changed:
            one["valid"] = False
            one["problems"] = [
                f"the server is not the one of the loads before: {', '.join(changed[:5])} changed. Measure anew: "
                "-e sglang_bench_resume=false",
                *one["problems"],
            ]

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
        lacking = sorted(NEEDED - set(own))
        if lacking:
            raise AnsibleActionFail(f"sglang_ladder: {', '.join(lacking)} is missing.")
        if not own["loads"]:
            raise AnsibleActionFail("sglang_bench_loads is empty. Expected at least one load.")
        self._host = (task_vars or {}).get("inventory_hostname", "")
        try:
            own["loads"] = [with_file(sglang_results.complete(load)) for load in own["loads"]]
        except OSError as error:
            raise AnsibleActionFail(f"sglang_bench_loads: {error}. Expected a file on the controller.") from error
        if self._task.check_mode:
            return {**result, "skipped": True, "msg": "Check mode: not measuring."}
        parent = Path(own["results"]).expanduser()
        try:
            run = self._started(own)
            found = self._broken(parent, run, own)
            # Before anything is measured: a name that is wrong costs nothing, and `latest` is not this run.
            against = self._against(own, parent, found)
            folder = found or parent / run["id"]
            folder.mkdir(parents=True, exist_ok=True)
            with sglang_results.held(folder):
                ladder, resumed = self._begin(folder, run, bool(found))
                sglang_results.save(ladder.folder, ladder.run)
                self._climb(ladder, args, task_vars or {})
        except RuntimeError as error:
            raise AnsibleActionFail(str(error)) from error
        except OSError as error:
            raise AnsibleActionFail(
                f"The results cannot be kept in {parent}: {error}. Make room, or name another sglang_bench_results_dir; the same "
                "command then goes on with the first load that is not kept."
            ) from error
        return {
            **result,
            "folder": str(ladder.folder),
            "resumed": resumed,
            "against": against,
            "run": sglang_results.judged(ladder.run),
        }

    def _started(self, own: dict[str, Any]) -> dict[str, Any]:
        """A run before its first load."""
        now = time.time()
        run = {
            **sglang_options.blanked(own["run"]),
            "schema": sglang_results.SCHEMA,
            "id": f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{self._host}",
            "host": self._host,
            "started": sglang_results.stamp(now),
            "finished": None,
            "seed": int(own.get("seed") or now % 1_000_000),
            "repeats": int(own.get("repeats") or 1),
            "rungs": [],
            "valid": False,
            "problems": [],
        }
        run["server"]["given"] = sglang_runs.words_given(run["deployment"].get("argv") or [])
        run["target"] = {**run["target"], "loads": own["loads"]}
        return run

    def _broken(self, parent: Path, run: dict[str, Any], own: dict[str, Any]) -> Path | None:
        """Folder of the ladder to go on with."""
        if not own.get("resume", True):
            return None
        found = sglang_results.broken(parent, sglang_results.fingerprint(run, own["loads"]), time.time())
        if (
            found
            and own.get("seed")
            and json.loads((found / "run.json").read_text(encoding="utf-8"))["seed"] != int(own["seed"])
        ):
            return None
        return found

    def _against(self, own: dict[str, Any], parent: Path, skip: Path | None) -> str:
        """Path of the run that this one will be held against; empty where there is none."""
        if not own.get("against"):
            return ""
        try:
            found = sglang_runs.find(own["against"], parent.parent, ROOT / "baselines", skip=skip, host=self._host)
            sglang_runs.read(found)
        except ValueError as error:
            raise AnsibleActionFail(f"sglang_bench_against: {error}") from error
        return str(found.resolve())

    def _begin(self, folder: Path, run: dict[str, Any], broken: bool) -> tuple[Ladder, int]:
        """The run in its folder, which is held, and how many rungs of it are there already."""
        rules = sglang_rules.load(str(ROOT / "rules"))
        if not broken:
            return Ladder(folder, run, rules), 0
        old = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        ladder = Ladder(folder, {**old, "answers": run["answers"]}, rules)
        kept = sum(rung["status"] == "measured" and rung["valid"] for rung in old["rungs"])
        self._say(f"goes on with the ladder that was broken ({folder.name}): {kept} measured already")
        return ladder, kept

    def _climb(self, ladder: Ladder, args: dict[str, Any], task_vars: dict[str, Any]) -> None:
        run = ladder.run
        wanted = sglang_results.ladder(run["target"]["loads"], run["repeats"], run["seed"])
        left = sglang_results.to_do(run, wanted)
        sent: dict[str, str] = {}
        took: list[float] = []
        for place, asked in enumerate(wanted, 1):
            if asked not in left:
                continue
            where = f"load {place} of {len(wanted)} ({sglang_runs.load_text(asked['load'])})"
            self._say(f"{where} begins{left_text(took, len(left) - left.index(asked))}")
            asked_now = sglang_results.tried(run, asked)
            began = time.time()
            step = self._measure(where, {**args, **self._module_args(asked_now["load"], sent)}, task_vars)
            one = ladder.take(asked_now, step, began)
            took.append(time.time() - began)
            self._say(f"{where}: {outcome(one)}")
            if step.get("server_gone"):
                for later in left[left.index(asked) + 1 :]:
                    ladder.keep(sglang_results.not_run(later, "not run: the server was gone before it", time.time()))
                break

    def _module_args(self, load: dict[str, Any], sent: dict[str, str]) -> dict[str, Any]:
        """A load as the module takes it; its file is sent to the node first."""
        args = {name: value for name, value in load.items() if value is not None and name not in KEPT}
        if not load.get("file"):
            return args
        if load["file_sha256"] not in sent:
            folder = self._make_tmp_path()
            remote = self._connection._shell.join_path(folder, load["file_sha256"])
            self._transfer_file(load["file"], remote)
            self._fixup_perms2((folder, remote))
            sent[load["file_sha256"]] = remote
        return {**args, "dataset_path": sent[load["file_sha256"]], "dataset_name": load["file"]}

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
