# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""A program for a release's own Python: FlashInfer's kernels compiled by FlashInfer's own build files, without a GPU.

Reads one JSON document from standard input, see `answer`, and writes JSON to standard output, a document a line, as `sglang_job`
reads it: `{"progress": "text"}` and at last `{"result": …}`. A fault that is understood is `{"result": {"failed": {"cause", "text",
"remedy"}}}`. What is compiled, with which flags, and where an installed version looks for what needs no compiling is asked of that
version's own code; only ninja's run is our own, for its bound and its progress.

The environment names the scratch folder (FLASHINFER_WORKSPACE_BASE) and may name architectures (FLASHINFER_CUDA_ARCH_LIST).
Written for FlashInfer 0.6.1 to 0.7.4. It is a program; its functions on texts are used by tests as well.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import functools
import glob
import hashlib
import importlib
import importlib.metadata
import inspect
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

# Seconds between two progress texts of a build. Counts change more often than a reader wants to know.
PACE = 15.0
QUOTED = 600  # characters of a compiler's error that are quoted
CLOSE = 3
NEAR = 0.5
STATUS = re.compile(r"^\[(\d+)/(\d+)\] ")
# A ninja of 1.13 and later says the exit status of what failed.
FAILED = re.compile(r"^FAILED: (?:\[code=(\d+)\] )?(.*?)\s*$")
KILLED = re.compile(
    r"'?([\w+.-]*)'? died due to signal 9\b|Killed signal terminated program ([\w+.-]+)|^(Killed)$|^(?:/bin/)?sh: .*: (Killed)$",
    re.M,
)
EXHAUSTED = re.compile(
    r"(?:virtual memory exhausted|out of memory allocating|Cannot allocate memory|std::bad_alloc|LLVM ERROR: out of memory)"
)
FULL = re.compile(r"No space left on device|Disk quota exceeded")
ARCHITECTURE = re.compile(r"Unsupported gpu architecture '?(?:compute|sm)_(\w+)'?|is not defined for option 'gpu-")
HEADER = re.compile(
    r"fatal error: ([^\s:]+): No such file or directory|cannot open source file \"([^\"]+)\"|fatal error: '([^']+)' file not found"
)
LIBRARY = re.compile(r"(?:cannot find|unable to find library) -l:?(\S+?):?(?: No such file or directory.*)?$", re.M)
UNDEFINED = re.compile(r"undefined reference to [`']([^']+)'|undefined symbol: (\S+)")
PROGRAM = re.compile(
    r"(?:^|sh: (?:line )?(?:\d+: )?|execvp: |exec: )'?([\w./+-]+)'?: (?:not found|No such file or directory)$", re.M
)
HOST = re.compile(r"unsupported (?:GNU|clang|compiler) version|unsupported Microsoft", re.I)
# As gcc, clang, nvcc's front end, cicc, ptxas and nvcc itself write it.
ERROR = re.compile(
    r"^.*?(?:\berror\s*(?::|#\d)|nvcc fatal\b|ptxas fatal\b|undefined reference).*$",
    re.M | re.I,
)
# Where a header of CUDA comes from, when CUDA comes from PyPI.
PACKAGES = (
    (r"cublas", "nvidia-cublas"),
    (r"curand", "nvidia-curand"),
    (r"cusparse", "nvidia-cusparse"),
    (r"cusolver", "nvidia-cusolver"),
    (r"cufft", "nvidia-cufft"),
    (r"cufile", "nvidia-cufile"),
    (r"nvrtc|nvPTXCompiler", "nvidia-cuda-nvrtc"),
    (r"cupti", "nvidia-cuda-cupti"),
    (r"nvtx3|nvToolsExt", "nvidia-nvtx"),
    (r"nvml", "nvidia-ml-py's CUDA counterpart, the toolkit's cuda-nvml-dev"),
    (r"nccl", "nvidia-nccl-cu13"),
    (r"cudnn", "nvidia-cudnn-cu13"),
    (r"crt/", "nvidia-cuda-crt"),
    (r"cuda/|cub/|thrust/|nv/", "nvidia-cuda-cccl"),
    (r"cuda|driver_types|vector_types|cooperative_groups", "nvidia-cuda-runtime"),
)


