"""Constraints: what each sequence is nudged to (logit bias) and what it may take at all (allowed tokens).

    n_vocab = 34, sequence 0 unconstrained, sequence 1 may take tokens 0, 2 and 33 and dislikes token 2
      allowed     [[0xffffffff, 0xffffffff], [0b101, 0b10]]     bit v % 32 of word v // 32 is token v
      bias_token  [[34, 34], [2, 34]]                           padding: n_vocab, out of range, dropped
      bias        [[0, 0], [-1.5, 0]]

Axes: S sequences, V vocabulary, Wv = ceil(V / 32) words, B biases a sequence can have, O rows of logits.
"""

from collections.abc import Collection, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from ubjax.pytree import pytree
from ubjax.sampling.rows import usable
from ubjax.typing import Array, Bool, Float, Int32, UInt32


@pytree
class Constraints:
    """Biases and allowed tokens of S sequences. All bits set: unconstrained; bits from V on are never read.

    A token that several entries of a row name gets the sum of their biases; -inf bans a token. A row of
    `allowed` without any bit is no crash: `sample` reports it in its status.
    """

    bias_token: Int32[Array, "S B"]
    bias: Float[Array, "S B"]
    allowed: UInt32[Array, "S Wv"]

    @classmethod
    def of(
        cls,
        n_vocab: int,
        n_seq_max: int = 1,
        *,
        n_bias: int = 0,
        bias: Mapping[int, float] | None = None,
        allowed: Collection[int] | np.ndarray | None = None,
    ) -> "Constraints":
        """The same constraints for each of n_seq_max sequences (host arrays).

        n_bias: B, room for biases; it selects a program, so choose it once. bias: token -> what is added to
        its logit, finite or -inf. allowed: token ids, or a numpy array bool [V]; None allows every token.

        Raises ValueError for a token outside [0, n_vocab), a bias that is NaN or +inf, more than n_bias of them, or
        nothing allowed.

        >>> Constraints.of(34, n_bias=2, bias={2: -1.5}, allowed=[0, 2, 33]).allowed
        array([[5, 2]], dtype=uint32)
        """
        tokens, values = _biases(bias or {}, n_vocab, n_bias)
        if allowed is None:
            words = np.full(-(-n_vocab // 32), 0xFFFFFFFF, np.uint32)
        else:
            flags = _allowed_flags(
                np.asarray(allowed if isinstance(allowed, np.ndarray) else [*allowed]), n_vocab
            )
            words = (
                np.packbits(np.pad(flags, (0, -n_vocab % 32)), bitorder="little")
                .view("<u4")
                .astype(np.uint32)
            )
        return cls(
            bias_token=np.tile(tokens, (n_seq_max, 1)),
            bias=np.tile(values, (n_seq_max, 1)),
            allowed=np.tile(words, (n_seq_max, 1)),
        )


@jax.jit
def pack_allowed(flags: Bool[Array, "*n V"]) -> UInt32[jax.Array, "*n Wv"]:
    """Flags as words: bit v % 32 of word v // 32 is token v. Works inside jit, for masks made on the device."""
    flags = jnp.asarray(flags)
    padding = [(0, 0)] * (flags.ndim - 1) + [(0, -flags.shape[-1] % 32)]
    bits = jnp.pad(flags, padding).reshape(*flags.shape[:-1], -1, 32).astype(jnp.uint32)
    place = jnp.arange(32, dtype=jnp.uint32).reshape((1,) * flags.ndim + (32,))
    return jnp.sum(bits << place, axis=-1, dtype=jnp.uint32)


def constrain(x: Float[jax.Array, "O V"], rows: Constraints) -> Float[jax.Array, "O V"]:
    """Logits with the biases added and what is not allowed at -inf; `rows` has one row for each row of `x`.

    Raises ValueError while tracing when the words are not those of V tokens.
    """
    n_rows, n_vocab = x.shape
    n_words = rows.allowed.shape[1]
    if n_words != -(-n_vocab // 32):
        raise ValueError(
            f"allowed has {n_words} words for each sequence, {-(-n_vocab // 32)} are needed for {n_vocab} tokens"
        )
    if rows.bias.shape[1]:
        row = jnp.arange(n_rows, dtype=jnp.int32)[:, None]
        token = jnp.where(rows.bias_token < 0, n_vocab, rows.bias_token)  # a negative index would wrap around
        x = usable(x.at[row, token].add(rows.bias.astype(x.dtype), mode="drop"))
    place = jnp.arange(32, dtype=jnp.uint32)[None, None, :]
    bits = (rows.allowed[:, :, None] >> place) & jnp.uint32(1)
    return jnp.where(bits.reshape(n_rows, -1)[:, :n_vocab] != 0, x, -jnp.inf)


def _biases(bias: Mapping[int, float], n_vocab: int, n_bias: int) -> tuple[np.ndarray, np.ndarray]:
    if len(bias) > n_bias:
        raise ValueError(f"bias names {len(bias)} tokens, at most n_bias = {n_bias} are possible")
    tokens, values = np.full(n_bias, n_vocab, np.int32), np.zeros(n_bias, np.float32)
    for i, (token, value) in enumerate(bias.items()):
        if not 0 <= token < n_vocab:
            raise ValueError(f"bias names token {token}, a token in [0, {n_vocab}) is needed")
        with np.errstate(over="ignore"):
            tokens[i], values[i] = token, value
        if not values[i] < np.inf:
            raise ValueError(f"the bias of token {token} is {value}, a finite number or -inf is needed")
    return tokens, values


def _allowed_flags(allowed: np.ndarray, n_vocab: int) -> np.ndarray:
    """Bool [V] from flags or from token ids."""
    if allowed.dtype == bool:
        if allowed.shape != (n_vocab,):
            raise ValueError(f"allowed has shape {allowed.shape}, flags of shape {(n_vocab,)} are needed")
        flags = allowed
    else:
        flags = np.zeros(n_vocab, bool)
        for token in allowed.reshape(-1).tolist():
            if token not in range(n_vocab):
                raise ValueError(f"allowed names token {token}, a token in [0, {n_vocab}) is needed")
            flags[token] = True
    if not flags.any():
        raise ValueError(f"allowed names 0 of {n_vocab} tokens, at least 1 is needed")
    return flags
