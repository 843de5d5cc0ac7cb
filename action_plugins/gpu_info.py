"""Say why a node cannot be looked at, where that is asked for; the module of the same name does the rest."""

from __future__ import annotations

import re
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase


def barred(error: AnsibleError) -> str:
    """Why nothing can be asked on the node, and the remedy; empty where something else is wrong."""
    said = " ".join(str(error).split()).rstrip(".")
    if re.search(r"(Missing|Incorrect) \w+ password", said):
        return f"{said}. Add -K (--ask-become-pass), which asks for it."
    if not isinstance(error, AnsibleConnectionFailure):
        return ""
    if "Host key verification failed" in said:
        return f"{said}. Log in once by hand (ssh), so that the node's key is known."
    return f"{said}. Check ansible_host, ansible_user and the key in the inventory."


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        args = dict(self._task.args)
        tells = boolean(args.pop("tell_unreached", False))
        try:
            return self._execute_module(module_name="gpu_info", module_args=args, task_vars=task_vars)
        except AnsibleError as error:
            why = barred(error) if tells else ""
            if not why:
                raise
            return {**result, "changed": False, "unreached": why}
