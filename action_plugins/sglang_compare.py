"""Lay runs and baselines side by side: find them, read them, show what differs, and keep the page on the controller.

One run alone gets its report again: the way back after bench.yml could not write it.
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

from ansible.module_utils import sglang_results, sglang_runs
from ansible.module_utils.sglang_text import WIDTH

EXAMPLE = "-e sglang_compare_runs=glm52/latest~1,glm52/latest"


def wanted(runs: Any) -> list[str]:
    """The names that were given; a text is split at its commas, as -e sglang_compare_runs=a,b makes one."""
    names = runs.split(",") if isinstance(runs, str) else runs
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise AnsibleActionFail(f"sglang_compare_runs is {runs!r}; expected a list of names: {EXAMPLE}")
    names = [name.strip() for name in names if name.strip()]
    if not names:
        raise AnsibleActionFail(
            "sglang_compare_runs names nothing. A comparison takes two or more, the first is what the others are held against; one "
            f"alone gets its report again: {EXAMPLE}"
        )
    return names


def found(names: list[str], results: Path) -> list[dict[str, Any]]:
    """Every run that was named. The same one twice is a mistake: it says nothing, and looks as if it did."""
    runs: list[dict[str, Any]] = []
    seen: dict[str, str] = {}
    for name in names:
        try:
            run = sglang_runs.read(sglang_runs.find(name, results))
        except sglang_runs.RunError as error:
            raise AnsibleActionFail(str(error)) from error
        path = str(Path(run["source"]["path"]).resolve())
        if path in seen:
            raise AnsibleActionFail(f"'{seen[path]}' and '{name}' are the same run, {path}. Name two that differ.")
        seen[path] = name
        runs.append(run)
    if len(runs) == 1 and runs[0]["source"]["kind"] == "baseline":
        raise AnsibleActionFail(
            f"'{names[0]}' is published figures, which have no report of their own. Name a run beside it: {EXAMPLE}"
        )
    return runs


def write(folder: Path, texts: dict[str, str]) -> list[str]:
    """Whole files or none: each gets its name when it is complete. Raises AnsibleActionFail where the folder takes none."""
    try:
        for name, text in texts.items():
            sglang_results.write(folder / name, text)
    except OSError as error:
        raise AnsibleActionFail(
            f"The comparison is above, but it cannot be kept in {folder}: {error.strerror or error}. Name a folder that can be "
            "written with sglang_compare_folder."
        ) from error
    return [str(folder / name) for name in texts]


class ActionModule(ActionBase):
    """Shows the comparison before it is written, so that a folder that takes nothing costs the files alone."""

    _requires_connection = False
    _VALID_ARGS = frozenset({"runs", "results", "folder"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        # Charts take a second to import, and a wrong name is said without them.
        result = {**super().run(tmp, task_vars), "changed": False}
        arguments = self._task.args
        results = Path(arguments.get("results") or ROOT / "results").expanduser()
        named = Path(arguments["folder"]).expanduser() if arguments.get("folder") else None
        runs = found(wanted(arguments.get("runs") or []), results)
        if len(runs) == 1:
            return {**result, **self._again(runs[0], named)}
        comparison = sglang_runs.compare(runs)

        from ansible.module_utils import sglang_report

        self._display.display(sglang_report.comparison_text(comparison, WIDTH))
        told = {key: comparison[key] for key in ("comparable", "reasons", "summary")}
        if self._task.check_mode:
            return {**result, **told, "files": []}
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        folder = named or results / "compare" / stamp
        files = write(
            folder,
            {
                "compare.json": json.dumps(comparison, indent=1, allow_nan=False) + "\n",
                "compare.md": sglang_report.comparison_markdown(comparison),
                "compare.html": sglang_report.comparison_page(comparison, runs),
            },
        )
        self._display.display(f"\nPage: {folder.resolve() / 'compare.html'}")
        return {**result, **told, "files": files}

    def _again(self, run: dict[str, Any], named: Path | None) -> dict[str, Any]:
        """Show one run's report and write it beside its run.json, or into the folder that was named."""
        from ansible.module_utils import sglang_report

        self._display.display(sglang_report.text(run, WIDTH))
        told = {"summary": list(filter(None, (sglang_report.headline(run), sglang_report.scaling(run))))}
        if self._task.check_mode:
            return {**told, "files": []}
        folder = named or Path(run["source"]["path"]).resolve().parent
        try:
            files = sglang_report.write(folder, run)
        except OSError as error:
            raise AnsibleActionFail(
                f"The report is above, but {error.filename or folder} cannot be written: {error.strerror or error}. Make room, or "
                "name another folder with sglang_compare_folder."
            ) from error
        self._display.display(f"\nPage: {folder.resolve() / 'report.html'}")
        return {**told, "files": files}
