"""Write a measurement's results on the controller: no round trip, and no play on localhost that a limit would skip."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase


def write(folder: Path, run: dict[str, Any], report: str) -> list[str]:
    """Whole files or none: each gets its name when it is complete. ValueError for a number that JSON does not have."""
    texts = {"run.json": json.dumps(run, indent=2, sort_keys=True, allow_nan=False) + "\n", "report.md": report}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        partial = folder / f".{name}.new"
        partial.write_text(text, encoding="utf-8")
        partial.replace(folder / name)
    return [str(folder / name) for name in texts]


class ActionModule(ActionBase):
    """Says which file could not be written, and why."""

    _requires_connection = False
    _VALID_ARGS = frozenset({"folder", "run", "report"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = {**super().run(tmp, task_vars), "changed": False}
        arguments = self._task.args
        if self._task.check_mode:
            return {**result, "files": []}
        try:
            result["files"] = write(Path(arguments["folder"]).expanduser(), arguments["run"], arguments["report"])
        except (OSError, ValueError) as error:
            result.update(failed=True, msg=f"The results cannot be kept in {arguments['folder']}: {error}")
        return result
