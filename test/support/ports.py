# SPDX-License-Identifier: Apache-2.0
import socket

_holders = []


def reserved_ports(count):
    """Returns ports that no other process gets while this one runs, and on which a server may listen (SO_REUSEADDR)."""
    for _ in range(count):
        _holders.append(socket.socket())
        _holders[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _holders[-1].bind(("127.0.0.1", 0))
    return [holder.getsockname()[1] for holder in _holders[-count:]]


def reserved_port():
    return reserved_ports(1)[0]
