"""Models: flax.nnx modules that turn a padded ubatch and K/V rows into logits, chosen by configuration."""
