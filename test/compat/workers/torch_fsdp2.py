# SPDX-License-Identifier: Apache-2.0
"""A user's script for torch's own FSDP 2."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from leave import leave

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(dist.get_rank())
losses = []
for step in range(20):
    inputs = torch.randn(16, 4)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(mean := loss.detach().clone())
    losses.append(mean.item() / dist.get_world_size())

local = sum(value.to_local().numel() for value in model.parameters())
total = sum(value.numel() for value in model.parameters())
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {local} of {total} parameters,"
      f" loss {losses[0]:.6f} to {losses[-1]:.6f}")
assert local < total and losses[-1] < losses[0] / 2
leave()
