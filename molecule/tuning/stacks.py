"""Make the stacks of this scenario, their wheelhouses and artefacts: each CPU stack with the FlashInfer that its release came with.

    stacks.py FOLDER

No CPU stack has FlashInfer, which runs nothing on a CPU; here its own readers are to read what was installed. Its wheels are
PyPI's. Artefacts are made up and say so: their keys are of the real shapes of Kimi K2, their tactics and gain mean nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WHEELHOUSES = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "sglang-rtxpro/wheelhouse"
WHEELS = WHEELHOUSES.parent / "flashinfer"
CARD = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
# SGLang to the FlashInfer of its own lock, and what each artefact is.
RELEASES = {
    "0.5.9": ("0.6.3", "python_configs"),
    "0.5.15.post1": ("0.6.12", "autotune_cache"),
    "0.5.23": ("0.7.2", "autotune_cache"),
}
SHAPES = ((64, 3584), (256, 512, 448), (0,), (256, 7168, 16), (0,))


def wheel(version: str) -> Path:
    folder = WHEELS / version
    if not list(folder.glob("*.whl")):
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([*argv, "--dest", str(folder), f"flashinfer-python=={version}"], check=True)
    (found,) = folder.glob("*.whl")
    return found


def key(flashinfer: str) -> str:
    extras = ", ()" if flashinfer.startswith("0.7") else ""
    return f"('trtllm::fused_moe::gemm1', 'MoERunner', {SHAPES}{extras})"


def files(flashinfer: str, kind: str, tactic: int) -> dict[str, str]:
    if kind == "python_configs":
        name = f"v0_1_trtllm_fused_moe_{CARD.replace(' ', '_')}.py"
        return {name: f'"""Made up."""\n\nbest_configs = {{\n    "{key(flashinfer)}": (0, {tactic}),\n}}\n'}
    names = ("cuda_version", "cublas_version", "cudnn_version", "cudnn_frontend_version", "cutlass_dsl_version")
    metadata = {**dict.fromkeys(names, "*"), "flashinfer_version": flashinfer, "gpu": CARD}
    value: list[Any] = ["MoERunner", tactic]
    return {"rank.json": json.dumps({"_metadata": metadata, key(flashinfer): value}, indent=2) + "\n"}


def artefact(folder: Path, sglang: str, flashinfer: str, kind: str, **changed: Any) -> None:
    texts = files(flashinfer, kind, 5)
    about = {
        "name": folder.name,
        "kind": kind,
        "device": CARD,
        "compute_capability": "12.0",
        "driver": "580.126.09",
        "versions": {"flashinfer": flashinfer, "sglang": sglang},
        "profile": "made_up",
        "made": {"by": "molecule/tuning/stacks.py", "at": "2026-11-30", "how": "made up, for a test"},
        "gain": {"what": "nothing, made up", "before": 1.0, "after": 2.0, "percent": 100.0},
        "files": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()},
        **({"ranks": {"tp": 1, "pp": 1, "dp": 1, "dp_attention": False}} if kind == "autotune_cache" else {}),
        **changed,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "artefact.yml").write_text(json.dumps(about, indent=2) + "\n")
    for name, text in texts.items():
        (folder / name).write_text(text)


def main() -> None:
    out = Path(sys.argv[1])
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(ROOT / "stacks", out / "stacks", ignore=lambda _folder, names: [n for n in names if "-cu1" in n])
    for sglang, (flashinfer, kind) in RELEASES.items():
        source, name = f"sglang-cpu-{sglang}", f"flashinfer-{flashinfer}"
        (out / "stacks" / source).rename(out / "stacks" / name)
        found = wheel(flashinfer)
        with (out / "stacks" / name / "requirements-3.11.txt").open("a") as lock:
            digest = hashlib.sha256(found.read_bytes()).hexdigest()
            lock.write(f"flashinfer-python=={flashinfer} \\\n    --hash=sha256:{digest}\n")
        house = out / "wheelhouse" / name
        shutil.copytree(WHEELHOUSES / f"{source}-3.11", house, copy_function=os.link)
        os.link(found, house / found.name)
        place = out / "tuning" / CARD.replace(" ", "_") / name
        artefact(place / "made-up", sglang, flashinfer, kind)
        artefact(place / "of-another-version", sglang, "0.6.1", kind)
        artefact(place / "of-another-card", sglang, flashinfer, kind, device="NVIDIA H200")
        artefact(place / "cut", sglang, flashinfer, kind)
        for path in (place / "cut").iterdir():
            if path.name != "artefact.yml":
                path.write_text(path.read_text()[:-20])


if __name__ == "__main__":
    main()
