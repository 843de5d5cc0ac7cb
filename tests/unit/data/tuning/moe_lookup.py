"""A program for tests: what the real get_moe_configs of an installed SGLang reads; its other modules and torch are not imported."""

import importlib.util
import json
import logging
import sys
import types
from unittest.mock import MagicMock


def main():
    question = json.load(sys.stdin)
    sys.modules["torch"] = MagicMock()
    plain = types.SimpleNamespace(enable_deterministic_inference=False)
    for name in ("sglang", "sglang.srt", "sglang.srt.server_args", "sglang.srt.utils", "sglang.srt.runtime_context"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["sglang.srt.server_args"].get_global_server_args = lambda: plain
    sys.modules["sglang.srt.runtime_context"].get_exec = lambda: types.SimpleNamespace(deterministic=plain)
    sys.modules["sglang.srt.utils"].get_device_name = lambda: question["device"]
    sys.modules["sglang.srt.utils"].is_hip = lambda: False
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    spec = importlib.util.spec_from_file_location("configs", question["source"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    json.dump(module.get_moe_configs(*question["args"], down_moe=question["down"]), sys.stdout)


main()
