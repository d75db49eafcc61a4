"""The measure to beat: a bigram model, which knows of each byte only the one before it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SMOOTHING = 0.01
"""Added to each count, so that a pair that was never seen is improbable and not impossible."""


def fit(text: Tensor) -> Tensor:
    """Logarithms to base 2 of the probability of each next byte, a row for each byte before it."""
    pairs = text[:-1].long() * 256 + text[1:].long()
    counts = torch.bincount(pairs, minlength=65536).view(256, 256).double() + SMOOTHING
    return (counts / counts.sum(dim=1, keepdim=True)).log2()


def bits_per_byte(table: Tensor, inputs: Tensor, targets: Tensor) -> float:
    """The mean over all positions of the bits it takes to tell the next byte."""
    return -float(table[inputs.long(), targets.long()].mean())


def ln_to_bits(loss: float) -> float:
    """A cross entropy in natural units as bits."""
    return loss / math.log(2)
