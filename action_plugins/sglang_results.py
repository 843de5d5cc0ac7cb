"""End a measurement on the controller: its verdicts, its report, and the gate against an earlier one.

No round trip, and no play on localhost that a limit would skip.
"""

from __future__ import annotations

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

from ansible.module_utils import sglang_report, sglang_results, sglang_runs


def ended(run: dict[str, Any], after: dict[str, Any], tuning: dict[str, Any], now: float) -> dict[str, Any]:
    """A run as it is at its end. One with loads that nobody tried has none yet: the next bench.yml goes on with it."""
    answers = {**run["answers"], **({"after": after} if after else {})}
    whole = all(rung["status"] != "not_run" for rung in run["rungs"])
    return sglang_results.judged(
        {**run, "answers": answers, "tuning": tuning, "finished": sglang_results.stamp(now) if whole else None}
    )


class ActionModule(ActionBase):
    """Says which file could not be written, and why."""

    _requires_connection = False
    _VALID_ARGS = frozenset({"folder", "after", "tuning", "against", "min_ratio", "results"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = {**super().run(tmp, task_vars), "changed": False}
        args = self._task.args
        folder, against = Path(args["folder"]), args.get("against") or ""
        try:
            # The run's own folder: what other runs are looked for in is one above its profile's.
            other = (
                sglang_runs.read(sglang_runs.find(against, Path(args["results"]).expanduser(), ROOT / "baselines"))
                if against
                else {}
            )
            run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            run = ended(run, args.get("after") or {}, args.get("tuning") or {}, time.time())
            sglang_results.save(folder, run)
            result["files"] = sglang_report.write(folder, run)
        except (OSError, ValueError) as error:
            raise AnsibleActionFail(f"The results in {folder} cannot be ended: {error}") from error
        self._display.display(sglang_report.text(run))
        self._display.display(f"Report: {folder.resolve()}/report.html")
        result["run"] = run
        if other:
            result["gate"] = sglang_runs.gate(other, run, float(args.get("min_ratio") or 0))
        return result
