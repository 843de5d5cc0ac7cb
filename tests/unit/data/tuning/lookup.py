"""A program for tests: what a real FlashInfer's lookup gives for the questions on standard input, without running a kernel.

Question: `load` (caches to load first), `profiled` (what the autotuner found at run time: runner, tactic for the key's first question),
`lookups` (operation, runner's class, shapes).
"""

import json
import sys

from flashinfer.autotuner import AutoTuner, TunableRunner, TuningConfig


def runner_of(name):
    methods = {"get_valid_tactics": lambda *args: [-1], "forward": lambda *args, **more: None, "__hash__": lambda self: 1}
    return type(name, (TunableRunner,), methods)()


def main():
    question = json.load(sys.stdin)
    tuner, config = AutoTuner.get(), TuningConfig()
    blocklist = getattr(tuner, "_blocklist", None)
    told = {"blocklist": blocklist.summary() if blocklist else None}
    told |= {"file": sys.modules[AutoTuner.__module__].__file__, "loaded": [], "found": []}
    for path in question.get("load", []):
        try:
            told["loaded"].append(tuner.load_configs(path))
        except ValueError as error:
            told["loaded"].append(type(error).__name__)
    for operation, runner, shapes in question["lookups"]:
        shapes = tuple(tuple(shape) for shape in shapes)
        runners = [runner_of(runner)]
        if "profiled" in question:
            key = AutoTuner._get_cache_key(operation, runners[0], shapes, config)
            tuner.profiling_cache[key] = (*question["profiled"], None)
        told["found"].append(tuner.search_cache(operation, runners, shapes, config)[:3])
    json.dump(told, sys.stdout)


main()
