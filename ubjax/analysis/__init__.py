"""Recompilations and padding as results."""

from ubjax.analysis.compiles import CompileCount, count_compilations

__all__ = ["CompileCount", "count_compilations"]
