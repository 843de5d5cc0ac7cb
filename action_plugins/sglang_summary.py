"""Say at a deployment's end what serves where, what changed, what was proved, and what was measured of it. No round trip."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import sglang_runs, sglang_summary

LOOKED_AT = 20  # of the newest runs


def newest(folder: Path, host: str) -> Iterator[dict[str, Any]]:
    """Runs of a host, the newest first. One that cannot be read is the next comparison's business."""
    for path in sorted(folder.glob(f"*-{host}"), reverse=True)[:LOOKED_AT]:
        try:
            yield sglang_runs.read(path)
        except (sglang_runs.RunError, OSError):
            continue


class ActionModule(ActionBase):
    """Shows the summary and returns its lines."""

    _requires_connection = False
    _VALID_ARGS = frozenset({"where", "switch", "committed", "proof", "front", "results"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        args, host = self._task.args, str((task_vars or {}).get("inventory_hostname", ""))
        switch, committed = args["switch"], args.get("committed") or {}
        runs = newest(Path(args["results"]) / (switch["facts"]["profile"] or ""), host)
        found = sglang_summary.measured(runs, committed) if committed else ""
        lines = sglang_summary.lines(
            host, args["where"], switch, committed, args.get("proof") or {}, args.get("front") or {}, found
        )
        self._display.display("\n".join(lines))
        result.update(changed=False, summary=lines)
        return result
