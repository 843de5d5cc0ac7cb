"""For tests alone: as data/tuning/card (torch names the card of TEST_CARDS, FlashInfer's autotuner is the real one), and so much of
torch.cuda that the autotuner measures on a CPU. `flashinfer.bmm_fp8` is a stand-in that waits instead of computing.

TEST_STAND_IN says how it behaves:
`gain`    the second runner's tactic 1 takes a quarter of the default's time
`none`    all take the same time
`narrow`  tactics hold for powers of two alone
`moving`  the key is another one in every process
`memory`  the card's memory runs out from 8 tokens on
`dead`    tactic 2 loses the CUDA context
`signal`  tactic 2 ends the process
`build`   its kernels cannot be built
`invalid` no tactic holds
"""

import contextlib
import logging
import os
import runpy
import signal
import sys
import time
from pathlib import Path

STEP = 0.0005  # seconds
BEHAVIOUR = os.environ.get("TEST_STAND_IN", "")


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self, stream: object = None) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        """Work on a CPU is done when it was called."""

    def elapsed_time(self, other: "Event") -> float:
        return (other.at - self.at) * 1000


class Stream:
    def synchronize(self) -> None:
        """As an event."""


class Context:
    lost = False

    @classmethod
    def synchronize(cls, device: object = None) -> None:
        if cls.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


def on_cpu() -> None:
    import torch

    gib = 2**30
    used = float(os.environ.get("TEST_USED_GIB", "0.5"))
    torch.cuda.mem_get_info = lambda device=None: (int((96 - used) * gib), 96 * gib)
    torch.cuda.synchronize = Context.synchronize
    torch.cuda.Event, torch.cuda.CUDAGraph = Event, object
    torch.cuda.current_stream = lambda device=None: Stream()
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.empty_cache = torch.cuda._sleep = lambda *args: None
    torch.cuda.get_device_properties = lambda device=None: type("Properties", (), {"L2_cache_size": 2**20, "uuid": "x"})
    for name in ("empty", "full", "ones", "rand", "randint", "randn", "zeros"):
        setattr(torch, name, without_device(getattr(torch, name)))


def without_device(inner):
    def made(*args, device=None, **more):
        return inner(*args, **more)

    return made


def log() -> None:
    logger = logging.getLogger("flashinfer.jit")
    logger.setLevel(os.environ.get("FLASHINFER_LOGGING_LEVEL", "info").upper())
    handler = logging.StreamHandler()
    words = "%(asctime)s - %(levelname)s - %(filename)s:%(lineno)d - flashinfer.jit: %(message)s"
    handler.setFormatter(logging.Formatter(words))
    logger.addHandler(handler)


def power(tokens: int) -> int:
    return 1 << (tokens.bit_length() - 1)


def powers(tokens: int) -> tuple:
    return tuple(1 << place for place in range(tokens.bit_length()))


def stand_in_op():
    import torch
    from flashinfer.autotuner import AutoTuner, ConstraintSpec, DynamicTensorSpec, TunableRunner, TuningConfig

    class StandInFirst(TunableRunner):
        steps = {-1: 4, 0: 4}

        def get_valid_tactics(self, inputs, profile):
            return [] if BEHAVIOUR == "invalid" else sorted(set(self.steps) - {-1})

        def forward(self, inputs, tactic=-1, do_preparation=False, **more):
            tokens = inputs[0].shape[-2]
            if BEHAVIOUR == "memory" and tokens >= 8:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.")
            if BEHAVIOUR == "narrow" and tactic >= 0 and tokens & (tokens - 1):
                raise ValueError(f"Requested tactic {tactic} but only 0 algorithms available")
            if tactic == 2 and BEHAVIOUR == "signal":
                os.kill(os.getpid(), signal.SIGSEGV)
            if tactic == 2 and BEHAVIOUR == "dead":
                Context.lost = True
            Context.synchronize()
            time.sleep(STEP * (4 if BEHAVIOUR == "none" else self.steps[tactic]))

        def __hash__(self):
            return 1

    class StandInSecond(StandInFirst):
        steps = {-1: 4, 0: 3, 1: 1, 2: 5}

        __hash__ = StandInFirst.__hash__

    spec = DynamicTensorSpec((0,), (-2,), powers, power)
    config = TuningConfig(
        dynamic_tensor_specs=(spec,), constraint_specs=(ConstraintSpec(2, -2, lambda shapes: shapes[0][-2]),)
    )

    def waits_instead_of_bmm_fp8(a, b, a_scale, b_scale, dtype, out=None, backend="cublas"):
        if BEHAVIOUR == "build":
            raise RuntimeError(
                "Ninja build failed. Ninja output:\n[1/9] nvcc -c gemm.cu\nFAILED: gemm.cuda.o\n"
                "/src/gemm.cu(12): error: identifier \"x\" is undefined\n/src/gemm.cu(13): error: expected a \";\"\n"
            )
        inputs = [a.to(torch.float32), b, out]
        if BEHAVIOUR == "moving":
            inputs.append(torch.empty((os.getpid(),)))
        runner, tactic = AutoTuner.get().choose_one(
            "stand_in_that_waits", [StandInFirst(), StandInSecond()], config, inputs
        )
        runner(inputs, tactic=tactic)
        return out

    return waits_instead_of_bmm_fp8


if "TEST_CARDS" in os.environ:
    runpy.run_path(str(Path(__file__).parents[2] / "tuning/card/sitecustomize.py"))
    if "flashinfer" in sys.modules:
        log()
        package = sys.modules["flashinfer"]
        # Imported when it is asked for, as the kernels' modules are.
        package.__getattr__ = lambda name: found(name)
    on_cpu()


def found(name):
    if name == "bmm_fp8" and BEHAVIOUR:
        return stand_in_op()
    if name == "autotune_v2":
        with contextlib.suppress(ImportError):
            from flashinfer.autotune_cache import autotune_v2

            return autotune_v2
    raise AttributeError(name)
