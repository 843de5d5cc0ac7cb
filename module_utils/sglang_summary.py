# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""What a deployment comes to, in a few lines: what serves where, what changed, what was proved, what was measured of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ansible.module_utils import sglang_rungs, sglang_runs
from ansible.module_utils.sglang_text import wrap


def option_changes(diff: dict[str, str]) -> list[str]:
    """The lines of a unit that would change, where there is a unit already, beside those that follow from others."""
    if not diff.get("before"):
        return []
    told = re.compile("deployment|/releases/|^Description=", re.I)
    before, after = (
        [line.strip().rstrip("\\").strip() for line in diff[side].splitlines() if not told.search(line)]
        for side in ("before", "after")
    )
    return [f"  - {line}" for line in before if line not in after] + [
        f"  + {line}" for line in after if line not in before
    ]


def measured(runs: Iterable[dict[str, Any]], committed: dict[str, Any]) -> str:
    """The highest output throughput (tok/s) in the first of these runs that is a valid one of the deployment; empty without one.

    By the second of its commit as well: two inventories may call two machines the same, which serve the same.
    """
    same = ("digest", "id", "at")
    own = (one for one in runs if all(one["deployment"].get(key) == committed[key] for key in same))
    run = next((one for one in own if one["valid"] and one["finished"]), None)
    rungs = [rung for rung in run["rungs"] if rung["status"] == "measured" and rung["valid"]] if run else []
    if not run or not rungs:
        return ""

    def output(rung: dict[str, Any]) -> float:
        return sglang_runs.dig(rung, "metrics", *sglang_rungs.OUTPUT) or 0.0

    best = max(rungs, key=output)
    return f"{output(best):,.1f} output tok/s, {sglang_runs.load_text(best['load'])} (run {run['id']})"


def lines(
    host: str,
    where: str,
    switch: dict[str, Any],
    committed: dict[str, Any],
    proof: dict[str, Any],
    front: dict[str, Any],
    measured: str,
) -> list[str]:
    """The summary of one host, at most 80 columns.

    `where` says where it serves, `switch` is the result of sglang_deployment, `committed` what it committed, `proof` what the
    manifest keeps of this run's proof, `front` the result of sglang_companion for it, `measured` a sentence. Nothing committed:
    nothing was done, as in check mode.
    """
    facts, there = switch["facts"], bool((switch.get("diff") or {}).get("before"))
    number = f", deployment {committed['id']}" if committed else ""
    found = wrap(f"{host} {'serves' if committed else 'would serve'} {facts['model']} {where}", "", "  ")
    found += wrap(f"profile {facts['profile'] or 'none'}{number}, release {facts['release'].rpartition('/')[2]}")
    if switch.get("restarted"):
        does = f"{'' if committed else 'it would be '}{'restarted' if there else 'started'}"
        ready = (proof.get("times") or {}).get("ready_s")
        took = f"; ready {ready:.0f} s after its start" if ready else ""
        found += wrap(f"changed: {does}, since {'; '.join(switch['reasons'])}{took}", rest="    ")
        found += [f"    {line.strip()}" for line in option_changes(switch.get("diff") or {})]
    else:
        found += wrap(f"changed: nothing of the server, it {'kept' if committed else 'would keep'} running")
    if front.get("changed"):
        reasons = front["reasons"]
        more = f"; and {len(reasons) - 2} more" if len(reasons) > 2 else ""
        found += wrap(f"front: changed, since {'; '.join(reasons[:2])}{more}", rest="    ")
    for name in ("smoke", "tuning"):
        text = (proof.get(name) or {}).get("summary")
        found += wrap(f"{'answers' if name == 'smoke' else name}: {text}", rest="    ") if text else []
    return found + (wrap(f"measured: {measured}", rest="    ") if measured else [])
