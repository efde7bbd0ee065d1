"""Warm-up: every program that the decodes of an engine can need, compiled from shapes before anything runs.

Nothing is allocated and nothing is computed, see programs.py. The shapes are those of buckets.py and the functions
those that a decode calls, so that afterwards it compiles nothing.
"""

import dataclasses
import functools
import html
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ubjax.analysis import CompileCount, count_compilations
from ubjax.batch import Batch
from ubjax.buckets import Bucket, Buckets, kv_name, shape_name
from ubjax.config import BatchConfig
from ubjax.control import advance, plan_decode, stage, stage_rows
from ubjax.generate import drawing_of, sampling_programs
from ubjax.loops import loop_program, no_rows, steps_room
from ubjax.memory import caches, ops
from ubjax.memory.caches import AllCells, Caches
from ubjax.memory.init_batch import CAUSAL
from ubjax.memory.kv import AllKV, grow
from ubjax.outputs import take_row
from ubjax.pictures.wording import amount
from ubjax.pooling import pool_rows, pool_shapes
from ubjax.programs import Program, device_shapes, host_shapes
from ubjax.step import Step, zeros

NUMBER = jax.ShapeDtypeStruct((), np.int32)
Widths: TypeAlias = tuple[int, int]  # of embedding rows and of state rows, 0: none


