"""Recompilations and padding as results."""

from ubjax.analysis.compiles import (
    CompileCount,
    UnexpectedCompilationError,
    count_compilations,
    forbid_compilations,
)
from ubjax.analysis.ladder import optimize_ladder, waste_curve
from ubjax.analysis.retraces import watch
from ubjax.analysis.sweep import sweep
from ubjax.analysis.traces import Trace, read_trace, synthetic_trace

__all__ = [
    "CompileCount",
    "Trace",
    "UnexpectedCompilationError",
    "count_compilations",
    "forbid_compilations",
    "optimize_ladder",
    "read_trace",
    "sweep",
    "synthetic_trace",
    "waste_curve",
    "watch",
]
