# SPDX-License-Identifier: Apache-2.0
"""acclaunch with the defaults of `docker run --read-only --user 1000`: process 1 of its PID namespace, no capability,
64 MiB in /dev/shm, Docker's seccomp rules, no network but loopback, nothing that can be written.

    container_test.py --tree BUILD          the programs of a build tree, on this machine's file system
    container_test.py --root FOLDER TREE    the programs of an image, whose file system is FOLDER, with
                                            without_syscalls of the build tree TREE

Needs root, to make the sandbox; exits with 77 without it.
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

SKIPPED = 77
# What Docker's default profile refuses and our programs, PyTorch or NCCL might call. It answers EPERM, except for clone3.
REFUSED = ",".join([f"{name}:EPERM" for name in (
    "io_uring_setup", "io_uring_enter", "io_uring_register", "set_mempolicy", "get_mempolicy", "mbind", "move_pages",
    "keyctl", "add_key", "userfaultfd", "unshare", "setns", "mount", "umount2", "bpf", "perf_event_open",
    "pidfd_getfd")] + ["clone3"])
CAPABILITIES = "-all," + ",".join("+" + name for name in (
    "chown", "dac_override", "fsetid", "fowner", "mknod", "net_raw", "setgid", "setuid", "setfcap", "setpcap",
    "net_bind_service", "sys_chroot", "kill", "audit_write"))
# $1: the root file system; $2: the program without_syscalls; $3: a build tree or nothing; $4: a folder that may be
# written, mounted at /data, or nothing; then the command.
SANDBOX = r"""
set -e
root=$1 filter=$2 tree=$3 data=$4
shift 4
mount --make-rprivate /
ip link set lo up
mount --rbind "$root" /mnt
mount -t tmpfs -o size=16m,mode=755 tmpfs /mnt/mnt
cp "$filter" /mnt/mnt/without_syscalls
mkdir /mnt/mnt/tree /mnt/mnt/data /mnt/mnt/outside
[ -z "$tree" ] || mount --bind "$tree" /mnt/mnt/tree
[ -z "$data" ] || mount --bind "$data" /mnt/mnt/data
mount -t proc proc /mnt/proc
mount -t tmpfs -o mode=755 tmpfs /mnt/dev
for device in null zero full random urandom; do touch /mnt/dev/$device; mount --bind /dev/$device /mnt/dev/$device; done
mkdir /mnt/dev/shm
mount -t tmpfs -o size=64m,mode=1777 shm /mnt/dev/shm
for folder in /mnt/mnt /mnt/dev /mnt/tmp /mnt/run /mnt/var /mnt; do
  mountpoint -q $folder || mount --bind $folder $folder
  mount -o remount,bind,ro $folder
