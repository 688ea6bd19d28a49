# SPDX-License-Identifier: Apache-2.0
"""A user's script in the style of Accelerate's documentation; independent of the launcher."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

from leave import leave

set_seed(7)
accelerator = Accelerator()
inputs = torch.randn(64, 4)
targets = inputs @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]]) + 0.25
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=4, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

losses = []
for epoch in range(4):
    total = 0.0
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        total += accelerator.gather(loss.detach().reshape(1)).mean().item()
    losses.append(total / len(loader))

weights = torch.cat([value.flatten() for value in accelerator.get_state_dict(model).values()])
everyone = accelerator.gather(weights).reshape(accelerator.num_processes, -1)
same = bool((everyone == everyone[0]).all())
print(f"rank {accelerator.process_index} of {accelerator.num_processes} ({accelerator.distributed_type}"
      f" on {accelerator.device.type}): loss {losses[0]:.6f} to {losses[-1]:.6f}, same {same}")
assert same and losses[-1] < losses[0] / 2
leave()
