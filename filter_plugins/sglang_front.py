"""Keys of the front, from a vault to nginx."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleFilterError

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import sglang_keys


def sglang_front_keys(
    keys: list[Any], where: str = "sglang_server_front_keys", metrics: list[Any] | tuple[Any, ...] = ()
) -> str:
    """Text of keys.conf. An empty list lets nobody in; keys of a file on the node are added there (sglang_companion).

    `metrics` are keys that open metrics alone.
    """
    watching = "sglang_server_front_metrics_keys"
    for name, some in ((where, keys), (watching, metrics)):
        if isinstance(some, str) or not isinstance(some, (list, tuple)):
            raise AnsibleFilterError(f"{name} is no list. Expected one key an item.")
    if any(key in keys for key in metrics):
        raise AnsibleFilterError(
            f"{watching} holds a key of {where}. Expected one of its own, which opens metrics alone: make one with "
            "`openssl rand -hex 32`."
        )
    try:
        opens = sglang_keys.lines(metrics, watching).replace(" 1;\n", " 2;\n")
        return sglang_keys.HEAD + sglang_keys.lines(keys, where) + opens
    except sglang_keys.KeyFault as error:
        raise AnsibleFilterError(str(error)) from None


class FilterModule:
    """Filters by name."""

    def filters(self) -> dict[str, Any]:
        return {"sglang_front_keys": sglang_front_keys}
