# SPDX-License-Identifier: Apache-2.0
import socket
import threading


class RecordingProxy:
    """Passes connections on 127.0.0.1 to another address and keeps all bytes of both directions."""

    def __init__(self, host, port):
        self.target = (host, port)
        self.parts = []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.create_connection(self.target)
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self.copy, args=(source, sink), daemon=True).start()

    def copy(self, source, sink):
        part = bytearray()
        self.parts.append(part)
        try:
            while content := source.recv(65536):
                part += content
                sink.sendall(content)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for each in (source, sink):
                each.close()

    def recorded(self):
        """Returns all bytes so far, one direction of one connection after the other."""
        return b"\n".join(bytes(part) for part in self.parts)
