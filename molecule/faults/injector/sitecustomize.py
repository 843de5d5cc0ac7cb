"""A test tool: put one known fault into a real SGLang server, so that what is to catch it can be seen to do so.

Python imports a module of this name at every start, before anything else. With this folder on a server's PYTHONPATH, and the
fault's name in SGLANG_TEST_FAULT, the engine is changed while it is imported, in the main process and in the schedulers that it
spawns:

    SGLANG_TEST_FAULT=constant_token PYTHONPATH=…/molecule/faults/injector venv/bin/python -m sglang.launch_server …

In a profile both go into `sglang_server_environment`. Nothing is changed without SGLANG_TEST_FAULT; programs other than the server
that import sglang with the same environment, such as the one that asks the release about arguments, are not disturbed. Every fault
says a line on standard error when it is put in, and another when it strikes. An unknown name ends Python.

Faults of answers; the server starts and stays healthy:
    constant_token   one token far above all others, whatever the prompt, with good logprobs (a broken all-reduce)
    random_tokens    logits are noise, another one each time (memory that nobody wrote)
    nan_logits       logits are NaN (a kernel's overflow or race)
    zero_logits      logits are all zero (a matrix product that fails without a word)
    batch_mixup      each request of a batch gets its neighbour's logits; a request alone is right
    long_prefill     hidden states of a prefill of 1,024 tokens or more are zero; a short one is right
    wrong_stop       stop tokens are passed over, and so is the end of the text

Faults of the process:
    crash_at_import  the import of sglang fails, at once (a library that does not fit)
    crash_after_load the scheduler dies once the weights are loaded
    hang_at_start    the first collective operation never returns, before weights are loaded; nothing more is logged
    crash_after_ready the server becomes ready; the scheduler dies at the first request after that
    hang_after_ready the server becomes ready; the scheduler stands still at the first request after that, so /health fails too

For the last two, SGLANG_TEST_FAULT_AFTER requests are answered first (default 0). Health checks are no requests, and the first
request of all is taken for the engine's own warm-up, so they need a server that warms itself up and has one data-parallel rank.

Written for SGLang 0.5.8 to 0.5.23. A release in which a fault finds no place to go in ends with an AttributeError at import.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

FAULT = os.environ.get("SGLANG_TEST_FAULT", "")
AFTER = int(os.environ.get("SGLANG_TEST_FAULT_AFTER", "0"))
LONG_PREFILL = 1024


def say(text: str) -> None:
    print(f"SGLANG_TEST_FAULT={FAULT}: {text} (process {os.getpid()})", file=sys.stderr, flush=True)


class AfterImport(importlib.abc.MetaPathFinder):
    """Changes one module as soon as its own code has run."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self.name, self.change = name, change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((found for found in others if found), None)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            self.change(module)
            say(f"put into {fullname}")

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


class NoImport(importlib.abc.MetaPathFinder):
    """Lets the import of sglang fail."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "sglang":
            say("strikes: sglang cannot be imported")
            raise ImportError(
                "sgl_kernel/common_ops.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEa (SGLANG_TEST_FAULT=crash_at_import)"
            )


def is_server() -> bool:
    """Whether this process is the server's main one, and not another program that uses the release."""
    words = sys.orig_argv
    return "sglang.launch_server" in words or any(word.endswith("launch_server.py") for word in words)


# --- answers ----------------------------------------------------------------------------------------------------------


def constant_token(logits: Any) -> None:
    logits[:, 300] = logits.max() + 30


def random_tokens(logits: Any) -> None:
    logits.normal_(0.0, 5.0)


def nan_logits(logits: Any) -> None:
    logits.fill_(float("nan"))


def zero_logits(logits: Any) -> None:
    logits.zero_()


def batch_mixup(logits: Any) -> None:
    if logits.shape[0] > 1:
        logits.copy_(logits.roll(1, 0))


def in_sampler(change: Callable[[Any], None]) -> Callable[[ModuleType], None]:
    """Change the logits before a token is chosen from them, as every kind of model has them."""

    def patch(module: Any) -> None:
        original = module.Sampler.forward

        def forward(self: Any, logits_output: Any, *args: Any, **options: Any) -> Any:
            change(logits_output.next_token_logits)
            return original(self, logits_output, *args, **options)

        module.Sampler.forward = forward

    return patch


