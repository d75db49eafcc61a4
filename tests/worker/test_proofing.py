"""What a proof run records of each step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer

from outlast_worker.proofing import Order, Proof
from outlast_worker.rng import capture_rng_state


@pytest.fixture(autouse=True)
def _own_hooks() -> Iterator[None]:
    """A proof's hook is for its process's life, which is longer than this test."""
    before = dict(torch_optimizer._global_optimizer_pre_hooks)
    yield
    torch_optimizer._global_optimizer_pre_hooks.clear()
    torch_optimizer._global_optimizer_pre_hooks.update(before)


def test_sparse_gradients_are_recorded_by_value() -> None:
    """Those of sparse embeddings differ in the record exactly where their sums do, and have a norm."""
    table = nn.Embedding(9, 2, sparse=True)
    adam = torch.optim.SparseAdam(table.parameters())
    proof = Proof(Order(), {"model": table, "optimizer": adam}, {}, list)
    gradients, norms = [], []
    for rows in ([1, 2], [2, 1], [1, 1], [1, 3]):
        adam.zero_grad()
        table(torch.tensor(rows)).sum().backward()
        adam.step()
        record = proof.boundary(capture_rng_state())
        gradients.append(record["gradients"]["model.weight"])
        norms.append(record["norm"])
    assert gradients[0] == gradients[1]
    assert len(set(gradients)) == 3
    assert norms == pytest.approx([2.0, 2.0, 8**0.5, 2.0])
