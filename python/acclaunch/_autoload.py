# SPDX-License-Identifier: Apache-2.0
"""The entry point `torch.backends` of this package."""


def load():
    """Torch calls this at the end of `import torch`. If acclaunch.c10d is being imported, and imports
    torch itself, the module below is not complete yet: it finishes after this call."""
    import acclaunch.c10d  # noqa: F401