done
cd /mnt
pivot_root . mnt/outside
umount -l /mnt/outside
exec chroot . "$@"
"""


class Container:
    """One run of a command in the sandbox; also its process 1, seen from outside."""

    def __init__(self, place, command, data=""):
        inner = ["/mnt/without_syscalls", REFUSED, "/usr/bin/setpriv", "--reuid", "1000", "--regid", "1000",
                 "--clear-groups", "--bounding-set", CAPABILITIES, "--inh-caps", "-all", "/usr/bin/env", "-i",
                 f"PATH={place.bin}:/usr/bin:/bin", *place.variables, "HOME=/home", *map(str, command)]
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts", "--net", "sh", "-c", SANDBOX, "sh",
             place.root, place.filter, place.tree, str(data), *inner],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.text = ""

    def wait_for(self, words):
        """Reads until the output contains these words."""
        for line in self.process.stdout:
            self.text += line
            if words in line:
                return line
        raise AssertionError(f"no '{words}' in:\n{self.text}")

    def stop(self, number):
        """Sends a signal to process 1."""
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        os.kill(int(children[0]), number)

    def end(self):
        """Returns the exit status, after the end of all output."""
        self.text += self.process.stdout.read()
        return self.process.wait()


class Place:
    def __init__(self, arguments):
        if arguments[0] == "--tree":
            build = pathlib.Path(arguments[1]).resolve()
            self.root, self.tree, self.bin = "/", str(build), "/mnt/tree/bin"
            self.variables = ["LD_LIBRARY_PATH=/mnt/tree/lib"]
        else:
            build = pathlib.Path(arguments[2]).resolve()
            self.root, self.tree, self.bin = str(pathlib.Path(arguments[1]).resolve()), "", "/opt/acclaunch/bin"
            self.variables = []
        self.filter = str(build / "bin" / "without_syscalls")

    def run(self, command, data=""):
        container = Container(self, command, data)
        return container.end(), container.text


SMALL = ["--layers", "1", "--heads", "4", "--dim", "32", "--seq_len", "32", "--micro_batch", "1"]
SHARDED = ["--cpu", "--num_processes", "2", "--use_fsdp"]


def sandbox_is_dockers(place):
    """The sandbox forbids what it should forbid."""
    status, text = place.run(["sh", "-c", "cat /proc/self/status; id -u; df -k /dev/shm; echo pid $$; touch /x /tmp/x /run/x; true"])
    assert status == 0, text
    assert re.search(r"^CapEff:\s*0+$", text, re.MULTILINE) and "Seccomp:\t2" in text, text
    assert re.search(r"^shm +65536 ", text, re.MULTILINE) and "\n1000\n" in text and "pid 1\n" in text, text
    assert text.count("Read-only file system") == 3, text


def trains(place):
    """Training whose state is larger than /dev/shm; no file is written."""
    big = ["--layers", "2", "--heads", "4", "--dim", "1024", "--seq_len", "8", "--micro_batch", "1"]
    status, text = place.run(["acclaunch", *SHARDED, "train_gpt", "--data", "/etc/passwd", "--steps", "1", *big])
    assert status == 0 and "step 1/1" in text, text
    assert "warning" not in text, text


def saves_a_checkpoint(place):
    """SIGTERM to process 1 reaches the workers, which save; nothing is left and the status says the signal."""
    with tempfile.TemporaryDirectory() as data:
        os.chmod(data, 0o777)
        container = Container(place, ["acclaunch", *SHARDED, "train_gpt", "--data", "/etc/passwd", "--steps", "1000000",
                                      "--checkpoint", "/mnt/data/run", *SMALL], data)
        container.wait_for("step 1/")
        container.stop(signal.SIGTERM)
        status = container.end()
        assert status == 128 + signal.SIGTERM, (status, container.text)
        assert "received SIGTERM: saved a checkpoint" in container.text, container.text
        assert list(pathlib.Path(data).glob("run/checkpoint_*")), container.text


def self_test_works(place):
    """`acclaunch test`, which also saves a checkpoint."""
    status, text = place.run(["acclaunch", "test", "--cpu", "--num_processes", "2", "--use_fsdp"])
    assert status == 0 and "everything works" in text, text


def reaps(place):
    """Process 1 reaps processes that workers have left behind, while the job runs."""
    script = r"""
pids=$(setsid sh -c 'echo $$' & setsid sh -c 'echo $$' &)
[ -n "$pids" ] || exit 1
for pid in $pids; do while [ -e /proc/$pid ]; do :; done; done
echo nothing unreaped
"""
    status, text = place.run(["acclaunch", "--cpu", "--num_processes", "1", "sh", "-c", script])
    assert status == 0 and "nothing unreaped" in text, text


def trains_on_two_machines(place):
    """Two launchers; machines exchange gradients with Gloo, which the runtime loads as a library of its own."""
    launch = " ".join(["acclaunch --cpu --num_machines 2 --num_processes 2 --main_process_ip 127.0.0.1 --use_fsdp",
                       "--main_process_port 29500 --machine_rank $rank train_gpt --data /etc/passwd --steps 1", *SMALL])
    status, text = place.run(["sh", "-c", f"rank=1; {launch} & rank=0; {launch} && wait $!"])
    assert status == 0 and "2 ranks on 2 machines" in text and "step 1/1" in text, (status, text)


def read_only_places(place):
    """A checkpoint where nothing can be written is refused with the place and the reason."""
    folder = f"/tmp/read-only-{os.getpid()}"  # one that nobody has made
    status, text = place.run(["acclaunch", *SHARDED, "train_gpt", "--data", "/etc/passwd", "--steps", "1",
                              "--checkpoint", folder, *SMALL])
    assert status != 0 and folder in text and "Read-only file system" in text, (status, text)


def doctor_says_it(place):
    """doctor names what is too small or missing, and what to do."""
    status, text = place.run(["env", "NVIDIA_VISIBLE_DEVICES=all", "acclaunch", "doctor", "--cpu", "--num_processes", "2"])
    assert "/dev/shm" in text and "--shm-size" in text, (status, text)
    assert "libcuda.so.1" in text and "--gpus all" in text, (status, text)


def main():
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "--pid", "--fork", "--net", "true"],
                                           capture_output=True).returncode:
        sys.exit(SKIPPED)
    place = Place(sys.argv[1:])
    for test in (sandbox_is_dockers, trains, self_test_works, saves_a_checkpoint, reaps, trains_on_two_machines,
                 read_only_places, doctor_says_it):
        test(place)
        print(f"ok: {test.__name__}")


if __name__ == "__main__":
    main()
