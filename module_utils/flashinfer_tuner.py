# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Tunes a profile's kernels with FlashInfer's own autotuner, and measures what that brings: a program for a release's own Python.

One JSON question on standard input, JSON lines on standard output: `progress`, and at the end `result`, which is `{"failed": …}`
where it could not be done. Modes:

`run`      all of it, in processes of their own: tune once, then measure without and with the file, in turns. The result is written
           to result.json in `folder`, since it may be long; the line names it.
`tune`     FlashInfer's autotuner over `operations`, and the file that the version itself would read.
`measure`  every operation at every token count, with the file or without it, in a process that tuned nothing.

flashinfer_probe.py lies beside it. No package of SGLang is imported: the shapes come in the question.

Buckets are the version's own. `autotune(tuning_buckets=…)` is left alone: it replaces the rule by which a token count is looked up,
and the engine looks up without it, so what was tuned for other buckets would never be found. Prefill chunks are reached by calling
each operation with as many tokens as a chunk has.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import logging
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

LOAD_FROM_FILE = "FLASHINFER_AUTOTUNER_LOAD_FROM_FILE"
CACHE_NAME = "rank.json"
GIB = 2**30
# A process of its own takes about half a GiB of a card before it holds anything.
OTHERS = 2 * GIB
# One figure: the median of so many samples of so many calls, less of what is slow.
SAMPLES, CALLS = 21, 5
SLOW_US = 20_000.0
# Kernels are queued behind a wait, so that the time on the host is not measured; the clock that the wait counts by is at most this.
CYCLES_A_SECOND = 2.5e9
LONGEST_WAIT = 0.1
SEED = 20261130
WHAT = (
    "geometric mean of microseconds a call over every operation and token count, buckets and the counts between them, since what "
    "load a server has is not known: a sum would be the largest prefill chunk alone"
)


class Failed(Exception):
    """What ended it, with the remedy; `kind` is a word for programs."""

    def __init__(self, kind: str, text: str, remedy: str) -> None:
        super().__init__(f"{text} {remedy}")
        self.told = {"kind": kind, "text": text, "remedy": remedy}


class Dead(BaseException):
    """The CUDA context is lost. Not an Exception: FlashInfer passes over those of a tactic and would go on with the next."""


# --- words -----------------------------------------------------------------------------------------------------------------


def name_of(words: dict[str, Any]) -> str:
    """An operation in a message: its name and the sizes that tell it from others."""
    sizes = [f"{key}={words[key]}" for key in ("experts", "hidden", "intermediate", "batch", "n", "k") if key in words]
    return f"{words['op']} ({', '.join(sizes)})" if sizes else str(words["op"])


def power_of_2(tokens: int) -> int:
    """The next power of two from this number on."""
    return 1 << max(tokens - 1, 0).bit_length()


def tuning_sizes(words: dict[str, Any]) -> list[int]:
    """Tokens to tune with. A count between two powers is looked up under the next bucket, so that must be there as well."""
    return sorted({power_of_2(words["max_tokens"]), words["max_tokens"]}, reverse=True)


