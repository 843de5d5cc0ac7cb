# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""A program for a release's own Python: what its parser and its resolution make of arguments, as on a given card.

Reads one JSON document from standard input and writes one to standard output; see `main`. Only the card's properties are stood in,
before sglang is imported, so that the release's own checks of the platform answer as they would there. No GPU is touched, no
weights are read. The module `sglang_args` runs it on a node, `tools/parsers` in a CPU environment of the same release.

Written for the releases 0.5.9 to 0.5.23. It is a program and not a library: it runs beside another sglang each time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import inspect
import io
import json
import logging
import os
import sys
import tempfile
import traceback
import types
from typing import Any

# Never shown, and where the engine has one it is kept out of everything that is written down.
SECRETS = ("api_key", "admin_api_key", "ssl_keyfile_password")
# Another one at every start.
RANDOM = ("random_seed",)
# The parser's own names for what the release's arguments call otherwise.
FIELDS = {
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "data_parallel_size": "dp_size",
    "expert_parallel_size": "ep_size",
}


def stand_in(card: dict[str, Any]) -> None:
    """Let torch answer as on `card`: name, capability (as 12.0), memory_mib, multiprocessors, cuda (version), gpus (number)."""
    import torch

    major, minor = (int(part) for part in card["capability"].split("."))
    properties = types.SimpleNamespace(
        major=major,
        minor=minor,
        name=card["name"],
        total_memory=card["memory_mib"] * 2**20,
        multi_processor_count=card["multiprocessors"],
    )
    torch.version.cuda = card["cuda"]
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: card["gpus"]
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *a, **k: (major, minor)
    torch.cuda.get_device_properties = lambda *a, **k: properties
    torch.cuda.get_device_name = lambda *a, **k: card["name"]
    torch.cuda.mem_get_info = lambda *a, **k: (properties.total_memory, properties.total_memory)
    register_fake = torch.library.register_fake

    def lenient(op: Any, func: Any = None, **options: Any) -> Any:
        """A CPU environment has no CUDA ops to describe: let their descriptions go."""

        def describe(function: Any) -> Any:
            try:
                return register_fake(op, function, **options)
            except RuntimeError:
                return function

        return describe if func is None else describe(func)

    torch.library.register_fake = lenient
    import sglang.srt.utils.common as common

    common.get_device_memory_capacity = lambda *a, **k: card["memory_mib"]


def with_flashinfer() -> None:
    """Let the release find FlashInfer, which a CPU environment leaves out: it chooses other backends without it.

    Only after the engine's own modules are imported, which would import it, too.
    """
    for name, module in list(sys.modules.items()):
        resolves = name.startswith(("sglang.srt.server_args", "sglang.srt.arg_groups", "sglang.srt.utils"))
        if resolves and hasattr(module, "is_flashinfer_available"):
            module.is_flashinfer_available = lambda *a, **k: True  # type: ignore[attr-defined]


def parser_of(server_args: Any) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sglang", allow_abbrev=True)
    server_args.ServerArgs.add_cli_args(parser)
    return parser


def plain(value: Any) -> Any:
    """The value as JSON can hold it. A long list, such as the batch sizes of CUDA graphs, is told in a few words."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, (list, tuple, set, frozenset)):
        items = list(value)
        return (
            [plain(item) for item in items] if len(items) <= 24 else f"{len(items)} values, {items[0]} to {items[-1]}"
        )
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return str(value)


def choices(found: Any) -> list[Any]:
    """In the release's order where it has one."""
    told = [plain(choice) for choice in found]
    return sorted(told, key=str) if isinstance(found, (set, frozenset)) else told


