# SPDX-License-Identifier: Apache-2.0
"""Well-behaved clients: they must get correct answers while other clients misbehave."""
import threading

from store_bytes import StoreClient


class GoodPeers:
    """Peers that run numbered rounds together until `finish`."""

    def __init__(self, port, count):
        self.port = port
        self.count = count
        self.num_rounds = 0
        self.failures = []
        self._last_round = None
        self._threads = [threading.Thread(target=self._run, args=(rank,)) for rank in range(count)]
        for thread in self._threads:
            thread.start()

    def finish(self):
        """Lets them continue to a last round that all of them reach."""
        self._last_round = self.num_rounds + 3
        for thread in self._threads:
            thread.join()

    def _run(self, rank):
        number = 0
        try:
            state = self.start(rank)
            while self._last_round is None or number < self._last_round:
                state = self.walk(state, rank, number)
                number += 1
                if rank == 0:
                    self.num_rounds = number
        except (OSError, AssertionError) as error:
            self.failures.append(f"{type(self).__name__}, rank {rank}, round {number}: {error!r}")


class GoodClients(GoodPeers):
    """Ranks that exchange values through the store."""

    def start(self, rank):
        return StoreClient(self.port)

    def walk(self, client, rank, number):
        def key(name, of=rank):
            return f"/good/{name}/{number}/{of}".encode()

        value = (f"{number}.{rank}." * 50).encode()
        client.set(key("set"), value)
        assert client.get(key("set")) == value
        assert client.get(key("set", (rank + 1) % self.count)) == value.replace(
            f".{rank}.".encode(), f".{(rank + 1) % self.count}.".encode())
        client.multi_set([(key("many"), value), (key("more"), value[::-1])])
        assert client.multi_get([key("more"), key("many")]) == [value[::-1], value]
        client.barrier(key("barrier", 0), self.count)
        # All ranks have incremented the counter in the last round, and none does in this round before the
        # barrier.
        assert client.add(b"/good/total", 1) > number * self.count
        client.barrier(key("end", 0), self.count)
        assert client.add(b"/good/total", 0) >= (number + 1) * self.count
        for name in ("set", "many", "more"):
            assert client.delete(key(name)) == 1
        if rank == 0 and number > 0:  # no rank reads keys of the previous round any more
            for name in ("barrier", "end"):
                assert client.delete(f"/good/{name}/{number - 1}/0".encode()) == 1
        if (number + rank) % 8 == 0:  # a new client can connect as well
            client.close()
            client = StoreClient(self.port)
        return client