@dataclasses.dataclass(frozen=True)
class EnginePrograms:
    """The programs of an engine: decodes, sequence operations, sampling. `control`: where the cells are.

    `widths` of the embedding rows and state rows that batches have: 0 where there are none, else the model's. `hidden`:
    the steps that hand out hidden rows too, and what pools them. Iterating gives those of the control plane and of
    K/V, then for each bucket what stages it and its steps, smallest first, and what reads the logits.
    """

    step: Step
    buckets: Buckets
    batch_config: BatchConfig
    caches: Caches
    _: dataclasses.KW_ONLY
    n_ubatch: int
    widths: tuple[Widths, ...]
    hidden: bool
    kv_dtype: str
    control: Any

    def __iter__(self) -> Iterator[Program]:
        yield from self._of_cells()
        for at in itertools.product(self.buckets.capacity.sizes, self.widths):
            yield _program(plan_decode, _batch_name(*at), lambda at=at: self._plan_arguments(*at))
            yield _program(advance, _batch_name(*at), lambda at=at: self._advance_arguments(*at))
        yield from self._of_kv()
        sizes = defaultdict(list)
        for bucket, n_kv in self.buckets.shapes():
            sizes[bucket].append(n_kv)
        for bucket, pairs in itertools.groupby(self.buckets.staged(), key=lambda pair: pair[1]):
            for at in itertools.product((n for n, _ in pairs), self.widths):
                shape = f"{shape_name(bucket)}|{_batch_name(*at)}"
                yield _program(
                    stage_rows, shape, lambda at=at, b=bucket: (*self._ubatch_arguments(*at), b, self.caches)
                )
            for n_kv, width in itertools.product(sizes[bucket], self.widths):
                arguments = functools.partial(self._step_arguments, n_kv, width, bucket)
                shape = shape_name(bucket, n_kv) + _width_name(width)
                yield _program(self.step.program, shape, arguments)
                if self.hidden:
                    yield _program(self.step.hidden_program, shape, arguments)
        yield from self._of_loops()
        yield from self._of_logits(sorted({bucket.n_outputs for bucket in sizes}))
        if self.hidden:
            for n_rows in sorted({bucket.n_rows for bucket in sizes}):
                yield _program(pool_rows, f"rows {n_rows}", lambda n=n_rows: self._pool_arguments(n))

    def _of_cells(self) -> Iterator[Program]:
        cells, known = self._cells, self.caches
        words = jax.ShapeDtypeStruct((known[0].n_words,), np.uint32)
        for function, arguments in (
            (ops.seq_ranges, (cells[-1], known[-1])),
            (caches.rm, (cells, *(NUMBER,) * 3, known)),
            (caches.cp, (cells, *(NUMBER,) * 4, known)),
            (caches.keep, (cells, NUMBER, known)),
            (caches.outsider, (cells, words, NUMBER, NUMBER)),
            (caches.can_resume, (cells, NUMBER, NUMBER, known)),
            (caches.settle, (cells,)),
        ):
            yield _program(function, "", lambda arguments=arguments: arguments)
        if self._movable:
            for function in (caches.add, caches.div):
                yield _program(function, "", lambda: (cells, words, *(NUMBER,) * 3, known))
        else:
            yield _program(caches.next_pos, "", lambda: (cells, known))
        if len(known) > 1:
            yield _program(caches.can_go_on, "", lambda: (cells, known))
            yield _program(caches.drop_passed, "", lambda: (cells, NUMBER, NUMBER, known))

    def _of_kv(self) -> Iterator[Program]:
        """New K/V, larger K/V, and what sequence operations make of it."""
        sizes = self.buckets.kv_sizes()
        for n_kv in sizes:
            yield Program("zeros", f"kv {kv_name(n_kv)}", lambda n=n_kv: self._lower_zeros(n))
        for c in range(len(self.caches)):
            for small, large in itertools.combinations(dict.fromkeys(n_kv[c] for n_kv in sizes), 2):
                n_kv = next(n_kv for n_kv in sizes if n_kv[c] == small)
                shape = f"kv {small} to {large} of cache {c}"
                yield _program(grow, shape, lambda n=n_kv, c=c, large=large: (self._kv(n)[c], large))
        copies = self.buckets.n_copies.sizes if self.caches[0].n_streams > 1 else ()
        updates = [*((n, False) for n in copies), *([(0, True)] if self._movable else [])]
        for n_kv, (n, rotate) in itertools.product(sizes, updates):
            shape = f"kv {kv_name(n_kv)}|{'rotated' if rotate else amount(n, 'copy', 'copies')}"
            arguments = functools.partial(self._update_arguments, n_kv, n, rotate)
            yield _program(self.step.updates, shape, arguments)

    def _of_logits(self, n_outputs: Sequence[int]) -> Iterator[Program]:
        n_vocab, device = self.batch_config.n_vocab, self.step.device
        shapes = [jax.ShapeDtypeStruct((n, n_vocab), np.float32) for n in n_outputs]
        logits = device_shapes(shapes, device)
        for n, buffer in zip(n_outputs, logits, strict=True):
            yield _program(take_row, f"out {n}", lambda buffer=buffer: (buffer, NUMBER))
        yield from sampling_programs(logits, n_seq_max=self.caches[0].n_seq_max, device=device)

    def _of_loops(self) -> Iterator[Program]:
        """Many steps in one dispatch."""
        memory, control, device = self.caches[0], self.control, self.step.device
        program = loop_program(*self.step.structure, self.caches)
        drawing = device_shapes(drawing_of(memory.n_seq_max, self.batch_config.n_vocab), device)
        for bucket in self.buckets.loops(memory.n_seq_max):
            rows = no_rows(bucket, memory)
            host = *device_shapes((rows, np.int32(0)), control), self.caches
            yield _program(steps_room, f"{rows.seqs.shape[0]} rows", lambda host=host: (self._cells, *host))
            given = device_shapes((self._cells, rows, np.int32(0), np.bool_(False)), device)
            for n_kv in self.buckets.kv_sizes():
                yield _program(
                    program,
                    shape_name(bucket, n_kv),
                    lambda n=n_kv, given=given, b=bucket: (
                        device_shapes(self.step.leaves, device),
                        self._kv(n),
                        *given,
                        drawing,
                        b,
                    ),
                )

    @property
    def _movable(self) -> bool:
        """Whether positions can be moved; those of M-RoPE can't."""
        return self.caches[0].n_pos == 1

    @property
    def _cells(self) -> AllCells:
        return device_shapes(caches.empty(self.caches), self.control)

    def _batch(self, capacity: int, width: Widths) -> Batch:
        embd, state = width
        rows: dict[str, Any] = {"embd": np.zeros((1, embd))} if embd else {"token": [0]}
        if state:
            rows["state"] = np.zeros((1, state))
        return host_shapes(Batch.from_arrays(**rows, config=self.batch_config, capacity=capacity))

    def _plan_arguments(self, capacity: int, width: Widths) -> tuple[Any, ...]:
        sizes = self.batch_config, self.caches, self.n_ubatch
        return (self._batch(capacity, width), self._cells, NUMBER, host_shapes(CAUSAL), *sizes)

    def _ubatch_arguments(self, capacity: int, width: Widths) -> tuple[Any, ...]:
        """A batch, its plan and slots, and the number of a ubatch."""
        prepared, _ = plan_decode.eval_shape(*self._plan_arguments(capacity, width))
        plan, slot = device_shapes((prepared.plan, prepared.slot), self.control)
        return self._batch(capacity, width), plan, slot, NUMBER

    def _advance_arguments(self, capacity: int, width: Widths) -> tuple[Any, ...]:
        return self._cells, *self._ubatch_arguments(capacity, width), self.caches

    def _step_arguments(self, n_kv: tuple[int, ...], width: Widths, bucket: Bucket) -> tuple[Any, ...]:
        staged_in = functools.partial(stage, bucket=bucket, caches=self.caches)
        arguments = self._ubatch_arguments(self.buckets.capacity.top, width)
        staged = jax.eval_shape(staged_in, self._cells, *arguments, CAUSAL.causal)
        leaves, staged = device_shapes((self.step.leaves, staged), self.step.device)
        return leaves, self._kv(n_kv), staged

    def _pool_arguments(self, n_rows: int) -> tuple[Any, ...]:
        rows, *rest = pool_shapes(n_rows, 32 * self.batch_config.n_words, self.step.config.n_embd)
        return device_shapes(rows, self.step.device), *rest

    def _update_arguments(self, n_kv: tuple[int, ...], n_copies: int, rotate: bool) -> tuple[Any, ...]:
        leaves, cells = device_shapes((self.step.leaves, self._cells), self.step.device)
        return leaves, self._kv(n_kv), cells, n_copies, rotate

    def _zeros_arguments(self, n_kv: tuple[int, ...]) -> tuple[Any, ...]:
        return self.step.config, self.caches, n_kv, jnp.dtype(self.kv_dtype)

    def _lower_zeros(self, n_kv: tuple[int, ...]) -> jax.stages.Lowered:
        with jax.default_device(self.step.device):  # as when K/V is made
            return zeros.lower(*self._zeros_arguments(n_kv))

    def _kv(self, n_kv: tuple[int, ...]) -> AllKV:
        return device_shapes(zeros.eval_shape(*self._zeros_arguments(n_kv)), self.step.device)


