"""Distances between two engines' logits: log-probabilities, KL divergence, greedy margins.

All in float64; rows are positions, columns the vocabulary.
"""

import numpy as np


def log_softmax(logits):
    x = logits.astype(np.float64)
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def kl_rows(p, q):
    """Returns KL(p ‖ q) of each row in nats; p and q are log-probabilities."""
    return (np.exp(p) * (p - q)).sum(axis=1)


def mean_kl(p, q):
    return float(kl_rows(p, q).mean())


def entropy(p):
    """Returns the rows' mean entropy in nats. Near 0, agreement shows little."""
    return float(-(np.exp(p) * p).sum(axis=1).mean())


def rms(difference):
    return float(np.sqrt(np.mean(np.square(difference))))


def top2_margins(logits):
    """Returns [rows] margins between the largest and the second largest logit."""
    top = np.partition(logits, -2, axis=1)
    return top[:, -1] - top[:, -2]
