"""Schedule: which outputs run, and which of their tokens go into the next batch. Host state only.

    waiting [C D]   running [A B]   free []        A has chosen a token, B is in the middle of its prompt
    parts           A: 1 token | B: as many prompt tokens as the batch has room for

First come, first served: only the head of `waiting` is admitted, and only the newest of `running` is put back, to
the head of `waiting`. So everything that runs came before everything that waits, and the oldest always goes on.
"""

import bisect
import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence

from ubjax.generate.request import Request


@dataclasses.dataclass(eq=False, kw_only=True)
class Run:
    """One output on its way: `ids` are the prompt and its tokens so far, the first `cached` of them in the cache.

    index: of the prompt. output: its number among the outputs of the prompt. seq: its sequence, None while it
    waits. n_prefill: ids at the time it was admitted, so that cached < n_prefill while it has nothing to say.
    n_dropped: ids that context shifts have taken out of `ids`. alone: nothing is to be taken over from another output.
    """

    index: int
    output: int
    request: Request
    ids: list[int]
    seq: int | None = None
    cached: int = 0
    n_prefill: int = 0
    n_dropped: int = 0
    alone: bool = False

    @property
    def pending(self) -> int:
        """Ids that are not in the cache."""
        return len(self.ids) - self.cached

    @property
    def sequence(self) -> int:
        """The sequence of a run that was admitted."""
        if self.seq is None:
            raise ValueError(f"output {self.output} of prompt {self.index} waits: it has no sequence")
        return self.seq

    def drop(self, p0: int, p1: int) -> None:
        """Take the cached ids [p0, p1) out."""
        del self.ids[p0:p1]
        self.cached -= p1 - p0
        self.n_dropped += p1 - p0
        self.n_prefill = min(self.n_prefill, self.cached)

    @property
    def n_shared(self) -> int:
        """Prompt tokens that the outputs of a prompt compute once: all but the last, which gives the logits."""
        return len(self.request.ids) - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """The next `n` ids of a run, to go into a batch."""

    run: Run
    n: int

    @property
    def ids(self) -> list[int]:
        """The tokens."""
        return self.run.ids[self.run.cached : self.run.cached + self.n]

    @property
    def wanted(self) -> bool:
        """Whether the last of them gives a new token."""
        return self.n == self.run.pending

    @property
    def n_prompt(self) -> int:
        """How many of them are prompt (or tokens that an earlier turn had chosen)."""
        return self.n if self.run.cached < self.run.n_prefill else 0


Claim = Callable[[Sequence[int], Sequence[int]], tuple[int, int]]


def first_free(free: Sequence[int], ids: Sequence[int]) -> tuple[int, int]:
    """The first free sequence, which holds nothing."""
    return free[0], 0


def halved(parts: Sequence[Part]) -> list[Part]:
    """The first half of the parts, or of the tokens of a single part; [] when that is one row already."""
    if len(parts) > 1:
        return list(parts[: len(parts) // 2])
    return [dataclasses.replace(part, n=part.n // 2) for part in parts if part.n > 1]


class Schedule:
    """The queue of runs over the sequence ids `seqs`.

    n_batch: tokens of a batch. n_ubatch: a batch takes as many prompt tokens as one ubatch has room for beside
    the running rows, unless max_prompt_tokens says how many. shared: the cells are those of one stream, so
    that prompts can share a ubatch, and admission has to count cells.
    """

    def __init__(
        self,
        runs: Iterable[Run],
        seqs: Iterable[int],
        *,
        n_batch: int,
        n_ubatch: int,
        max_prompt_tokens: int | None = None,
        shared: bool = False,
    ):
        self.waiting = collections.deque(runs)
        self.running: list[Run] = []
        self.free = sorted(seqs)[:n_batch]  # each of them needs a row in every batch
        self._n_batch, self._n_ubatch = n_batch, n_ubatch
        self._max_prompt_tokens, self._shared = max_prompt_tokens, shared

    def __bool__(self) -> bool:
        return bool(self.waiting or self.running)

    def admit(self, n_free_cells: int, claim: Claim = first_free) -> list[Run]:
        """Move runs from the head of the queue to the running ones; they have a sequence now.

        n_free_cells: of the cache, when unified: what the running ones are about to take is set aside first. The
        head is admitted when its ids and one more fit, or when nothing runs. claim: chooses one of the free
        sequences for some ids, and says how many of them it holds already.
        """
        admitted = []
        n_free_cells -= sum(self._need(run) for run in self.running)
        while self.waiting and self.free:
            run = self.waiting[0]
            need = self._need(run)
            if self._shared and self.running and need + 1 > n_free_cells:
                break
            n_free_cells -= need
            self.waiting.popleft()
            alone = self._donor(run) is None
            run.seq, run.cached = claim(self.free, run.ids if alone else [])
            self.free.remove(run.seq)
            run.n_prefill = len(run.ids)
            self.running.append(run)
            admitted.append(run)
        return admitted

    def _need(self, run: Run) -> int:
        return run.pending - (run.n_shared if not run.cached and self._donor(run) else 0)

    def _donor(self, run: Run) -> Run | None:
        """An older running output of the same prompt, whose cells the run can take over; both still begin with it."""
        if not run.n_shared or run.alone or run.n_dropped:
            return None
        same = (r for r in self.running if r.index == run.index and r.output < run.output)
        return next((r for r in same if not r.n_dropped), None)

    def share(self, holds: Callable[[int, int], bool] = lambda seq, n: True) -> list[tuple[Run, Run]]:
        """Pairs (donor, run): the run takes over the donor's first run.cached cells before the next batch.

        holds: whether a sequence still has all that can be seen from position n. A run without such a donor computes
        its prompt itself.
        """
        pairs = []
        for run in self.running:
            donor = None if run.cached else self._donor(run)
            if donor and donor.cached >= run.n_shared:
                run.alone = not holds(donor.sequence, run.n_shared)
                if not run.alone:
                    run.cached = run.n_shared
                    pairs.append((donor, run))
        return pairs

    def parts(self) -> list[Part]:
        """The next batch: one token of each run that generates, then prompt tokens, oldest run first.

        With streams, those of a single prompt: an equal split would cut several of different lengths into rectangles
        of many shapes, each of them a step of its own and, the first time, a program.
        """
        rows = [Part(run=run, n=1) for run in self.running if run.cached >= run.n_prefill]
        room = self._n_batch - len(rows)
        room = min(room, self._max_prompt_tokens or max(self._n_ubatch - len(rows), 1))
        parts = []
        for run in self.running:
            prompting = run.cached < run.n_prefill and (run.cached > 0 or self._donor(run) is None)
            if prompting and room > 0:
                parts.append(Part(run=run, n=min(run.pending, room)))
                room = room - parts[-1].n if self._shared else 0
        return rows + parts

    def preempt(self) -> int | None:
        """Put the newest run back to the head of the queue; its sequence, to be emptied, or None if it is alone."""
        if len(self.running) < 2:
            return None
        run = self.running[-1]
        seq = self.end(run)
        run.cached = 0
        self.waiting.appendleft(run)
        return seq

    def end(self, run: Run) -> int | None:
        """Take a run out; its sequence, to be emptied, if it had one."""
        if run.seq is None:
            self.waiting.remove(run)
            return None
        self.running.remove(run)
        bisect.insort(self.free, run.seq)
        seq, run.seq = run.seq, None
        return seq
