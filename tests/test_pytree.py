"""The dataclass decorator: frozen, keyed leaves, static fields in the structure, unflattening without __init__."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ubjax.pytree import Layout, pack, pytree, static


@pytree
class Pair:
    left: object
    right: object
    name: str = static(default="pair")


def test_leaves_have_names_and_statics_are_structure():
    pair = Pair(left=jnp.ones(2), right=(1, 2))
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(pair)]
    assert names == [".left", ".right[0]", ".right[1]"]
    assert jax.tree.structure(pair) == jax.tree.structure(Pair(left=1, right=(3, 4)))
    assert jax.tree.structure(pair) != jax.tree.structure(Pair(left=1, right=(3, 4), name="other"))


def test_transformations_put_anything_into_leaves():
    pair = Pair(left=jnp.arange(3), right=jnp.arange(3.0))
    shapes = jax.eval_shape(lambda p: p, pair)
    assert shapes.left.shape == (3,) and shapes.name == "pair"
    doubled = jax.jit(jax.vmap(lambda p: dataclasses.replace(p, left=p.left * 2)))(pair)
    assert doubled.left.tolist() == [0, 2, 4]


def test_frozen_and_keyword_only():
    with pytest.raises(TypeError):
        Pair(1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Pair(left=1, right=2).left = 3


def test_pack_and_unpack_are_inverse():
    tree = (
        Pair(left=jnp.arange(6, dtype=jnp.int32).reshape(2, 3), right=jnp.asarray(True)),
        jnp.asarray([-5, 2**31 - 1], jnp.int32),
    )
    back = Layout(tree).unpack(np.asarray(jax.jit(pack)(tree)))
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    for found, want in zip(jax.tree.leaves(back), jax.tree.leaves(tree), strict=True):
        assert found.dtype == want.dtype and np.array_equal(found, want)
