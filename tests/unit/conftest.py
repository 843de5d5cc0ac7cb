"""Make the project's modules, plugins and tools importable, as Ansible does at run time."""

from __future__ import annotations

import sys
from pathlib import Path

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[2]

# Plugins are imported as action_plugins.X and filter_plugins.X, since an action plugin has the name of its module.
for folder in (ROOT, ROOT / "library"):
    sys.path.insert(0, str(folder))
ansible.module_utils.__path__.append(str(ROOT / "module_utils"))
