# SPDX-License-Identifier: Apache-2.0
"""The order in which a training uses its samples (docs/data.md): a pure function of seed, epoch and position, which
does not depend on the number of ranks or of a loader's workers. A training that is restarted or resized goes on with
the samples that it has not used.

```python
from acclaunch import data

loader = data.StatefulDataLoader(dataset, global_batch_size=64, seed=1, num_workers=4)
for epoch in range(3):
    for batch in loader:                       # this rank's part, from the position on
        step(batch)
        save(..., loader.state_dict())         # at most once after each batch
```

DataOrder and its positions need no torch."""

from acclaunch._data_order import Batch, DataOrder, Piece, Position, share
from acclaunch._library import ConfigError, InvalidArgumentError, NotFoundError

__all__ = ["DataOrder", "Position", "Batch", "Piece", "share", "ConfigError", "InvalidArgumentError", "NotFoundError",
           "DataSampler", "DataBatchSampler", "StatefulDataLoader"]  # the last three need torch


def __getattr__(name):
    if name in __all__[-3:]:
        from acclaunch import _data_loader
        return getattr(_data_loader, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
