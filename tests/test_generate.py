"""Greedy generation: the prompt in pieces, the ends, the refusals, and no compilation the second time."""

import numpy as np
import pytest

from tests.tiny import Letters, tiny_engine
from ubjax import count_compilations


def greedy_by_hand(engine, ids, n):
    """One decode per token, argmax on the host."""
    out = []
    outputs = engine.decode(engine.batch(ids))
    for _ in range(n):
        out.append(int(np.argmax(outputs.logits(-1))))
        outputs = engine.decode(engine.batch([out[-1]]))
    engine.clear()
    return out


def test_tokens_equal_those_chosen_by_hand_and_the_sequence_is_free_again():
    engine = tiny_engine(n_batch=4)
    want = greedy_by_hand(tiny_engine(), [5, 6, 7, 8, 9, 10], 8)
    result = engine.generate([5, 6, 7, 8, 9, 10], max_tokens=8)
    assert result.tokens == want
    assert (result.finish_reason, result.text, result.prompt_tokens) == ("length", "", [5, 6, 7, 8, 9, 10])
    assert engine.pos_max(0) == -1
    assert (result.usage.tokens, result.usage.decodes) == (6 + 7, 2 + 7)  # the last token is not decoded


def test_text_is_streamed_and_equals_the_tokens():
    engine = tiny_engine(Letters())
    pieces = []
    result = engine.generate("hello", max_tokens=5, on_text=pieces.append)
    assert "".join(pieces) == result.text == Letters().feed(result.tokens)
    assert len(result.tokens) == 5 and len(pieces) == 5


def test_an_end_token_stops_and_is_not_part_of_the_result():
    engine = tiny_engine(Letters())
    free = engine.generate("hello", max_tokens=6)
    letters = Letters()
    letters.eog_ids = frozenset({free.tokens[3]})
    stopped = tiny_engine(letters).generate("hello", max_tokens=6)
    cut = free.tokens.index(free.tokens[3])
    assert (stopped.tokens, stopped.finish_reason) == (free.tokens[:cut], "stop")


def test_the_context_ends_a_generation():
    engine = tiny_engine(n_ctx=16)
    result = engine.generate([1, 2, 3], max_tokens=100)
    assert result.finish_reason == "context"
    assert len(result.tokens) == 14  # cells for 13 of them; the last needs none
    whole = engine.generate([1] * 16, max_tokens=100)
    assert (len(whole.tokens), whole.finish_reason) == (1, "context")


@pytest.mark.parametrize(
    ("prompt", "arguments", "words"),
    [
        ("", {}, "the prompt has 0 tokens, at least 1 is needed"),
        ([], {}, "the prompt has 0 tokens"),
        ([1] * 65, {}, "the prompt has 65 tokens, the context holds 64 of one sequence"),
        ([1], {"max_tokens": 0}, "max_tokens is 0, at least 1 is needed"),
    ],
)
def test_refusals_before_any_work(prompt, arguments, words):
    engine = tiny_engine(Letters())
    with pytest.raises(ValueError, match=words):
        engine.generate(prompt, **arguments)
    assert engine.usage.decodes == 0


def test_text_without_a_tokenizer_and_an_occupied_sequence():
    engine = tiny_engine()
    with pytest.raises(ValueError, match="the engine has no tokenizer"):
        engine.generate("hello")
    engine.decode(engine.batch([1, 2]))
    with pytest.raises(ValueError, match="sequence 0 holds positions up to 1: generate needs it empty"):
        engine.generate([1])


def test_an_unknown_token_id_leaves_an_empty_sequence():
    engine = tiny_engine(n_batch=2)
    with pytest.raises(ValueError, match="token 0 has id 61"):
        engine.generate([1, 2, 61])
    assert engine.pos_max(0) == -1


def test_the_second_run_compiles_nothing_nor_does_another_length_in_the_same_buckets():
    engine = tiny_engine(Letters())
    first = engine.generate("a prompt of some length", max_tokens=20)
    with count_compilations() as count:
        second = engine.generate("a prompt of some length", max_tokens=20)
        engine.generate("a prompt of another length!", max_tokens=14)
    assert count.total == 0, str(count)
    assert second.tokens == first.tokens
    assert second.usage.buckets == first.usage.buckets