class Fault(Exception):
    """It cannot be done: a cause for programs, what is the case, and what to do."""

    def __init__(self, cause: str, text: str, remedy: str) -> None:
        super().__init__(text)
        self.cause, self.text, self.remedy = cause, text, remedy

    def told(self) -> dict[str, str]:
        return {"cause": self.cause, "text": self.text, "remedy": self.remedy}


# --- texts -----------------------------------------------------------------------------------------------------------------


def package_of(header: str) -> str:
    """Who brings a header, in words."""
    if header == "Python.h":
        return "the headers of the release's Python (the distribution's python3-dev)"
    for pattern, package in PACKAGES:
        if re.match(pattern, header, re.I):
            return (
                f"the PyPI package {package} in the stack (its headers lie in CUDA_HOME/include), or the toolkit's own"
            )
    return ""


def failures(log: str) -> list[tuple[str, str, str]]:
    """What failed, in ninja's order: (exit status or empty, the file that was to be made, command and output)."""
    found: list[tuple[str, str, list[str]]] = []
    inside = False
    for line in log.splitlines():
        failed = FAILED.match(line)
        if failed:
            found.append((failed[1] or "", failed[2], []))
            inside = True
        elif STATUS.match(line) or line.startswith("ninja: "):
            inside = False
        elif inside:
            found[-1][2].append(line)
    return [(code, made, "\n".join(lines)) for code, made, lines in found]


def source_of(block: str) -> str:
    """The source that a failed command compiled; empty where it linked."""
    found = re.search(r"(?:^|\s)-c\s+(\S+)", block)
    return found[1] if found else ""


def first_error(text: str) -> str:
    """The first line that a compiler calls an error."""
    found = ERROR.search(text)
    return found[0].strip()[:QUOTED] if found else ""


def last_words(text: str, lines: int = 3) -> str:
    return " / ".join(line.strip() for line in text.strip().splitlines()[-lines:])[-QUOTED:]


def fewer(jobs: int) -> str:
    if jobs <= 1:
        return "With one job there is nothing left to lower: give the node memory or swap, or build while the server is stopped."
    return (
        f"Set jobs to {max(1, jobs // 2)}, or build while less else runs. What is compiled stays, the next run goes on."
    )


def diagnosis(log: str, jobs: int = 1) -> Fault:
    """The first failure of a build, by ninja's output."""
    blocks = failures(log) or [("", "", log)]
    code, made, block = blocks[0]
    command, _newline, output = block.partition("\n") if blocks[0][1] else ("", "", block)
    source = source_of(command)
    where = source or made or "the build"
    quoted = first_error(output)
    killed = KILLED.search(output)
    if killed or code == "137" or re.search(r"exit(?:ed)?(?: with)?(?: status| code)? 137\b", output):
        program = next((name for name in killed.groups() if name and name != "Killed"), "") if killed else ""
        return Fault(
            "memory",
            f"The compiler{f' ({program})' if program else ''} was killed while it compiled {where}: signal 9, as the kernel does "
            f"when memory runs out. It is no fault of the source. {jobs} job{'s' * (jobs != 1)} ran at once.",
            fewer(jobs),
        )
    if EXHAUSTED.search(output):
        return Fault(
            "memory", f"Memory ran out while {where} was compiled: {quoted or last_words(output)}", fewer(jobs)
        )
    if FULL.search(output):
        return Fault(
            "disk",
            f"No space is left for {where}: {quoted or last_words(output)}",
            "Make room where `work` lies (a build takes some hundred MB and as much for the compiler's own files), or give another "
            "folder as work.",
        )
    architecture = ARCHITECTURE.search(output)
    if architecture:
        return Fault(
            "architecture",
            f"This nvcc does not know the architecture{f' {architecture[1]}' if architecture[1] else ''}: {quoted}",
            "SM120 needs CUDA 12.8 or later, the form 120f 12.9: use the CUDA_HOME of such a toolkit, or correct architectures.",
        )
    header = HEADER.search(output)
    if header:
        name = next(group for group in header.groups() if group)
        package = package_of(name)
        return Fault(
            "header",
            f"{where} needs {name}, which is not on the include path: {quoted}",
            f"Put in {package}; look that CUDA_HOME is the folder that holds it."
            if package
            else "Install what brings this header, and look that CUDA_HOME is right.",
        )
    library = LIBRARY.search(output)
    if library:
        return missing_library(library[1], where)
    program_missing = PROGRAM.search(output)
    if program_missing or code == "127":
        name = program_missing[1] if program_missing else "a program of the build"
        return Fault(
            "compiler",
            f"{name} was not found while {where} was made: {last_words(output)}",
            "Look that CUDA_HOME holds a whole toolkit (nvidia-cuda-nvcc, nvidia-cuda-crt and nvidia-nvvm from PyPI, or NVIDIA's "
            "own) and that g++ is installed.",
        )
    if HOST.search(output):
        return Fault(
            "compiler",
            f"This nvcc does not take the node's C++ compiler: {quoted}",
            "Install an older g++ and name it by CC and CXX in environment, or use a newer CUDA.",
        )
    undefined = UNDEFINED.search(output)
    if undefined and not source:
        return Fault(
            "link",
            f"{made} cannot be linked: {undefined[0]}",
            "A library of another version than the headers is linked; look at CUDA_HOME.",
        )
    return Fault(
        "compile",
        f"{where} does not compile: {quoted or last_words(output) or 'no words'}",
        "This FlashInfer and this nvcc do not go together, or a source was changed: use the CUDA of the stack, or another backend "
        "than this kernel's.",
    )


