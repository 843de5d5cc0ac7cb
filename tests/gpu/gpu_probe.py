#!/usr/bin/env python3
"""What the engine asks of CUDA, Triton and NCCL, in small: each step says that it went, or why not. Needs torch and a GPU."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any, Callable


def matmul(torch: Any) -> str:
    a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    return f"{(a @ a).float().abs().mean().item():.1f}"


def graph(torch: Any) -> str:
    x = torch.zeros(1024, device="cuda")
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = x + 1
    captured.replay()
    torch.cuda.synchronize()
    return f"{y.sum().item():.0f}"


def pinned(torch: Any) -> str:
    host = torch.ones(1 << 26, pin_memory=True)
    return f"{host.cuda(non_blocking=True).sum().item():.0f}"


def shared(torch: Any) -> str:
    """A tensor handed to another process by CUDA's own IPC."""
    import torch.multiprocessing as processes

    context = processes.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    child = context.Process(target=double, args=(queue, back))
    child.start()
    queue.put(torch.ones(8, device="cuda"))
    told = back.get(timeout=120)
    child.join()
    return str(told)


def double(queue: Any, back: Any) -> None:
    back.put(float(queue.get(timeout=60).sum()) * 2)


def triton(torch: Any) -> str:
    compiled = torch.compile(lambda x: torch.nn.functional.silu(x) * 2 + x.sin())
    return f"{compiled(torch.ones(4096, device='cuda')).sum().item():.0f}"


def nvml(torch: Any) -> str:
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip().replace("\n", ", ")


def nccl(torch: Any) -> str:
    """All GPUs of the machine in one all-reduce, a process each."""
    import torch.multiprocessing as processes

    count = torch.cuda.device_count()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    processes.spawn(reduce, args=(count,), nprocs=count)
    return f"{count} rank(s)"


def reduce(rank: int, count: int) -> None:
    import torch
    import torch.distributed as distributed

    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", rank=rank, world_size=count)
    x = torch.ones(1 << 20, device="cuda")
    distributed.all_reduce(x)
    torch.cuda.synchronize()
    assert x[0].item() == count
    distributed.destroy_process_group()


STEPS: list[Callable[[Any], str]] = [matmul, graph, pinned, shared, triton, nvml, nccl]


def main() -> None:
    import torch

    print(f"uid {os.getuid()}, torch {torch.__version__}, {torch.cuda.device_count()} x {torch.cuda.get_device_name()}")
    for step in STEPS:
        began = time.monotonic()
        try:
            told = step(torch)
        except Exception as error:
            told = f"FAILED: {type(error).__name__}: {str(error)[:300]}"
        print(f"{step.__name__:<8} {told} ({time.monotonic() - began:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
