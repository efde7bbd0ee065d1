"""Generation on a tiny model: company, preemption, cancelling, sharing and sampling change no output."""

import numpy as np
import pytest

from tests.generate.engines import clear_until, prompts, same, shared, streams
from tests.tiny import Letters
from ubjax import count_compilations
from ubjax.generate import Sampling

HOT = Sampling(temperature=1.5, top_k=40, top_p=0.95, repeat_penalty=1.2, frequency_penalty=0.1, seed=7)


def greedy_by_hand(engine, ids, n):
    """Token by token, argmax on the host."""
    out = []
    for at in range(0, len(ids), 4):
        outputs = engine.decode(engine.batch(ids[at : at + 4]))
    for _ in range(n):
        out.append(int(np.argmax(outputs.logits(-1))))
        outputs = engine.decode(engine.batch([out[-1]]))
    engine.clear()
    return out


def test_tokens_equal_those_chosen_by_hand():
    want = greedy_by_hand(shared(), [5, 6, 7, 8, 9, 10], 8)
    result = shared().generate([5, 6, 7, 8, 9, 10], max_tokens=8)
    assert result.tokens == want
    assert (result.finish_reason, result.prompt_tokens) == ("length", [5, 6, 7, 8, 9, 10])
    usage = result.report.usage
    assert (usage.tokens, usage.ubatches) == (6 + 7, 2 + 7)  # the last token is not decoded
    assert usage.decodes == 2 + 1  # all steps are one dispatch
    assert (result.report.n_prompt, result.report.n_generated) == (6, 8)


@pytest.mark.parametrize("engine", [shared, streams])
def test_ragged_prompts_equal_lone_runs_and_the_second_time_compile_nothing(engine):
    engine = engine()
    many = prompts(16, 40)
    together = engine.generate(many, max_tokens=20, logprobs=2)
    assert [found.prompt_tokens for found in together] == many
    alone = [engine.generate(prompt, max_tokens=20, logprobs=2) for prompt in many]
    assert all(same(found, lone) for found, lone in zip(together, alone, strict=True))
    assert sum(clear_until(lone) for lone in alone) > 200
    assert (together[0].report.n_preempted > 0) == engine.memory.unified
    with count_compilations() as count:
        again = engine.generate(many, max_tokens=20, logprobs=2)
    assert count.total == again[0].report.compilations.total == 0, str(count)
    assert [found.tokens for found in again] == [found.tokens for found in together]
    assert again[0].report.usage.buckets == together[0].report.usage.buckets


def test_preempted_draws_equal_undisturbed_ones_and_parameters_compile_nothing():
    many = prompts(8, 40, seed=3)
    wanted = [Sampling(**{**vars(HOT), "seed": seed, "min_p": 0.01 * seed}) for seed in range(8)]
    together = shared().generate(many, max_tokens=30, sampling=wanted)
    assert together[0].report.n_preempted > 0
    with count_compilations() as count:
        alone = [
            shared().generate(prompt, max_tokens=30, sampling=own)
            for prompt, own in zip(many, wanted, strict=True)
        ]
        shared().generate(many[0], sampling=Sampling(logit_bias={3: 2.0}, allowed=[3, 4], typical_p=0.9))
    assert count.total == 0, str(count)
    assert [found.tokens for found in together] == [lone.tokens for lone in alone]


def test_draws_depend_on_the_seed_alone():
    prompt = [3, 1, 4, 1, 5]
    first, second = (shared().generate(prompt, max_tokens=12, sampling=HOT) for _ in range(2))
    other = shared().generate(prompt, max_tokens=12, sampling=Sampling(**{**vars(HOT), "seed": 8}))
    assert first.tokens == second.tokens != other.tokens


@pytest.mark.parametrize("engine", [shared, streams])
def test_outputs_of_one_prompt_have_their_own_seeds_and_share_its_cells(engine):
    engine = engine()
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    result = engine.generate(prompt, max_tokens=6, sampling=HOT, n=3)
    seeds = [Sampling(**{**vars(HOT), "seed": HOT.seed + i}) for i in range(3)]
    alone = [engine.generate(prompt, max_tokens=6, sampling=own) for own in seeds]
    outputs = [result, *result.others]
    assert [found.tokens for found in outputs] == [lone.tokens for lone in alone]
    assert [(found.index, found.output) for found in outputs] == [(0, 0), (0, 1), (0, 2)]
    assert result.report.n_prompt == 9 + 2


def test_shared_cells_are_counted_once():
    with shared().stream([[3, 1, 4, 1, 5, 9, 2, 6, 5]], max_tokens=20, n=3) as stream:
        for piece in stream:
            if piece.output == 2:
                break
        own = [shared().pos_max(seq) + 1 - 8 for seq in range(3)]
        assert 96 - shared().n_free_cells() == 8 + sum(own) and min(own) >= 1