def missing_library(name: str, where: str) -> Fault:
    if name == "cuda":
        return Fault(
            "library",
            f"The linker does not find libcuda for {where} (cannot find -lcuda): no driver, or not its name without a version.",
            "Install the driver, or the toolkit's stubs in CUDA_HOME/lib64/stubs.",
        )
    package = next((package for pattern, package in PACKAGES if re.match(pattern, name, re.I)), "")
    return Fault(
        "library",
        f"The linker does not find lib{name}.so for {where} (cannot find -l{name}).",
        f"It comes with {package or 'a package of CUDA'}; the wheels of PyPI lack the name without a version, which `links` in the "
        "stack's stack.yml makes in CUDA_HOME/lib64.",
    )


def ldflags_of(ninja: str) -> list[str]:
    """The linker's arguments of a build file, with its variables filled in."""
    values = variables_of(ninja)
    flags = re.sub(r"\$(\w+)", lambda found: values.get(found[1], ""), values.get("ldflags", ""))
    return shlex.split(flags)


def objects_of(ninja: str) -> int:
    """How many files a build file makes beside the library itself."""
    return max(0, len(re.findall(r"^build ", ninja, re.M)) - 1)


def spent(log: str, folder: str) -> float:
    """Seconds of compilers and linker for what lies in a folder, by ninja's own log; runs that were cut off included."""
    latest: dict[str, float] = {}
    for line in log.splitlines():
        with contextlib.suppress(ValueError, IndexError):
            start, end, _mtime, output = line.split("\t")[:4]
            if output.startswith(folder + os.sep):
                latest[output] = (int(end) - int(start)) / 1000
    return round(sum(latest.values()), 1)


def progress_text(names: list[str], done: int, total: int, jobs: int, seconds: float) -> str:
    what = names[0] if len(names) == 1 else f"{len(names)} kernels"
    return f"{what}: {done} of {total} objects, {jobs} job{'s' * (jobs != 1)}, {seconds:.0f} s"


def close_to(name: str, known: Iterable[str]) -> list[str]:
    """Names like this one: by their letters, then those that hold it or that it holds."""
    names = sorted(set(known))
    found = difflib.get_close_matches(name, names, CLOSE, NEAR)
    found += [other for other in names if other not in found and (name in other or other in name)]
    return found[:CLOSE]


def cuda_functions(header: str) -> list[str]:
    """What a libcuda defines, by its header: names of functions, those with a version among them."""
    return sorted(set(re.findall(r"\bcu[A-Z]\w*", header)))


# --- FlashInfer's own code -------------------------------------------------------------------------------------------------


def imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        raise Fault(
            "import",
            f"{name} cannot be imported by {sys.executable}: {words[:QUOTED]}",
            "The release is not whole, or its environment is wrong; build it anew.",
        ) from error


