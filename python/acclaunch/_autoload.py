# SPDX-License-Identifier: Apache-2.0
"""The entry point `torch.backends` of this package."""

import logging
import os
import sys
import traceback


def quietly(function):
    """Returns the result of `function`, which runs in another package's import: if it fails, that import must
    not fail, so None is returned and a line is logged. Only a program that was told to use this package
    (--cpu_backend acc, --engine acc) shows the line by default."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001: whatever it is
        is_told = os.environ.get("ACC_CPU_BACKEND") or os.environ.get("ACC_ENGINE")
        level = logging.WARNING if is_told else logging.INFO
        logging.getLogger("acclaunch").log(level, "a part of acclaunch cannot be used in this process: %s: %s",
                                           type(error).__name__, error)
        return None


def _import():
    import acclaunch.c10d  # noqa: F401


def _choose_engine():
    """Installs the engine of this package if the launcher was told so (--engine acc). If that fails, the program ends:
    it would go on with torch's engine."""
    engine = os.environ.get("ACC_ENGINE", "")
    if engine in ("", "torch"):
        return
    try:
        if engine != "acc":
            raise ValueError(f"ACC_ENGINE is '{engine}', expected torch or acc")
        from acclaunch import _engine

        _engine.install()
    except Exception as error:  # noqa: BLE001: whatever it is
        traceback.print_exc()
        raise SystemExit("acclaunch: the engine acc cannot be used in this process, which therefore ends: "
                         f"{type(error).__name__}: {error}") from None


def _choose_recorder():
    """Records the training if the program was told so (`acclaunch compare`)."""
    if not os.environ.get("ACC_RECORD"):
        return
    try:
        from acclaunch import _recorder

        _recorder.install()
    except Exception as error:  # noqa: BLE001: whatever it is
        traceback.print_exc()
        raise SystemExit("acclaunch: the training cannot be recorded in this process, which therefore ends: "
                         f"{type(error).__name__}: {error}") from None


def load():
    """Torch calls this at the end of `import torch`. If acclaunch.c10d is being imported, and imports
    torch itself, the module is not complete yet: it finishes after this call."""
    quietly(_import)
    _choose_recorder()
    _choose_engine()


def follow_environment():
    """Does the same in a process that --preload forked from one that has imported torch, with its own variables."""
    c10d = sys.modules.get("acclaunch.c10d")
    if c10d is not None:
        quietly(c10d.follow_environment)
    _choose_recorder()
    _choose_engine()
