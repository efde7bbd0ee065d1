"""llama.cpp's batch -> ubatch -> KV pipeline as a functional JAX program."""

__version__ = "0.1.0"