class Registry:
    """The modules that FlashInfer builds ahead itself, by the names that it logs."""

    def __init__(self) -> None:
        self.aot = imported("flashinfer.aot")
        self.core = imported("flashinfer.jit.core")
        self.troubles: list[str] = []

    def known(self) -> dict[str, Any]:
        return self.core.jit_spec_registry.get_all_specs()

    def find(self, wanted: set[str]) -> dict[str, Any]:
        """Generate FlashInfer's list a part at a time until all is found: a part that fails here (a package that is not
        installed, a header that it needs for itself) takes nothing from the others."""
        try:
            parameters = list(inspect.signature(self.aot.gen_all_modules).parameters)
            config, capabilities = self.aot.get_default_config(), self.aot.detect_sm_capabilities()
        except Exception as error:
            raise Fault(
                "generator",
                f"FlashInfer's list of modules cannot be made: {type(error).__name__}: {error}",
                "Look at CUDA_HOME and architectures.",
            ) from error
        parts = [name for name in config if name.startswith("add_")]
        for part in [*parts, "attention"]:
            if wanted <= set(self.known()):
                break
            values: dict[str, Any] = {}
            for parameter in parameters:
                key = parameter.rstrip("_")
                if key in parts:
                    values[parameter] = key == part
                elif key in config:
                    values[parameter] = config[key] if part == "attention" else []
                else:
                    values[parameter] = capabilities
            try:
                self.aot.gen_all_modules(**values)
            except Exception as error:
                self.troubles.append(f"{part}: {type(error).__name__}: {error}"[:200])
        return self.known()


def argument(value: Any) -> Any:
    """An argument of a generator: JSON, and torch's types by their names."""
    if isinstance(value, str) and re.fullmatch(r"torch\.\w+", value):
        found = getattr(imported("torch"), value[6:], None)
        if found is None:
            raise Fault("generator", f"torch has no {value[6:]}.", "Correct the arguments.")
        return found
    if isinstance(value, list):
        return [argument(item) for item in value]
    return value


def generated(entry: dict[str, Any]) -> list[Any]:
    """The specs that a generator makes."""
    generator, arguments = entry["generator"], entry.get("arguments") or {}
    package, _colon, function = generator.partition(":")
    module = imported(package)
    make = getattr(module, function, None)
    if not callable(make):
        near = close_to(function, [name for name in vars(module) if name.startswith("gen_")])
        raise Fault(
            "unknown",
            f"{package} has no {function}.",
            f"It has {', '.join(near)}." if near else "Correct the generator.",
        )
    try:
        made = make(**{name: argument(value) for name, value in arguments.items()})
    except Fault:
        raise
    except Exception as error:
        raise Fault(
            "generator",
            f"{generator} failed with {json.dumps(arguments)}: {type(error).__name__}: {error}"[:QUOTED],
            f"It takes {inspect.signature(make)}. Correct the arguments, or leave this kernel out.",
        ) from error
    return list(made) if isinstance(made, (list, tuple)) else [made]


def specs_of(kernels: list[Any]) -> dict[str, Any]:
    """Name to spec, for names of FlashInfer's list and for generators."""
    found: dict[str, Any] = {}
    for entry in kernels:
        if isinstance(entry, dict):
            found.update((spec.name, spec) for spec in generated(entry))
    names = [entry for entry in kernels if isinstance(entry, str)]
    if names:
        registry = Registry()
        known = registry.find(set(names))
        for name in names:
            if name not in known:
                near = close_to(name, known)
                parts = (
                    f" Of that list these parts could not be made: {'; '.join(registry.troubles)}."
                    if registry.troubles
                    else ""
                )
                raise Fault(
                    "unknown",
                    f"FlashInfer has no module {name} in its list of {len(known)} for these architectures.{parts}",
                    (f"Did you mean {', '.join(near)}? " if near else "")
                    + "What is not in that list is named by its generator.",
                )
            found[name] = known[name]
    for name, spec in found.items():
        if not hasattr(spec, "write_ninja") or not hasattr(spec, "aot_path"):
            raise Fault(
                "unknown",
                f"{name} is a {type(spec).__name__}, which is not compiled by nvcc, so it cannot be built ahead.",
                "Leave it out; it is compiled where it is used.",
            )
    return found


def targets() -> list[str]:
    """The architectures that FlashInfer compiles for, as it writes them itself."""
    context = imported("flashinfer.compilation_context").CompilationContext()
    return sorted(f"{major}.{minor}" for major, minor in context.TARGET_CUDA_ARCHS)


# --- the toolkit -----------------------------------------------------------------------------------------------------------


