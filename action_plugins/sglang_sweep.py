"""The record of a sweep on the controller: which variants are left, what each came to, and which is best."""

from __future__ import annotations

import contextlib
import hashlib
import json
import statistics
import time
from pathlib import Path
from typing import Any

import ansible.module_utils
import yaml
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import sglang_options, sglang_results, sglang_runs
from ansible.module_utils.sglang_rungs import number
from ansible.module_utils.sglang_text import wrap

SCHEMA = 1
# What is deployed, measured first: what the others gain or lose is told against it.
DEPLOYED = {"name": "deployed", "args": {}, "environment": {}}
GOAL = "output_throughput_tokens_per_s"
# Figures of a load that lie in its telemetry.
TELEMETRY = ("output_tokens_per_j", "energy_j", "power_of_limit")


# --- variants ---------------------------------------------------------------------------------------------------------


def variants(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is tried, whole and in order. ValueError, with what is wrong."""
    if not given:
        raise ValueError(
            "sglang_sweep_variants is empty. Expected a list such as "
            '[{"name": "graphs", "args": {"cuda-graph-max-bs": 256}}], each laid over what is deployed.'
        )
    whole = [DEPLOYED, *({**DEPLOYED, **variant} for variant in given)]
    names = [variant["name"] for variant in whole]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"sglang_sweep_variants has {', '.join(twice)} twice ('deployed' is what is deployed). Expected names to differ."
        )
    empty = [variant["name"] for variant in whole[1:] if not variant["args"] and not variant["environment"]]
    if empty:
        raise ValueError(f"sglang_sweep_variants: {', '.join(empty)} changes nothing. Expected args or environment.")
    hidden = sorted({name for variant in whole for name in variant["environment"] if sglang_options.secret(name)})
    if hidden:
        raise ValueError(
            f"sglang_sweep_variants has {', '.join(hidden)}: it would stand in every result. Expected secrets in the file of "
            "sglang_server_environment_file alone."
        )
    unknown = sorted({key for variant in whole for key in variant} - set(DEPLOYED))
    if unknown:
        raise ValueError(f"sglang_sweep_variants has {', '.join(unknown)}; expected name, args and environment.")
    return whole


def digest(whole: list[dict[str, Any]], measured: dict[str, Any], deployment: str) -> str:
    """What makes two sweeps the same: variants, loads, and what is deployed. The goal is not of it: it ranks what is measured."""
    text = json.dumps([whole, measured, deployment], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def figures() -> set[str]:
    """Every figure that a load can be ranked by, from the form of run.json; a latency has its statistics behind a dot."""
    forms = json.loads((ROOT / "schemas/run.schema.json").read_text(encoding="utf-8"))["$defs"]
    found = set(TELEMETRY)
    for name, form in forms["metrics"]["properties"].items():
        latency = form.get("$ref", "").endswith("/latency")
        found |= {f"{name}.{part}" for part in forms["latency"]["required"]} if latency else {name}
    return found


def goal(given: dict[str, Any], loads: list[dict[str, Any]]) -> dict[str, Any]:
    """What is ranked by, whole. ValueError, with the nearest name, where there is no such figure, or no such load."""
    whole = {"figure": GOAL, "limits": {}, **{key: value for key, value in given.items() if value is not None}}
    known = figures()
    for name in (whole["figure"], *whole["limits"]):
        if name not in known:
            meant = sglang_options.meant(name, known) or f": {', '.join(sorted(known))}."
            raise ValueError(f"sglang_sweep_goal names {name}, which is no figure of a load{meant}")
    there = sorted({load["concurrency"] for load in loads})
    if whole.get("concurrency") not in (None, *there):
        raise ValueError(
            f"sglang_sweep_goal counts loads of {whole['concurrency']} requests at once; sglang_bench_loads has "
            f"{', '.join(map(str, there))}."
        )
    return whole


def left(sweep: dict[str, Any]) -> list[dict[str, Any]]:
    return [variant for variant in sweep["variants"] if variant["status"] == "left"]


def needed(sweep: dict[str, Any]) -> float:
    """Seconds that a variant takes, as those that are through tell; 0 before the first."""
    seconds = [variant["seconds"] for variant in sweep["variants"] if variant["seconds"]]
    return statistics.median(seconds) if seconds else 0.0


def out_of_time(sweep: dict[str, Any], now: float) -> bool:
    """Whether a variant that is begun now would not be through in time."""
    return bool(sweep["minutes"]) and now + needed(sweep) > sweep["began"] + 60 * sweep["minutes"]


# --- ranking ----------------------------------------------------------------------------------------------------------


def figure(rung: dict[str, Any], name: str) -> float | None:
    """A figure of a load by its name in run.json, with a dot into latencies (ttft_ms.p99); None where it has none."""
    return sglang_runs.dig(rung, "telemetry" if name in TELEMETRY else "metrics", *name.split("."))


def lower_is_better(name: str) -> bool:
    return name.split(".")[0].endswith("_ms") or name == "energy_j"


def best(run: dict[str, Any], goal: dict[str, Any]) -> dict[str, Any] | None:
    """The best of a run's loads for a goal: the median over its repeats, and their range. None where none counts."""
    found = []
    for index in sorted({rung["index"] for rung in run["rungs"]}):
        rungs = [
            rung for rung in run["rungs"] if rung["index"] == index and rung["status"] == "measured" and rung["valid"]
        ]
        if not rungs or goal.get("concurrency") not in (None, rungs[0]["load"]["concurrency"]):
            continue
        limits = {name: [figure(rung, name) for rung in rungs] for name in goal["limits"]}
        if any(None in seen or statistics.median(seen) > goal["limits"][name] for name, seen in limits.items()):  # type: ignore[type-var]
            continue
        values = [value for value in (figure(rung, goal["figure"]) for rung in rungs) if value is not None]
        if values:
            found.append(
                {
                    "value": statistics.median(values),
                    "least": min(values),
                    "most": max(values),
                    "n": len(values),
                    "values": values,
                    "load": rungs[0]["load"],
                }
            )
    if not found:
        return None
    return (min if lower_is_better(goal["figure"]) else max)(found, key=lambda one: one["value"])


def ranked(sweep: dict[str, Any], runs: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The variants from the best to those that could not be ranked; each with `best`, or `why` there is none."""
    rows = []
    for variant in sweep["variants"]:
        run = runs.get(variant["name"])
        wrong = run and not all(gate["passed"] for gate in run.get("answers", {}).values())
        one = best(run, sweep["goal"]) if run and not wrong else None
        why = variant["why"] or ("" if one else "no load of it is valid and within the limits")
        if variant["run"] and not run and not variant["why"]:
            why = f"its run {variant['run']} is not there any more"
        rows.append({**variant, "best": one, "why": why})
    lower = lower_is_better(sweep["goal"]["figure"])
    return sorted(
        rows,
        key=lambda row: (
            row["best"] is None,
            (row["best"]["value"] if lower else -row["best"]["value"]) if row["best"] else 0,
        ),
    )


def verdict(rows: list[dict[str, Any]], name: str) -> str:
    """In a sentence, which is best, and whether that is more than noise."""
    placed = [row for row in rows if row["best"]]
    if not placed:
        return "No variant has a load that is valid and within the limits: there is no winner."
    first = placed[0]
    if len(placed) == 1:
        return f"The winner is {first['name']}: no other could be ranked."
    second = placed[1]
    said = sglang_runs.verdict(
        second["best"]["values"],
        first["best"]["values"],
        "lower" if lower_is_better(name) else "higher",
        "tok/s" if name.endswith("_per_s") else "ms" if "_ms." in name else "",
    )
    doubt = f"Against it: {said}."
    if min(first["best"]["n"], second["best"]["n"]) < 3:
        doubt += " With sglang_bench_repeats: 3 there would be a verdict."
    return f"The winner is {first['name']}, before {second['name']}. {doubt}"


def text(sweep: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The ranking within 80 columns."""
    goal = sweep["goal"]
    limits = ", ".join(f"{name} at most {limit:g}" for name, limit in goal["limits"].items())
    lines = [f"SWEEP of {sweep['profile']} on {sweep['host']}"]
    lines += wrap(
        f"goal: {goal['figure']}, {'lower' if lower_is_better(goal['figure']) else 'higher'} is better"
        f"{', ' + limits if limits else ''}",
        "",
    )
    lines += ["", f"{'':3}{'variant':<28}{'figure':>10}{'spread':>17}{'at once':>9}{'ratio':>8}"]
    reference = next((row["best"]["value"] for row in rows if row["name"] == DEPLOYED["name"] and row["best"]), None)
    for place, row in enumerate(rows, 1):
        one = row["best"]
        if one is None:
            lines += [
                f"{'–':>2} {row['name'][:27]:<28}{row['status'].replace('_', ' '):>10}",
                *wrap(row["why"], "     "),
            ]
            continue
        spread = f"{number(one['least'])}–{number(one['most'])}" if one["n"] > 1 else "one run"
        ratio = f"{one['value'] / reference:.3f}" if reference else ""
        lines.append(
            f"{place:>2} {row['name'][:27]:<28}{number(one['value']):>10}{spread:>17}{one['load']['concurrency']:>9}{ratio:>8}"
        )
    lines += ["", *wrap("ratio: against what is deployed.", ""), *wrap(verdict(rows, goal["figure"]), "")]
    return "\n".join(lines)


def declared(winner: dict[str, Any], overlays: dict[str, Any]) -> list[str]:
    """How a winner is kept: the variables that declare it, with what was laid over the profile already."""
    laid = {
        "sglang_server_args_overlay": {**overlays.get("args", {}), **winner["args"]},
        "sglang_server_environment_overlay": {**overlays.get("environment", {}), **winner["environment"]},
    }
    return yaml.safe_dump({name: value for name, value in laid.items() if value}, sort_keys=False).splitlines()


# --- the record -------------------------------------------------------------------------------------------------------


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "sweep.json").read_text(encoding="utf-8"))