def measured_at(buckets: list[int], most: int) -> list[int]:
    """Token counts to measure: the buckets, and between any two of them, where a tactic tuned for one of them is used as well."""
    inside = sorted({tokens for tokens in buckets if tokens <= most} | {most})
    return sorted({*inside, *((one + two) // 2 for one, two in zip(inside, inside[1:]))})


def first_compiler_error(text: str) -> str:
    found = re.search(r"^.*(?:\bfatal error\b|\berror\s*[:#]|\bError:|\bKilled\b).*$", text, re.MULTILINE)
    return found[0].strip()[:500] if found else text.strip().splitlines()[-1][:500] if text.strip() else ""


def explained(error: BaseException, where: str) -> Failed:
    """An error of FlashInfer, torch or the machine, in words that say what to do."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, Failed):
        return error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Failed(
            "disk", f"The disk is full ({error.filename or 'no space left'}).", "Make room, and run it again."
        )
    if "OutOfMemoryError" in type(error).__name__ or "out of memory" in text.lower():
        return out_of_memory(where, str(error).strip().splitlines()[0][:300] if str(error).strip() else "")
    if re.search(r"ninja|nvcc|cicc|ptxas", text, re.IGNORECASE):
        return Failed(
            "build",
            f"FlashInfer could not build the kernels of {where}: {first_compiler_error(str(error))}.",
            "Look for the compiler (CUDA_HOME), its version, and memory: one takes up to 10 GiB, MAX_JOBS bounds how many run.",
        )
    return Failed(
        "refused",
        f"FlashInfer does not run {where} on this card: {text.strip()[:500].rstrip('.')}.",
        "Leave this operation out, or compare its sizes and backend with what the engine logs.",
    )


def out_of_memory(where: str, detail: str = "") -> Failed:
    return Failed(
        "memory",
        f"The card's memory ran out in {where}{': ' + detail.rstrip('.') if detail else ''}.",
        "Larger buckets stay untuned then. Give a smaller max_tokens (a smaller prefill chunk), or a card with more that is free.",
    )


def crashed(where: str, tactic: str, how: str) -> Failed:
    return Failed(
        "crash",
        f"A tactic ended the process: {where}{', tactic ' + tactic if tactic else ''} ({how}).",
        "Leave this operation out, or keep the tactic out by FLASHINFER_TACTICS_BLOCKLIST (FlashInfer from 0.6.15) and report it.",
    )


# --- the release -----------------------------------------------------------------------------------------------------------


class Release:
    """torch and FlashInfer of this Python, imported once, with the card that they see."""

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise Failed(
                "gpu",
                "The release's torch sees no GPU here.",
                "Run it on a node with the card, and let CUDA_VISIBLE_DEVICES name one that is there.",
            )
        free, total = torch.cuda.mem_get_info()
        if total - free > OTHERS:
            raise Failed(
                "busy",
                f"{(total - free) / GIB:.1f} of the card's {total / GIB:.1f} GiB are in use{users(torch)}.",
                "Figures beside other work mean nothing, and memory may run out: stop what runs there (systemctl stop), or name a "
                "free card with CUDA_VISIBLE_DEVICES.",
            )
        import flashinfer
        from flashinfer.autotuner import AutoTuner

        self.torch, self.flashinfer = torch, flashinfer
        # A package from 0.6.13 on, a module before; its private helpers are where the class is.
        self.home = sys.modules[AutoTuner.__module__]
        self.tuner = AutoTuner.get()
        torch.manual_seed(SEED)

    @contextlib.contextmanager
    def tuning(self) -> Iterator[None]:
        """As SGLang tunes: where there is autotune_v2, the default tactic takes part, so that tuning cannot lose to it."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.home.autotune(True))
            if hasattr(self.flashinfer, "autotune_v2"):
                stack.enter_context(self.flashinfer.autotune_v2(mode="tune", persistent_cache=False))
            yield

    def alive(self) -> bool:
        """Whether the context still works. What a kernel did wrong is told once; a context that is lost tells it every time."""
        for _ in range(2):
            try:
                self.torch.cuda.synchronize()
                return True
            except Exception:
                continue
        return False


def smi(query: str) -> list[list[str]]:
    """What nvidia-smi answers, a row of fields each; empty where it does not."""
    try:
        argv = ["nvidia-smi", query, "--format=csv,noheader"]
        listed = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[part.strip() for part in line.split(",")] for line in listed.splitlines()]


def users(torch: Any) -> str:
    """Who holds memory of this card, as nvidia-smi and the kernel say it; empty where they do not."""
    uuid = str(getattr(torch.cuda.get_device_properties(0), "uuid", ""))
    found = [
        f"{process(row[1])}, {row[2]}"
        for row in smi("--query-compute-apps=gpu_uuid,pid,used_memory")
        if len(row) == 3 and row[1].isdigit() and int(row[1]) != os.getpid() and uuid in row[0]
    ]
    return f" by {'; '.join(found[:4])}" if found else ""


def process(pid: str) -> str:
    """A process as people know it: its unit if it is a service's, and its command."""

    def read(name: str) -> str:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as stream:
            return stream.read()
        return ""

    unit = re.search(r"([\w@.:-]+\.service)\s*$", read("cgroup"), re.MULTILINE)
    command = " ".join(read("cmdline").replace("\0", " ").split()[:4])
    return f"{unit[1] if unit else 'process'} (pid {pid}{', ' + command if command else ''})"


# --- operations: sizes to calls, with the engine's shapes and dtypes -----------------------------------------------------


def bmm_fp8(words: dict[str, Any], release: Release) -> Callable[[int, int], Callable[[], Any]]:
    """(batch, tokens, k) x (batch, k, n) as latent attention absorbs its projections: SGLang's MLA path from 0.5.23 on."""
    torch, run = release.torch, release.flashinfer.bmm_fp8
    batch, n, k = words["batch"], words["n"], words["k"]
    fp8, scale = torch.float8_e4m3fn, (1,) * words.get("scale_dims", 1)
    b = torch.randn((batch, n, k), device="cuda").to(fp8).transpose(-2, -1)
    scales = [torch.ones(scale, dtype=torch.float32, device="cuda") for _ in range(2)]

    def make(tokens: int, most: int) -> Callable[[], Any]:
        a = torch.randn((batch, tokens, k), device="cuda").to(fp8)
        out = torch.empty((batch, tokens, n), dtype=torch.bfloat16, device="cuda")
        return lambda: run(a, b, *scales, torch.bfloat16, out, backend=words.get("backend", "cublas"))

    return make


def mm_fp4(words: dict[str, Any], release: Release) -> Callable[[int, int], Callable[[], Any]]:
    """A quantized linear layer, as SGLang's modelopt_quant calls it: weights padded to 32, scales to 128 x 4, both transposed."""
    torch, flashinfer = release.torch, release.flashinfer
    n, k = padded(words["n"], 32), padded(words["k"], 32)
    weight = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda").T
    weight_scale = torch.ones((padded(n, 128), padded(k // 16, 4)), device="cuda").to(torch.float8_e4m3fn).T
    one = torch.ones((), dtype=torch.float32, device="cuda")

    def make(tokens: int, most: int) -> Callable[[], Any]:
        x = torch.randn((tokens, k), dtype=torch.bfloat16, device="cuda")
        a, a_scale = flashinfer.fp4_quantize(x, one)
        return lambda: flashinfer.mm_fp4(
            a, weight, a_scale, weight_scale, one, torch.bfloat16, backend=words.get("backend", "cutlass")
        )

    return make


def cutlass_fused_moe(words: dict[str, Any], release: Release) -> Callable[[int, int], Callable[[], Any]]:
    """NVFP4 experts as SGLang calls them: weights as int64, scales as int32, BF16 tokens, or packed ones behind an all-gather."""
    torch, flashinfer = release.torch, release.flashinfer
    experts, hidden, width, top_k = (words[name] for name in ("experts", "hidden", "intermediate", "top_k"))
    tp, ep = words.get("tp_size", 1), words.get("ep_size", 1)

    def packed(*shape: int) -> Any:
        return torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda").view(torch.long)

    def scales(rows: int, columns: int) -> Any:
        shape = (experts, padded(rows, 128), padded(columns, 4))
        return torch.ones(shape, device="cuda").to(torch.float8_e4m3fn).view(torch.int32)

    fc1, fc2 = packed(experts, 2 * width, hidden // 2), packed(experts, hidden, width // 2)
    one = torch.ones((), dtype=torch.float32, device="cuda")
    each = torch.ones((experts,), dtype=torch.float32, device="cuda")
    quant = [one, scales(2 * width, hidden // 16), each, one, scales(hidden, width // 16), each]

    def make(tokens: int, most: int) -> Callable[[], Any]:
        x = torch.randn((tokens, hidden), dtype=torch.bfloat16, device="cuda")
        sf = None
        if words.get("input", "bf16") == "nvfp4":
            x, sf = flashinfer.fp4_quantize(x, one)
        # Every token to experts of its own choice: a served model's choice is less even, and differs from layer to layer.
        chosen = torch.rand((tokens, experts * ep), device="cuda").topk(top_k, dim=-1).indices.to(torch.int)
        weights = torch.full((tokens, top_k), 1.0 / top_k, dtype=torch.float32, device="cuda")
        out = torch.empty((tokens, hidden), dtype=torch.bfloat16, device="cuda")
        return lambda: flashinfer.fused_moe.cutlass_fused_moe(
            output=out, input=x, token_selected_experts=chosen, token_final_scales=weights, fc1_expert_weights=fc1,
            fc2_expert_weights=fc2, output_dtype=torch.bfloat16, input_sf=sf, quant_scales=quant, ep_size=ep, ep_rank=0,
            tp_size=tp, tp_rank=0, tune_max_num_tokens=most, enable_alltoall=False,
        )  # fmt: skip

    return make


def padded(size: int, to: int) -> int:
    return -(-size // to) * to


OPERATIONS = {"bmm_fp8": bmm_fp8, "mm_fp4": mm_fp4, "cutlass_fused_moe": cutlass_fused_moe}


def maker(words: dict[str, Any], release: Release) -> Callable[[int, int], Callable[[], Any]]:
    where = release.flashinfer
    if words["op"] == "cutlass_fused_moe":
        where = getattr(where, "fused_moe", None)
    if words["op"] not in OPERATIONS or not hasattr(where, words["op"]):
        version = getattr(release.flashinfer, "__version__", "")
        raise Failed(
            "op",
            f"FlashInfer {version} has no {words['op']}.",
            f"Leave it out; known here: {', '.join(sorted(OPERATIONS))}.",
        )
    return OPERATIONS[words["op"]](words, release)


# --- the autotuner, watched ----------------------------------------------------------------------------------------------


class Watch:
    """What FlashInfer's autotuner does: which tactic it tries, what it looked up and whether that was found."""

    def __init__(self, release: Release, say: Callable[[dict[str, Any]], None]) -> None:
        self.release, self.say = release, say
        self.words: dict[str, Any] = {}
        self.operation = ""
        self.looked: list[tuple[str, bool]] = []
        self.first: dict[str, str] = {}
        self.failed = 0
        self.memory = ""
        self.at: dict[str, Any] = {}
        kind = type(release.tuner)
        self.wrap(kind, "choose_one", self.choosing)
        self.wrap(kind, "search_cache", self.searching)
        self.wrap(kind, "_prepare_input_tensors", self.preparing)
        self.wrap(kind, "_profile_single_kernel", self.profiling)
        release.home.logger.addFilter(self.heard)

    @staticmethod
    def wrap(kind: type, name: str, around: Callable[..., Any]) -> None:
        inner = getattr(kind, name)
        setattr(kind, name, lambda tuner, *args, **more: around(inner, tuner, *args, **more))

    def heard(self, record: logging.LogRecord) -> bool:
        """FlashInfer tells of memory that ran out in its log alone, and goes on with what it has."""
        if "OOM detected" in record.getMessage():
            self.memory = where(self.at, self.words)
        return True

    def choosing(self, inner: Any, tuner: Any, operation: str, runners: Any, *args: Any, **more: Any) -> Any:
        self.operation = operation
        self.first[operation] = type(runners[0]).__name__
        return inner(tuner, operation, runners, *args, **more)

    def searching(self, inner: Any, tuner: Any, operation: str, *args: Any, **more: Any) -> Any:
        found = inner(tuner, operation, *args, **more)
        if not tuner.is_tuning_mode:
            self.looked.append((operation, bool(found[0])))
        return found

    def come(self, tokens: int, tactic: str) -> None:
        at = {"operation": self.operation, "tokens": tokens, "tactic": tactic}
        if (at["operation"], tokens) != (self.at.get("operation"), self.at.get("tokens")):
            self.say({"progress": f"tuning {name_of(self.words)}: {self.operation} at {tokens} tokens"})
        self.at = at
        self.say({"at": at})

    def preparing(self, inner: Any, tuner: Any, profile: Any, *args: Any, **more: Any) -> Any:
        """The beginning of a bucket, whose inputs may be what there is no memory for."""
        self.come(tokens_of(profile.get_opt_shapes()[0]), "")
        return inner(tuner, profile, *args, **more)

    def profiling(self, inner: Any, tuner: Any, runner: Any, inputs: Any, tactic: Any, *args: Any, **more: Any) -> Any:
        # A tactic may end the process: who reads these lines then knows which.
        self.come(tokens_of(tuple(inputs[0].shape)), str(tactic))
        try:
            return inner(tuner, runner, inputs, tactic, *args, **more)
        except Exception as error:
            self.failed += 1
            if "OutOfMemoryError" not in type(error).__name__ and not self.release.alive():
                raise Dead(str(error).strip().splitlines()[0]) from error
            raise


def tokens_of(shape: tuple[int, ...]) -> int:
    """Tokens are the rows of a matrix, in a batch of them too."""
    return shape[-2] if len(shape) > 1 else shape[0] if shape else 0


def where(at: dict[str, Any], words: dict[str, Any]) -> str:
    return f"{name_of(words)} at {at['tokens']} tokens ({at['operation']})" if at else name_of(words)


# --- what was found, as a file ---------------------------------------------------------------------------------------------


def plain(tactic: Any) -> Any:
    """A tactic as a literal: numbers of other libraries are numbers, rows of them tuples."""
    if isinstance(tactic, (str, bool, type(None), float)):
        return tactic
    if hasattr(tactic, "__iter__"):
        return tuple(plain(part) for part in tactic)
    return int(tactic)


def entries(cache: dict[Any, Any], forms: dict[str, Any], first: dict[str, str]) -> dict[str, tuple[int, Any]]:
    """The autotuner's memory as its file reader looks it up: text of the key to (runner's number, tactic).

    Up to 0.6.6 the reader asks for the first runner alone, whatever won, and takes the number from the file; to 0.6.12 it asks for
    that one first and takes the number too. From 0.6.13 on the key holds what a runner adds to it, so it is under the winner's
    name; from 0.6.18 on that is the one that runs, and the number is not read.
    """
    found = {}
    for key, value in cache.items():
        if hasattr(key, "file_key"):
            found[key.file_key] = (0, plain(value[0]))
            continue
        short = forms["key_parts"] == 3
        parts = (key[0], first.get(key[0], key[1]), key[3]) if short else (*key[:2], *key[3:5])
        found[str(parts)] = (int(value[0]), plain(value[1]))
    return found


def python_text(found: dict[str, tuple[int, Any]]) -> str:
    lines = [f"    {key!r}: {value!r}," for key, value in sorted(found.items())]
    return "\n".join(
        ["# Found by FlashInfer's autotuner; artefact.yml says on what.", "best_configs = {", *lines, "}", ""]
    )


def write(path: str, text: str) -> None:
    """By rename: what is cut must not be read."""
    with open(path + ".new", "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(path + ".new", path)


def kind_of(wanted: str, node: dict[str, Any]) -> str:
    """Which file this release reads. SGLang hands FlashInfer a cache from 0.5.12 on; without an SGLang, FlashInfer decides."""
    forms = node["flashinfer"]
    cache = forms["json"] and (node["cache"] is not None or node["sglang_folder"] is None)
    version = node["versions"]["flashinfer"]
    if wanted == "autotune_cache" and not forms["json"]:
        raise Failed(
            "version", f"FlashInfer {version} keeps no cache: it begins with 0.6.7.", "Make python_configs here."
        )
    if wanted == "python_configs" and not forms["python_configs"]:
        raise Failed("version", f"FlashInfer {version} reads no tuning_configs.", "Make an autotune_cache here.")
    return wanted if wanted != "auto" else "autotune_cache" if cache else "python_configs"


def save(path: str, kind: str, release: Release, forms: dict[str, Any], first: dict[str, str]) -> None:
    if kind == "python_configs":
        write(path, python_text(entries(release.tuner.profiling_cache, forms, first)))
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # FlashInfer would add to it
    release.tuner.save_configs(path)


def load(path: str, kind: str, release: Release) -> None:
    """As the engine reads it: the cache by FlashInfer's loader, the module under the name that its reader imports."""
    if kind == "autotune_cache":
        if release.tuner.load_configs(path) is False:
            raise Failed(
                "version",
                f"FlashInfer does not read {path}: it was made in another environment.",
                "Both must be made by one release on one card; see FlashInfer's warning in the log.",
            )
        return
    name = release.home.get_config_path(is_module=True)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module


# --- one process each ------------------------------------------------------------------------------------------------------


def tune(question: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """What was tuned: the file, and per operation the token counts that it covers."""
    release = Release()
    node = ask()
    kind = kind_of(question["kind"], node)
    watch = Watch(release, say)
    tuned = []
    for words in question["operations"]:
        watch.words, watch.at = words, {}
        say({"progress": f"building {name_of(words)}"})
        before = set(release.tuner.profiling_cache)
        tokens = words["max_tokens"]
        try:
            make = maker(words, release)
            for tokens in tuning_sizes(words):
                with release.tuning():
                    make(tokens, tokens)()
            release.torch.cuda.synchronize()
        except Dead as error:
            raise crashed(where(watch.at, words), watch.at.get("tactic", ""), str(error)) from None
        except Exception as error:
            if watch.at and not release.alive():
                raise crashed(where(watch.at, words), watch.at["tactic"], str(error).splitlines()[0]) from None
            if watch.memory:
                raise out_of_memory(watch.memory) from error
            # Not of a tactic: those are passed over.
            raise explained(error, f"{name_of(words)} at {tokens} tokens") from error
        if watch.memory:
            raise out_of_memory(watch.memory)
        new = [fields(key) for key in release.tuner.profiling_cache if key not in before]
        tuned.append(
            {
                "operations": sorted({operation for operation, _ in new}),
                "buckets": sorted({tokens for _, tokens in new}),
                "entries": len(new),
            }
        )
        del make  # its weights go before the next one's come
        release.torch.cuda.empty_cache()
    short = release.home.get_config_path(is_module=True).rpartition(".")[2]
    name = short + ".py" if kind == "python_configs" else CACHE_NAME
    total = len(release.tuner.profiling_cache)
    if total:
        save(os.path.join(question["folder"], name), kind, release, node["flashinfer"], watch.first)
    return {"kind": kind, "file": name, "entries": total, "tuned": tuned, "failed_tactics": watch.failed, "node": node}


def fields(key: Any) -> tuple[str, int]:
    """(operation, tokens) of a key of the autotuner's memory, in any version's form."""
    operation, profile = (key.custom_op, key.nearest_profile) if hasattr(key, "file_key") else (key[0], key[3])
    return operation, tokens_of(profile[0])


def measure(question: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Every point of `points`, in microseconds, and whether its tactics were found. Nothing is tuned here."""
    release = Release()
    if question["file"]:
        load(os.path.join(question["folder"], question["file"]), question["kind"], release)
    watch = Watch(release, say)
    told = []
    for number, words in enumerate(question["operations"]):
        make = maker(words, release)
        for tokens in question["points"][number]:
            at = {"operation": words["op"], "tokens": tokens, "tactic": ""}
            say({"at": at})
            point: dict[str, Any] = {"operation": number, "tokens": tokens, "us": None, "hit": False, "error": ""}
            told.append(point)
            try:
                call = make(tokens, power_of_2(tokens))
                watch.looked.clear()
                with shown(release.home.logger):
                    call()
                    release.torch.cuda.synchronize()
                point["hit"] = bool(watch.looked) and all(hit for _, hit in watch.looked)
                point["us"] = timed(call, release.torch)
            except Exception as error:
                if not release.alive():
                    raise crashed(where(at, words), "of the file" if question["file"] else "", str(error)) from None
                known = explained(error, where(at, words))
                if known.told["kind"] != "refused":
                    raise known from error
                point["error"] = (
                    str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
                )
        del make
        release.torch.cuda.empty_cache()
    return {"points": told}


@contextlib.contextmanager
def shown(logger: logging.Logger) -> Iterator[None]:
    """FlashInfer's log in full for one call, and then none of it: a line a call would be in the figures, and fill the disk.

    By the switch and not by the level: the logger is in no manager, so it would remember what its old level let through.
    """
    logger.disabled = False
    try:
        yield
    finally:
        logger.disabled = True


def timed(call: Callable[[], Any], torch: Any) -> float:
    """Microseconds a call on the card: the median of samples, the first calls left out, the time on the host as well."""
    began = time.perf_counter()
    for _ in range(3):
        call()
    host = (time.perf_counter() - began) / 3
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample(calls: int) -> float:
        torch.cuda._sleep(int(min(1.5 * host * calls, LONGEST_WAIT) * CYCLES_A_SECOND))
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1000 / calls

    slow = sample(1) > SLOW_US
    calls, samples = (1, SAMPLES // 3) if slow else (CALLS, SAMPLES)
    return statistics.median(sample(calls) for _ in range(samples))


def ask() -> dict[str, Any]:
    import flashinfer_probe

    driver = next(iter(smi("--query-gpu=driver_version")), [""])[0]
    return {**flashinfer_probe.answer({"flashinfer": True}), "driver": driver}


# --- the whole -------------------------------------------------------------------------------------------------------------


def child(
    question: dict[str, Any], name: str, say: Callable[[dict[str, Any]], None], loaded: bool = False
) -> dict[str, Any]:
    """The result of one mode in a process of its own. A process that dies is told with what it was at."""
    environment = {**os.environ, "FLASHINFER_LOGGING_LEVEL": "DEBUG"}
    environment.pop(LOAD_FROM_FILE, None)
    if loaded and question["kind"] == "python_configs":
        environment[LOAD_FROM_FILE] = "1"
    path = os.path.join(question["folder"], name + ".log")
    at: dict[str, Any] = {}
    told: dict[str, Any] = {}
    with open(path, "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-B", os.path.abspath(__file__)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
        )  # fmt: skip
        assert process.stdin and process.stdout
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(question))
            process.stdin.close()
        for line in process.stdout:
            with contextlib.suppress(ValueError, AttributeError):
                said = json.loads(line)
                at = said.get("at", at)
                told = said.get("result", told)
                if "progress" in said:
                    say(said)
        code = process.wait()
    if "failed" in told:
        raise Failed(**told["failed"])
    if told:
        return told
    with open(path, encoding="utf-8", errors="replace") as stream:
        ended = " / ".join(stream.read()[-4000:].strip().splitlines()[-3:])[-600:]
    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    if at:
        place = f"{at['operation']} at {at['tokens']} tokens"
        if -code == signal.SIGKILL:
            raise Failed(
                "killed",
                f"The process was killed in {place}.",
                "Look for the kernel's out of memory killer, and MAX_JOBS.",
            )
        raise crashed(place, at["tactic"], f"{how}; {ended}" if ended else how)
    raise Failed("ended", f"The {question['mode']} process ended at once ({how}): {ended}", f"The whole log is {path}.")


def run(question: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    began = time.monotonic()
    told: dict[str, Any] = {"made": False, "why": "", "shapes": [], "spread_percent": None, "gain": None, "log": ""}
    found = child({**question, "mode": "tune"}, "tune", say)
    told.update(found, log="tune.log")
    if not found["entries"]:
        told["why"] = "nothing was tuned: the autotuner found no tactic for any of the operations"
    else:
        operations = question["operations"]
        points = [measured_at(one["buckets"], words["max_tokens"]) for one, words in zip(found["tuned"], operations)]
        rounds = measured(
            {**question, **{key: found[key] for key in ("kind", "file")}, "mode": "measure", "points": points}, say
        )
        told.update(compared(operations, found["tuned"], rounds, question["min_gain"]), log="after1.log")
    told["seconds"] = round(time.monotonic() - began, 1)
    write(os.path.join(question["folder"], "result.json"), json.dumps(told))
    return {"written": "result.json"}


def measured(question: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> list[dict[str, list[dict[str, Any]]]]:
    """Rounds of points without and with the file, in turns and in changing order, so that a card that warms up favours neither."""
    rounds = []
    for number in range(1, question["rounds"] + 1):
        sides: dict[str, list[dict[str, Any]]] = {}
        for side in ("before", "after") if number % 2 else ("after", "before"):
            say({"progress": f"measuring {side}, round {number} of {question['rounds']}"})
            with_file = side == "after"
            asked = {**question, "file": question["file"] if with_file else ""}
            sides[side] = child(asked, f"{side}{number}", say, loaded=with_file)["points"]
        rounds.append(sides)
    return rounds


def geometric(values: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


def compared(
    operations: list[dict[str, Any]],
    tuned: list[dict[str, Any]],
    rounds: list[dict[str, list[dict[str, Any]]]],
    min_gain: float,
) -> dict[str, Any]:
    """Table, gain, spread and whether it is worth a file. Pure."""
    shapes, errors, lost = [], [], []
    good: list[int] = []
    for index, point in enumerate(rounds[0]["after"]):
        words = operations[point["operation"]]
        both = {side: [sides[side][index] for sides in rounds] for side in ("before", "after")}
        failed = {side: next((p["error"] for p in found if p["error"]), "") for side, found in both.items()}
        place = f"{name_of(words)} at {point['tokens']} tokens"
        hit = all(p["hit"] for p in both["after"])
        us: dict[str, float | None] = dict.fromkeys(both)
        if not any(failed.values()):
            us = {side: round(statistics.median(p["us"] for p in found), 3) for side, found in both.items()}
            good.append(index)
        if failed["after"] and not failed["before"]:
            errors.append(f"{place}: {failed['after']}")
        if not hit and not failed["after"]:
            lost.append(place)
        shapes.append(
            {
                "op": name_of(words),
                "tokens": point["tokens"],
                "bucket": point["tokens"] in tuned[point["operation"]]["buckets"],
                "before_us": us["before"],
                "after_us": us["after"],
                "ratio": round(us["before"] / us["after"], 4) if us["before"] and us["after"] else None,
                "hit": hit,
                "error": failed["after"] or failed["before"],
            }
        )
    means = (
        {side: [geometric([sides[side][i]["us"] for i in good]) for sides in rounds] for side in ("before", "after")}
        if good
        else {}
    )
    spread = max((100 * (max(m) - min(m)) / statistics.median(m) for m in means.values()), default=0.0)
    told: dict[str, Any] = {
        "shapes": shapes,
        "spread_percent": round(spread, 2),
        "rounds": means,
        "gain": None,
        "made": False,
    }
    if good:
        before, after = (geometric([shapes[i][f"{side}_us"] for i in good]) for side in ("before", "after"))
        percent = 100 * (before - after) / before
        told["gain"] = {
            "what": WHAT,
            "before": round(before, 3),
            "after": round(after, 3),
            "percent": round(percent, 2),
        }
    told["why"] = reason(told, errors, lost, min_gain)
    told["made"] = not told["why"]
    return told


def reason(told: dict[str, Any], errors: list[str], lost: list[str], min_gain: float) -> str:
    """Why no artefact is made of it; empty when one is."""
    if errors:
        return f"with the file {errors[0]}" + (f" (and {len(errors) - 1} more)" if len(errors) > 1 else "")
    if lost:
        return f"fell back: this version's own reader does not find {len(lost)} shapes in the file, the first {lost[0]}"
    if told["gain"] is None:
        return "nothing could be measured: " + next(
            (shape["error"] for shape in told["shapes"] if shape["error"]), "no shape"
        )
    percent = told["gain"]["percent"]
    if percent < min_gain:
        return f"no gain: {percent:g} %, and at least {min_gain:g} % is asked for"
    if percent <= told["spread_percent"]:
        return f"no gain that is certain: {percent:g} %, and the rounds differ by {told['spread_percent']:g} %"
    return ""


def main() -> int:
    question = json.load(sys.stdin)
    # What libraries print is no answer, theirs in C included.
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(line: dict[str, Any]) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    try:
        modes: dict[str, Callable[[], dict[str, Any]]] = {
            "run": lambda: run(question, say),
            "tune": lambda: tune(question, say),
            "measure": lambda: measure(question, say),
        }
        say({"result": modes[question["mode"]]()})
    except Exception as error:
        say({"result": {"failed": explained(error, question["mode"]).told}})
        if not isinstance(error, Failed):
            raise
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
