# SPDX-License-Identifier: Apache-2.0
"""c10d_values.py: every collective, dtype and operation of the back end `acc` against torch's Gloo on the
same tensors, on each of 2 and 4 ranks; and what the back end refuses."""

import functools
import itertools
import os
import socket
import sys
import weakref

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as multiprocessing
except ImportError:
    sys.exit(77)

import acclaunch.c10d  # noqa: F401

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16,
          torch.int32, torch.int64, torch.uint8, torch.bool)
# One element, an odd number, more than the slices of a sum need, more than a piece of staging memory.
NUMELS = (0, 1, 77, 20000, 300001)
R = dist.ReduceOp
OPS = (R.SUM, R.PRODUCT, R.MIN, R.MAX, R.AVG, R.BAND, R.BOR, R.BXOR)
BITWISE = (R.BAND, R.BOR, R.BXOR)
REFUSED = (RuntimeError, ValueError)


def tensor_of(rank, numel, dtype):
    """Small values, of which sums and products on 4 ranks are exact in every dtype."""
    generator = torch.Generator().manual_seed(1000 * rank + numel)
    if dtype == torch.bool:
        return torch.randint(0, 2, (numel,), generator=generator).bool()
    return torch.randint(1, 4, (numel,), generator=generator).to(dtype)


def is_defined(dtype, op):
    if op in BITWISE:
        return not dtype.is_floating_point
    return op != R.AVG or dtype != torch.bool


def expected_reduction(rank_tensors, op):
    """Gloo has no average, no reduction of some types, and reduces bool as numbers: the definition."""
    wide = [tensor if tensor.dtype == torch.bool or op in BITWISE else
            tensor.to(torch.float64 if tensor.is_floating_point() else torch.int64)
            for tensor in rank_tensors]
    functions = {R.SUM: torch.add, R.AVG: torch.add, R.PRODUCT: torch.mul, R.MIN: torch.minimum,
                 R.MAX: torch.maximum, R.BAND: torch.bitwise_and, R.BOR: torch.bitwise_or,
                 R.BXOR: torch.bitwise_xor}
    result = wide[0]
    for other in wide[1:]:
        if result.dtype == torch.bool and op in (R.SUM, R.PRODUCT):
            result = result | other if op == R.SUM else result & other
        else:
            result = functions[op](result, other)
    if op == R.AVG:
        mode = None if result.is_floating_point() else "trunc"
        result = torch.div(result, len(rank_tensors), rounding_mode=mode)
    return result.to(rank_tensors[0].dtype)


