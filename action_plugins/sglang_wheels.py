"""Send the wheels that a node lacks, and show how far it is."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import sglang_transfer


def listing(folder: Path) -> list[dict[str, Any]]:
    """Name, size (bytes) and sha256 of a folder's wheels: from wheelhouse.json where it names them, else read."""
    known: dict[str, dict[str, Any]] = {}
    index = folder / "wheelhouse.json"
    if index.is_file():
        known = {entry["name"]: entry for entry in json.loads(index.read_text(encoding="utf-8"))["files"]}
    wheels = []
    for path in sorted(folder.glob("*.whl")):
        size = path.stat().st_size
        entry = known.get(path.name)
        if entry and entry["size"] == size:
            digest = entry["sha256"]
        else:
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        wheels.append({"name": path.name, "size": size, "sha256": digest})
    return wheels


class ActionModule(ActionBase):
    """Asks the node what it lacks, puts those files into a temporary folder, lets the node check and take them."""

    _VALID_ARGS = frozenset({"src", "dest"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        folder = Path(self._task.args["src"]).expanduser()
        wheels = listing(folder) if folder.is_dir() else []
        if not wheels:
            raise AnsibleActionFail(
                f"The wheelhouse {folder} on the controller holds no wheels. Fill it with tools/wheelhouse, or correct "
                "sglang_env_wheelhouse."
            )
        arguments = {"src": str(folder), "dest": self._task.args["dest"], "wheels": wheels}
        answer = self._execute_module("sglang_wheels", module_args=arguments, task_vars=task_vars)
        if answer.get("failed") or not answer["changed"] or self._task.check_mode:
            return {**result, **answer}
        lacking = [wheel for wheel in wheels if wheel["name"] in set(answer["missing"])]
        host, total, done = (task_vars or {})["inventory_hostname"], sum(wheel["size"] for wheel in lacking), 0
        for batch in sglang_transfer.batches(lacking, "size"):
            self._display.display(f"{host}: {done >> 20} of {total >> 20} MB of wheels sent")
            sent = self._make_tmp_path()
            try:
                for wheel in batch:
                    self._connection.put_file(str(folder / wheel["name"]), f"{sent.rstrip('/')}/{wheel['name']}")
                taken = self._execute_module(
                    "sglang_wheels", module_args={**arguments, "sent": sent}, task_vars=task_vars
                )
            finally:
                self._remove_tmp_path(sent)
            if taken.get("failed"):
                return {**result, **taken}
            done += sum(wheel["size"] for wheel in batch)
        return {**result, **answer}