def long_prefill(module: Any) -> None:
    original = module.LogitsProcessor.forward

    def forward(self: Any, input_ids: Any, hidden_states: Any, *args: Any, **options: Any) -> Any:
        if hidden_states.shape[0] >= LONG_PREFILL:
            say(f"strikes: a prefill of {hidden_states.shape[0]} tokens")
            hidden_states.zero_()
        return original(self, input_ids, hidden_states, *args, **options)

    module.LogitsProcessor.forward = forward


def wrong_stop(module: Any) -> None:
    original = module.Req._check_token_based_finish  # named, so that a release without it is seen

    def passed_over(self: Any, *args: Any, **options: Any) -> bool:
        assert original
        return False

    module.Req._check_token_based_finish = passed_over


# --- the process ------------------------------------------------------------------------------------------------------


def stand_still() -> None:
    while True:
        time.sleep(3600)


def hang_at_start(module: Any) -> None:
    def init_process_group(*args: Any, **options: Any) -> None:
        say("strikes: the process group is waited for")
        stand_still()

    assert module.init_process_group
    module.init_process_group = init_process_group


def crash_after_load(module: Any) -> None:
    original = module.ModelRunner.load_model

    def load_model(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        say("strikes: weights are loaded")
        raise RuntimeError("CUDA error: an illegal memory access was encountered (SGLANG_TEST_FAULT=crash_after_load)")

    module.ModelRunner.load_model = load_model


def after_ready(strike: Callable[[], None]) -> Callable[[ModuleType], None]:
    """Strike at the first request behind the warm-up and AFTER others."""

    def patch(module: Any) -> None:
        original = module.Scheduler.handle_generate_request
        seen = [0]

        def handle_generate_request(self: Any, request: Any, *args: Any, **options: Any) -> Any:
            if not str(getattr(request, "rid", "")).startswith("HEALTH_CHECK"):
                seen[0] += 1
                if seen[0] > 1 + AFTER:
                    say(f"strikes: request {seen[0]}, the warm-up counted")
                    strike()
            return original(self, request, *args, **options)

        module.Scheduler.handle_generate_request = handle_generate_request

    return patch


def crash() -> None:
    raise RuntimeError("CUDA out of memory. Tried to allocate 9.00 GiB. (SGLANG_TEST_FAULT=crash_after_ready)")


SAMPLER = "sglang.srt.layers.sampler"
SCHEDULER = "sglang.srt.managers.scheduler"
PLACES: dict[str, tuple[str, Callable[[ModuleType], None]]] = {
    "constant_token": (SAMPLER, in_sampler(constant_token)),
    "random_tokens": (SAMPLER, in_sampler(random_tokens)),
    "nan_logits": (SAMPLER, in_sampler(nan_logits)),
    "zero_logits": (SAMPLER, in_sampler(zero_logits)),
    "batch_mixup": (SAMPLER, in_sampler(batch_mixup)),
    "long_prefill": ("sglang.srt.layers.logits_processor", long_prefill),
    "wrong_stop": ("sglang.srt.managers.schedule_batch", wrong_stop),
    "hang_at_start": ("torch.distributed.distributed_c10d", hang_at_start),
    "crash_after_load": ("sglang.srt.model_executor.model_runner", crash_after_load),
    "crash_after_ready": (SCHEDULER, after_ready(crash)),
    "hang_after_ready": (SCHEDULER, after_ready(stand_still)),
}

if FAULT in PLACES:
    # hang_at_start changes torch, which other programs use as well: there it would only be a word on standard error.
    sys.meta_path.insert(0, AfterImport(*PLACES[FAULT]))
elif FAULT == "crash_at_import":
    if is_server():
        sys.meta_path.insert(0, NoImport())
elif FAULT:
    raise SystemExit(f"SGLANG_TEST_FAULT={FAULT}: no such fault; there are {', '.join([*PLACES, 'crash_at_import'])}.")
