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


def sglang_front_keys(keys: list[Any], where: str = "sglang_server_front_keys") -> str:
    """Text of keys.conf. An empty list lets nobody in; keys of a file on the node are added there (sglang_companion)."""
    if isinstance(keys, str) or not isinstance(keys, (list, tuple)):
        raise AnsibleFilterError(f"{where} is no list. Expected one key an item.")
    try:
        return sglang_keys.HEAD + sglang_keys.lines(keys, where)
    except sglang_keys.KeyFault as error:
        raise AnsibleFilterError(str(error)) from None


class FilterModule:
    """Filters by name."""

    def filters(self) -> dict[str, Any]:
        return {"sglang_front_keys": sglang_front_keys}
