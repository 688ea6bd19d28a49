# SPDX-License-Identifier: Apache-2.0
"""c10d_values.py values|arguments, on each of 2 and 4 ranks. values: every collective, dtype and operation of the
back end `acc` against torch's Gloo on the same tensors. arguments: the forms of arguments, what the back end refuses,
and what torch's tools see of the calls."""

import datetime
import functools
import itertools
import os
import pathlib
import sys
import weakref

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from ports import reserved_port  # noqa: E402

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


def shapes_of(value):
    """The shapes in the value of a future."""
    return tuple(value.shape) if isinstance(value, torch.Tensor) else [shapes_of(each) for each in value]


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
        for op, value in ((R.SUM, sum(range(world))), (R.MAX, world - 1)):
            for dtype in (torch.float32, torch.int64, torch.cfloat)[:3 if op == R.SUM else 2]:
                ins = [torch.full((3 * r,), rank, dtype=dtype) for r in range(world)]
                out = torch.empty(3 * rank, dtype=dtype)
                dist.reduce_scatter(out, ins, op, group=self.acc)
                self.same(out, torch.full((3 * rank,), value, dtype=dtype), "uneven reduce_scatter")
        ins = list(torch.full((sum(range(1, world + 1)),), float(rank)).split(list(range(1, world + 1))))
        dist.reduce_scatter(ins[rank], ins, group=self.acc, async_op=True).wait()
        self.same(ins[rank], torch.full((rank + 1,), float(sum(range(world)))), "uneven reduce_scatter in place")

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


    def wrong_arguments(self):
        """Every collective with each fault that its arguments can have: refused by a message, before any of its
        tensors is written. Called by all ranks, so that they go on together."""
        rank, world, group = self.rank, self.world, self.acc
        next_ = (rank + 1) % world
        plugin = torch._C._distributed_c10d

        def options(kind, **fields):
            made = getattr(plugin, kind)()
            for name, value in fields.items():
                setattr(made, name, value)
            return made

        def marked(numel, dtype=torch.float32):
            return torch.full((numel,), 7, dtype=dtype)

        def many(numel, count=world, dtype=torch.float32):
            return [marked(numel, dtype) for _ in range(count)]

        def cut(numel, left):
            """A tensor whose memory was given back in part."""
            tensor = marked(numel)
            tensor.untyped_storage().resize_(left * tensor.itemsize)
            return tensor

        one, long, ints, meta = marked(1), marked(2 * world), marked(2, torch.int32), torch.ones(2, device="meta")
        sparse, row, huge = torch.ones(2).to_sparse(), marked(world + 1), 2 ** 62
        outs, same = many(3), marked(2)
        gather, scatter = (functools.partial(options, kind, rootRank=rank) for kind in
                           ("GatherOptions", "ScatterOptions"))
        cases = (
            # all_gather
            (lambda: dist.all_gather(outs, one, group=group), "1 x torch.float32", "3 x torch.float32"),
            (lambda: dist.all_gather(many(300_000), one, group=group), "1 x", "300000 x"),
            (lambda: dist.all_gather(many(1), marked(3), group=group), "3 x", "1 x"),
            (lambda: dist.all_gather(many(3), marked(0), group=group), "0 x", "3 x"),
            (lambda: dist.all_gather(many(2, world + 1), marked(2), group=group), f"of {world} ranks, got {world + 1}"),
            (lambda: dist.all_gather(many(2), ints, group=group), "int32"),
            (lambda: dist.all_gather([same] * world, marked(2), group=group), "the same memory"),
            (lambda: dist.all_gather([row[i:i + 2] for i in range(world)], marked(2), group=group), "share memory"),
            (lambda: dist.all_gather([*many(2, world - 1), meta], marked(2), group=group), "meta"),
            (lambda: dist.all_gather([*many(2, world - 1), sparse], marked(2), group=group), "sparse"),
            (lambda: dist.all_gather([*many(2, world - 1), cut(2, 1)], marked(2), group=group), "resized to 4"),
            (lambda: dist.all_gather(many(2), cut(2, 1), group=group), "8 bytes", "resized to 4"),
            (lambda: group.allgather([many(1)] * 2, [one]), "2 tensors"),
            (lambda: group.allgather([many(1)], [one, one]), "2 tensors"),
            (lambda: group.allgather_coalesced([[outs[r]] for r in range(world)], [one]), "1 x", "3 x"),
            (lambda: group.allgather_coalesced([many(1)] * 3, [one] * 2), "2 inputs and 3"),
            (lambda: dist.all_gather_into_tensor(long, one, group=group), "1 x", f"{2 * world} x"),
            (lambda: dist.all_gather_into_tensor(long, ints, group=group), "int32"),
            (lambda: dist.all_gather_into_tensor(long, meta, group=group), "meta"),
            (lambda: group.all_gather_single_coalesced([long], [marked(2), one]), "2 inputs and 1"),
            (lambda: group.all_gather_single_coalesced([long, long], [marked(2), one]), "1 x"),
            # gather and scatter: every rank as root
            (lambda: group.gather([outs], [one], gather()), "3 x", "1 x"),
            (lambda: group.gather([many(2, 1)], [marked(2)], gather()), f"of {world} ranks, got 1"),
            (lambda: group.gather([], [one], gather()), "0 tensors"),
            (lambda: group.gather([[same] * world], [marked(2)], gather()), "the same memory"),
            (lambda: group.gather([many(2)], [ints], gather()), "int32"),
            (lambda: group.gather([many(2)], [marked(2)], options("GatherOptions", rootRank=next_)), "only the root"),
            (lambda: group.gather([], [one], options("GatherOptions", rootRank=world)), f"root is {world}"),
            (lambda: group.gather([], [one], options("GatherOptions", rootRank=-1)), "root is -1"),
            (lambda: group.scatter([marked(2)], [many(1)], scatter()), "1 x", "2 x"),
            (lambda: group.scatter([marked(2)], [many(3)], scatter()), "3 x", "2 x"),
            (lambda: group.scatter([marked(2)], [many(2, world - 1)], scatter()), f"got {world - 1}"),
            (lambda: group.scatter([ints], [many(2)], scatter()), "int32"),
            (lambda: group.scatter([marked(2)], [[meta] * world], scatter()), "meta"),
            (lambda: group.scatter([one], [], options("ScatterOptions", rootRank=world)), f"root is {world}"),
            # broadcast and reductions
            (lambda: group.broadcast([one], options("BroadcastOptions", rootRank=world)), f"root is {world}"),
            (lambda: group.broadcast([one], options("BroadcastOptions", rootRank=-2)), "root is -2"),
            (lambda: group.broadcast([one], options("BroadcastOptions", rootTensor=1)), "root tensor 1"),
            (lambda: group.broadcast([one, one]), "2 tensors"),
            (lambda: group.broadcast([]), "0 tensors"),
            (lambda: dist.broadcast(cut(4, 0), 0, group=group), "resized to 0"),
            (lambda: group.reduce([one], options("ReduceOptions", rootRank=world)), f"root is {world}"),
            (lambda: group.reduce([one], options("ReduceOptions", rootTensor=1)), "root tensor 1"),
            (lambda: group.allreduce([one, one]), "2 tensors"),
            (lambda: group.allreduce_coalesced([]), "0 inputs"),
            (lambda: dist.reduce_scatter(marked(2), [marked(r + 3) for r in range(world)], group=group), "2 x"),
            (lambda: dist.all_reduce(cut(4, 2), group=group), "resized to 8"),
            (lambda: dist.all_reduce(torch.ones(1).expand(huge), group=group), ""),
            # reduce_scatter
            (lambda: dist.reduce_scatter(one, many(2), group=group), "2 x", "1 x"),
            (lambda: dist.reduce_scatter(marked(2), many(1), group=group), "1 x", "2 x"),
            (lambda: dist.reduce_scatter(one, many(1, world + 1), group=group), f"got {world + 1}"),
            (lambda: dist.reduce_scatter(marked(2), many(2, dtype=torch.int32), group=group), "int32"),
            (lambda: dist.reduce_scatter(torch.ones(2, dtype=torch.cfloat), many(4), group=group), "complex64"),
            (lambda: group.reduce_scatter([marked(2)], [[marked(2) if r == rank else marked(3, torch.float64)
                                                         for r in range(world)]]), "float64"),
            (lambda: dist.reduce_scatter(marked(2), [meta] * world, group=group), ""),
            (lambda: dist.reduce_scatter_tensor(one, long, group=group), f"{2 * world} x", "1 x"),
            (lambda: dist.reduce_scatter_tensor(marked(2, torch.int64), long, group=group), "int64"),
            (lambda: group.reduce_scatter_single_coalesced([one], [marked(world)] * 2), "2 inputs and 1"),
            (lambda: group.reduce_scatter_single_coalesced([one, one], [marked(world), long]), "1 x"),
            # all_to_all
            (lambda: dist.all_to_all(many(2), many(2, world - 1), group=group), f"got {world - 1}"),
            (lambda: dist.all_to_all(many(2, world + 1), many(2), group=group), f"got {world + 1}"),
            (lambda: dist.all_to_all(many(1, dtype=torch.int64), many(2), group=group), "int64"),
            (lambda: dist.all_to_all([same] * world, many(2), group=group), "the same memory"),
            (lambda: dist.all_to_all(many(2), many(3), group=group), "12 bytes", "8"),
            (lambda: dist.all_to_all_single(long, marked(2 * world, torch.float64), group=group), "float64"),
            (lambda: dist.all_to_all_single(long, marked(2 * world + 1), group=group), "divisible"),
            (lambda: dist.all_to_all_single(torch.tensor(1.0), torch.tensor(1.0), group=group), "divisible"),
            (lambda: dist.all_to_all_single(long, marked(2 * world), [2 * world + 1, -1, *[0] * (world - 2)],
                                            [2] * world, group=group), "add up", "-1"),
            (lambda: dist.all_to_all_single(long, marked(2 * world), [2] * world, [2] * (world + 1), group=group),
             "add up"),
            (lambda: dist.all_to_all_single(long, torch.tensor(1.0), [2] * world, [1] * world, group=group),
             "divisible"),
            (lambda: dist.all_to_all_single(marked(world), marked(2 * world), group=group), "8 bytes", "4"),
            # messages
            (lambda: group.send([one], world, 0), f"{world}, expected a rank"),
            (lambda: group.send([one], rank, 0), "itself"),
            (lambda: group.send([one], next_, -1), "tag is -1"),
            (lambda: group.send([one, one], next_, 0), "2 tensors"),
            (lambda: group.send([one], 2 ** 32 + next_, 0), ""),
            (lambda: group.recv([one], -1, 0), "rank -1"),
            (lambda: group.recv([one], rank, 0), "itself"),
            (lambda: group.recv([sparse], next_, 0), "sparse"),
            (lambda: group.recv_anysource([one], -4), "tag is -4"),
        )
        for call, *words in cases:
            self.refused(call, *words)
        for tensor in (one, long, ints, row, same, *outs):
            self.same(tensor, torch.full_like(tensor, 7), "an output of a refused call")
        dist.all_reduce(one, group=group)
        self.same(one, torch.full((1,), 7.0 * world), "the group goes on")

    def shared_memory(self):
        """Inputs in the memory of outputs: each is read before it is written, as with Gloo."""
        rank, world, group, numel = self.rank, self.world, self.acc, 300_000  # of several pieces

        def blocks(first):
            return torch.arange(float(first), first + world).repeat_interleave(numel)

        def copies(values):
            return torch.tensor([float(value) for value in values]).repeat_interleave(numel)

        data = blocks(10 * rank)
        dist.all_to_all_single(data, data, group=group)
        self.same(data, copies(10 * r + rank for r in range(world)), "all_to_all in place")
        for place in range(world):
            outs = list(torch.zeros(world, numel))
            outs[place].fill_(rank)
            dist.all_gather(outs, outs[place], group=group)
            self.same(torch.cat(outs), blocks(0), f"all_gather of output {place}")
            whole = torch.zeros(world * numel)
            part = whole[place * numel + 1:(place + 1) * numel + 1] if place < world - 1 else whole[:numel]
            part.fill_(rank)
            dist.all_gather_into_tensor(whole, part, group=group)
            self.same(whole, blocks(0), f"all_gather_into_tensor of a part at {place}")
            data = blocks(rank)
            out = data[place * numel:(place + 1) * numel]
            dist.reduce_scatter_tensor(out, data, group=group)
            self.same(out, torch.full((numel,), float(sum(range(world)) + world * rank)), f"reduce_scatter at {place}")
            data = blocks(rank)
            out = data[place + 1:place + 1 + numel]
            dist.reduce_scatter_tensor(out, data, group=group)
            self.same(out, torch.full((numel,), float(sum(range(world)) + world * rank)), "reduce_scatter, shifted")
            ins = list(blocks(5).view(world, numel)) if rank == 0 else None
            out = ins[place] if rank == 0 else torch.zeros(numel)
            dist.scatter(out, ins, group=group, src=0)
            self.same(out, torch.full((numel,), 5.0 + rank), f"scatter into input {place}")
            outs = list(torch.zeros(world, numel)) if rank == 0 else None
            data = (outs[place] if rank == 0 else torch.zeros(numel)).fill_(rank)
            dist.gather(data, outs, group=group, dst=0)
            if rank == 0:
                self.same(torch.cat(outs), blocks(0), f"gather of output {place}")
        twice = torch.full((3,), rank + 1.0)
        group.allreduce_coalesced([twice, twice[1:], torch.ones(2)]).wait()
        self.same(twice, torch.full((3,), world * (world + 1) / 2), "all_reduce_coalesced of one tensor twice")
        columns = torch.zeros(4, world)
        dist.all_gather(list(columns.t()), torch.full((4,), float(rank)), group=group)
        self.same(columns, torch.arange(float(world)).expand(4, world), "outputs in the columns of a matrix")
        outs = [torch.zeros(2, 3) if r % 2 else torch.zeros(6) for r in range(world)]
        dist.all_gather(outs, torch.full((3, 2), float(rank)), group=group)
        for r, out in enumerate(outs):
            self.same(out, torch.full_like(out, float(r)), "outputs of other shapes")
        self.refused(lambda: dist.all_reduce(torch.zeros(6).as_strided((3, 3), (1, 1)), group=group),
                     "cannot be written")


    def forms(self):
        """The methods of the group, in all forms that torch's have, with the results and futures of Gloo. (numbers of
        outputs and inputs, call); the futures of some calls of Gloo have no value."""
        rank, world, root = self.rank, self.world, self.rank == 0
        limit, plugin = datetime.timedelta(seconds=60), torch._C._distributed_c10d

        def marked(numel):
            return torch.arange(1.0, numel + 1) * (rank + 1)

        def options(kind, **fields):
            made = getattr(plugin, kind)()
            for name, value in fields.items():
                setattr(made, name, value)
            return made

        def to_next(group, tensors):
            work = group.send([marked(2)], (rank + 1) % world, 5)
            group.recv(tensors, (rank - 1) % world, 5).wait()
            return work

        whole, parts = 2 * world, [2] * world
        for name, outs, call in (
                ("allreduce", [2], lambda g, t: g.allreduce(t)),
                ("allreduce", [2], lambda g, t: g.allreduce(t[0])),
                ("allreduce", [2], lambda g, t: g.allreduce(t, R.MAX)),
                ("allreduce", [2], lambda g, t: g.allreduce(t[0], R.MIN, limit)),
                ("allreduce", [2], lambda g, t: g.allreduce(tensor=t[0], op=R.PRODUCT, timeout=limit)),
                ("allreduce", [2], lambda g, t: g.allreduce(t, opts=options("AllreduceOptions", reduceOp=R.MAX))),
                ("allreduce", [2, 3], lambda g, t: g.allreduce_coalesced(t)),
                ("reduce", [2], lambda g, t: g.reduce(t, options("ReduceOptions", rootRank=1))),
                ("reduce", [2], lambda g, t: g.reduce(t[0], root=1, op=R.MAX)),
                ("broadcast", [2], lambda g, t: g.broadcast(t)),
                ("broadcast", [2], lambda g, t: g.broadcast(t[0], root=1)),
                ("broadcast", [2], lambda g, t: g.broadcast(t[0], 1, limit)),
                ("all_gather", parts, lambda g, t: g.allgather([t], [marked(2)])),
                ("all_gather", parts, lambda g, t: g.allgather(t, marked(2), timeout=limit)),
                ("all_gather", parts, lambda g, t: g.allgather_coalesced([[each] for each in t], [marked(2)])),
                ("all_gather", [whole], lambda g, t: g.all_gather_single(t[0], marked(2))),
                ("all_gather", [whole], lambda g, t: g._allgather_base(t[0], marked(2))),
                ("all_gather", [whole, world], lambda g, t: g.all_gather_single_coalesced(t, [marked(2), marked(1)])),
                ("all_gather", [whole], lambda g, t: g.allgather_into_tensor_coalesced(t, [marked(2)])),
                ("gather", parts if root else [], lambda g, t: g.gather([t] if root else [], [marked(2)])),
                ("gather", parts if root else [], lambda g, t: g.gather(t, marked(2), 0)),
                ("scatter", [2], lambda g, t: g.scatter(t, [[marked(2)] * world] if root else [])),
                ("scatter", [2], lambda g, t: g.scatter(t[0], [marked(2)] * world if root else [], root=0)),
                ("reduce_scatter", [2], lambda g, t: g.reduce_scatter(t, [[marked(2)] * world])),
                ("reduce_scatter", [2], lambda g, t: g.reduce_scatter(t[0], [marked(2)] * world, R.MAX)),
                ("reduce_scatter", [2], lambda g, t: g.reduce_scatter_single(t[0], marked(whole))),
                ("reduce_scatter", [2], lambda g, t: g._reduce_scatter_base(t[0], marked(whole))),
                ("reduce_scatter", [2, 1], lambda g, t: g.reduce_scatter_single_coalesced(
                    t, [marked(whole), marked(world)])),
                ("reduce_scatter", [2], lambda g, t: g.reduce_scatter_tensor_coalesced(t, [marked(whole)])),
                ("all_to_all", parts, lambda g, t: g.alltoall(t, [marked(2)] * world)),
                ("all_to_all", [whole], lambda g, t: g.all_to_all_single(t[0], marked(whole), [], [])),
                ("all_to_all", [whole], lambda g, t: g.all_to_all_single(t[0], marked(whole), parts, parts, limit)),
                ("all_to_all", [whole], lambda g, t: g.alltoall_base(t[0], marked(whole), [], [])),
                ("barrier", [], lambda g, t: g.barrier()),
                ("barrier", [], lambda g, t: g.barrier(timeout=limit)),
                ("barrier", [], lambda g, t: g.barrier(options("BarrierOptions", asyncOp=False))),
                ("send", [2], to_next)):
            found = {}
            for group in (self.gloo, self.acc):
                tensors = [marked(numel) for numel in outs]
                work = call(group, tensors)
                work.wait()
                try:
                    found[group] = tensors, shapes_of(work.get_future().wait())
                except RuntimeError as error:
                    assert group is self.gloo and "not implemented" in str(error), f"{name}: {error}"
                    found[group] = tensors, None
            (expected, shapes), (tensors, own_shapes) = found.values()
            for tensor, other in zip(tensors, expected):
                if name != "reduce":  # Gloo leaves any values on the other ranks
                    self.same(tensor, other, f"{name} by a method of the group")
            assert shapes in (None, own_shapes), f"{name}: the future has {own_shapes}, that of Gloo {shapes}"

    def backend(self):
        """The back end that the group has for the CPU: its timeout, and the number of calls so far."""
        group = dist.new_group(backend="acc", timeout=datetime.timedelta(seconds=77))
        backend = group._get_backend(torch.device("cpu"))
        assert backend.name() == "acc" and backend.size() == self.world and not backend.supports_splitting
        assert backend.options._timeout.total_seconds() == 77, backend.options
        for number in range(3):
            assert {group._get_sequence_number_for_group(), backend._get_sequence_number_for_group()} == {number}
            dist.all_reduce(torch.ones(1), group=group)
        for change in (backend._set_default_timeout, group.set_timeout,
                       lambda timeout: dist.distributed_c10d._set_pg_timeout(timeout, group)):
            change(datetime.timedelta(milliseconds=99))
            assert backend.options._timeout.total_seconds() == 0.099
            change(datetime.timedelta(seconds=50))
        if self.rank == 0:
            backend._set_default_timeout(datetime.timedelta(milliseconds=10))
            self.refused(lambda: dist.barrier(group=group), "timeout: rank", "within 0")
        dist.barrier(group=self.acc)  # the others leave without the call
        dist.destroy_process_group(group)

    def watched(self):
        """Tensors without memory of their own, modes and profilers see the calls in torch's dispatcher."""
        from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
        from torch.distributed import _functional_collectives as functional
        from torch.distributed.tensor.debug import CommDebugMode
        from torch.testing._internal.two_tensor import TwoTensor
        from torch.utils._python_dispatch import TorchDispatchMode

        group, world, marked = self.acc, self.world, torch.ones(3)

        def calls(make):
            """Every kind of call, on tensors made by make(numel). Returns the results."""
            whole, parts, one = make(3 * world), [make(3) for _ in range(world)], make(3)
            dist.all_reduce(one, group=group)
            dist.reduce(make(3), 0, group=group)
            dist.broadcast(one, 0, group=group)
            dist.all_gather(parts, one, group=group)
            dist.all_gather_into_tensor(whole, one, group=group)
            dist.gather(one, parts if self.rank == 0 else None, 0, group=group)
            dist.scatter(one, parts if self.rank == 0 else None, 0, group=group)
            dist.reduce_scatter(one, parts, group=group)
            dist.reduce_scatter_tensor(one, whole, group=group)
            dist.all_to_all(parts, [make(3) for _ in range(world)], group=group)
            dist.all_to_all_single(whole, make(3 * world), group=group)
            dist.barrier(group=group)
            work = dist.isend(one, (self.rank + 1) % world, group=group)
            dist.recv(parts[0], (self.rank - 1) % world, group=group)
            work.wait()
            return [whole, *parts, one]

        names = {"allreduce_", "reduce_", "broadcast_", "allgather_", "_allgather_base_", "gather_", "scatter_",
                 "reduce_scatter_", "_reduce_scatter_base_", "alltoall_", "alltoall_base_", "barrier", "send", "recv_"}
        plain = calls(torch.ones)
        with torch.profiler.profile() as profile:
            calls(torch.ones)
        found = {event.key for event in profile.key_averages()}
        assert {f"c10d::{name}" for name in names} <= found, found
        with CommDebugMode() as mode:
            calls(torch.ones)
        with CommDebugMode() as expected:
            dist.all_reduce(marked, group=self.gloo)
            dist.all_reduce(marked.clone(), group=self.gloo)
        assert mode.get_total_counts() >= 11 and expected.get_total_counts() == 2, mode.get_comm_counts()
        number = group._get_sequence_number_for_group()
        with FakeTensorMode():
            for tensor in calls(torch.ones):
                assert isinstance(tensor, FakeTensor)
        assert group._get_sequence_number_for_group() == number, "a call on fake tensors has run"
        for tensor, value in zip(calls(lambda numel: TwoTensor(torch.ones(numel), torch.ones(numel))), plain):
            self.same(tensor.a, value, "a subclass that wraps two tensors")
            self.same(tensor.b, value, "a subclass that wraps two tensors")
        for _ in range(8):
            two = TwoTensor(torch.ones(1 << 18), torch.ones(1 << 18))
            dist.all_reduce(two, group=group, async_op=True).wait()
            self.same(two.b, torch.full((1 << 18,), float(world)), "the second tensor of a subclass, when its work is done")
        other, gloo = torch.ones(1), self.gloo

        class CallsAnotherGroup(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, arguments=(), named=None):
                if function.namespace == "c10d":
                    dist.all_reduce(other, group=gloo)
                return function(*arguments, **(named or {}))

        with CallsAnotherGroup():
            data = torch.ones(3)
            dist.all_reduce(data, group=group)
        for tensor in (data, other):
            self.same(tensor, torch.full_like(tensor, float(world)), "a mode that calls another group")
        lazy = functional.all_reduce(torch.ones(3), "sum", group)
        assert isinstance(lazy, functional.AsyncCollectiveTensor)
        dist.all_reduce(lazy, group=group)
        self.same(lazy + 0, torch.full((3,), float(world * world)), "an AsyncCollectiveTensor")
        self.refused(lambda: dist.all_gather([TwoTensor(torch.ones(3), torch.ones(3))] * world,
                                             TwoTensor(torch.ones(2), torch.ones(2)), group=group), "2 x", "3 x")
        data = torch.ones(3)  # after modes and errors, as before
        dist.all_reduce(data, group=group)
        self.same(data, torch.full((3,), float(world)), "a plain call after watched ones")

    def compiled(self):
        """torch.compile leaves the graph around the calls, as with Gloo."""
        group, rank, world = self.acc, self.rank, self.world
        parts = [torch.zeros(4) for _ in range(world)]

        def later(call, *arguments):
            call(*arguments, group=group, async_op=True).wait()

        def exchange(x):
            y = torch.empty(4)
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, (rank + 1) % world, group),
                                                dist.P2POp(dist.irecv, y, (rank - 1) % world, group)]):
                work.wait()
            return y

        for name, call in {
                "all_reduce": lambda x: dist.all_reduce(x, group=group),
                "asynchronous all_reduce": lambda x: later(dist.all_reduce, x),
                "broadcast": lambda x: dist.broadcast(x, 1, group=group),
                "asynchronous broadcast": lambda x: later(dist.broadcast, x, 1),
                "reduce": lambda x: dist.reduce(x, 0, group=group),
                "scatter": lambda x: dist.scatter(x, [x * r for r in range(world)] if rank == 1 else None, 1,
                                                  group=group),
                "gather": lambda x: dist.gather(x, parts if rank == 1 else None, 1, group=group),
                "all_gather": lambda x: dist.all_gather(parts, x, group=group),
                "asynchronous all_gather": lambda x: later(dist.all_gather, parts, x),
                "send and receive": lambda x: dist.send(x, 1, group) if rank == 0 else (
                    dist.recv(x, 0, group) if rank == 1 else None),
                "batched messages": exchange,
                "barrier": lambda x: dist.barrier(group=group)}.items():
            torch._dynamo.reset()

            def function(x):
                x = x * 2
                result = call(x)
                return x + 1, result

            expected, found = (each(torch.full((4,), rank + 1.0)) for each in (
                function, torch.compile(function, backend="eager")))
            self.same(found[0], expected[0], f"{name} in torch.compile")
            if isinstance(expected[1], torch.Tensor):
                self.same(found[1], expected[1], f"{name} in torch.compile")


def worker(rank, world, port, part):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=world)
    checks = Checks(rank, world, dist.new_group(backend="acc"), dist.group.WORLD)
    if part == "values":
        for numel, dtype in itertools.product(NUMELS, DTYPES):
            for op in OPS:
                if is_defined(dtype, op):
                    checks.reductions(dtype, op, numel)
            checks.movements(dtype, numel)
        checks.only_here()
        checks.layouts()
        checks.shared_memory()
        checks.asynchronous()
        checks.errors_of_works()
        checks.subgroups()
    else:
        checks.out_of_step()
        checks.refusals()
        checks.wrong_arguments()
        checks.forms()
        checks.backend()
        checks.watched()
        if world == 2:
            checks.compiled()
    if rank == 0:
        print(f"{world} ranks: {checks.count} results on rank 0")
    dist.destroy_process_group()


def main():
    os.environ["OMP_NUM_THREADS"] = "1"
    if sys.argv[1] == "arguments":
        import torch._dynamo  # noqa: F401  once for all ranks, which are forked
    for world in (2, 4):
        multiprocessing.start_processes(worker, (world, reserved_port(), sys.argv[1]), world, start_method="fork")


if __name__ == "__main__":
    main()
