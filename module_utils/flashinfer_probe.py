# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""A program for a release's own Python: what its FlashInfer, SGLang and Triton read of tuning files, and on which cards.

Reads one JSON document from standard input and writes one to standard output; see `main`. The forms of files are taken from the
installed sources, which are parsed; FlashInfer itself is imported where only its own code can answer: the name of its configuration
module, and what it compares a cache's metadata with. No memory of a GPU is allocated.

Written for FlashInfer 0.6.1 to 0.7.4 and SGLang 0.5.8 to 0.5.23. It is a program and not a library.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import re
import sys
from typing import Any

# Where releases keep the path of the autotuner's cache, newest first.
CACHE_SOURCES = (
    "model_executor/runner/flashinfer_autotune.py",
    "model_executor/runner/base_runner.py",
    "model_executor/model_runner.py",
)
MOE_FOLDERS = ("layers/moe/moe_runner/triton_utils", "layers/moe/fused_moe_triton")


def version_of(*names: str) -> str | None:
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def folder_of(package: str) -> str | None:
    """A package's folder, without running any of its code."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            return str(folder)
    return None


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except OSError:
        return ""


def functions(text: str) -> dict[str, str]:
    """Name to source of every function and method, in one form of writing."""
    return {node.name: ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}


def devices() -> list[dict[str, str]]:
    import torch

    if not torch.cuda.is_available():
        return []
    return [
        {
            "name": torch.cuda.get_device_name(index),
            "capability": ".".join(str(part) for part in torch.cuda.get_device_capability(index)),
        }
        for index in range(torch.cuda.device_count())
    ]


def triton_version(folder: str | None) -> str | None:
    """The version that SGLang puts into a path: the module's own, which may differ from the wheel's."""
    found = re.search(r"^__version__ = ['\"]([^'\"]+)['\"]", read(os.path.join(folder or "", "__init__.py")), re.M)
    return found[1] if found else version_of("triton")


def flashinfer_forms(folder: str) -> dict[str, Any]:
    """What this FlashInfer reads, from its sources."""
    text = read(os.path.join(folder, "autotuner/autotuner.py")) or read(os.path.join(folder, "autotuner.py"))
    known = functions(text)
    search, load = known.get("search_cache", ""), known.get("load_configs", "")
    by_file, by_memory = search.find("load_from_file"), search.find("profiling_cache")
    return {
        "folder": folder,
        # (op, runner, profile), and later what a runner adds.
        "key_parts": 4 if "key[4]" in text or "file_key" in known else 3,
        "python_configs": "load_from_file" in known,
        # Up to 0.6.6 the file is asked first and alone: what was tuned at run time is then not read.
        "file_first": 0 <= by_file < by_memory or (by_file >= 0 and by_memory < 0),
        "json": bool(load),
        "fields": 2 + ("value[2]" in load) + ("value[3]" in load),
        "reserved": re.findall(r"^_\w+_KEY = ['\"](_\w+)['\"]", text, re.M),
        "skips_cudnn_numbers": "legacy_cudnn" in load,
        "blocklist": "FLASHINFER_TACTICS_BLOCKLIST" in text,
        "compound": "_json_to_tactic" in known,
    }


def asked_of_flashinfer() -> dict[str, Any]:
    """What only its own code can say, on this card."""
    autotuner = importlib.import_module("flashinfer.autotuner")
    home = sys.modules[autotuner.AutoTuner.__module__]
    collect = getattr(home, "_collect_metadata", None)
    return {
        "config_module": home.get_config_path(is_module=True),
        "metadata": collect() if collect else None,
        "version": getattr(sys.modules["flashinfer"], "__version__", None),
    }


def cache_forms(folder: str) -> dict[str, Any] | None:
    """How this SGLang names the autotuner's cache: the expressions that make the key, and whether ranks must agree."""
    for source in CACHE_SOURCES:
        text = read(os.path.join(folder, "srt", source))
        if "flashinfer_autotune_cache_path" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name.endswith("flashinfer_autotune_cache_path"):
                always, draft = key_parts(node)
                names = [ast.unparse(part) for part in ast.walk(node) if isinstance(part, ast.JoinedStr)]
                return {
                    "source": source,
                    "parts": always,
                    "draft_parts": draft,
                    "layout": assigned(node, "cache_dir"),
                    "key": assigned(node, "cache_key"),
                    "rank": next((name for name in names if "rank_tp" in name), ""),
                    "agree": "_drop_diverged_autotune_cache" in text,
                }
    return None


def assigned(function: ast.FunctionDef, name: str) -> str:
    """The expression that a function gives to a name."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.unparse(node.value)
    return ""


def key_parts(function: ast.FunctionDef) -> tuple[list[str], list[str]]:
    """The key's parts as source text, in order: those that always count, those of a draft model."""
    always: list[str] = []
    draft: list[str] = []
    for node in ast.walk(function):
        if isinstance(node, ast.List) and not always and len(node.elts) > 4:
            always = [ast.unparse(part) for part in node.elts]
    for node in function.body:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and ast.unparse(inner.func).endswith("_parts.append"):
                (draft if isinstance(node, ast.If) else always).append(ast.unparse(inner.args[0]))
    return always, draft


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Question: `flashinfer`, whether its own code is to be asked."""
    flashinfer, sglang, triton = folder_of("flashinfer"), folder_of("sglang"), folder_of("triton")
    told: dict[str, Any] = {
        "versions": {
            "flashinfer": version_of("flashinfer-python"),
            "sglang": version_of("sglang"),
            "torch": version_of("torch"),
            "triton": triton_version(triton),
        },
        "devices": devices(),
        "flashinfer": flashinfer_forms(flashinfer) if flashinfer else None,
        "cache": cache_forms(sglang) if sglang else None,
        "sglang_folder": sglang,
        "moe_folder": None,
    }
    for name in MOE_FOLDERS if sglang else ():
        folder = os.path.join(str(sglang), "srt", name)
        if os.path.isdir(os.path.join(folder, "configs")):
            told["moe_folder"] = folder
            break
    if flashinfer and told["devices"] and question["flashinfer"]:
        told["flashinfer"].update(asked_of_flashinfer())
    return told


def main() -> None:
    question = json.load(sys.stdin)
    # What packages print while they are imported is no answer.
    with contextlib.redirect_stdout(io.StringIO()):
        told = answer(question)
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
