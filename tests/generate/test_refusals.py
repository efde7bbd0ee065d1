"""What can't be done is refused before any work or alone; what belongs to the caller is left alone."""

import numpy as np
import pytest

from tests.generate.engines import same, shared, streams
from tests.tiny import CONFIG, state, unchanged
from ubjax.generate import Sampling


def test_a_prompt_that_is_wrong_is_refused_alone():
    too_long = [1] * 97
    found = shared().generate([[1, 2], too_long, [], [1, 61], "a\nb", "abc"], max_tokens=3)
    assert [result.finish_reason for result in found] == ["length", *["refused"] * 4, "length"]
    assert [result.error for result in found[1:4]] == [
        "the prompt has 97 tokens, the context holds 96 of one sequence; a larger n_ctx is needed",
        "the prompt has 0 tokens, at least 1 is needed",
        "token 1 has id 61, an id in [0, 61) is needed",
    ]
    assert "substring not found" in found[4].error and found[4].tokens == []
    assert found[0].tokens == shared().generate([1, 2], max_tokens=3).tokens


@pytest.mark.parametrize(
    ("prompt", "arguments", "words"),
    [
        ("", {}, "the prompt has 0 tokens, at least 1 is needed"),
        ([1] * 97, {}, "the prompt has 97 tokens, the context holds 96 of one sequence"),
        ([1, 2, 61], {}, "token 2 has id 61"),
        ([1], {"max_tokens": 0}, "max_tokens is 0, at least 1 is needed"),
        (
            [[1], [2]],
            {"sampling": [Sampling()]},
            r"sampling has 1 entry, one or 2 \(the prompts\) are needed",
        ),
        ([[1], [2]], {"stop_tokens": [-1]}, "stop_tokens names token -1"),
        ([1], {"max_prompt_tokens_per_batch": 0}, "max_prompt_tokens_per_batch is 0"),
        ([[1], [2]], {"on_text": print}, "on_text takes the text of a single output"),
    ],
)
def test_refusals_before_any_work(prompt, arguments, words):
    decodes = shared().usage.decodes
    with pytest.raises(ValueError, match=words):
        shared().generate(prompt, **arguments)
    assert shared().usage.decodes == decodes


def test_no_prompts_have_no_generations():
    decodes = shared().usage.decodes
    assert shared().generate([]) == [] == shared().generate([], n=2, sampling=[])
    with shared().stream(()) as pieces:
        assert [*pieces] == [] == pieces.results
    assert shared().embed([]).shape == (0, CONFIG.n_embd)  # as with texts
    assert shared().usage.decodes == decodes


def test_streams_say_that_they_divide_the_context():
    with pytest.raises(
        ValueError, match=r"holds 48 of one .* n_ctx is needed \(it is divided among 4 sequences"
    ):
        streams().generate([1] * 49)


def test_an_unknown_argument_is_no_silent_wish():
    with pytest.raises(TypeError, match="max_token"):
        shared().generate([1], max_token=3)


def test_text_without_a_tokenizer(monkeypatch):
    monkeypatch.setattr(shared(), "tokenizer", None)
    with pytest.raises(ValueError, match="the engine has no tokenizer: token ids are needed"):
        shared().generate("hello")
    with pytest.raises(ValueError, match="the engine has no tokenizer: stop_tokens can be given"):
        shared().generate([1], stop="a")
    assert shared().generate([1], max_tokens=2).text == ""


def test_sequences_of_the_caller_are_left_alone():
    engine = shared()
    alone = engine.generate([[1, 2, 3], [4]], max_tokens=5, logprobs=2)
    engine.decode(engine.batch([5, 6, 7, 8], seq_id=[0, 0, 2, 2]))
    beside = engine.generate([[1, 2, 3], [4]], max_tokens=5, logprobs=2)
    assert all(same(found, lone) for found, lone in zip(beside, alone, strict=True))
    assert [engine.pos_max(seq) for seq in range(4)] == [1, -1, 1, -1]
    with pytest.raises(ValueError, match=r"holds 92 of one sequence \(4 of 96 cells are taken, rm frees"):
        engine.generate([1] * 93)
    with pytest.raises(ValueError, match="holds 92 of one sequence; a larger n_ctx is needed"):
        engine.generate([1] * 97)
    engine.decode(engine.batch([5, 6], seq_id=[1, 3]))
    before = state(engine)
    with pytest.raises(ValueError, match="all 4 sequences hold tokens, an empty one is needed"):
        engine.generate([1])
    assert unchanged(engine, before)
    engine.clear()


def test_an_error_in_between_leaves_empty_sequences():
    def fail(piece):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        shared().generate([[1, 2], [3]], on_piece=fail)


def test_logits_without_a_number_refuse_the_output(monkeypatch):
    engine = shared()
    inside = vars(engine)
    step = inside["_step"]

    class NoNumbers:
        device = step.device
        new_kv = step.new_kv

        def __call__(self, kv, staged):
            logits, kv = step(kv, staged)
            return logits * np.float32(np.nan), kv

    monkeypatch.setitem(inside, "_step", NoNumbers())
    found = engine.generate([1, 2], max_tokens=3)
    assert (found.finish_reason, found.tokens) == ("refused", [])
    assert found.error.startswith("sequence 0 has 0 tokens to choose from")
