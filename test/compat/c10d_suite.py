# SPDX-License-Identifier: Apache-2.0
"""c10d_suite.py BACKEND [--world-size N] [NAME...]: runs torch's own tests of torch.distributed
(torch.testing._internal.distributed.distributed_test.DistributedTest, in every wheel) on CPU with the
back end `acc`.

BACKEND: acc, or gloo, with which ACC_CPU_BACKEND=acc makes `gloo` mean `acc`: so the tests that torch
reserves for gloo run too. The processes of a world are started once and make a new process group for
each test. A world that a test damages is replaced."""

import argparse
import functools
import multiprocessing
import os
import queue
import sys
import tempfile
import time
import traceback
import types
import unittest
import warnings

TEST_LIMIT = 120  # seconds

# Tests that are not run, by the reason. What torch itself skips here (no GPU, no torchvision, other back
# ends) is counted apart.
_GPU = "needs a GPU, and does not check that there is one"
_GLOO_NAME = "expects the name or the words of Gloo in a text"
_NCCL = "needs NCCL in torch, and does not check that it is there"
SKIPPED = {
    "test_SyncBatchNorm_process_group": "needs torchvision, and does not check that it is there",
    **dict.fromkeys(("test_all_to_all_cuda", "test_all_to_all_cuda_complex",
                     "test_all_to_all_full_group_cuda", "test_batch_isend_irecv_op_err"), _GPU),
    "test_batch_isend_irecv_mixed_backend_err": _NCCL,
    **dict.fromkeys(("test_barrier_timeout_full_group", "test_barrier_timeout_global",
                     "test_barrier_timeout_group", "test_ddp_logging_data_cpu",
                     "test_monitored_barrier_gloo", "test_monitored_barrier_gloo_rank_0_timeout",
                     "test_monitored_barrier_gloo_subgroup"), _GLOO_NAME),
    "test_new_subgroups_with_group_param": "needs 4 ranks, and does not check that there are",
    "test_sparse_all_reduce_sum": "sparse tensors: refused by name, as docs/c10d.md says",
}


# Tests whose helpers know only the names of torch's own back ends; they run with BACKEND=gloo.
ONLY_AS_GLOO = {
    "test_accumulate_gradients_no_sync", "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_accumulate_gradients_no_sync_grad_is_view",
    "test_monitored_barrier_failure_order", "test_monitored_barrier_wait_all_ranks"}


def stub_expecttest():
    """torch's helpers derive their test case from that of a package which only torch's developers
    have."""
    try:
        import expecttest  # noqa: F401
    except ImportError:
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase
        stub.assert_expected_inline = None
        sys.modules["expecttest"] = stub


