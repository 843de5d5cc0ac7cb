"""Make a checkpoint of several GB for the CPU engine, in shards with an index: python make_big_model.py TINY FOLDER GB

Run with a release's Python. TINY is a model of make_tiny_glm4_moe.py, whose tokenizer it takes. Its weights are one drawn piece
again and again: what it says means nothing, what is loaded is real.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

SHARD = 1 << 30  # bytes
SIZES = {"hidden_size": 1024, "moe_intermediate_size": 1024, "intermediate_size": 2816, "n_routed_experts": 64}
LAYER = (
    SIZES["n_routed_experts"] * 3 * SIZES["hidden_size"] * SIZES["moe_intermediate_size"] * 2
)  # bytes of its experts


def named(model: torch.nn.Module) -> Iterator[tuple[str, torch.Size]]:
    """Shapes by their names in a checkpoint, which has each expert by itself where transformers 5 holds all as one."""
    for name, tensor in model.state_dict().items():
        base, _, last = name.rpartition(".")
        if not base.endswith("mlp.experts"):
            yield name, tensor.shape
            continue
        rows, columns = tensor.shape[1:]
        for expert in range(tensor.shape[0]):
            if last == "down_proj":
                yield f"{base}.{expert}.down_proj.weight", torch.Size((rows, columns))
            else:
                for half in ("gate_proj", "up_proj"):
                    yield f"{base}.{expert}.{half}.weight", torch.Size((rows // 2, columns))


def shards(tensors: Iterator[tuple[str, torch.Size]]) -> Iterator[dict[str, torch.Tensor]]:
    drawn = (torch.randn(1 << 22) * 0.02).to(torch.bfloat16)
    shard: dict[str, torch.Tensor] = {}
    size = 0
    for name, shape in tensors:
        count = shape.numel()
        values = drawn.repeat(-(-count // drawn.numel()))[:count].reshape(shape).clone()
        shard[name] = torch.ones_like(values) if name.endswith("norm.weight") else values
        size += 2 * count
        if size > SHARD:
            yield shard
            shard, size = {}, 0
    yield shard


def main() -> None:
    tiny, folder, gigabytes = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    folder.mkdir(parents=True)
    for path in tiny.glob("*"):
        if path.suffix != ".safetensors":
            shutil.copy(path, folder / path.name)
    config = AutoConfig.from_pretrained(tiny)
    config.update({**SIZES, "num_hidden_layers": 1 + round(gigabytes * 1e9 / LAYER)})
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    where: dict[str, str] = {}
    for number, shard in enumerate(shards(named(model)), 1):
        file = f"model-{number:05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    for path in folder.iterdir():
        path.chmod(0o644)


if __name__ == "__main__":
    main()
