"""Let PyPI's torchvision, a CUDA build, be imported beside a CPU build of torch.

Purpose: transformers imports torchvision's transforms at start. torchvision's compiled part cannot load without CUDA
libraries, so the operators it would register do not exist, and its import ends with "operator torchvision::nms does
not exist". Declaring the signatures of those operators just before torchvision is imported lets its Python parts load.

Limits: nothing is faked. The operators get no implementation, and calling one raises torch's NotImplementedError.
Used by CPU stacks alone. The .pth file beside this one imports it when Python starts; it costs nothing until
torchvision is imported.
"""

from __future__ import annotations

import importlib.abc
import sys
from typing import Any

# Those that torchvision/_meta_registrations.py looks up without first asking whether the compiled part was loaded.
SIGNATURES = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

# torch takes a declaration back when the object that made it is collected.
KEPT: list[Any] = []


def declare() -> None:
    """Declare the operators' signatures in torch's registry."""
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    KEPT.append(library)
    for signature in SIGNATURES:
        library.define(signature)


class BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Finds nothing itself: declares when torchvision is first looked for, then steps out of the way."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            declare()


sys.meta_path.insert(0, BeforeTorchvision())
