#!/usr/bin/env python3
"""Make a small GLM4-MoE model with random weights and a tokenizer of its own: a few megabytes, no download.

It is for hosts without the real weights: the engine loads and serves it as any GLM4-MoE checkpoint, and what it says
means nothing. Run with a release's own Python, so that the checkpoint is written by the transformers that reads it.
The same transformers, torch and Python write the same bytes every time.

    venv/bin/python make_tiny_glm4_moe.py FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VOCABULARY = 4096
CONTEXT = 8192
END_OF_TEXT, START_OF_TURN, END_OF_TURN, PADDING = SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<pad>",
]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# One dense layer, then three with experts, as in the large model; head and expert sizes are small and even, so that
# two ranks can share them.
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 4,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "use_qk_norm": True,
}


def sample_text() -> Iterator[str]:
    """Yield text to learn merges from: the standard library's sources, which every Python has."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:120]:
        yield path.read_text(encoding="utf-8", errors="ignore")


def make_tokenizer() -> Any:
    """Return a byte-level BPE tokenizer of VOCABULARY tokens with a chat template: it takes and makes any text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE(unk_token=None, byte_fallback=False))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(sample_text(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TURN,
        pad_token=PADDING,
        model_max_length=CONTEXT,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(tokenizer: Any, seed: int) -> Any:
    """Return a Glm4MoeForCausalLM in bfloat16, the type of the published checkpoints, with weights drawn from `seed`."""
    import torch
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    torch.manual_seed(seed)
    config = Glm4MoeConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **SIZES,
    )
    return Glm4MoeForCausalLM(config).to(torch.bfloat16)


def name_a_known_tokenizer_class(folder: Path) -> None:
    """Write a tokenizer class that both generations of transformers know.

    transformers 5 writes "TokenizersBackend", its own new name for PreTrainedTokenizerFast, and SGLang's loader then
    looks for a class of the model's family.
    """
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def let_others_read(folder: Path) -> None:
    """Give every file the mode of an ordinary one: safetensors writes 0600, and the engine runs as another user.

    It would report such weights as a file that does not exist.
    """
    for path in folder.iterdir():
        path.chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where config.json, the weights and the tokenizer are written")
    parser.add_argument("--seed", type=int, default=0, help="what the random weights are drawn from (default: 0)")
    args = parser.parse_args()

    # transformers asks the hub about some names unless it is told that there is none.
    os.environ["HF_HUB_OFFLINE"] = "1"
    args.folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, args.seed)
    model.save_pretrained(args.folder)
    tokenizer.save_pretrained(args.folder)
    name_a_known_tokenizer_class(args.folder)
    let_others_read(args.folder)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{args.folder}: Glm4MoeForCausalLM, {parameters:,} parameters, {len(tokenizer):,} tokens, seed {args.seed}")


if __name__ == "__main__":
    main()
