# SPDX-License-Identifier: Apache-2.0
"""The manifests of packaging/kubernetes/: they have the schemas of Kubernetes and of their controllers, and acclaunch, started
with the command of a pod and what its controller gives the pod, finds the machines.

    kubernetes_test.py schemas FOLDER                 needs kubernetes-validate, kubeflow-training, kubeflow-trainer-api
    kubernetes_test.py mounts FOLDER                  the pods mount what their commands read
    kubernetes_test.py pods FOLDER ACCLAUNCH CONFIGS  needs root, for host names of the pods
    kubernetes_test.py probes FOLDER DAEMON           the daemon of rendezvous.yaml answers its probes, and recovers
"""
import json
import os
import pathlib
import signal
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from ports import reserved_port  # noqa: E402

try:
    import yaml
except ImportError:
    print("needs PyYAML")
    sys.exit(77)

FOLDER = pathlib.Path(sys.argv[2])
POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def load(name):
    return yaml.safe_load((FOLDER / name).read_text())


def pods_of(node):
    """Yields the pod specifications in a manifest."""
    if isinstance(node, dict):
        if isinstance(node.get("containers"), list):
            yield node
        for value in node.values():
            yield from pods_of(value)
    elif isinstance(node, list):
        for value in node:
            yield from pods_of(value)


def check_kept(given, kept, where):
    """A model drops the keys that its schema does not have."""
    if isinstance(given, dict):
        for key, value in given.items():
            assert isinstance(kept, dict) and key in kept, f"{where}: the schema has no {key}"
            check_kept(value, kept[key], f"{where}.{key}")
    elif isinstance(given, list):
        for i, value in enumerate(given):
            check_kept(value, kept[i], f"{where}[{i}]")


def check_keys(given, name, models):
    """Checks the keys of an object against a model of kubeflow-training, and of the objects in it."""
    model = getattr(models, name)
    known = {model.attribute_map[attribute]: kind for attribute, kind in model.openapi_types.items()}
    for key, value in given.items():
        assert key in known, f"{name} has no {key}"
        kind = known[key]
        if kind.startswith("dict("):
            for entry in value.values():
                check_keys(entry, kind.removesuffix(")").split(", ")[1], models)
        elif hasattr(models, kind):
            check_keys(value, kind, models)


def schemas():
    import kubernetes_validate
    from kubeflow.training import models
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
    from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob

    version = kubernetes_validate.latest_version()
    for name in ("base/service.yaml", "base/job.yaml"):
        kubernetes_validate.validate(load(name), version, strict=True)
    for document in yaml.safe_load_all((FOLDER / "rendezvous.yaml").read_text()):
        kubernetes_validate.validate(document, version, strict=True)
    for name in ("base/job.yaml", "jobset.yaml", "pytorchjob.yaml", "mpijob.yaml"):
        pods = list(pods_of(load(name)))
        assert pods, name
        for spec in pods:
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}, "spec": spec}
            kubernetes_validate.validate(pod, version, strict=True)
    for name, model in (("jobset.yaml", JobsetV1alpha2JobSet), ("trainjob.yaml", TrainerV1alpha1TrainJob)):
        check_kept(load(name), model.from_dict(load(name)).to_dict(), name)
    check_keys(load("pytorchjob.yaml"), "KubeflowOrgV1PyTorchJob", models)
    check_keys(load("mpijob.yaml"), "KubeflowOrgV1MPIJob", models)
    for folder in ("base", "example"):
        for resource in load(f"{folder}/kustomization.yaml")["resources"]:
            assert (FOLDER / folder / resource).exists(), resource
    print("schemas of Kubernetes", version, "and of the controllers")


def patched(job, kustomization):
    """A job with the patches of an overlay, as kustomize applies them."""
    for patch in kustomization["patches"]:
        for change in yaml.safe_load(patch["patch"]):
            *parents, last = change["path"].strip("/").split("/")
            place = job
            for key in parents:
                place = place[int(key) if isinstance(place, list) else key]
            if last == "-":
                place.append(change["value"])
            else:
                place[int(last) if isinstance(place, list) else last] = change["value"]
    return job