def save(folder: Path, sweep: dict[str, Any]) -> None:
    sglang_results.write(folder / "sweep.json", json.dumps(sweep, indent=1, allow_nan=False) + "\n")


def broken(parent: Path, wanted: dict[str, Any], now: float) -> Path | None:
    """The newest sweep that is the same, and was not ended."""
    same = ("schema", "host", "digest")
    return sglang_results.unfinished(
        parent, "sweep.json", lambda sweep: all(sweep[key] == wanted[key] for key in same), now
    )


def run_of(variant: dict[str, Any], host: str, parent: Path) -> str:
    """Folder's name of what a variant was measured at: the newest run under its name since it began; empty where there is none."""
    for path in sorted(parent.glob("*/run.json"), reverse=True):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            run = json.loads(path.read_text(encoding="utf-8"))
            if (run["label"], run["host"]) == (variant["name"], host) and path.stat().st_mtime >= variant["began"]:
                return path.parent.name
    return ""


class ActionModule(ActionBase):
    """begun, turn, noted, ended: a sweep's life, each step on the disk before the next."""

    _requires_connection = False
    _VALID_ARGS = frozenset(
        {
            "state",
            "folder",
            "results",
            "variants",
            "goal",
            "overlays",
            "minutes",
            "measured",
            "deployment",
            "resume",
            "name",
            "why",
        }
    )

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = {**super().run(tmp, task_vars), "changed": False}
        variables = task_vars or {}
        self._host = variables.get("inventory_hostname", "")
        self._profile = self._templar.template(variables.get("sglang_profile", ""))
        state = self._task.args.get("state")
        steps = {"begun": self._begun, "turn": self._turn, "noted": self._noted, "ended": self._ended}
        if state not in steps:
            raise AnsibleActionFail(f"sglang_sweep: state is {state}; expected one of {', '.join(steps)}.")
        if self._task.check_mode and state != "begun":
            return {**result, "go": False, "skipped": True}
        try:
            return {**result, **steps[state](self._task.args)}
        except (OSError, ValueError) as error:
            raise AnsibleActionFail(f"{self._host}: {error}") from error

    def _begun(self, args: dict[str, Any]) -> dict[str, Any]:
        whole = variants(args["variants"])
        aim = goal(args["goal"], args["measured"]["loads"])
        now = time.time()
        sweep = {
            "schema": SCHEMA,
            "host": self._host,
            "profile": self._profile,
            "digest": digest(whole, args["measured"], args["deployment"]),
            "goal": aim,
            "overlays": args.get("overlays") or {},
            "minutes": int(args["minutes"]),
            "began": now,
            "started": sglang_results.stamp(now),
            "finished": None,
            "variants": [{**variant, "status": "left", "run": "", "why": "", "seconds": None} for variant in whole],
        }
        if self._task.check_mode:
            self._say(f"would try {', '.join(variant['name'] for variant in whole)}")
            return {"variants": [], "folder": ""}
        parent = Path(args["results"]).expanduser()
        folder = broken(parent, sweep, now) if args.get("resume", True) else None
        if folder:
            old = read(folder)
            # Goal and bound are of this run: what is measured stays what it is, and what there was no time for has some now.
            sweep = {**old, "goal": aim, "minutes": sweep["minutes"], "began": now}
            for variant in sweep["variants"]:
                if variant["status"] == "not_tried":
                    variant.update(status="left", why="")
            done = len(sweep["variants"]) - len(left(sweep))
            self._say(
                f"goes on with the sweep that was cut off ({folder.name}): {done} of {len(sweep['variants'])} variants are through"
            )
        else:
            folder = parent / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{self._host}-sweep"
            self._say(f"sweep over {', '.join(variant['name'] for variant in whole)}")
        save(folder, sweep)
        return {"variants": sweep["variants"], "folder": str(folder)}

    def _turn(self, args: dict[str, Any]) -> dict[str, Any]:
        folder = Path(args["folder"])
        sweep = read(folder)
        place, variant = self._find(sweep, args["name"])
        if variant["status"] != "left":
            return {"go": False}
        now = time.time()
        where = f"variant {place} of {len(sweep['variants'])} ({variant['name']})"
        if out_of_time(sweep, now):
            variant.update(status="not_tried", why=f"the bound of {sweep['minutes']} minutes left no time for it")
            save(folder, sweep)
            self._say(f"{where}: {variant['why']}")
            return {"go": False}
        variant["began"] = now
        save(folder, sweep)
        many = len(left(sweep))
        told = f", about {max(1, round(many * needed(sweep) / 60))} min for all" if needed(sweep) else ""
        self._say(f"{where} begins; {many} left{told}")
        return {"go": True}

    def _noted(self, args: dict[str, Any]) -> dict[str, Any]:
        folder = Path(args["folder"])
        sweep = read(folder)
        place, variant = self._find(sweep, args["name"])
        why = " ".join(str(args.get("why") or "").split())
        variant.update(
            status="failed" if why else "measured",
            # What was measured before it failed counts: a load that did not fit takes nothing from the others.
            run=run_of(variant, self._host, folder.parent),
            why=why,
            seconds=time.time() - variant["began"],
        )
        save(folder, sweep)
        self._say(f"variant {place} of {len(sweep['variants'])} ({variant['name']}): {why or 'measured'}")
        return {}

    def _ended(self, args: dict[str, Any]) -> dict[str, Any]:
        folder = Path(args["folder"])
        sweep = read(folder)
        runs = {}
        for variant in sweep["variants"]:
            with contextlib.suppress(OSError, ValueError):
                if variant["run"]:
                    kept = (folder.parent / variant["run"] / "run.json").read_text(encoding="utf-8")
                    runs[variant["name"]] = json.loads(kept)
        rows = ranked(sweep, runs)
        winner = rows[0] if rows and rows[0]["best"] else {}
        whole = all(variant["status"] != "not_tried" for variant in sweep["variants"])
        sweep.update(winner=winner.get("name"), finished=sglang_results.stamp(time.time()) if whole else None)
        shown = text(sweep, rows)
        if winner and winner["name"] != DEPLOYED["name"]:
            shown += "\nTo serve it, declare it for the host or its group:\n" + "\n".join(
                f"  {line}" for line in declared(winner, sweep["overlays"])
            )
        sglang_results.write(folder / "sweep.md", f"```\n{shown}\n```\n")
        save(folder, sweep)
        self._display.display(f"{shown}\nSweep: {folder.resolve()}/sweep.md")
        return {"winner": {key: winner[key] for key in DEPLOYED} if winner else {}, "ranking": rows, "text": shown}

    def _find(self, sweep: dict[str, Any], name: str) -> tuple[int, dict[str, Any]]:
        return next((place, one) for place, one in enumerate(sweep["variants"], 1) if one["name"] == name)

    def _say(self, words: str) -> None:
        self._display.display(f"{self._host}: {words}")
