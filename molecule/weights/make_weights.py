#!/usr/bin/env python3
"""Make safetensors files that nothing loads, of a size that takes time: make_weights.py FOLDER SHARDS MIB

Every 16 bytes differ, so that a piece at the wrong place shows.
"""

import json
import os
import struct
import sys

PIECE = 1 << 20


def main():
    folder, shards, mib = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.makedirs(folder)
    names = [f"model-{number:05d}-of-{shards:05d}.safetensors" for number in range(1, shards + 1)]
    base = bytearray(struct.pack(f"<{PIECE // 8}Q", *range(PIECE // 8)))
    for number, name in enumerate(names):
        size = mib * PIECE
        header = json.dumps({f"w{number}": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with open(f"{folder}/{name}", "wb") as stream:
            stream.write(struct.pack("<Q", len(header)) + header)
            for piece in range(mib):
                base[:16] = struct.pack("<QQ", number, piece)
                stream.write(base)
    weight_map = {f"w{number}": name for number, name in enumerate(names)}
    texts = {
        "config.json": {"architectures": ["Glm4MoeForCausalLM"]},
        "tokenizer_config.json": {},
        "model.safetensors.index.json": {"metadata": {}, "weight_map": weight_map},
    }
    for name, text in texts.items():
        with open(f"{folder}/{name}", "w", encoding="utf-8") as stream:
            json.dump(text, stream)


if __name__ == "__main__":
    main()
