"""The whole chain: distribution, order, log-probabilities, independence of rows, one program, loops."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.sampling import reference
from ubjax.analysis import count_compilations
from ubjax.sampling import Constraints, LastTokens, SamplingParams, accept, greedy, sample, set_sequence
from ubjax.status import InvalidBatchError, Reason, raise_if_error, sentence

INF = np.inf
S, V = 5, 300
RNG = np.random.default_rng(5)
LOGITS = RNG.normal(0, 2, (16, V)).astype(np.float32)
EVERY_KIND = {
    "temperature": [0.8, 0.0, 1.5, 0.7, 1.0],
    "top_k": [40, 0, 0, 20, 0],
    "typical_p": [1.0, 1.0, 0.7, 0.9, 1.0],
    "top_p": [0.9, 1.0, 1.0, 0.8, 1.0],
    "min_p": [0.05, 0.0, 0.0, 0.0, 0.1],
    "repeat_penalty": [1.3, 1.0, 1.0, 1.1, 1.0],
    "presence_penalty": [0.0, 0.5, 0.0, 0.0, 0.0],
    "frequency_penalty": [0.0, 0.0, 0.3, 0.0, 0.0],
    "seed": [1, 2, 3, 4, 5],
}
BIAS, ALLOWED, WINDOW = {3: 2.5, 7: -INF, 250: 1.0}, sorted(set(range(V)) - {0, 299}), [3, 8, 3, 12]


def i32(values):
    return jnp.asarray(values, jnp.int32)


def everything(**changes):
    """Parameters of S sequences of every kind, with biases, a mask and a window."""
    return (
        SamplingParams.of(S, **(EVERY_KIND | changes)),
        Constraints.of(V, S, n_bias=4, bias=BIAS, allowed=ALLOWED),
        LastTokens.of(WINDOW, S, n_last=4),
    )


def run(logits, seq, pos, setup=None, n_top=2):
    """`sample` in 16 rows; what is not given is padding with NaN logits."""
    rows = np.full((16, V), np.nan, np.float32)
    rows[: len(seq)] = logits
    padded = np.full((2, 16), [[S], [-7]], np.int32)
    padded[0, : len(seq)], padded[1, : len(seq)] = seq, pos
    return sample(jnp.asarray(rows), *jnp.asarray(padded), *(setup or everything()), n_top=n_top)


@pytest.mark.parametrize("seq", range(S))
def test_tokens_are_distributed_as_the_reference_says(seq):
    n, x, setup = 8192, LOGITS[0], everything()
    observed = np.zeros(V, int)
    for i in range(2):
        pos = jnp.arange(i * n, (i + 1) * n, dtype=jnp.int32)
        rows = jnp.broadcast_to(jnp.asarray(x), (n, V))
        observed += np.bincount(sample(rows, jnp.full(n, seq, jnp.int32), pos, *setup).token, minlength=V)
    own = {name: values[seq] for name, values in EVERY_KIND.items()}
    edited = reference.penalized(
        reference.constrained(x.tolist(), BIAS, set(ALLOWED)),
        WINDOW,
        *(own[f"{kind}_penalty"] for kind in ("repeat", "presence", "frequency")),
    )
    if not own["temperature"]:
        assert np.flatnonzero(observed).tolist() == [edited.index(max(edited))]
        return
    left = reference.filtered(edited, *(own[name] for name in ("top_k", "typical_p", "top_p", "min_p")))
    p = reference.probabilities([v / own["temperature"] for v in left])
    value, degrees = reference.chi_square(observed.tolist(), p)
    assert degrees >= 3 and value < reference.critical(degrees)


def test_a_row_depends_on_its_own_sequence_alone():
    seq, pos = np.arange(16) % S, np.arange(16) + 30
    together = run(LOGITS, seq, pos)
    order = RNG.permutation(16)
    shuffled = run(LOGITS[order], seq[order], pos[order])
    assert shuffled.token.tolist() == together.token[order].tolist()
    assert shuffled.logprob.tolist() == together.logprob[order].tolist()
    for i in range(16):
        padded = run(LOGITS[i : i + 1], seq[i : i + 1], pos[i : i + 1])
        alone = sample(jnp.asarray(LOGITS[i : i + 1]), i32([seq[i]]), i32([pos[i]]), *everything(), n_top=2)
        assert int(alone.token[0]) == int(padded.token[0]) == int(together.token[i])
        assert float(alone.logprob[0]) == float(padded.logprob[0]) == float(together.logprob[i])


def test_the_same_key_gives_the_same_token_and_other_positions_and_seeds_others():
    setup = (SamplingParams.of(S, temperature=1.0, seed=[1, 1, 2, 3, 4]), *everything()[1:])
    same, flat = np.zeros(16, np.int32), np.zeros((16, V), np.float32)
    assert len(set(run(flat, same, same + 9, setup).token.tolist())) == 1
    assert (
        run(flat, same + 1, same + 9, setup).token.tolist() == run(flat, same, same + 9, setup).token.tolist()
    )
    assert len(set(run(flat, same, np.arange(16), setup).token.tolist())) > 12
    assert len(set(run(flat[:4], np.arange(1, 5), same[:4], setup).token[:4].tolist())) == 4


def test_parameters_of_any_value_share_one_program():
    setup = everything()
    run(LOGITS[:5], np.arange(5), np.arange(5), setup)
    with count_compilations() as count:
        for changes in ({"temperature": 0}, {"top_k": 3}, {"top_p": 0.1, "seed": 9}, {"repeat_penalty": 2}):
            run(LOGITS[:3], np.arange(3), np.arange(3), everything(**changes))
        free = Constraints.of(V, S, n_bias=4)
        run(LOGITS, np.zeros(16, int), np.arange(16), (setup[0], free, LastTokens.of((), S, n_last=4)))
    assert count.by_name["sample"] == 0


def test_defaults_are_greedy():
    tied = np.round(LOGITS)
    plain = (SamplingParams.of(S), Constraints.of(V, S, n_bias=4), LastTokens.of((), S, n_last=4))
    found = run(tied, np.arange(16) % S, np.arange(16), plain)
    assert found.token.tolist() == greedy(jnp.asarray(tied)).tolist() == np.argmax(tied, axis=1).tolist()
    assert int(found.status.code) == Reason.OK


def test_greedy_rows_see_penalties_and_masks_but_no_filters():
    x = np.zeros((1, V), np.float32)
    x[0, [0, 3, 8, 20]] = [9, 5, 4, 3.9]  # 0 is not allowed, 3 and 8 are in the window, 3 has a bias
    for changes, expected in (({}, 3), ({"presence_penalty": 4.0}, 20), ({"typical_p": 0.0, "top_k": 1}, 3)):
        setup = everything(
            **({"temperature": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0} | changes)
        )
        assert run(x, [4], [0], setup).token[0] == expected


def test_log_probabilities_are_those_of_the_raw_softmax():
    x = LOGITS.copy()
    x[0, [4, 9]] = 30.0  # equal: the smaller id first
    x[1, 5:] = -INF
    params, _, last = everything()
    pull = Constraints.of(
        V, S, n_bias=4, bias={3: 60.0}
    )  # every row takes a token that its logits don't favour
    found = run(x, np.arange(16) % S, np.arange(16), (params, pull, last))
    assert found.token.tolist() == [3] * 16
    expected = np.stack([np.log(np.maximum(reference.probabilities(row.tolist()), 1e-300)) for row in x])
    np.testing.assert_allclose(found.logprob, expected[np.arange(16), found.token], rtol=1e-4, atol=1e-5)
    assert found.top_token[0].tolist() == [4, 9]
    for row, tokens, logprobs in zip(x, found.top_token, found.top_logprob, strict=True):
        best = sorted(range(V), key=lambda t: (-row[t], t))[:2]
        assert tokens.tolist() == best
        np.testing.assert_allclose(
            logprobs, np.log(np.asarray(reference.probabilities(row.tolist()))[best]), rtol=1e-4
        )


def test_padding_and_poison_give_no_token_and_disturb_nobody():
    whole = run(LOGITS[:6], np.arange(6) % S, np.arange(6))
    x = np.full((16, V), np.nan, np.float32)
    x[1::2][:6] = LOGITS[:6]
    x[0], x[2], x[4] = INF, -INF, 1e30
    seq = np.asarray([S, 0, -1, 1, 99, 2, S, 3, S, 4, S, 0, S, S, S, S])
    pos = np.asarray([0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 0, 0, 0])
    mixed = run(x, seq, pos)
    assert mixed.token[1:12:2].tolist() == whole.token[:6].tolist()
    assert mixed.logprob[1:12:2].tolist() == whole.logprob[:6].tolist()
    padded = [i for i in range(16) if not 0 <= seq[i] < S]
    assert set(mixed.token[np.asarray(padded)].tolist()) == {V}
    assert set(mixed.logprob[np.asarray(padded)].tolist()) == {-INF}
    assert int(mixed.status.code) == Reason.OK
    assert not np.isnan(np.asarray(mixed.top_logprob)).any()


def test_a_sequence_that_may_take_nothing_is_in_the_status():
    params, constraints, last = everything()
    allowed = np.array(constraints.allowed)
    allowed[3] = 0
    setup = (params, dataclasses.replace(constraints, allowed=allowed), last)
    found = run(LOGITS[:4], [2, 3, 0, 3], [1, 2, 3, 4], setup)
    assert (int(found.status.code), int(found.status.where)) == (Reason.NOTHING_ALLOWED, 3)
    assert sentence(found.status) == (
        "sequence 3 has 0 tokens to choose from (masked, biased to -inf, or NaN), at least 1 is needed"
    )
    assert found.token.tolist()[1] == found.token.tolist()[3] == V and found.logprob[1] == -INF
    others = run(LOGITS[:4], [2, S, 0, S], [1, 2, 3, 4], setup)
    assert others.token.tolist() == found.token.tolist() and int(others.status.code) == Reason.OK
    with pytest.raises(ValueError, match="sequence 3 has 0 tokens") as caught:
        raise_if_error(found.status)
    assert not isinstance(caught.value, InvalidBatchError)


TABLE = jnp.asarray(RNG.normal(0, 2, (V, V)).astype(np.float32))


def test_a_jitted_loop_takes_the_same_tokens_as_single_steps():
    """A model that looks up its logits; two running sequences and a padded row."""
    params, constraints, last = everything()
    params = set_sequence(
        params, 4, SamplingParams.of(temperature=1.0, top_p=0.9, repeat_penalty=1.5, seed=5)
    )
    seq, first, pos = i32([4, S, 0]), i32([1, 1, 2]), i32([10, 0, 20])

    @jax.jit
    def loop(token, pos, last, setup):
        def body(carry):
            k, out, token, last = carry
            token = sample(TABLE.at[token].get(mode="clip"), seq, pos + k, *setup, last).token
            return k + 1, out.at[k].set(token), token, accept(last, seq, token)

        return jax.lax.while_loop(lambda c: c[0] < 12, body, (0, jnp.zeros((12, 3), jnp.int32), token, last))[
            1:
        ]

    tokens, _, ring = loop(first, pos, jax.device_put(last), (params, constraints))
    token, single = first, []
    for k in range(12):
        found = run(TABLE[jnp.minimum(token, V - 1)], seq, pos + k, (params, constraints, last))
        token = found.token[:3]
        last = accept(last, seq, token)
        single.append(token.tolist())
    assert tokens.tolist() == single and ring.token.tolist() == last.token.tolist()
    assert len(set(tokens[:, 0].tolist())) > 4 and set(tokens[:, 1].tolist()) == {V}


def test_vmap_gives_what_single_calls_give():
    seq, pos, setup = i32([0, 1, 2, 3]), i32([5, 6, 7, 8]), everything()
    batched = jax.vmap(lambda x: sample(x, seq, pos, *setup).token)(jnp.asarray(LOGITS).reshape(4, 4, V))
    singles = [run(LOGITS[i : i + 4], seq, pos, setup).token[:4].tolist() for i in range(0, 16, 4)]
    assert batched.tolist() == singles


def test_nothing_is_sorted_and_nothing_calls_the_host():
    jaxpr = str(jax.make_jaxpr(sample)(LOGITS[:1], i32([0]), i32([0]), *everything()))
    assert "while" in jaxpr and "cond" in jaxpr
    assert " sort[" not in jaxpr and "callback" not in jaxpr


@pytest.mark.parametrize("n_top", [-1, V + 1])
def test_more_top_tokens_than_there_are_is_refused(n_top):
    with pytest.raises(ValueError, match=rf"^n_top is {n_top}, a number in \[0, 300\] is needed"):
        run(LOGITS[:1], [0], [0], n_top=n_top)


def test_arrays_of_different_numbers_of_sequences_are_refused():
    setup = (SamplingParams.of(4), *everything()[1:])
    sentence = "params, constraints and last have rows for 4, 5 and 5 sequences, as many in each are needed"
    with pytest.raises(ValueError, match=f"^{sentence}"):
        run(LOGITS[:1], [0], [0], setup)
