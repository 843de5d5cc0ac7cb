"""Say why a node cannot be reached, where that is asked for; the module of the same name does the rest."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        args = dict(self._task.args)
        tells = boolean(args.pop("tell_unreached", False))
        try:
            return self._execute_module(module_name="gpu_info", module_args=args, task_vars=task_vars)
        except AnsibleConnectionFailure as error:
            if not tells:
                raise
            return {**result, "changed": False, "unreached": " ".join(str(error).split())}