@functools.cache
def test_class():
    stub_expecttest()
    from torch.testing._internal.distributed import distributed_test

    # Events in torch's profiler with names such as gloo:all_reduce come from Gloo's own code.
    for backends in (distributed_test.PROFILING_SUPPORTED_BACKENDS,
                     distributed_test.CUDA_PROFILING_SUPPORTED_BACKENDS,
                     distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
        backends.remove("gloo")

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        pass

    return Suite


def run_one(suite, rank, name, file_name):
    import torch
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import TEST_SKIPS
    from torch.testing._internal.distributed import distributed_test
    from datetime import timedelta

    torch.manual_seed(0)
    distributed_test.Barrier.barrier_id = 0  # of its files, which the parent has removed
    seconds = distributed_test.CUSTOM_PG_TIMEOUT.get(name, TEST_LIMIT / 2)
    dist.init_process_group(os.environ["BACKEND"], init_method=f"file://{file_name}",
                            world_size=int(os.environ["WORLD_SIZE"]), rank=rank, timeout=timedelta(seconds=seconds))
    result = "passed"
    try:
        case = suite(name)
        case.rank, case.file_name = rank, file_name
        dist.barrier()
        getattr(case, name)()
        case._barrier()  # over files, because a test may leave a group that is of no use
    except unittest.SkipTest as skip:
        result = f"skipped: {skip}"
    except SystemExit as end:
        reasons = [skip.message for skip in TEST_SKIPS.values() if skip.exit_code == end.code]
        result = f"skipped: {reasons[0]}" if reasons else (
            "passed" if end.code == 0 else f"failed: exit {end.code}")
    except BaseException:
        result = "failed: " + traceback.format_exc()
        pg = dist.distributed_c10d._get_default_group()
        pg.abort()  # the other ranks wait for this one
    dist.destroy_process_group()
    return result


def worker(rank, orders, results):
    warnings.simplefilter("ignore")
    import torch
    torch.set_num_threads(1)
    import acclaunch.c10d  # noqa: F401
    suite = test_class()
    while (order := orders.get()) is not None:
        name, file_name = order
        try:
            result = run_one(suite, rank, name, file_name)
        except BaseException:
            result = "failed: " + traceback.format_exc()
        results.put((rank, result))


class World:
    """The processes of all ranks, forked from this one, which has imported torch and its tests."""

    def __init__(self, size):
        context = multiprocessing.get_context("fork")
        self.results = context.Queue()
        self.orders = [context.Queue() for _ in range(size)]
        self.processes = [context.Process(target=worker, args=(rank, self.orders[rank], self.results),
                                          daemon=True) for rank in range(size)]
        for process in self.processes:
            process.start()

    def run(self, name, folder):
        """The results by rank; None for a rank that did not end."""
        for orders in self.orders:
            orders.put((name, os.path.join(folder, f"store-{name}")))
        found = [None] * len(self.processes)
        end = time.monotonic() + TEST_LIMIT
        while None in found and time.monotonic() < end:
            try:
                rank, result = self.results.get(timeout=0.2)
                found[rank] = result
            except queue.Empty:
                if not all(process.is_alive() for process in self.processes):
                    end = min(end, time.monotonic() + 5)
        return found

    def end(self):
        for process in self.processes:
            process.kill()
            process.join()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("backend", choices=["acc", "gloo"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--world-size", type=int, default=3)  # as in torch's CI
    parser.add_argument("--show-skipped", action="store_true")
    arguments = parser.parse_args()
    os.environ.update(BACKEND=arguments.backend, WORLD_SIZE=str(arguments.world_size), ACC_CPU_BACKEND="acc",
                      MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1")
    suite = test_class()
    import torch._dynamo  # noqa: F401  optimizers need it
    from torch.testing._internal.distributed.distributed_test import (Barrier,
                                                                      initialize_temp_directories)
    initialize_temp_directories()
    names = arguments.names or [name for name in dir(suite) if name.startswith("test_")]
    counts = {"passed": 0, "skipped by torch": 0, "not run": 0, "failed": 0}
    failures = []
    skipped = {*SKIPPED, *(ONLY_AS_GLOO if arguments.backend == "acc" else ())}
    with tempfile.TemporaryDirectory() as folder:
        world = None
        for name in names:
            if name in skipped and not arguments.names:
                counts["not run"] += 1
                continue
            world = world or World(arguments.world_size)
            begin = time.monotonic()
            Barrier.init()
            results = world.run(name, folder)
            seconds = time.monotonic() - begin
            if any(result is None or result.startswith("failed") for result in results):
                outcome = "failed"
                failures.append(name)
                text = "\n".join(f"rank {rank}: {result or 'did not end'}"
                                 for rank, result in enumerate(results))
                world.end()
                world = None
            elif any(result.startswith("skipped") for result in results):
                outcome = "skipped by torch"
                text = next(result for result in results if result.startswith("skipped"))
            else:
                outcome, text = "passed", ""
            counts[outcome] += 1
            if outcome == "failed" or (outcome == "skipped by torch" and arguments.show_skipped):
                print(f"{name}: {outcome}, {seconds:.1f} s\n{text}", flush=True)
            elif outcome == "passed":
                print(f"{name}: passed, {seconds:.1f} s", flush=True)
        if world:
            world.end()
    print(f"{arguments.backend}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    for name in failures:
        print(f"  failed: {name}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    # The package is loaded by the workers, for which ACC_CPU_BACKEND is set.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    try:
        import torch.distributed as dist
    except ImportError:
        sys.exit(77)
    if not dist.is_available():
        sys.exit(77)
    main()
