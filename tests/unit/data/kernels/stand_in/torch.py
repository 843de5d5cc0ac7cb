import os


class version:
    cuda = os.environ.get("TEST_TORCH")


class cuda:
    @staticmethod
    def is_available():
        return "TEST_DRIVER" in os.environ


bfloat16 = "bf16"
