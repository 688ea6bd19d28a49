# SPDX-License-Identifier: Apache-2.0
"""Shards PyTorch modules with the runtime that acclaunch configures (docs/pytorch.md).

```python
import acclaunch.torch as acc

runtime = acc.Runtime()
model = acc.fully_shard(model, runtime)
optimizer = acc.AdamW(model, lr=1e-3)
for batch in batches:
    model(batch).backward()
    optimizer.step()
```
"""

import acclaunch.c10d  # registers the back end acc of torch.distributed
from acclaunch import _optimizer
from acclaunch._library import (AccConnectionError, AccMemoryError, AccTimeoutError, CollectiveError,
                                ConfigError, DeviceError, DisagreementError, Error, InternalError,
                                InvalidArgumentError, NotFoundError, NotSupportedError, PeerLostError,
                                ProcessError, ProtocolError)
from acclaunch._optimizer import *  # what its __all__ names
from acclaunch._runtime import CheckpointSeries, Runtime, SavedState
from acclaunch._sharding import (export_weights, fully_shard, gathered, load_weights,
                                 memory_report, no_sync, state_dict, traffic_report)

__all__ = [
    *_optimizer.__all__, "Runtime", "fully_shard", "no_sync", "gathered", "state_dict", "load_weights",
    "export_weights", "CheckpointSeries", "SavedState", "memory_report", "traffic_report", "Error",
    "InvalidArgumentError", "ConfigError", "DisagreementError", "NotSupportedError", "NotFoundError", "AccTimeoutError",
    "AccConnectionError", "ProtocolError", "ProcessError", "CollectiveError", "DeviceError", "AccMemoryError",
    "InternalError", "PeerLostError",
]