class Checks:
    def __init__(self, rank, world, acc, gloo):
        self.rank, self.world, self.acc, self.gloo = rank, world, acc, gloo
        self.count = 0

    def same(self, found, expected, what):
        self.count += 1
        assert torch.equal(found, expected), \
            f"{what}: {found.flatten()[:8]}, expected {expected.flatten()[:8]}"

    def inputs(self, numel, dtype):
        return [tensor_of(rank, numel, dtype) for rank in range(self.world)]

    def reductions(self, dtype, op, numel):
        what = f"{op} of {numel} x {dtype}"
        whole = self.inputs(numel * self.world, dtype)
        expected = expected_reduction(whole, op)
        mine = whole[self.rank]
        data = mine.clone()
        dist.all_reduce(data, op, group=self.acc)
        self.same(data, expected, f"all_reduce, {what}")
        if dtype not in (torch.bool, torch.int16) and op in (R.SUM, R.PRODUCT, R.MIN, R.MAX):
            data = mine.clone()
            dist.all_reduce(data, op, group=self.gloo)
            self.same(data, expected, f"all_reduce of Gloo, {what}")
        root = self.world - 1
        data = mine.clone()
        dist.reduce(data, root, op, group=self.acc)
        self.same(data, expected if self.rank == root else mine, f"reduce, {what}")
        out = torch.empty(numel, dtype=dtype)
        own = expected.view(self.world, numel)[self.rank]
        dist.reduce_scatter_tensor(out, mine, op, group=self.acc)
        self.same(out, own, f"reduce_scatter_tensor, {what}")
        out.zero_()
        dist.reduce_scatter(out, list(mine.view(self.world, numel).clone()), op, group=self.acc)
        self.same(out, own, f"reduce_scatter, {what}")

    def movements(self, dtype, numel):
        """Each result with acc and with Gloo."""
        rank, world = self.rank, self.world
        mine = tensor_of(rank, numel, dtype)

        def broadcast(group):
            data = mine.clone()
            dist.broadcast(data, world - 1, group=group)
            return [data]

        def all_gather(group):
            outs = [torch.empty_like(mine) for _ in range(world)]
            dist.all_gather(outs, mine, group=group)
            return outs

        def all_gather_into_tensor(group):
            out = torch.empty(world * numel, dtype=dtype)
            dist.all_gather_into_tensor(out, mine, group=group)
            return [out]

        def gather(group):
            outs = [torch.empty_like(mine) for _ in range(world)] if rank == 1 else None
            dist.gather(mine, outs, dst=1, group=group)
            return outs or []

        def scatter(group):
            out = torch.empty_like(mine)
            ins = [tensor_of(r + 7, numel, dtype) for r in range(world)] if rank == 1 else None
            dist.scatter(out, ins, src=1, group=group)
            return [out]

        def all_to_all_single(group):
            ins = tensor_of(rank, numel * world, dtype)
            out = torch.empty_like(ins)
            dist.all_to_all_single(out, ins, group=group)
            return [out]

        def all_to_all_uneven(group):
            ins = tensor_of(rank, numel * sum(range(world)) + world, dtype)
            in_sizes = [numel * to + 1 for to in range(world)]
            out_sizes = [numel * rank + 1] * world
            out = torch.empty(sum(out_sizes), dtype=dtype)
            dist.all_to_all_single(out, ins, out_sizes, in_sizes, group=group)
            return [out]

        def send_recv(group):
            out = torch.empty_like(mine)
            sent = dist.isend(mine, (rank + 1) % world, group=group, tag=3)
            dist.recv(out, (rank - 1) % world, group=group, tag=3)
            sent.wait()
            return [out]

        for collective in (broadcast, all_gather, all_gather_into_tensor, gather, scatter,
                           all_to_all_single, all_to_all_uneven, send_recv):
            found = collective(self.acc)
            what = f"{collective.__name__} of {numel} x {dtype}"
            if dtype == torch.int16:  # Gloo moves no int16
                continue
            for each, expected in zip(found, collective(self.gloo), strict=True):
                self.same(each, expected, what)

    def only_here(self):
        """What Gloo does not do."""
        rank, world = self.rank, self.world
        outs = [torch.zeros(r + 1) for r in range(world)]
        dist.all_gather(outs, torch.full((rank + 1,), float(rank)), group=self.acc)
        for r, out in enumerate(outs):
            self.same(out, torch.full((r + 1,), float(r)), "uneven all_gather")
        outs = [torch.zeros(rank + 1) for _ in range(world)]
        dist.all_to_all(outs, [torch.full((r + 1,), float(rank)) for r in range(world)],
                        group=self.acc)
        for r, out in enumerate(outs):
            self.same(out, torch.full((rank + 1,), float(r)), "all_to_all of lists")

    def layouts(self):
        """Tensors that are not contiguous, complex ones, views in one memory, objects."""
        rank, world = self.rank, self.world
        data = torch.arange(12.0).view(3, 4).t()
        dist.all_reduce(data, group=self.acc)
        self.same(data, torch.arange(12.0).view(3, 4).t() * world, "all_reduce of a transpose")
        data = torch.full((2, 3), complex(rank, 1))
        dist.all_reduce(data, group=self.acc)
        self.same(data, torch.full((2, 3), complex(sum(range(world)), world)), "complex")
        whole = torch.zeros(world, 5)
        whole[rank] = rank + 1.0
        dist.all_gather_into_tensor(whole, whole[rank], group=self.acc)
        self.same(whole, torch.arange(1.0, world + 1).unsqueeze(1).expand(world, 5), "in place")
        found = [None] * world
        dist.all_gather_object(found, {"rank": rank}, group=self.acc)
        assert found == [{"rank": r} for r in range(world)]
        data = torch.ones(4, requires_grad=True)
        dist.broadcast(data, 0, group=self.acc)
        self.same(data.detach(), torch.ones(4), "a leaf that requires a gradient")

    def asynchronous(self):
        rank, world = self.rank, self.world
        tensors = [torch.full((1000 + 999 * i,), float(i)) for i in range(30)]
        works = [dist.all_reduce(tensor, group=self.acc, async_op=True) for tensor in tensors]
        futures = [work.get_future() for work in works]
        doubled = futures[5].then(lambda future: future.value()[0] * 2)
        for i in reversed(range(30)):
            works[i].wait()
            assert works[i].is_completed() and works[i].is_success()
            self.same(tensors[i], torch.full_like(tensors[i], float(i * world)), "asynchronous")
        self.same(doubled.wait(), torch.full_like(tensors[5], 10.0 * world), "future")
        # A call that nobody waits for is executed by the group.
        last = torch.ones(5)
        work = dist.all_reduce(last, group=self.acc, async_op=True)
        work.get_future().wait()
        self.same(last, torch.full((5,), float(world)), "only its future is awaited")
        # Long messages in both directions, sent before any is received; a message with another tag
        # overtakes; and one from any rank.
        long = torch.full((3_000_000,), float(rank))
        out = torch.empty_like(long)
        to, from_ = (rank + 1) % world, (rank - 1) % world
        dist.send(long[:10], to, group=self.acc, tag=1)
        dist.send(long, to, group=self.acc, tag=2)
        dist.recv(out, from_, group=self.acc, tag=2)
        self.same(out, torch.full_like(out, float(from_)), "long message")
        source = dist.recv(out[:10], None, group=self.acc, tag=1)
        assert source == from_, source
        posted = [dist.irecv(out[i:i + 1], from_, group=self.acc) for i in range(3)]
        for i in range(3):
            dist.send(torch.tensor([float(i)]), to, group=self.acc)
        for work in posted:
            work.wait()
        self.same(out[:3], torch.arange(3.0), "messages in order")

    def calls_into(self, make):
        """(name, outputs, call(async_op), value of each element) of each call that writes to tensors of
        make(numel)."""
        world, group, is_root = self.world, self.acc, self.rank == 0
        ones = torch.ones(4)

        def call(name, outputs, function, value=1.0):
            return name, outputs, lambda async_op: function(group=group, async_op=async_op), value

        def receive(out, group, async_op):
            dist.isend(ones, (self.rank + 1) % world, group=group)
            work = dist.irecv(out, (self.rank - 1) % world, group=group)
            return work if async_op else work.wait()

        def coalesced(outs, group, async_op):
            opts = dist.AllreduceCoalescedOptions()
            opts.asyncOp = async_op
            return group.allreduce_coalesced(outs, opts)

        one = [make(4) for _ in range(8)]
        lists = [[make(4) for _ in range(world)] for _ in range(3)]
        long = [make(4 * world) for _ in range(2)]
        partial = functools.partial
        yield call("all_reduce", one[:1], partial(dist.all_reduce, one[0]), world)
        yield call("all_reduce", one[1:3], partial(coalesced, one[1:3]), world)
        yield call("reduce", one[3:4], partial(dist.reduce, one[3], 0), world if is_root else 1)
        yield call("broadcast", [] if is_root else one[4:5], partial(dist.broadcast, one[4], 0))
        yield call("scatter", one[5:6], partial(dist.scatter, one[5], [ones] * world if is_root else None, 0))
        yield call("reduce_scatter", one[6:7], partial(dist.reduce_scatter, one[6], [ones] * world), world)
        yield call("receive", one[7:8], partial(receive, one[7]))
        yield call("all_gather", lists[0], partial(dist.all_gather, lists[0], ones))
        yield call("all_to_all", lists[1], partial(dist.all_to_all, lists[1], [ones] * world))
        yield call("gather", lists[2] if is_root else [],
                   partial(dist.gather, ones, lists[2] if is_root else None, 0))
        yield call("all_gather", long[:1], partial(dist.all_gather_into_tensor, long[0], ones))
        yield call("all_to_all", long[1:], partial(dist.all_to_all_single, long[1], torch.ones(4 * world)))

    def errors_of_works(self):
        """An error while the result is written belongs to its work, and the group goes on."""
        def inference(numel):
            with torch.inference_mode():
                return torch.ones(numel, 2)[:, 0]

        for how in (lambda call: call(False), lambda call: call(True).wait(),
                    lambda call: call(True).get_future().wait()):
            for name, outputs, call, value in self.calls_into(inference):
                how(call)
                for out in outputs:
                    self.same(out, torch.full((out.numel(),), float(value)), f"{name}, inference mode")
            for name, outputs, call, _ in self.calls_into(lambda numel: torch.ones(1).expand(numel)):
                if outputs:
                    self.refused(lambda: how(call), f"{name} is done", "cannot be written")
                    call(True)  # dropped
                else:
                    how(call)
                    call(True)
        world, ones = torch.full((3,), float(self.world)), lambda: torch.ones(3)

        def reduced(tensor):
            return dist.all_reduce(tensor, group=self.acc, async_op=True)

        work = reduced(torch.ones(1).expand(3))
        for _ in range(2):
            self.refused(work.wait, "cannot be written")
            self.refused(work.get_future().wait, "cannot be written")
        assert work.is_completed() and not work.is_success() and work.exception() is not None

        def fails(future):
            raise ValueError("of the callback")

        futures = [reduced(ones()).get_future() for _ in range(3)]
        futures[1].add_done_callback(fails)
        self.refused(futures[0].then(fails).wait, "of the callback")
        # Callbacks that wait for a call that they make, and for one that is made after theirs.
        inner = futures[2].then(lambda future: reduced(ones()).get_future().wait()[0])
        self.same(inner.wait(), world, "a callback waits for a call of its own")
        later = []
        message = dist.irecv(ones(), (self.rank - 1) % self.world, group=self.acc)
        outer = message.get_future().then(lambda future: later[0].wait()[0])
        later.append(reduced(ones()).get_future())
        dist.barrier(group=self.acc)
        dist.send(ones(), (self.rank + 1) % self.world, group=self.acc)
        self.same(outer.wait(), world, "a callback waits for a later call")

        for drop in (lambda work: None, lambda work: work.wait()):
            tensor = torch.ones(3, 2)[:, 0]
            left = weakref.ref(tensor)
            drop(reduced(tensor))
            del tensor
            dist.barrier(group=self.acc)
            self.count += 1
            assert left() is None, "a dropped call keeps its tensor"

    def out_of_step(self):
        """The next call of a rank that refused one must not meet the others' call of that one."""
        group = dist.new_group(backend="acc")
        if self.rank == 0:
            self.refused(lambda: dist.all_reduce(torch.eye(2).to_sparse(), group=group), "sparse")
            self.refused(lambda: dist.all_reduce(torch.ones(2), R.BAND, group=group), "bitwise")
        self.refused(lambda: dist.all_reduce(torch.ones(2), group=group), "differs", "as number",
                     "having refused 2 before because of their arguments")
        dist.destroy_process_group(group)

    def subgroups(self):
        group = None
        for ranks in ([0], [1, 0], list(range(1, self.world))):
            made = dist.new_group(ranks, backend="acc")
            if self.rank in ranks:
                data = torch.tensor([float(self.rank + 1)])
                dist.all_reduce(data, group=made)
                self.same(data, torch.tensor([float(sum(ranks) + len(ranks))]), f"group {ranks}")
                group = made
        dist.destroy_process_group(group)
        from torch.testing._internal.distributed import fake_pg  # noqa: F401, registers `fake`

        both = dist.new_group(backend="cpu:acc,cuda:fake")
        data = torch.tensor([1.0])
        dist.all_reduce(data, group=both)
        self.same(data, torch.tensor([float(self.world)]), "cpu:acc next to another back end")

    def refused(self, action, *words):
        self.count += 1
        try:
            action()
        except REFUSED as error:
            missing = [word for word in words if word not in str(error)]
            assert not missing, f"{error}: does not contain {missing}"
        else:
            raise AssertionError(f"not refused: {words}")

    def refusals(self):
        group, one = self.acc, torch.ones(2)
        self.refused(lambda: dist.all_reduce(torch.eye(2).to_sparse(), group=group), "sparse",
                     "gloo")
        self.refused(lambda: dist.all_reduce(torch.ones(2, device="meta"), group=group), "CPU")
        self.refused(lambda: dist.all_reduce(one, R.BAND, group=group), "bitwise", "float32")
        self.refused(lambda: dist.all_reduce(one, dist._make_nccl_premul_sum(2.0), group=group),
                     "PREMUL_SUM")
        self.refused(lambda: dist.all_reduce(torch.ones(2).bool(), R.AVG, group=group), "average")
        self.refused(lambda: dist.all_reduce(torch.ones(2, dtype=torch.cfloat), R.MAX, group=group),
                     "complex")
        self.refused(lambda: dist.all_gather_into_tensor(torch.ones(3), one, group=group),
                     "all_gather")
        self.refused(lambda: dist.all_to_all_single(one, torch.ones(2), [5] * self.world,
                                                    [1] * self.world, group=group), "split")
        dist.all_reduce(one, group=group)  # the group is as usable as before


def worker(rank, world, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=world)
    checks = Checks(rank, world, dist.new_group(backend="acc"), dist.group.WORLD)
    for numel, dtype in itertools.product(NUMELS, DTYPES):
        for op in OPS:
            if is_defined(dtype, op):
                checks.reductions(dtype, op, numel)
        checks.movements(dtype, numel)
    checks.only_here()
    checks.layouts()
    checks.asynchronous()
    checks.errors_of_works()
    checks.out_of_step()
    checks.subgroups()
    checks.refusals()
    if rank == 0:
        print(f"{world} ranks: {checks.count} results on rank 0")
    dist.destroy_process_group()


def main():
    os.environ["OMP_NUM_THREADS"] = "1"
    for world in (2, 4):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        multiprocessing.spawn(worker, (world, port), world)


if __name__ == "__main__":
    main()
