# SPDX-License-Identifier: Apache-2.0
"""The entry point `torch.backends` of this package."""

import contextlib
import importlib
import os
import sys
import traceback

from acclaunch._imports import quietly


def _import():
    import acclaunch.c10d  # noqa: F401


@contextlib.contextmanager
def _or_end(failure):
    """Ends the program if this fails: it would go on without what it was told to use."""
    try:
        yield
    except Exception as error:  # noqa: BLE001: whatever it is
        traceback.print_exc()
        raise SystemExit(f"acclaunch: {failure} in this process, which therefore ends: "
                         f"{type(error).__name__}: {error}") from None


def _install():
    """Installs what the launcher was told to use: the recorder of `acclaunch compare`, this package's engine
    (--engine acc), and its order of samples (--data_order acc)."""
    if os.environ.get("ACC_RECORD"):
        with _or_end("the training cannot be recorded"):
            from acclaunch import _recorder

            _recorder.install()
    for variable, what, module in (("ACC_ENGINE", "the engine", "_engine"),
                                   ("ACC_DATA_ORDER", "the order of samples", "_accelerate_data")):
        chosen = os.environ.get(variable, "")
        if chosen not in ("", "torch"):
            with _or_end(f"{what} acc cannot be used"):
                if chosen != "acc":
                    raise ValueError(f"{variable} is '{chosen}', expected torch or acc")
                importlib.import_module(f"acclaunch.{module}").install()
    if os.environ.get("ACC_ENGINE") == "acc" and os.environ.get("ACC_MEMBERSHIP", "").startswith("required:"):
        with _or_end("the program could not begin again (--rejoin)"):
            from acclaunch import _rejoin

            _rejoin.install()


def load():
    """Torch calls this at the end of `import torch`. If acclaunch.c10d is being imported, and imports
    torch itself, the module is not complete yet: it finishes after this call."""
    quietly(_import)
    _install()


def follow_environment():
    """Does the same in a process that --preload forked from one that has imported torch, with its own variables."""
    c10d = sys.modules.get("acclaunch.c10d")
    if c10d is not None:
        quietly(c10d.follow_environment)
    _install()
