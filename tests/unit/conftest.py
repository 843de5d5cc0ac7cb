"""Make the project's modules, plugins and tools importable, as Ansible does at run time."""

from __future__ import annotations

import sys
from pathlib import Path

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[2]

for folder in ("library", "action_plugins", "filter_plugins", "tools"):
    sys.path.insert(0, str(ROOT / folder))
ansible.module_utils.__path__.append(str(ROOT / "module_utils"))
