"""Pictures of the pipeline."""

from ubjax.viz.show import show

__all__ = ["show"]
