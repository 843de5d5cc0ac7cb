"""Show how far a module is that works in slices: kernels take seconds to an hour to compile or to tune.

flashinfer_tune.py is a link to this file; the module of the task's own name is run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import sglang_job


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        module, args = self._task.action.rpartition(".")[2], dict(self._task.args)
        internal = sorted({"slice", "attached"} & set(args))
        if internal:
            raise AnsibleActionFail(f"{module}: {', '.join(internal)} belongs to its action plugin; leave it out.")
        host = (task_vars or {}).get("inventory_hostname", "")

        def execute(given: dict[str, Any]) -> dict[str, Any]:
            return self._execute_module(module_name=module, module_args=given, task_vars=task_vars)

        def say(text: str) -> None:
            if text and not self._task.no_log:
                self._display.display(f"{host}: {f'{name}: ' if (name := args.get('name')) else ''}{text}")

        return {**result, **sglang_job.follow(execute, say, args)}
