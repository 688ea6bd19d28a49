# SPDX-License-Identifier: Apache-2.0
"""A user's script for torch.distributed. FAIL_RANK fails in attempt 0 after the ranks are connected,
and is late in attempt 1, so that the others could find its address of attempt 0 in the store. The gradients are
averaged and the weights updated by hand: DDP and torch's optimizers import torch._dynamo, which costs as much as
`import torch` in each rank."""

import os
import sys
import time

import torch
import torch.distributed as dist

from leave import leave

rank = int(os.environ["RANK"])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
fails = os.environ.get("FAIL_RANK") == str(rank)
if fails and attempt == 1:
    time.sleep(2)
dist.init_process_group("gloo")
if fails and attempt == 0:
    print(f"rank {rank} fails", flush=True)
    sys.exit(11)

torch.manual_seed(3)
model = torch.nn.Linear(4, 1)
torch.manual_seed(rank)
losses = []
for step in range(20):
    inputs = torch.randn(16, 4)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
    for value, gradient in zip(model.parameters(), torch.autograd.grad(loss, model.parameters())):
        dist.all_reduce(gradient)
        value.data -= 0.1 * gradient / dist.get_world_size()
    dist.all_reduce(mean := loss.detach().clone())
    losses.append(mean.item() / dist.get_world_size())

weights = torch.cat([value.detach().flatten() for value in model.parameters()])
everyone = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
dist.all_gather(everyone, weights)
same = all(bool((each == weights).all()) for each in everyone)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} in {attempt}:"
      f" loss {losses[0]:.6f} to {losses[-1]:.6f}, same {same}")
assert same and losses[-1] < losses[0] / 2
leave()
