"""The strict session of conftest.py is really in force."""

import warnings

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import install_import_hook

import ubjax


def test_the_package_is_imported_through_the_jaxtyping_hook():
    spec = ubjax.__spec__
    assert spec is not None
    assert type(spec.loader).__module__ == install_import_hook.__module__


def test_there_are_several_cpu_devices():
    assert len(jax.devices("cpu")) == 2


def test_rank_promotion_raises():
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.add(jnp.zeros((2, 3)), jnp.zeros(3))


def test_warnings_are_errors():
    with pytest.raises(UserWarning, match="an example"):
        warnings.warn("an example", stacklevel=1)
