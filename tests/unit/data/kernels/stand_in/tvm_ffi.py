import os


def load_module(path):
    if "TEST_LOADS" in os.environ:
        raise OSError(os.environ["TEST_LOADS"])
    return open(path).read()
