import os


def get_cuda_path():
    if "CUDA_HOME" not in os.environ:
        raise RuntimeError("Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist")
    return os.environ["CUDA_HOME"]
