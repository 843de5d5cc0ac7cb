# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Ansible's own output without the tasks that were skipped."""

from __future__ import annotations

from typing import Any

from ansible.plugins.callback.default import CallbackModule as Default

DOCUMENTATION = """
name: sglang_calm
type: stdout
short_description: Ansible's own output without the tasks that were skipped
version_added: "0.1.0"
description:
  - The default output with C(display_skipped_hosts=false) prints a task's name with its first result, after what the task said
    meanwhile, and a task that takes minutes has none until it ends. Here the name of a task without conditions comes at its start.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
requirements:
  - set as stdout in configuration
"""


class CallbackModule(Default):
    """The default output; a task that is not skipped in any case has its name at once."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "sglang_calm"

    def _task_start(self, task: Any, prefix: str | None = None) -> None:
        super()._task_start(task, prefix)
        if self._last_task_name and not task.when:
            self._print_task_banner(task)
