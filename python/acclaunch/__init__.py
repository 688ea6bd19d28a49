# SPDX-License-Identifier: Apache-2.0
"""Sharded training with libacc_runtime. `import acclaunch.torch as acc` shards PyTorch modules."""