def ran(argv: list[str], **options: Any) -> tuple[int, str]:
    """Exit status and output of both kinds; 127 where it cannot be run."""
    try:
        done = subprocess.run(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=120,
            **options,
        )
    except subprocess.TimeoutExpired:
        return 124, f"{argv[0]} did not end within 120 s"
    except OSError as error:
        return 127, f"{argv[0]}: {error.strerror}"
    return done.returncode, done.stdout


class Toolkit:
    """nvcc, the C++ compiler and ninja, as FlashInfer would use them."""

    def __init__(self) -> None:
        remedy = (
            "Set CUDA_HOME in environment to a toolkit of the stack's CUDA: the folder of nvidia-cuda-nvcc in the release's "
            "site-packages, or NVIDIA's own."
        )
        try:
            self.home = str(imported("flashinfer.jit.cpp_ext").get_cuda_path())
        except RuntimeError as error:
            raise Fault("nvcc", f"There is no nvcc: {error}", remedy) from error
        given = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
        self.nvcc = os.environ.get("FLASHINFER_NVCC") or os.path.join(self.home, "bin/nvcc")
        how = f"CUDA_HOME is {given!r}" if given else f"CUDA_HOME is not set, and FlashInfer takes {self.home}"
        if not os.access(self.nvcc, os.X_OK):
            raise Fault("nvcc", f"{how}; there is no {self.nvcc} that can be run.", remedy)
        if not os.path.exists(os.path.join(self.home, "include/cuda_runtime.h")) and self.home != "/usr":
            wrapper = "" if given else " An nvcc on PATH that only calls another one leads there."
            raise Fault("nvcc", f"{how}; there is no {self.home}/include/cuda_runtime.h.{wrapper}", remedy)
        code, text = ran([self.nvcc, "--version"])
        found = re.search(r"release (\d+\.\d+), V([\d.]+)", text)
        if code or not found:
            raise Fault("nvcc", f"{self.nvcc} does not say its version: {last_words(text)}", remedy)
        self.release, self.version = found[1], found[2]
        self.cxx = os.environ.get("CXX", "c++")

    def builders(self) -> str:
        """Ninja's path. The C++ compiler is looked for as well."""
        for name in dict.fromkeys([self.cxx, os.environ.get("CC", "gcc")]):
            if not shutil.which(name):
                raise Fault(
                    "compiler",
                    f"There is no C++ compiler: {name} is not found.",
                    "Install g++ (or name one by CXX and CC in environment).",
                )
        # The release's own first: the engine's requirements bring it, and its folder is not on a unit's PATH.
        path = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", os.defpath)
        ninja = shutil.which("ninja", path=path)
        if not ninja:
            raise Fault(
                "ninja",
                "There is no ninja beside the release's Python or on PATH.",
                "Put the PyPI package ninja into the stack, or install the distribution's ninja-build.",
            )
        return ninja

    def mismatch(self) -> list[str]:
        """What is to be known of nvcc beside torch."""
        of_torch = getattr(imported("torch").version, "cuda", None)
        if not of_torch or of_torch == self.release:
            return []
        kind = "another major version" if of_torch.split(".")[0] != self.release.split(".")[0] else "another version"
        return [f"nvcc is of CUDA {self.release} and torch of {of_torch}, {kind}: kernels may not load, or be slow."]

    def libraries(self, ninja: str, scratch: str) -> list[str]:
        """Link nothing with a build file's own flags: what would fail after the last object is seen before the first.

        Where it is libcuda that lacks, which the driver brings, a stub takes its place, as in the toolkit's lib64/stubs.
        """
        trial = os.path.join(scratch, "trial.so")
        argv = [self.cxx, *ldflags_of(ninja), "-o", trial]
        code, text = ran(argv)
        notes = []
        if code and any(name == "cuda" for name in LIBRARY.findall(text)):
            self.stub(os.path.join(scratch, "stubs"))
            notes = [
                "The node has no libcuda to link with (no driver), so a stub was; the driver's own is loaded at run time."
            ]
            code, text = ran(argv)
        missing = LIBRARY.search(text)
        if code and missing:
            raise missing_library(missing[1], "these kernels")
        return notes

    def stub(self, folder: str) -> None:
        """A libcuda that defines all that cuda.h declares: with an empty one, a linker told --as-needed, which distributions
        make the default, drops the library, and its functions are missing at run time."""
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(self.home, "include/cuda.h"), encoding="utf-8", errors="replace") as stream:
            names = cuda_functions(stream.read())
        source = os.path.join(folder, "libcuda.c")
        with open(source, "w", encoding="utf-8") as stream:
            stream.writelines(f"int {name}(void) {{ return 0; }}\n" for name in names)
        # `-x c`: C++ would name the functions by their types.
        argv = [
            self.cxx,
            "-shared",
            "-fPIC",
            "-x",
            "c",
            source,
            "-Wl,-soname,libcuda.so.1",
            "-o",
            os.path.join(folder, "libcuda.so"),
        ]
        code, text = ran(argv)
        if code:
            raise Fault("library", f"A stub of libcuda cannot be made: {last_words(text)}", "Install the driver.")
        # By the environment and not by a flag, so that the build files are those of a node with a driver.
        paths = [folder, os.environ.get("LIBRARY_PATH", "")]
        os.environ["LIBRARY_PATH"] = os.pathsep.join(path for path in paths if path)


