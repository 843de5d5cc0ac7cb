"""Run a module in this process, as Ansible's own unit tests do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args


def run_module(module: Any, capsys: pytest.CaptureFixture[str], check: bool = False, **args: Any) -> dict[str, Any]:
    """The module's result, whether it ended well or failed."""
    with patch_module_args({**args, "_ansible_check_mode": check}), pytest.raises(SystemExit):
        module.main()
    return json.loads(capsys.readouterr().out)
