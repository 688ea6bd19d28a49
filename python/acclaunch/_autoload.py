# SPDX-License-Identifier: Apache-2.0
"""The entry point `torch.backends` of this package."""

import logging
import os


def quietly(function):
    """Returns the result of `function`, which runs in another package's import: if it fails, that import must
    not fail, so None is returned and a line is logged. Only a program that was told to use this package
    (--cpu_backend acc) shows the line by default."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001: whatever it is
        level = logging.WARNING if os.environ.get("ACC_CPU_BACKEND") else logging.INFO
        logging.getLogger("acclaunch").log(level, "a part of acclaunch cannot be used in this process: %s: %s",
                                           type(error).__name__, error)
        return None


def _import():
    import acclaunch.c10d  # noqa: F401


def load():
    """Torch calls this at the end of `import torch`. If acclaunch.c10d is being imported, and imports
    torch itself, the module is not complete yet: it finishes after this call."""
    quietly(_import)