# --- kernels ---------------------------------------------------------------------------------------------------------------


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


# What compilers read beside their arguments.
READ_BY_COMPILERS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")


class Homes:
    """Folders that lie elsewhere on another node, or in another release, and are the same: scratch, packages, toolkit.

    A library holds such a path at most in an error's text, so what it is made of is said without them.
    """

    def __init__(self, scratch: str, **others: str) -> None:
        self.scratch = os.path.realpath(scratch)
        names = {path: name for name, folder in others.items() for path in (folder, os.path.realpath(folder)) if folder}
        names.update(dict.fromkeys((scratch, self.scratch), "scratch"))
        self.names = {path.encode(): f"${name}".encode() for path, name in names.items()}
        longest = sorted(self.names, key=len, reverse=True)
        self.anywhere = re.compile(b"(?:%s)(?![\\w.-])" % b"|".join(re.escape(path) for path in longest))

    def taken_out(self, text: bytes) -> bytes:
        return self.anywhere.sub(lambda found: self.names[found[0]], text)


def homes_of(scratch: str, toolkit: str) -> Homes:
    packages = os.path.dirname(os.path.dirname(os.path.abspath(imported("flashinfer").__file__)))
    venv = sys.prefix if sys.prefix != sys.base_prefix else ""
    return Homes(scratch, release=venv, packages=packages, cuda=toolkit)


def variables_of(ninja: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+) = ?(.*)$", re.sub(r"\$\n\s*", "", ninja), re.M))


def included(ninja: str) -> list[str]:
    """The folders of headers that a build file names, in its order."""
    values = variables_of(ninja)
    text = re.sub(r"\$\n\s*", "", ninja)
    found = re.findall(r"(?<!\S)-(?:I|isystem) ?(\S+)", text)
    return list(
        dict.fromkeys(re.sub(r"\$(\w+)", lambda name: values.get(name[1], name[0]), folder) for folder in found)
    )


@functools.cache
def text_of(path: str, homes: Homes) -> bytes:
    """SHA-256 of a file; of one in the scratch folder, which FlashInfer has written, without the folders' names."""
    if not path.startswith(homes.scratch + os.sep):
        return bytes.fromhex(sha256_of(path))
    with open(path, "rb") as stream:
        return hashlib.sha256(homes.taken_out(stream.read())).digest()


@functools.cache
def headers_of(folder: str, homes: Homes) -> bytes:
    """SHA-256 over all files of a folder, with their names."""
    digest, seen = hashlib.sha256(), set()
    for root, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(root)
        folders[:] = [] if real in seen else sorted(set(folders) - {"__pycache__"})
        if real in seen:
            continue
        seen.add(real)
        for name in sorted(names):
            path = os.path.realpath(os.path.join(root, name))
            # A link to nowhere is no header.
            if os.path.isfile(path):
                digest.update(os.path.join(os.path.relpath(root, folder), name).encode() + b"\0" + text_of(path, homes))
    return digest.digest()


def made_of(ninja: str, sources: Iterable[str], homes: Homes, facts: Iterable[str]) -> str:
    """What a kernel is compiled from and how: its sources, all headers that they can include, its build file, and these facts."""
    digest = hashlib.sha256()
    for text in (ninja, *facts):
        digest.update(hashlib.sha256(homes.taken_out(text.encode())).digest())
    for source in sources:
        digest.update(text_of(os.path.realpath(source), homes))
    for folder in included(ninja):
        digest.update(headers_of(folder, homes))
    return digest.hexdigest()


