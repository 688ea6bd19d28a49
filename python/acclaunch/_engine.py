# SPDX-License-Identifier: Apache-2.0
"""`--engine acc`."""


def install():
    from acclaunch import _fsdp2
    _fsdp2.install()