def mounts():
    overlay = load("example/kustomization.yaml")
    made = {each["name"]: each["files"] for each in overlay["configMapGenerator"]}
    manifests = {name: load(name) for name in ("base/job.yaml", "jobset.yaml", "pytorchjob.yaml", "mpijob.yaml")}
    manifests["example"] = patched(load("base/job.yaml"), overlay)
    for name, manifest in manifests.items():
        pods = list(pods_of(manifest))
        read = {word for pod in pods for each in pod["containers"] for word in each.get("command", []) + each.get("args", [])
                if word.startswith("/") and not word.startswith("/opt/acclaunch/")}
        assert read, name
        workers = [pod for pod in pods if pod.get("volumes")]
        assert workers, name
        for pod in workers:
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            mounted = {mount["mountPath"]: volumes[mount["name"]] for each in pod["containers"] for mount in each["volumeMounts"]}
            for word in read:
                volume = mounted.get(os.path.dirname(word))
                assert volume, f"{name}: nothing is mounted for {word}"
                if "configMap" in volume:
                    files = made[volume["configMap"]["name"]]
                    assert os.path.basename(word) in files and (FOLDER / "example" / files[0]).exists(), (name, word)
    for pod in pods_of(load("trainjob.yaml")):
        raise AssertionError(f"trainjob.yaml has a pod: {pod}")
    arguments = load("trainjob.yaml")["spec"]["trainer"]["args"]
    assert all(word.startswith("/opt/acclaunch/") for word in arguments if word.startswith("/")), arguments
    print("all manifests mount what their commands read")


# Programs in the place of those that a pod starts: the plan instead of a job; of mpirun, the command on one machine.
TOOLS = {
    "acclaunch": 'exec "$ACCLAUNCH" explain --json "$@"',
    "mpirun": 'while [ "$1" != acclaunch ]; do shift; done; exec "$@"',
}


def explained(acclaunch, configs, manifest, host_name, domain, variables):
    """What acclaunch would do in a pod with this host name, domain and environment."""
    spec = next(pods_of(manifest), None)
    container = spec["containers"][0] if spec else manifest["spec"]["trainer"]
    words = [word.replace("/opt/acclaunch/share/acclaunch/configs", configs) for word in [*container["command"], "true"]]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, text in TOOLS.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)
        long = f"{host_name}.{domain} " if domain else ""
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n10.244.0.7 {long}{host_name}\n")
        (folder / "hostfile").write_text("".join(f"{name} slots=1\n" for name in WORKERS))
        script = f'hostname {host_name} && mount --bind {folder}/hosts /etc/hosts && exec "$@"'
        done = subprocess.run(
            ["unshare", "--uts", "--mount", "sh", "-c", script, "sh", *words], capture_output=True, text=True,
            env={"PATH": f"{folder}:{os.environ['PATH']}", "ACCLAUNCH": acclaunch,
                 "OMPI_MCA_orte_default_hostfile": f"{folder}/hostfile", **variables})
    assert done.returncode == 0, (host_name, done.stdout, done.stderr)
    return json.loads(done.stdout)


# Manifest; for each pod its host name, domain and variables as its controller sets them; then the name of the job
# manager and the address of machine 0.
SERVICE = "default.svc.cluster.local"
WORKERS = [f"train-worker-{i}.train.default.svc" for i in range(2)]  # the lines of MPI Operator's host file
PODS = (
    ("base/job.yaml",
     [(f"train-{i}", f"train.{SERVICE}", {**POD, "JOB_COMPLETION_INDEX": str(i)}) for i in range(2)],
     "Kubernetes", f"train-0.train.{SERVICE}"),
    ("jobset.yaml",
     [(f"train-machine-0-{i}", f"train.{SERVICE}",
       {**POD, "JOB_COMPLETION_INDEX": str(i), "JOBSET_NAME": "train", "REPLICATED_JOB_NAME": "machine",
        "JOB_INDEX": "0", "JOBSET_RESTART_ATTEMPT": "0"}) for i in range(2)],
     "Kubernetes", f"train-machine-0-0.train.{SERVICE}"),
    ("pytorchjob.yaml",
     [(name, "", {**POD, "MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "2", "RANK": str(i),
                  "PYTHONUNBUFFERED": "1", "PET_NPROC_PER_NODE": "auto", "PET_NNODES": "2", "PET_NODE_RANK": str(i),
                  "PET_MASTER_ADDR": "train-master-0", "PET_MASTER_PORT": "23456"})
      for i, name in enumerate(("train-master-0", "train-worker-0"))],
     "Kubernetes", "train-master-0"),
    ("trainjob.yaml",
     [(f"train-node-0-{i}", f"train.{SERVICE}",
       {**POD, "JOB_COMPLETION_INDEX": str(i), "JOBSET_NAME": "train", "JOBSET_RESTART_ATTEMPT": "0",
        "PET_NNODES": "2", "PET_NPROC_PER_NODE": "auto", "PET_NODE_RANK": str(i),
        "PET_MASTER_ADDR": "train-node-0-0.train", "PET_MASTER_PORT": "29500"}) for i in range(2)],
     "Kubernetes", "train-node-0-0.train"),
    # The launcher's pod, with the host name of each worker: mpirun has another address than machine 0.
    ("mpijob.yaml",
     [(f"train-worker-{i}", "train.default.svc",
       {**POD, "OMPI_COMM_WORLD_RANK": str(i), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_MCA_ess_base_jobid": "1588527105", "OMPI_MCA_orte_num_nodes": "2",
        "OMPI_MCA_orte_hnp_uri": "1588527104.0;tcp://10.244.0.9:39965",
        "OMPI_MCA_orte_local_daemon_uri": f"1588527104.{i + 1};tcp://10.244.0.{10 + i}:41001"}) for i in range(2)],
     "Open MPI", WORKERS[0]),
)


