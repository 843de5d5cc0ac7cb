"""CPU time and memory of a doctor's scan of 200 MB of log with all rules, after which an operator waits.

Run: .venv/bin/python tests/bench/sglang_diagnose.py [MB]

The log is recorded logs of real runs (tests/unit/data/sglang_log), repeated. Prints seconds of CPU and the peak of memory in MB.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[2]
ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import sglang_diagnose, sglang_rules


def main() -> None:
    size = int(sys.argv[1]) << 20 if len(sys.argv) > 1 else 200 << 20
    once = b"".join(path.read_bytes() for path in sorted((ROOT / "tests/unit/data/sglang_log").glob("*.log")))
    wanted = sglang_diagnose.signatures(sglang_rules.load(str(ROOT / "rules")))
    with tempfile.TemporaryFile() as log:
        for _ in range(size // len(once) + 1):
            log.write(once)
        log.seek(0)
        began = time.process_time()
        told = sglang_diagnose.scan(log, wanted)
        seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    texts = sum(len(one["find"]) for one in wanted)
    print(f"{told['bytes'] >> 20} MB, {told['lines']:,} lines, {len(wanted)} signatures with {texts} texts:")
    print(f"{seconds:.1f} s of CPU, {peak} MB at most")


if __name__ == "__main__":
    main()
