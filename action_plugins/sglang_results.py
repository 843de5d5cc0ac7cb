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


def ended(
    run: dict[str, Any], after: dict[str, Any], tuning: dict[str, Any], problems: list[str], now: float
) -> dict[str, Any]:
    """A run as it is at its end. One with loads that nobody tried has none yet: the next bench.yml goes on with it."""
    answers = {**run["answers"], **({"after": after} if after else {})}
    whole = all(rung["status"] != "not_run" for rung in run["rungs"])
    finished = sglang_results.stamp(now) if whole else None
    return sglang_results.judged({**run, "answers": answers, "tuning": tuning, "finished": finished}, problems)


class ActionModule(ActionBase):
    """Shows what was measured, then keeps it: nothing of it is lost where the disk is full."""

    _requires_connection = False
    _VALID_ARGS = frozenset({"folder", "after", "tuning", "problems", "against", "min_ratio"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = {**super().run(tmp, task_vars), "changed": False}
        args = self._task.args
        folder, against = Path(args["folder"]), args.get("against") or ""
        try:
            run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            run = ended(run, args.get("after") or {}, args.get("tuning") or {}, args.get("problems") or [], time.time())
            self._display.display(sglang_report.text(run))
            # Its end comes last: a run without it is gone on with, and nothing of it is measured again.
            result["files"] = sglang_report.write(folder, run)
            sglang_results.save(folder, run)
        except (OSError, ValueError) as error:
            raise AnsibleActionFail(
                f"The report cannot be kept in {folder}: {error}. Every load is in its run.json. Make room, and run the same "
                "again: it measures nothing twice."
            ) from error
        self._display.display(f"Report: {folder.resolve()}/report.html")
        result["run"] = run
        if against:
            result["gate"] = sglang_runs.gate(sglang_runs.read(Path(against)), run, float(args.get("min_ratio") or 0))
        return result
