"""A program for tests: what the tuning program hands to FlashInfer's operations, which are stand-ins that note their arguments."""

import json
import sys
import types

sys.path.insert(0, sys.argv[1])
import flashinfer_tuner  # noqa: E402
import torch  # noqa: E402

noted = []


def plain(value):
    if isinstance(value, torch.Tensor):
        return [list(value.shape), str(value.dtype).removeprefix("torch.")]
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, torch.dtype) else value


def note(*args, **more):
    noted.append({**({"args": plain(args)} if args else {}), **{name: plain(value) for name, value in more.items()}})


def quantized(x, scale):
    """As flashinfer.fp4_quantize shapes it: packed rows, and scales in tiles of 128 x 4."""
    rows, columns = x.shape
    tiles = (flashinfer_tuner.padded(rows, 128), flashinfer_tuner.padded(columns // 16, 4))
    return torch.zeros((rows, columns // 2), dtype=torch.uint8), torch.zeros(tiles, dtype=torch.uint8)


release = types.SimpleNamespace(
    torch=torch,
    flashinfer=types.SimpleNamespace(
        __version__="0", mm_fp4=note, fp4_quantize=quantized, fused_moe=types.SimpleNamespace(cutlass_fused_moe=note)
    ),
)
for words in json.load(sys.stdin):
    flashinfer_tuner.maker(words, release)(words["max_tokens"], words["max_tokens"])()
json.dump(noted, sys.stdout)
