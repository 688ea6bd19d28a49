# SPDX-License-Identifier: Apache-2.0
"""Makes Accelerate accept `InitProcessGroupKwargs(backend="acc")` on the CPU, where it (1.15) refuses
every back end except gloo and mpi. Import this module before the Accelerator is made:

    import acclaunch.accelerate

Under `acclaunch --cpu_backend acc` it is not needed: there Accelerate's gloo is acc."""

import functools

from accelerate.state import PartialState
from accelerate.utils import DistributedType

import acclaunch.c10d  # noqa: F401, registers the back end

_prepare = PartialState._prepare_backend


@functools.wraps(_prepare)
def _prepare_backend(self, cpu=False, sagemaker_dp=False, backend=None):
    prepared, kind = _prepare(self, cpu, sagemaker_dp, backend)
    if backend == "acc" and kind == DistributedType.MULTI_CPU:
        prepared = backend
    return prepared, kind


PartialState._prepare_backend = _prepare_backend
