# SPDX-License-Identifier: Apache-2.0
"""A data-parallel training of a few numbers whose ranks exchange their gradients through the store of their round.

As a worker: tiny_training.py FOLDER STEPS. Rank 0 begins step N when FOLDER/goN exists; each rank prints "loss RANK step N
VALUE". `undisturbed` computes the same losses in one process."""
import os
import random
import struct
import sys
import time

from store_bytes import GET, SET, WAIT, StoreClient, keys_request, request

SIZE = 8


def loss_and_gradient(weights, rank, step):
    data = random.Random(1000 * step + rank)
    inputs = [data.gauss(0, 1) for _ in weights]
    error = sum(w * x for w, x in zip(weights, inputs)) - data.gauss(0, 1)
    return error * error, [2 * error * x for x in inputs]


def update(weights, gradients):
    return [w - 0.05 * sum(parts) / len(gradients) for w, parts in zip(weights, zip(*gradients))]


def undisturbed(ranks, steps):
    weights, lines = [0.0] * SIZE, set()
    for step in range(1, steps + 1):
        results = [loss_and_gradient(weights, rank, step) for rank in range(ranks)]
        lines |= {f"loss {rank} step {step} {loss!r}" for rank, (loss, _) in enumerate(results)}
        weights = update(weights, [gradient for _, gradient in results])
    return lines


def work(folder, steps):
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = StoreClient(int(os.environ["MASTER_PORT"]), os.environ["MASTER_ADDR"])
    weights = [0.0] * SIZE
    for step in range(1, steps + 1):
        while rank == 0 and not os.path.exists(f"{folder}/go{step}"):
            time.sleep(0.02)
        loss, gradient = loss_and_gradient(weights, rank, step)
        store.send(request(SET, f"{step}/{rank}".encode(), struct.pack(f"{SIZE}d", *gradient)))
        keys = [f"{step}/{each}".encode() for each in range(ranks)]
        store.send(keys_request(WAIT, keys))
        store.read(1)
        gradients = []
        for key in keys:
            store.send(request(GET, key))
            gradients.append(struct.unpack(f"{SIZE}d", store.read(int.from_bytes(store.read(8), "little"))))
        weights = update(weights, gradients)
        print(f"loss {rank} step {step} {loss!r}", flush=True)


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