def describe(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """Every option: names, destination, choices, type, number of values, default, and the class of its action."""
    options = []
    for action in parser._actions:
        if not action.option_strings or action.dest == "help":
            continue
        kind = type(action).__name__.strip("_")
        entry = {
            "names": action.option_strings,
            "dest": FIELDS.get(action.dest, action.dest),
            "kind": kind,
            "type": getattr(action.type, "__name__", None if action.type is None else str(action.type)),
            "choices": None if action.choices is None else choices(action.choices),
            "nargs": action.nargs,
            "default": None if action.default == argparse.SUPPRESS else plain(action.default),
        }
        options.append({key: value for key, value in entry.items() if value is not None})
    return sorted(options, key=lambda option: option["names"][0])


def given(parser: argparse.ArgumentParser, argv: list[str]) -> dict[str, Any]:
    """What the words set, by destination, without defaults."""
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    found = vars(parser.parse_args(argv))
    return {FIELDS.get(key, key): plain(value) for key, value in found.items() if not key.startswith("_")}


def resolve(server_args: Any, argv: list[str]) -> tuple[Any, dict[str, Any]]:
    """The release's own arguments object after its own resolution, and its values by name."""
    args = server_args.prepare_server_args(argv)
    if hasattr(args, "resolve_once"):  # resolution became a step of its own after 0.5.15
        args.resolve_once()
        values = args.resolved_dict()
    else:
        values = dict(vars(args))
    return args, {key: plain(value) for key, value in values.items() if not key.startswith("_")}


def gate(args: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Whether the release's own gate lets FlashInfer's autotuning run: its answer, not a copy of its rules."""
    try:
        runs = bool(ask_gate(args, values))
    except Exception as error:
        return {"runs": None, "why": f"the gate could not be asked: {type(error).__name__}: {error}"}
    backend = values.get("moe_runner_backend")
    if values.get("disable_flashinfer_autotune"):
        return {"runs": runs, "why": "disable-flashinfer-autotune is set"}
    if runs:
        return {"runs": True, "why": f"the release's gate takes moe-runner-backend {backend}"}
    return {"runs": False, "why": f"the release's gate does not take moe-runner-backend {backend}"}


def ask_gate(args: Any, values: dict[str, Any]) -> bool:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    # As much of a model runner as the gates of 0.5.7 to 0.5.23 look at. A release that looks at more says so by an AttributeError.
    runner = types.SimpleNamespace(
        device=values.get("device"),
        server_args=args,
        spec_algorithm=SpeculativeAlgorithm.from_string(values.get("speculative_algorithm")),
        is_draft_worker=False,
        model_config=types.SimpleNamespace(quantization=values.get("quantization")),
        model=types.SimpleNamespace(modules=lambda: iter(())),
    )
    try:
        from sglang.srt.model_executor.runner.flashinfer_autotune import should_run_flashinfer_autotune
    except ImportError:
        from sglang.srt.model_executor.model_runner import ModelRunner

        return ModelRunner._should_run_flashinfer_autotune(runner)
    with contextlib.suppress(ImportError):  # later releases read what their runtime context was given
        from sglang.srt.runtime_context import publish

        publish(args, role="scheduler")
    from sglang.srt.layers.quantization import fp4_utils, fp8_utils

    for initialize in (fp4_utils.initialize_fp4_gemm_config, fp8_utils.initialize_fp8_gemm_config):
        initialize(*([args] if inspect.signature(initialize).parameters else []))
    return should_run_flashinfer_autotune(runner)


def model_of(args: Any) -> dict[str, Any]:
    """What goes into the key of SGLang's autotuner's cache besides arguments: the class of the model's config, and its dtype."""
    try:
        from sglang.srt.configs.model_config import ModelConfig

        model = ModelConfig.from_server_args(args)
        return {"config_class": type(model.hf_config).__name__, "dtype": str(model.dtype).replace("torch.", "")}
    except Exception:  # a model that is not there, or whose code is not
        return {}


def without_code(config: Any) -> Any:
    """A config.json without the entries that point to Python files of the checkpoint, which are not there."""
    if isinstance(config, dict):
        return {key: without_code(value) for key, value in config.items() if key != "auto_map"}
    return config


def judge(case: dict[str, Any]) -> dict[str, Any]:
    """One case in this process, which it may leave in any state: argv, environment, and config where the model is not there."""
    import sglang.srt.server_args as server_args

    argv, path = list(case["argv"]), None
    os.environ.update(case.get("environment") or {})
    errors = io.StringIO()
    lines: list[str] = []
    keep = logging.Handler()
    keep.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    told: dict[str, Any] = {"log": lines}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(errors):
        try:
            told["given"] = given(parser_of(server_args), argv)
        except SystemExit:
            text = errors.getvalue().strip().splitlines()
            return {"error": (text[-1] if text else "refused without a word").split(" error: ")[-1], "stage": "parser"}
        if case.get("config"):
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as stream:
                json.dump(without_code(case["config"]), stream)
            path = told["given"]["model_path"]
            argv = [folder if word == path else word for word in argv]
        logging.getLogger("sglang").addHandler(keep)
        try:
            args, values = resolve(server_args, argv)
        except BaseException as error:
            return {
                "error": f"{type(error).__name__}: {error}",
                "stage": "resolution",
                "given": told["given"],
                "traceback": traceback.format_exc().splitlines()[-8:],
            }
        told["autotune"] = gate(args, values)
        logging.getLogger("sglang").removeHandler(keep)  # reading the config once more is no part of the resolution
        told.update(model_of(args))
    if path:
        told["log"] = [line.replace(folder, path) for line in lines]
        values = {key: path if value == folder else value for key, value in values.items()}
    for name in SECRETS:
        for mapping in (values, told["given"]):
            if mapping.get(name):
                mapping[name] = "(set)"
    defaults = {option["dest"]: option.get("default") for option in describe(parser_of(server_args))}
    told["resolved"] = {
        key: value
        for key, value in sorted(values.items())
        # An object that cannot be written down, such as the model's config, is no argument.
        if key not in RANDOM
        and (key not in defaults or defaults[key] != value)
        and not (isinstance(value, str) and " object at 0x" in value)
    }
    return told


def forked(case: dict[str, Any]) -> dict[str, Any]:
    """One case in a child: resolution writes into the process's environment and globals, and imports take most of the time."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(2, 1)  # whatever a release prints is not the answer
        try:
            told = judge(case)
        except BaseException as error:
            told = {
                "error": f"{type(error).__name__}: {error}",
                "stage": "program",
                "traceback": traceback.format_exc().splitlines(),
            }
        with os.fdopen(writing, "w", encoding="utf-8") as stream:
            json.dump(told, stream)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"error": "the process died without an answer", "stage": "program"}


def main() -> None:
    """Answer {card: {…} or null, options: bool, cases: [{argv, environment, config}]} with {options, cases, sglang, versions}.

    `card` null leaves the machine as it is, for CPU releases. A case's answer has given, resolved (what differs from the parser's
    defaults), autotune and log; or error and stage (parser, resolution, program).
    """
    asked = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if asked.get("card"):
        stand_in(asked["card"])
    import sglang
    import sglang.srt.server_args as server_args

    found = [(dist.metadata["Name"], dist.version) for dist in importlib.metadata.distributions()]
    installed = {name.lower(): version for name, version in found if name}  # one that was half removed has none
    told: dict[str, Any] = {"sglang": getattr(sglang, "__version__", ""), "versions": dict(sorted(installed.items()))}
    if asked.get("options"):
        told["options"] = describe(parser_of(server_args))
    with contextlib.suppress(Exception):  # what every case would import again
        import sglang.srt.configs.model_config
        import sglang.srt.layers.quantization.fp8_utils
        import sglang.srt.model_executor.model_runner
    if asked.get("card"):
        with_flashinfer()
    told["cases"] = [forked(case) for case in asked.get("cases", [])]
    json.dump(told, answer)
    answer.close()


if __name__ == "__main__":
    main()
