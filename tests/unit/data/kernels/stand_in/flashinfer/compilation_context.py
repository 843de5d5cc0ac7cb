import os


class CompilationContext:
    def __init__(self):
        given = os.environ.get("FLASHINFER_CUDA_ARCH_LIST", "")
        self.TARGET_CUDA_ARCHS = {tuple(one.split(".")) for one in given.split()}
