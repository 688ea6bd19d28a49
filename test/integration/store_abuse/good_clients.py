"""Well-behaved clients: what they are answered while others misbehave must be right."""
import threading

from store_bytes import StoreClient


class GoodClients:
    """Some ranks that walk through rounds together until `stop`; each round checks its answers."""

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
        """Lets them walk on to a round that all of them reach."""
        self._last_round = self.num_rounds + 3
        for thread in self._threads:
            thread.join()

    def _run(self, rank):
        try:
            client = StoreClient(self.port)
            number = 0
            while self._last_round is None or number < self._last_round:
                client = self._round(client, rank, number)
                number += 1
                if rank == 0:
                    self.num_rounds = number
        except (OSError, AssertionError) as error:
            self.failures.append(f"rank {rank}, round {number}: {error!r}")

    def _round(self, client, rank, number):
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
        # All have counted up in the last round, and nobody counts in this one before the barrier.
        assert client.add(b"/good/total", 1) > number * self.count
        client.barrier(key("end", 0), self.count)
        assert client.add(b"/good/total", 0) >= (number + 1) * self.count
        for name in ("set", "many", "more"):
            assert client.delete(key(name)) == 1
        if rank == 0 and number > 0:  # nobody looks at the round before this one any more
            for name in ("barrier", "end"):
                assert client.delete(f"/good/{name}/{number - 1}/0".encode()) == 1
        if (number + rank) % 8 == 0:  # a newcomer is let in as well
            client.close()
            client = StoreClient(self.port)
        return client
