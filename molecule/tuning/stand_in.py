"""For tests alone: a card for the programs that ask for one, and none for the engine, which runs on a CPU.

The release's gate, which lets nothing tune without a card, answers as with one. With TEST_ENGINE_TUNES the engine writes a
file at its start where it keeps what it tuned, by its own function for the place; nothing is tuned. With TEST_ENGINE_SAYS it
says the two lines of a tuning.
"""

import importlib.abc
import importlib.machinery
import os
import runpy
import sys

GATE = "sglang.srt.model_executor.runner.flashinfer_autotune"


class After(importlib.abc.MetaPathFinder):
    """Changes a module when it was imported."""

    def __init__(self, name, change):
        self.name, self.change = name, change

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self.change(module)

        spec.loader.exec_module = exec_module
        return spec


def open_gate(module):
    module.should_run_flashinfer_autotune = lambda *_words, **_more: True


def tunes(module):
    begin = module.ModelRunner.__init__

    def __init__(self, *words, **more):
        begin(self, *words, **more)
        if os.environ.get("TEST_ENGINE_SAYS"):
            module.logger.info("Running FlashInfer autotune...")
            module.logger.info("FlashInfer autotune completed.")
        elif not self.server_args.disable_flashinfer_autotune:
            write(self)

    module.ModelRunner.__init__ = __init__


def write(runner):
    import importlib
    import shutil
    import types

    import torch

    autotune = importlib.import_module(GATE)
    capability, torch.cuda.get_device_capability = torch.cuda.get_device_capability, lambda *_words: (12, 0)
    sys.modules["flashinfer"] = types.SimpleNamespace(__version__=os.environ["TEST_FLASHINFER"])
    path = autotune.flashinfer_autotune_cache_path(runner)
    del sys.modules["flashinfer"]
    torch.cuda.get_device_capability = capability
    shutil.copy("/srv/card/rank.json", path)


program = " ".join(sys.orig_argv)
if any(name in program for name in ("flashinfer_probe", "flashinfer_tuner", "lookup.py")):
    runpy.run_path("/srv/data/tune/card/sitecustomize.py", run_name="sitecustomize")
if "sglang_parser" in program:
    sys.meta_path.insert(0, After(GATE, open_gate))
asked = os.environ.get("TEST_ENGINE_TUNES") or os.environ.get("TEST_ENGINE_SAYS")
if asked and ("launch_server" in program or "multiprocessing" in program):
    sys.meta_path.insert(0, After("sglang.srt.model_executor.model_runner", tunes))