@pytest.mark.parametrize("engine", [shared, streams])
def test_a_cancelled_prompt_frees_its_cells_and_leaves_the_others_alone(engine):
    engine = engine()
    many = prompts(6, 20, seed=1)
    alone = engine.generate(many, max_tokens=15, logprobs=2)
    stream = engine.stream(many, max_tokens=15, logprobs=2)
    seen = 0
    for piece in stream:
        seen += piece.index == 1 and piece.finish_reason is None
        if seen == 3:
            free = engine.n_free_cells()
            stream.cancel(1)
            assert engine.n_free_cells() == free + len(many[1]) + 2  # the third token is not in the cache yet
            stream.cancel(5)  # one that waits
            stream.cancel(5)
            break
    ends = {piece.index: piece.finish_reason for piece in stream if piece.finish_reason}
    assert (ends[1], ends[5]) == ("cancelled", "cancelled")
    found = stream.results
    assert (found[1].finish_reason, found[1].tokens) == ("cancelled", alone[1].tokens[:3])
    assert (found[5].tokens, found[5].first_token_seconds) == ([], None)
    assert all(same(found[k], alone[k]) for k in (0, 2, 3, 4))
    with pytest.raises(ValueError, match=r"prompt 6 is unknown, a prompt in \[0, 6\)"):
        stream.cancel(6)


def test_results_wait_for_the_end_and_a_closed_stream_has_ended():
    stream = shared().stream([[1, 2], [3]], max_tokens=4)
    with pytest.raises(ValueError, match="2 of 2 outputs have not ended"):
        _ = stream.results
    next(stream)
    stream.close()
    assert [found.finish_reason for found in stream.results] == ["cancelled", "cancelled"]


def test_text_arrives_in_pieces_by_callback_and_iterator():
    texts, pieces = [], []
    result = shared().generate("hello", max_tokens=5, on_text=texts.append, on_piece=pieces.append)
    assert "".join(texts) == result.text == Letters().feed(result.tokens) and len(texts) == 5
    assert [token for piece in pieces for token in piece.tokens] == result.tokens
    stream = shared().stream(["hello", "you"], max_tokens=5)
    shown = {0: "", 1: ""}
    for piece in stream:
        shown[piece.index] += piece.text
    assert [found.text for found in stream.results] == [shown[0], shown[1]]
    assert shown[0] == result.text
    assert all(0 <= found.first_token_seconds <= 60 for found in stream.results)


def test_end_tokens_and_stops_end_an_output():
    sampling = Sampling(temperature=2.0, seed=5)
    free = shared().generate("hello", max_tokens=12, sampling=sampling)
    at = next(i for i, token in enumerate(free.tokens) if i > 2 and token not in free.tokens[:i])
    by_token = shared().generate("hello", max_tokens=12, sampling=sampling, stop_tokens=[free.tokens[at]])
    assert (by_token.tokens, by_token.finish_reason) == (free.tokens[:at], "stop")
    stop = free.text[at - 1 : at + 1]
    by_text = shared().generate("hello", max_tokens=12, sampling=sampling, stop=["never", stop])
    cut = free.text.index(stop)
    assert (by_text.text, by_text.finish_reason) == (free.text[:cut], "stop")
    assert by_text.tokens == free.tokens[: cut + 2]
    assert shared().n_free_cells() == 96  # no cell is left of what went beyond
    ended = shared().generate("hello", sampling=Sampling(allowed=[0]))
    assert (ended.tokens, ended.text, ended.finish_reason) == ([], "", "stop")


def test_only_allowed_tokens_are_taken_and_biases_count():
    sampling = Sampling(temperature=3.0, allowed=[4, 9, 33], logit_bias={9: -np.inf})
    found = shared().generate([1, 2], max_tokens=30, sampling=sampling)
    assert set(found.tokens) == {4, 33}
    forced = shared().generate([1, 2], max_tokens=3, sampling=Sampling(logit_bias={17: 100.0}))
    assert forced.tokens == [17, 17, 17]


def test_log_probabilities_are_those_of_the_model():
    ids = [5, 6, 7]
    result = shared().generate(ids, max_tokens=2, logprobs=2)
    logits = shared().decode(shared().batch(ids)).logits(-1)
    shared().clear()
    want = logits - np.log(np.sum(np.exp(logits)))
    first = result.logprobs[0]
    assert first.token == result.tokens[0] == int(np.argmax(want)) == first.top[0][0]
    assert np.allclose(
        [first.logprob, *(x for _, x in first.top)], [want.max(), *np.sort(want)[:-3:-1]], atol=1e-4
    )


def test_the_context_ends_a_generation():
    result = streams().generate([1] * 40, max_tokens=100)
    assert (len(result.tokens), result.finish_reason) == (9, "context")  # the last needs no cell
    whole = streams().generate([1] * 48, max_tokens=100)
    assert (len(whole.tokens), whole.finish_reason) == (1, "context")


def test_prompt_tokens_of_a_batch_are_limited(monkeypatch):
    engine, sizes = shared(), []
    decode = engine.decode
    monkeypatch.setattr(engine, "decode", lambda batch: (sizes.append(int(batch.n_tokens)), decode(batch))[1])
    limited = engine.generate([[1] * 20, [2, 3]], max_tokens=4, logprobs=2, max_prompt_tokens_per_batch=2)
    assert sizes[:10] == [2] * 10 and max(sizes) <= 3
    monkeypatch.undo()
    assert all(
        same(found, lone)
        for found, lone in zip(
            limited, engine.generate([[1] * 20, [2, 3]], max_tokens=4, logprobs=2), strict=True
        )
    )


def test_results_show_what_they_cost():
    result = shared().generate("hello", max_tokens=3)
    shown = str(result)
    for words in (
        result.text,
        "5 prompt tokens, ",
        "3 generated, ",
        "(length)",
        "buckets",
        "compilations in",
    ):
        assert words in shown
    html = result._repr_html_()
    assert "<table>" in html and "5 prompt tokens" in html and "<pre" in html
    assert "3 generated" in str(result.report) and "<td" in result.report._repr_html_()
