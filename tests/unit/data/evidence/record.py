"""Record what FlashInfer's own autotuner logs, on a machine without a GPU.

Runs the real `flashinfer.autotuner` of the interpreter that it is started with; only what needs a GPU is stood in: the time of a
tactic, the device's name, and the inputs that it would make. The operation's name and the shapes are those of the CUTLASS MoE.
Each scenario runs in a process of its own, as a server's start would:

    FLASHINFER_LOGGING_LEVEL=debug python record.py used CACHE.json 2> flashinfer-0.6.12-used-debug.log

Scenarios: `untuned` (no tuning), `used` (tuned, then calls that are covered), `beyond` (tuned, then a prefill chunk beyond what was
tuned), `again` (a cache file of before, nothing to tune), `stale` (a cache file of another card), `module` (a tuning module that
holds the key), `module-misses` (one that lacks it), `unread` (tuned, and a variable that makes the result unread), `failing`
(some tactics do not run).
"""

from __future__ import annotations

import json
import os
import sys
import types

scenario, cache = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
if scenario in ("module", "module-misses", "unread"):
    os.environ["FLASHINFER_AUTOTUNER_LOAD_FROM_FILE"] = "1"

import flashinfer.autotuner as package
import torch

module = sys.modules.get("flashinfer.autotuner.autotuner", package)
torch.cuda.get_device_name = lambda *_: "NVIDIA RTX PRO 6000 Blackwell Server Edition"
torch.cuda.current_device = lambda: 0
torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
torch.cuda.is_current_stream_capturing = lambda: False
torch.cuda.current_stream = lambda *_: None

OP = "trtllm::fused_moe::gemm1"
WEIGHTS = torch.empty(256, 512, 448, device="meta")


class MoERunner(package.TunableRunner):
    def get_valid_tactics(self, inputs, profile):
        return [0, 1, 2, 3]

    def forward(self, inputs, tactic=-1, do_preparation=False, **kwargs):
        return inputs[0]

    def __hash__(self):
        return 1

    def __repr__(self):
        return "<MoERunner>"


def timed(self, runner, inputs, tactic, *args, **kwargs):
    if scenario == "failing" and tactic > 1:
        raise RuntimeError("Failed to initialize cutlass TMA WS grouped gemm. Error: Error Internal")
    return 0.1 / (1 + tactic)


def buckets(rows):
    return tuple(1 << power for power in range(rows.bit_length()) if 1 << power <= rows)


def nearest(rows):
    return 1 << max(rows, 1).bit_length() - 1


tuner_class = module.AutoTuner
tuner_class._profile_single_kernel = timed
tuner_class._prepare_input_tensors = lambda self, profile, inputs: inputs
for name in ("_prepare_input_tensors_with_batches",):
    if hasattr(tuner_class, name):
        setattr(tuner_class, name, lambda self, inputs, *rest, **named: [inputs])

spec = package.DynamicTensorSpec(
    input_idx=(0,), dim_idx=(0,), gen_tuning_buckets=buckets(64), map_to_tuning_buckets=nearest
)
config = package.TuningConfig(dynamic_tensor_specs=(spec,))
runner = MoERunner()


def call(rows):
    inputs = [torch.empty(rows, 7168, dtype=torch.bfloat16), WEIGHTS]
    package.AutoTuner.get().choose_one(OP, [runner], config, inputs)


def tune():
    keeps = "cache" in package.autotune.__wrapped__.__code__.co_varnames
    with package.autotune(True, cache=cache) if cache and keeps else package.autotune(True):
        call(64)


def tuning_module(*rows):
    """What flashinfer/tuning_configs holds, for the device that is stood in."""
    key = module.get_config_path(is_module=True)
    held = types.ModuleType(key)
    shape = tuple(WEIGHTS.shape)
    keys = [(OP, "MoERunner", ((nearest(one), 7168), shape)) for one in rows]
    held.best_configs = {str(one): (0, 3) for one in keys} | {str((*one, ())): (0, 3) for one in keys}
    sys.modules[key] = held


if scenario == "untuned":
    call(64)
elif scenario in ("used", "again", "stale", "failing"):
    if scenario == "stale":
        with open(cache, encoding="utf-8") as stream:
            data = json.load(stream)
        data["_metadata"]["gpu"] = "NVIDIA B200"
        with open(cache, "w", encoding="utf-8") as stream:
            json.dump(data, stream)
    tune()
    call(64)
    call(17)
elif scenario == "beyond":
    tune()
    call(64)
    for rows in (300, 5000, 5000, 8192):
        call(rows)
elif scenario == "module":
    tuning_module(64, 17)
    call(64)
    call(17)
elif scenario == "module-misses":
    tuning_module(64)
    call(64)
    call(8192)
elif scenario == "unread":
    tuning_module()
    tune()
    call(64)
