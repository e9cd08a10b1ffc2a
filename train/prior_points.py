"""The few workloads to measure on a new device with a prior: they leave the least uncertainty about the others.

The prior's errors are taken to be alike where workloads are (`Likeness`). Greedily, the next workload is the one that
lowers the sum of the posterior variances over all candidates most, in all directions alike (Seo et al., "Gaussian
process regression: active data selection and test point rejection", IJCNN 2000).
"""

from collections.abc import Sequence

import numpy as np

from kernelcast.runtime.bundle.correction import LIKENESS, centred
from kernelcast.runtime.operators import Key, Operator
from kernelcast.train.dataset import Array
from kernelcast.train.prior import Prior

MOST_CANDIDATES = 250
"""Most candidate workloads of an operator; drawn at random from more."""


def answered(prior: Prior, op: Operator) -> tuple[Key, ...]:
    """The operator's directions that the prior predicts."""
    return tuple((op.name, direction) for direction in op.costs if (op.name, direction) in prior)


def most_telling(prior: Prior, keys: Sequence[Key], vectors: Array, count: int) -> list[int]:
    """Numbers of the `count` workloads [candidates, features] to measure, the most telling first."""
    left, noises = [], []
    for key in keys:
        places = prior.positions(key, vectors)
        places = centred(places, places)
        covariance = LIKENESS.covariance(places, places)
        # Directions count alike, however uncertain they are.
        left.append(covariance / np.trace(covariance))
        noises.append(LIKENESS.noise**2 / np.trace(covariance))
    chosen: list[int] = []
    while len(chosen) < min(count, len(vectors)):
        gain = np.sum(
            [(one**2).sum(axis=0) / (np.diag(one) + own) for one, own in zip(left, noises, strict=True)],
            axis=0,
        )
        gain[chosen] = -1.0
        best = int(np.argmax(gain))
        chosen.append(best)
        left = [
            one - np.outer(one[:, best], one[:, best]) / (one[best, best] + own)
            for one, own in zip(left, noises, strict=True)
        ]
    return chosen
