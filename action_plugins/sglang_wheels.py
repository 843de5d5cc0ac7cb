"""Send the wheels that a node lacks, and show how far it is."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

NEWS_EVERY = 10  # seconds
display = Display()


def listing(folder: Path) -> list[dict[str, Any]]:
    """Name, size (bytes) and sha256 of a folder's wheels: from wheelhouse.json where it names them, else read."""
    known: dict[str, dict[str, Any]] = {}
    index = folder / "wheelhouse.json"
    if index.is_file():
        known = {entry["name"]: entry for entry in json.loads(index.read_text())["files"]}
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
        sent = self._make_tmp_path()
        try:
            self._send(
                [wheel for wheel in wheels if wheel["name"] in set(answer["missing"])], folder, sent, task_vars or {}
            )
            answer = self._execute_module("sglang_wheels", module_args={**arguments, "sent": sent}, task_vars=task_vars)
        finally:
            self._remove_tmp_path(sent)
        return {**result, **answer}

    def _send(self, wheels: list[dict[str, Any]], folder: Path, sent: str, variables: dict[str, Any]) -> None:
        host, total, done, news = variables["inventory_hostname"], sum(w["size"] for w in wheels), 0, time.monotonic()
        display.display(f"{host}: sending {len(wheels)} wheels, {total >> 20} MB")
        for count, wheel in enumerate(wheels, 1):
            self._connection.put_file(str(folder / wheel["name"]), f"{sent.rstrip('/')}/{wheel['name']}")
            done += wheel["size"]
            if time.monotonic() - news > NEWS_EVERY:
                news = time.monotonic()
                display.display(f"{host}: {count} of {len(wheels)} wheels, {done >> 20} of {total >> 20} MB")
