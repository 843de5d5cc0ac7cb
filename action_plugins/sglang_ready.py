"""Show a server's start stage by stage, while the module of the same name waits on the node.

The module returns at each new stage, or after SLICE seconds; between two of its runs lie PACE seconds at least, so that
a wait of half an hour costs few round trips and a quick start still shows every stage.

Servers that serve one model together are waited for together: where one of them fails, the waits for the others end too, within a
slice, in place of a rank that waits for one which does not come. They tell each other by a file on the controller.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

SLICE = 10.0
PACE = 2.0
QUIET = 30.0


def news(stages: List[Dict[str, Any]], shown: int) -> List[str]:
    """What to say about stages that were not shown yet."""
    return [f"{stage['name']} ({stage['seconds']:.1f} s)" for stage in stages[shown:]]


def still(step: Dict[str, Any]) -> str:
    """What to say when nothing new came: the present stage, and how long it has lasted."""
    stages = step.get("stages") or []
    since = stages[-1]["seconds"] if stages else 0.0
    return f"… still {step.get('doing', 'starting')} ({max(0.0, (step.get('seconds') or 0.0) - since):.0f} s)"


class Board:
    """Where the waits of one run for one replica tell each other that one of them failed.

    The folder is the run's own, and ends with it.
    """

    def __init__(self, key: str, host: str) -> None:
        name = f"sglang-ready-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
        self.path = Path(constants.DEFAULT_LOCAL_TMP) / name
        self.host = host

    def tell(self, message: str) -> None:
        """The first one who fails is told of; what follows from that fails too."""
        new = self.path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps({"host": self.host, "msg": message}), encoding="utf-8")
        try:
            os.link(new, self.path)
        except FileExistsError:
            pass
        finally:
            new.unlink()

    def told(self) -> Dict[str, str]:
        """Who failed first and with what; empty while nobody has, and for that host itself."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return {} if found["host"] == self.host else found


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        args = dict(self._task.args)
        internal = sorted({"slice", "resume"} & set(args))
        if internal:
            raise AnsibleActionFail(f"sglang_ready: {', '.join(internal)} belongs to its action plugin; leave it out.")
        host = task_vars.get("inventory_hostname", "")
        together = str(args.pop("together", None) or "")
        board = Board(together, host) if together else None
        server = str(args.get("unit") or args.get("url") or "server").removesuffix(".service")

        resume: Optional[Dict[str, Any]] = None
        shown = 0
        spoke = time.monotonic()
        while True:
            asked = time.monotonic()
            step = self._execute_module(
                module_name="sglang_ready", module_args={**args, "slice": SLICE, "resume": resume}, task_vars=task_vars
            )
            stages = step.get("stages") or []
            # A server that was ready before has no news to tell.
            lines = news(stages, shown) if resume or step.get("unfinished") or step.get("failed") else []
            shown = max(shown, len(stages))
            if not lines and step.get("unfinished") and time.monotonic() - spoke >= QUIET:
                lines = [still(step)]
            for line in lines:
                self._say(f"{host}: {server}: {line}")
                spoke = time.monotonic()
            resume = step.pop("resume", None)
            if not step.pop("unfinished", False):
                if board and step.get("failed"):
                    board.tell(str(step.get("msg", "")))
                return step
            told = board.told() if board else {}
            if told:
                step.update(failed=True, reason="other_host", first=told["host"])
                step["msg"] = f"{server} is not waited for any longer, since {told['host']} failed: {told['msg']}"
                return step
            time.sleep(max(0.0, PACE - (time.monotonic() - asked)))

    def _say(self, line: str) -> None:
        if not self._task.no_log:
            self._display.display(line)