def pods():
    if os.geteuid() != 0 or subprocess.run(["unshare", "--uts", "--mount", "true"], capture_output=True).returncode:
        sys.exit(77)
    acclaunch, configs = (str(pathlib.Path(name).absolute()) for name in sys.argv[3:5])
    for name, machines, manager, address in PODS:
        ports = set()
        for rank, (host_name, domain, variables) in enumerate(machines):
            plan = explained(acclaunch, configs, load(name), host_name, domain, variables)
            found = (plan["manager"]["name"], plan["machines"]["max"], plan["machines"]["machine_rank"],
                     plan["rendezvous"]["address"], plan["ranks"]["world_size"], plan["ranks"]["first"])
            assert found == (manager, len(machines), rank, address, 4, 2 * rank), (name, found)
            ports.add(plan["rendezvous"]["port"])
        assert len(ports) == 1, (name, ports)
        print(f"{name}: {manager}, {len(machines)} machines, machine 0 at {address}:{ports.pop()}")


def ask(probe, port):
    """Status of a probe's request, as a kubelet makes it: without a check of the certificate. None: no connection."""
    get = probe["httpGet"]
    try:
        with urllib.request.urlopen(f"{get['scheme'].lower()}://127.0.0.1:{port}{get['path']}", timeout=120,
                                    context=ssl._create_unverified_context()) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code
    except (urllib.error.URLError, OSError):
        return None


def probes():
    daemon = str(pathlib.Path(sys.argv[3]).absolute())
    documents = list(yaml.safe_load_all((FOLDER / "rendezvous.yaml").read_text()))
    container = next(next(pods_of(document)) for document in documents if list(pods_of(document)))["containers"][0]
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    with tempfile.TemporaryDirectory() as folder:
        for mount in container["volumeMounts"]:
            (pathlib.Path(folder) / mount["mountPath"].lstrip("/")).mkdir()
        token = pathlib.Path(folder + variables["ACC_RENDEZVOUS_TOKEN_FILE"])
        token.write_text("0123456789abcdef0123456789abcdef\n")
        token.chmod(0o400)
        port = str(reserved_port())
        places = {"29500": port, "/state": f"{folder}/state", "acc-rendezvous": daemon}
        command = [places.get(word, word) for word in container["command"]]
        for start in ("first", "recovered"):
            process = subprocess.Popen(command, env={"ACC_RENDEZVOUS_TOKEN_FILE": str(token)},
                                       stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert "listening" in process.stdout.readline(), process.stderr.read()
            for name in ("readinessProbe", "livenessProbe"):
                assert ask(container[name], port) == 200, (start, name)
            process.send_signal(signal.SIGKILL if start == "first" else signal.SIGTERM)
            process.wait()
            assert ask(container["livenessProbe"], port) is None
    print("rendezvous.yaml: ready and alive, also after a restart")


if __name__ == "__main__":
    {"schemas": schemas, "mounts": mounts, "pods": pods, "probes": probes}[sys.argv[1]]()
