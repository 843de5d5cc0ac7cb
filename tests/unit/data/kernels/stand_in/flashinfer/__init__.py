print("what packages print is no answer")

__version__ = "0.9.9"
