"""For tests alone: torch answers as on the cards that TEST_CARDS names, and FlashInfer's autotuner is imported without its kernels.

The autotuner, its loaders and the configuration modules are the real ones, of the first folder of PYTHONPATH that holds them.
"""

import importlib.machinery
import importlib.util
import json
import logging
import os
import sys
import types


def stand_in() -> None:
    import torch

    cards = json.loads(os.environ["TEST_CARDS"])
    torch.cuda.is_available = lambda: bool(cards)
    torch.cuda.device_count = lambda: len(cards)
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_name = lambda device=0: cards[device or 0]
    torch.cuda.get_device_capability = lambda device=0: (12, 0)
    torch.version.cuda = "13.0"


def without_kernels() -> None:
    """The package without its __init__, which imports every kernel, and stand-ins for the compiler's modules."""
    spec = importlib.machinery.PathFinder.find_spec("flashinfer")
    if spec is None:
        return
    package = importlib.util.module_from_spec(spec)
    package.__version__ = os.environ["TEST_FLASHINFER"]
    sys.modules["flashinfer"] = package
    names = ("jit", "jit.core", "jit.cute_dsl_core", "tllm_utils", "utils", "version")
    for name in names:
        module = types.ModuleType(f"flashinfer.{name}")
        module.__path__ = []
        module.__getattr__ = lambda attribute: lambda *args, **more: None
        sys.modules[module.__name__] = module
    sys.modules["flashinfer.jit.core"].logger = logging.getLogger("flashinfer.jit")
    sys.modules["flashinfer.jit.cute_dsl_core"]._get_cute_dsl_version = lambda: "4.5.0"
    sys.modules["flashinfer.version"].__version__ = os.environ["TEST_FLASHINFER"]


if "TEST_CARDS" in os.environ:
    stand_in()
    without_kernels()
