# SPDX-License-Identifier: Apache-2.0
"""The batch scripts of scripts/pbs, lsf and flux, with the variables and files that these job managers set: acclaunch
finds the machines of the job, and the program is the one that the user names. cluster_slurm runs those of Slurm.

    templates_test.py ACCLAUNCH SCRIPTS CONFIGS
"""
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

ACCLAUNCH, SCRIPTS, CONFIGS = (pathlib.Path(name).absolute() for name in sys.argv[1:4])
HOSTS = ("gpu01", "gpu02", "gpu03")
# Instead of starting the job, prints its plan. `--launcher ssh` needs no ssh for that.
STAND_IN = f"""#!/bin/sh
case $1 in expand-hosts) exec {ACCLAUNCH} "$@" ;; esac
exec {ACCLAUNCH} explain --json --cpu "$@"
"""
# Flux runs the command on each machine; here on the second one.
FLUX = """#!/bin/sh
case $1 in
  getattr) echo 'gpu[01-03]' ;;
  run) while [ "${1#*/}" = "$1" ]; do shift; done
       FLUX_JOB_ID=f3KqD FLUX_TASK_RANK=1 FLUX_JOB_SIZE=3 FLUX_TASK_LOCAL_ID=0 FLUX_JOB_NNODES=3 exec "$@" ;;
esac
"""


def plan_of(folder, name, variables, program):
    """Runs a template as the first machine of the job, with the command line that its manager passes on. Returns the
    plan of acclaunch."""
    line = ["--config_file", str(CONFIGS / "fsdp_hybrid_shard.yaml"), program, "--epochs", "3 or 4"]
    words = [] if "PBS_JOBID" in variables or "LSB_JOBID" in variables else line
    first = ["unshare", "--uts", "sh", "-c", f'hostname {HOSTS[0]} && exec "$@"', "sh"]
    done = subprocess.run([*first, "bash", str(SCRIPTS / name), *words], cwd=folder, text=True, capture_output=True, env={
        "PATH": f"{folder}/tools:{os.environ['PATH']}", "HOME": folder, "ACCLAUNCH": f"{folder}/bin/acclaunch",
        "WORKERS": "2", "ARGUMENTS": shlex.join(line), **variables})
    assert done.returncode == 0, (name, done.stdout, done.stderr)
    return json.loads(done.stdout)


def main():
    if os.geteuid() != 0 or subprocess.run(["unshare", "--uts", "true"], capture_output=True).returncode:
        sys.exit(77)  # host names need root
    with tempfile.TemporaryDirectory() as folder:
        for path, text in (("bin/acclaunch", STAND_IN), ("tools/flux", FLUX), ("nodes", "\n".join(HOSTS * 2) + "\n"),
                           ("train.py", ""), ("train_bin", "#!/bin/sh\n")):
            file = pathlib.Path(folder) / path
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
            file.chmod(0o755)
        for name, manager, machine_rank, variables in (
                ("pbs/several_nodes.pbs", "PBS", 0, {"PBS_JOBID": "17.server", "PBS_NODEFILE": f"{folder}/nodes",
                                                     "PBS_O_WORKDIR": folder, "PBS_NODENUM": "0"}),
                ("lsf/several_nodes.bsub", "LSF", 0, {"LSB_JOBID": "17", "LSB_MCPU_HOSTS": "gpu01 2 gpu02 2 gpu03 2"}),
                ("flux/several_nodes.flux", "Flux", 1, {})):
            for program in ("train.py", "./train_bin"):
                plan = plan_of(folder, name, variables, program)
                found = (plan["manager"]["name"], plan["machines"]["max"], plan["machines"]["machine_rank"],
                         plan["rendezvous"]["address"], plan["ranks"]["world_size"])
                assert found == (manager, 3, machine_rank, "gpu01", 6), (name, found)
                command = plan["command"] or plan["start"]["arguments"]
                assert any(word.endswith(program.removeprefix("./")) for word in command), (name, command)
                assert command[-2:] == ["--epochs", "3 or 4"], (name, command)
            print(f"{name}: {manager}, 3 machines, machine 0 at gpu01")


if __name__ == "__main__":
    main()
