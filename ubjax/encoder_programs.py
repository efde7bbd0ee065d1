"""The programs of an encoder's engine, from shapes alone (see warmup.py)."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ubjax.batch import Batch
from ubjax.buckets import Bucket, EncoderBuckets, span_name
from ubjax.config import BatchConfig
from ubjax.encoding import EncodeStep, plan_encode
from ubjax.pooling import pool_rows, pool_shapes
from ubjax.programs import Program, device_shapes
from ubjax.ubatch import take_ubatch

NUMBER = jax.ShapeDtypeStruct((), np.int32)


@dataclasses.dataclass(frozen=True)
class EncoderPrograms:
    """Iterating gives the plans, for each bucket what takes its rows and pools them, the encoders, and the ranking.

    Batches come without token types and, for a model of several, with them. `control`: where plans are made.
    """

    step: EncodeStep
    buckets: EncoderBuckets
    batch_config: BatchConfig
    _: dataclasses.KW_ONLY
    n_embd: int
    n_types: int
    control: Any

    def __iter__(self) -> Iterator[Program]:
        batches = [self._batch(n, typed) for n in self.buckets.capacity.sizes for typed in self._typed]
        for batch in batches:
            arguments = (batch, NUMBER, self.batch_config)
            yield _program(plan_encode, _batch_name(batch), lambda arguments=arguments: arguments)
        shapes = self.buckets.shapes()
        for bucket in dict.fromkeys(bucket for bucket, _ in shapes):
            for batch in batches:
                name = f"1x{bucket.n_rows}|{_batch_name(batch)}"
                yield _program(take_ubatch, name, lambda b=batch, u=bucket: self._take(b, u))
            yield _program(pool_rows, f"1x{bucket.n_rows}", lambda u=bucket: self._pool(u))
        for bucket, span in shapes:
            for typed in self._typed:
                name = span_name(bucket, span) + ("|types" if typed else "")
                yield _program(
                    self.step.program, name, lambda u=bucket, s=span, t=typed: self._encode(u, s, typed=t)
                )
        if self.step.has_head:
            yield _program(self.step.rank_program, "", self._rank)

    @property
    def _typed(self) -> tuple[bool, ...]:
        return (False, True) if self.n_types > 1 else (False,)

    def _batch(self, capacity: int, typed: bool) -> Batch:
        state = [[0.0]] if typed else None
        batch = Batch.from_arrays([0], config=self.batch_config, capacity=capacity, state=state)
        return device_shapes(batch, self.control)

    def _take(self, batch: Batch, bucket: Bucket) -> tuple[Any, ...]:
        found, _ = plan_encode.eval_shape(batch, NUMBER, self.batch_config)
        return batch, device_shapes(found.plan, self.control), NUMBER, bucket

    def _encode(self, bucket: Bucket, span: int, *, typed: bool) -> tuple[Any, ...]:
        batch = self._batch(self.buckets.capacity.top, typed)
        ubatch = jax.eval_shape(lambda *args: take_ubatch(*args, bucket), *self._take(batch, bucket)[:3])
        return *device_shapes((self.step.leaves, ubatch), self.step.device), span

    def _pool(self, bucket: Bucket) -> tuple[Any, ...]:
        rows, *rest = pool_shapes(bucket.n_rows, 32 * self.batch_config.n_words, self.n_embd)
        return device_shapes(rows, self.step.device), *rest

    def _rank(self) -> tuple[Any, ...]:
        first = jax.ShapeDtypeStruct((32 * self.batch_config.n_words, self.n_embd), np.float32)
        return device_shapes((self.step.leaves, first), self.step.device)


def _batch_name(batch: Batch) -> str:
    return f"batch {batch.capacity}" + ("|types" if batch.state.shape[1] else "")


def _program(function: Any, shape: str, arguments: Callable[[], tuple[Any, ...]]) -> Program:
    return Program(function.__name__, shape, lambda: function.lower(*arguments()))
