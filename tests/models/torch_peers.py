"""Models of transformers on torch, to compare with."""

from typing import Any

import numpy as np


def randomized(model: Any) -> Any:
    """The model with random weights of a size that makes every part matter, ready to run."""
    import torch

    rng = np.random.default_rng(0)
    with torch.no_grad():
        for parameter in model.parameters():
            size = 0.4 if parameter.ndim == 1 else parameter.shape[1] ** -0.5
            parameter.add_(torch.asarray(rng.normal(size=parameter.shape) * size, dtype=torch.float32))
    return model.eval()
