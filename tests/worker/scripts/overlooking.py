"""A training that calls the boundary too often, and replaces its optimizer and a layer in the middle."""

import torch

from outlast_worker import Checkpointer, batches

model = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Linear(2, 1))
optimizer = torch.optim.Adam(model.parameters())
with Checkpointer(model=model, optimizer=optimizer, data=batches(torch.ones(8, 1), 2)) as ckpt:
    for batch in ckpt.steps(20):
        if ckpt.step_count == 10:
            model[1] = torch.nn.Linear(2, 1, bias=False)
            optimizer = torch.optim.Adam(model.parameters())
        loss = model(batch).mean()
        loss.backward()
        if ckpt.step_count % 2:
            optimizer.step()
            optimizer.zero_grad()
        ckpt.step(loss)
