"""Show how far a module is that works in slices, since what it waits for takes seconds to hours.

flashinfer_tune.py, sglang_bench.py and sglang_weights.py are links to this file; the module of the task's own name is run. What
flashinfer_kernels builds on one node is kept for the others, where a cache is named.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import flashinfer_cache, sglang_job

INTERNAL = {"slice", "attached", "stage", "offers", "sent"}


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        action, args = self._task.action, dict(self._task.args)
        module = action.rpartition(".")[2]
        internal = sorted(INTERNAL & set(args))
        if internal:
            raise AnsibleActionFail(f"{module}: {', '.join(internal)} belongs to its action plugin; leave it out.")
        host = (task_vars or {}).get("inventory_hostname", "")

        def execute(given: dict[str, Any]) -> dict[str, Any]:
            return self._execute_module(module_name=action, module_args=given, task_vars=task_vars)

        def say(text: str) -> None:
            if text and not self._task.no_log:
                self._display.display(f"{host}: {f'{name}: ' if (name := args.get('name')) else ''}{text}")

        def send(files: list[tuple[Path, str]], take: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
            folder = self._make_tmp_path()
            try:
                for path, name in files:
                    self._connection.put_file(str(path), f"{folder.rstrip('/')}/{name}")
                return take(folder)
            finally:
                self._remove_tmp_path(folder)

        def fetch(source: str, target: Path) -> None:
            try:
                self._connection.fetch_file(source, str(target))
            except AnsibleError as error:
                raise OSError(str(error)) from error

        if module == "flashinfer_kernels" and args.get("cache") and args.get("state", "built") == "built":
            cache = flashinfer_cache.Cache(Path(str(args["cache"])).expanduser())
            shipping = flashinfer_cache.Shipping(cache, host, args, execute, say, send, fetch)
            return {**result, **shipping.run(bool(self._task.check_mode))}
        return {**result, **sglang_job.follow(execute, say, args)}