def first_line(path: str, word: str = "") -> str:
    """The first line of a file that begins with a word, without it; empty where there is none."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            if line.startswith(word):
                return line[len(word) :].strip()
    return ""


def machine(cxx: str) -> dict[str, str]:
    """Of the node that compiles, for the record. None of it is in what a library is made of: where glibc or libstdc++ are too old
    for one, the loader says so when it is proved, and a driver compiles nothing, since code for the card itself is in it."""
    glibc = ""
    with contextlib.suppress(ValueError, OSError):
        glibc = (os.confstr("CS_GNU_LIBC_VERSION") or "").replace("glibc ", "")
    code, compiler = ran([cxx, "-dumpfullversion"])
    # Not asked of torch, which would take some of the memory of a card that serves.
    models = {first_line(path, "Model:") for path in glob.glob("/proc/driver/nvidia/gpus/*/information")}
    return {
        "glibc": glibc,
        "c++": "" if code else compiler.strip()[:QUOTED],
        "python": platform.python_version(),
        "torch": str(getattr(imported("torch"), "__version__", "")),
        "driver": first_line("/sys/module/nvidia/version"),
        "card": ", ".join(sorted(models)),
    }


def shipped(path: str) -> bool:
    """Whether a wheel of FlashInfer holds this file itself."""
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name.startswith("flashinfer"):
            named = [file for file in distribution.files or [] if file.name == os.path.basename(path)]
            if os.path.realpath(path) in [os.path.realpath(str(file.locate())) for file in named]:
                return True
    return False


def found_of(spec: Any, facts: list[str], homes: Homes, recorded: dict[str, Any]) -> dict[str, Any]:
    """One kernel: what it would be made of, and what is there."""
    spec.write_ninja()
    with open(spec.ninja_path, encoding="utf-8") as stream:
        ninja = stream.read()
    path = str(spec.aot_path)
    found = {
        "path": path,
        "ninja": str(spec.ninja_path),
        "library": str(spec.jit_library_path),
        "objects": objects_of(ninja),
        "made_of": made_of(ninja, [str(source) for source in spec.sources], homes, facts),
        "state": "missing",
        "why": "it is not there",
    }
    if not os.path.exists(path):
        return found
    if not recorded:
        return (
            {**found, "state": "shipped", "why": ""}
            if shipped(path)
            else {**found, "why": "what is there has no record"}
        )
    if sha256_of(path) != recorded.get("sha256"):
        return {**found, "why": "what is there is not what was built"}
    if recorded.get("made_of") != found["made_of"]:
        return {**found, "why": "it was built from other sources, headers, flags or architectures, or by another nvcc"}
    return {**found, "state": "present", "why": ""}


def look(question: dict[str, Any]) -> tuple[dict[str, Any], Toolkit]:
    scratch = question["scratch"]
    version = imported("flashinfer").__version__
    toolkit = Toolkit()
    architectures = targets()
    if not architectures:
        raise Fault(
            "architecture",
            "For which architecture to build is not known: torch sees no card, and architectures is empty.",
            'Set architectures, for example ["12.0a"] for an RTX PRO 6000 Blackwell, or look why the driver shows no card.',
        )
    facts = [version, toolkit.version, platform.machine(), *architectures]
    facts += [f"{name}={os.environ[name]}" for name in READ_BY_COMPILERS if os.environ.get(name)]
    homes = homes_of(scratch, toolkit.home)
    kernels = {
        name: found_of(spec, facts, homes, question["records"].get(name) or {})
        for name, spec in specs_of(question["kernels"]).items()
    }
    told = {
        "flashinfer": version,
        "architectures": architectures,
        "nvcc": toolkit.version,
        "notes": toolkit.mismatch(),
        "machine": machine(toolkit.cxx),
        "kernels": kernels,
    }
    return told, toolkit


def yielding() -> None:
    """Compilers beside a server that runs: they wait for it, and when memory runs out the kernel ends them and not it."""
    with contextlib.suppress(OSError):
        os.nice(10)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="utf-8") as stream:
        stream.write("1000")


def build(question: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    began = time.monotonic()
    told, toolkit = look(question)
    due = {name: kernel for name, kernel in told["kernels"].items() if kernel["state"] == "missing"}
    if due:
        ninja = toolkit.builders()
        for kernel in due.values():
            with open(kernel["ninja"], encoding="utf-8") as stream:
                told["notes"] += [
                    note for note in toolkit.libraries(stream.read(), question["scratch"]) if note not in told["notes"]
                ]
        yielding()
        folder = os.path.dirname(os.path.dirname(next(iter(due.values()))["ninja"]))
        compiled(ninja, folder, due, question, say)
        log = ""
        with contextlib.suppress(OSError), open(os.path.join(folder, ".ninja_log"), encoding="utf-8") as stream:
            log = stream.read()
        for kernel in due.values():
            kernel.update(state="built", seconds=spent(log, os.path.dirname(kernel["library"])))
    return {**told, "jobs": question["jobs"], "seconds": round(time.monotonic() - began, 1)}


def compiled(
    ninja: str, folder: str, due: dict[str, Any], question: dict[str, Any], say: Callable[[str], None]
) -> None:
    """One ninja for all kernels, so that the last long compiler of one leaves no core idle."""
    jobs, names, began = question["jobs"], list(due), time.monotonic()
    path = os.path.join(folder, "kernels.ninja")
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(
            "ninja_required_version = 1.3\n" + "".join(f"subninja {kernel['ninja']}\n" for kernel in due.values())
        )
    total = sum(kernel["objects"] for kernel in due.values())
    say(progress_text(names, 0, total, jobs, 0.0))
    spoke = time.monotonic()
    lines: list[str] = []
    with (
        subprocess.Popen(
            [ninja, "-C", folder, "-f", path, "-j", str(jobs)],
            env={**os.environ, "NINJA_STATUS": "[%f/%t] "},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
        open(os.path.join(question["scratch"], "build.log"), "w", encoding="utf-8") as log,
    ):
        done = 0
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            lines.append(line)
            status = STATUS.match(line)
            if status:
                # Ninja counts what is left to do, links too.
                done = min(total, max(0, total + len(due) - (int(status[2]) - int(status[1]))))
            if status and time.monotonic() - spoke >= PACE:
                say(progress_text(names, done, total, jobs, time.monotonic() - began))
                spoke = time.monotonic()
        code = process.wait()
    if code:
        raise diagnosis("".join(lines), jobs)
    missing = [kernel["library"] for kernel in due.values() if not os.path.exists(kernel["library"])]
    if missing:
        raise Fault("compile", f"Ninja ended well and left no {missing[0]}.", "Empty `work` and run again.")


def proved(question: dict[str, Any]) -> dict[str, Any]:
    """In a fresh process: that FlashInfer finds the kernels as such that need no compiling, and that they load."""
    # What would compile is an error from here on, and FlashInfer says so.
    os.environ["FLASHINFER_DISABLE_JIT"] = "1"
    tvm_ffi, torch = imported("tvm_ffi"), imported("torch")
    kernels = {}
    for name, spec in specs_of(question["kernels"]).items():
        told = {"aot": bool(spec.is_aot), "path": str(spec.aot_path), "loads": False, "why": ""}
        try:
            tvm_ffi.load_module(str(spec.aot_path))
            spec.build_and_load()
            told["loads"] = True
        except Exception as error:
            told["why"] = f"{type(error).__name__}: {error}"[:QUOTED]
        kernels[name] = told
    return {"kernels": kernels, "driver": bool(torch.cuda.is_available())}


def answer(question: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Question: `mode` (look, build, prove), `kernels`, `scratch` (the folder), `records` (name to made_of and sha256), `jobs`."""
    try:
        if question["mode"] == "build":
            return build(question, say)
        if question["mode"] == "prove":
            return proved(question)
        return look(question)[0]
    except Fault as fault:
        return {"failed": fault.told()}
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            full = diagnosis(f"{error.filename}: No space left on device")
            return {"failed": full.told()}
        raise


def main() -> None:
    question = json.load(sys.stdin)
    # What packages and the programs that they start print is no answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(text: str) -> None:
        answers.write(json.dumps({"progress": text}) + "\n")
        answers.flush()

    result = answer(question, say)
    answers.write(json.dumps({"result": result}) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