def _batch_name(capacity: int, width: Widths) -> str:
    return f"batch {capacity}{_width_name(width)}"


def _width_name(width: Widths) -> str:
    return "".join(f"|{name} {n}" for name, n in zip(("embd", "state"), width, strict=True) if n)


def _program(function: Any, shape: str, arguments: Callable[[], tuple[Any, ...]]) -> Program:
    return Program(function.__name__, shape, lambda: function.lower(*arguments()))


@dataclasses.dataclass(frozen=True)
class CompiledProgram:
    """A program that is ready: seconds to trace, lower and compile it; bytes it takes while it runs, where known."""

    function: str
    shape: str
    seconds: float
    temp_bytes: int | None


@dataclasses.dataclass(frozen=True)
class Warmup:
    """What a warm-up compiled, in order; `compilations` says what was new and what the persistent cache had."""

    programs: tuple[CompiledProgram, ...]
    compilations: CompileCount

    @property
    def seconds(self) -> float:
        """All programs together."""
        return sum((program.seconds for program in self.programs), 0.0)

    @property
    def temp_bytes(self) -> int:
        """The most that one program takes besides its arguments and results."""
        return max((program.temp_bytes or 0 for program in self.programs), default=0)

    @property
    def summary(self) -> str:
        """One line."""
        return (
            f"{amount(len(self.programs), 'program')} in {self.seconds:.1f} s "
            f"({self.compilations.total - self.compilations.cached} compiled, "
            f"{self.compilations.cached} from the persistent cache), "
            f"at most {self.temp_bytes / 2**20:.1f} MiB of temporary memory"
        )

    def __str__(self) -> str:
        cells = [_COLUMNS, *(_cells_of(program) for program in self.programs)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(_COLUMNS))]
        lines = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells)
        return "\n".join([*lines, self.summary])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in _cells_of(p)) for p in self.programs)
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<table><caption>{html.escape(self.summary)}</caption><tr>{head}</tr>{body}</table>"


_COLUMNS = ["function", "shape", "seconds", "temporary MiB"]


def _cells_of(program: CompiledProgram) -> list[str]:
    taken = "unknown" if program.temp_bytes is None else f"{program.temp_bytes / 2**20:.2f}"
    return [program.function, program.shape, f"{program.seconds:.2f}", taken]


OnProgram: TypeAlias = Callable[[CompiledProgram, int, int], None]


def warm_up(programs: Sequence[Program], on_program: OnProgram | None = None) -> Warmup:
    """Compile the programs one after the other; `on_program(program, i, n)` hears when the i-th of n is ready."""
    ready = []
    with count_compilations() as compilations:
        for program in programs:
            start = time.perf_counter()
            memory = program.lower().compile().memory_analysis()
            seconds = time.perf_counter() - start
            temp_bytes = None if memory is None else int(memory.temp_size_in_bytes)
            ready.append(CompiledProgram(program.function, program.shape, seconds, temp_bytes))
            if on_program is not None:
                on_program(ready[-1], len(ready), len(programs))
    return Warmup(tuple(ready), compilations)
