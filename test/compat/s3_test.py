# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as objects of an S3 service: saved, resumed, converted and checked, and what faults leave."""
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))
from failures import exit_with  # noqa: E402
try:
    import boto3
    from s3_server import KEY, REGION, SECRET, S3Server
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ACCLAUNCH, TRAIN_GPT = sys.argv[1:3]
SMALL = ["--layers", "2", "--dim", "32", "--seq_len", "32", "--micro_batch", "1"]
failures = []


def check(name, is_right, *details):
    if not is_right:
        failures.append(": ".join([name, *map(str, details)]))


def run(*command, **environment):
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900,
                           env={**os.environ, **server.environment, **environment})
    return ended.returncode, ended.stdout + ended.stderr


def command(*arguments, **environment):
    return run(ACCLAUNCH, *arguments, **environment)


def launch(ranks, kind, *arguments, flags=()):
    return [ACCLAUNCH, "--cpu", "--num_processes", str(ranks), "--use_fsdp", "--fsdp_state_dict_type", kind, *flags,
            TRAIN_GPT, "--data", str(folder / "text"), *arguments]


def train(ranks, *arguments, kind="SHARDED_STATE_DICT", model=SMALL, flags=()):
    return run(*launch(ranks, kind, *model, *arguments, flags=flags))


def keys(prefix):
    pages = boto.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix=prefix)
    return sorted(each["Key"] for page in pages for each in page.get("Contents", []))


def saves_and_loads():
    """Saved by two ranks in every form, resumed by three: the steps are those of files."""
    for kind in ("SHARDED_STATE_DICT", "FULL_STATE_DICT", "LOCAL_STATE_DICT"):
        status, text = train(2, "--steps", "2", "--save", f"s3://bucket/a b+%/{kind}", kind=kind)
        check(f"save {kind}", status == 0, text)
        train(2, "--steps", "2", "--save", str(folder / kind), kind=kind)
        metrics = []
        for number, source in enumerate((f"s3://bucket/a b+%/{kind}", str(folder / kind))):
            out = folder / f"metrics-{kind}-{number}"
            status, text = train(3, "--steps", "4", "--resume", source, "--metrics", str(out), kind=kind)
            check(f"resume from {source}", status == 0, text)
            metrics.append([line.split('"loss":')[1].split(",")[0] for line in out.read_text().splitlines()])
        check(f"losses after {kind}", metrics[0] == metrics[1] and len(metrics[0]) == 2, metrics)
        here = sorted(str(each.relative_to(folder)) for each in (folder / kind).rglob("*") if each.is_file())
        check(f"objects of {kind}", [key.split("/", 1)[1] for key in keys("a b+%/" + kind)] == here, here)
        status, text = command("verify", f"s3://bucket/a b+%/{kind}")
        check(f"verify {kind}", status == 0, text)


def series():
    for ranks, steps, flags in ((2, 6, ()), (3, 8, ("--save_async",))):
        status, text = train(ranks, "--steps", str(steps), "--checkpoint", "s3://bucket/series/", "--checkpoint_every",
                             "2", "--total_limit", "2", flags=flags)
        check("series", status == 0, text)
    check("resumes from the newest", "resuming from step 6 (s3://bucket/series/checkpoint_2)" in text, text)
    groups = {key.split("/")[1] for key in keys("series/")}
    check("keeps two", groups == {"checkpoint_2", "checkpoint_3", "latest"}, groups)
    latest = boto.get_object(Bucket="bucket", Key="series/latest")["Body"].read()
    check("latest", latest == b"checkpoint_3", latest)
    status, text = command("inspect", "s3://bucket/series")
    check("inspect takes the newest", status == 0 and "checkpoint_3" in text, text[:400])


def conversions():
    """The same bytes as of files, from and to objects."""
    source, local = "s3://bucket/a b+%/SHARDED_STATE_DICT", str(folder / "SHARDED_STATE_DICT")
    rows = [("convert", ["--to", "safetensors"]), ("convert", ["--to", "safetensors", "--max_shard_size", "30KB"]),
            ("convert", ["--to", "bin"]), ("convert", ["--to", "dcp", "--num_processes", "3"]),
            ("convert", ["--to", "deepspeed", "--num_processes", "2"]), ("reshard", ["--num_processes", "3"]),
            ("merge-weights", [])]
    for number, (name, options) in enumerate(rows):
        out = folder / f"out{number}"
        status, text = command(name, local, str(out), *options)
        check(f"{name} {options} of files", status == 0, text)
        for way, (origin, target) in enumerate(((source, folder / f"to{number}"), (source, f"s3://bucket/to{number}"))):
            status, text = command(name, origin, str(target), *options)
            check(f"{name} {options} to {target}", status == 0, text)
            # .metadata contains an id of its own, and the manifest its checksum.
            for file in (each for each in out.rglob("*") if each.is_file()
                         and each.name not in (".metadata", "acc_checkpoint.json")):
                inner = file.relative_to(out)
                if way == 0:
                    found = (target / inner).read_bytes()
                else:
                    found = boto.get_object(Bucket="bucket", Key=f"to{number}/{inner}")["Body"].read()
                check(f"{name} {options}: {inner} in {target}", found == file.read_bytes())
            status, text = command("verify", str(target))
            check(f"verify {target}", status == 0, text)
    check("no marks remain", not [key for key in keys("") if key.endswith(".acc-unfinished")])
    check("nothing in the folder for temporary files", not list((folder / "tmp").iterdir()))


def large():
    """Parts of 8 MiB, also with a service that fails at first."""
    seen = set()

    def once(method, path):
        fails = (method, path) not in seen and method in ("PUT", "POST", "GET")
        seen.add((method, path))
        return 503 if fails else None

    server.fault = once
    model = ["--layers", "3", "--dim", "256", "--seq_len", "16", "--micro_batch", "1"]
    status, text = train(2, "--steps", "1", "--save", "s3://bucket/large", kind="FULL_STATE_DICT", model=model)
    server.fault = lambda method, path: None
    check("large", status == 0, text)
    check("in parts", any("partNumber=3" in path for _, path in server.requests))
    status, text = command("verify", "s3://bucket/large")
    check("large is whole", status == 0, text)
    uploads = boto.list_multipart_uploads(Bucket="bucket").get("Uploads", [])
    check("no upload remains", not uploads, uploads)


def refusals():
    """(what, command, words of the message, fault)"""
    source = "s3://bucket/large"
    save = launch(1, "SHARDED_STATE_DICT", *SMALL, "--steps", "1", "--save")
    boto.put_object(Bucket="bucket", Key="other/notes.txt", Body=b"mine")
    before = {key: boto.head_object(Bucket="bucket", Key=key)["ETag"] for key in keys("")}
    rows = [
        ("a complete checkpoint", [*save, source], ["cannot replace s3://bucket/large"], None),
        ("a folder of others", [*save, "s3://bucket/other"], ["cannot replace s3://bucket/other"], None),
        ("a conversion over one", [ACCLAUNCH, "convert", source, source, "--to", "dcp", "--overwrite"],
         ["cannot replace s3://bucket/large"], None),
        ("no such object", [ACCLAUNCH, "inspect", "s3://bucket/nothing"], ["s3://bucket/nothing: no such file"], None),
        ("no such bucket", [ACCLAUNCH, "inspect", "s3://absent-bucket/x"], ["s3://absent-bucket/x", "NoSuchBucket"], None),
        ("no bucket", [ACCLAUNCH, "inspect", "s3://"], ["s3://<bucket>/<key>"], None),
        ("no right to read", [ACCLAUNCH, "verify", source], ["s3://bucket/large", "403", "TestFault: on purpose"],
         lambda method, path: 403),
        ("a list that is none", [ACCLAUNCH, "inspect", "s3://bucket/series"],
         ["cannot list s3://bucket/series", "no ListBucketResult"],
         lambda method, path: 200 if "list-type=2" in path else None),
        ("no right to write", [*save, "s3://bucket/new"], ["cannot write s3://bucket/new/", "403"],
         lambda method, path: 403 if method == "PUT" else None),
        ("replaced while it is read", [ACCLAUNCH, "convert", source, str(folder / "gone"), "--to", "safetensors"],
         ["was replaced or removed while it was read"],
         lambda method, path: 412 if method == "GET" and "pytorch_model_fsdp.bin" in path else None),
    ]
    for name, arguments, words, fault in rows:
        server.fault = fault or (lambda method, path: None)
        status, text = run(*arguments)
        server.fault = lambda method, path: None
        check(name, status == 2 and all(word in text for word in words), status, text)
    check("no half conversion", not (folder / "gone" / "model.safetensors").exists())
    after = {key: boto.head_object(Bucket="bucket", Key=key)["ETag"] for key in keys("")}
    check("nothing was touched", before == after, set(before) ^ set(after))
    status, text = command("inspect", source, AWS_SECRET_ACCESS_KEY="wrong")
    check("a wrong key", status == 2 and "403" in text, text)
    status, text = command("inspect", source, AWS_SECRET_ACCESS_KEY="", HOME=str(folder))
    check("no key", status == 2 and "AWS_ACCESS_KEY_ID" in text and "credentials" in text, text)
    (folder / ".aws").mkdir()
    (folder / ".aws/credentials").write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
                                             f"aws_session_token = {server.environment['AWS_SESSION_TOKEN']}\n")
    # As the AWS CLI writes them: settings of services are indented, and have the same keys.
    nested = "[services local]\ns3 =\n  endpoint_url = http://a\ndynamodb =\n  endpoint_url = http://b\n"
    (folder / ".aws/config").write_text(f"{nested}[default]\nregion = {REGION}\ns3 =\n  a = 1\n  a = 2\n")
    status, text = command("inspect", source, AWS_SECRET_ACCESS_KEY="", AWS_REGION="", HOME=str(folder))
    check("keys from files", status == 0, text)
    (folder / ".aws/config").write_text(f"{nested}[default]\nservices = local\n")
    status, text = command("inspect", source, HOME=str(folder), AWS_ENDPOINT_URL="", AWS_ENDPOINT_URL_S3="")
    check("services of a profile", status == 2 and "profile default has the key services" in text, text)
    (folder / ".aws/config").unlink()
    (folder / ".aws/credentials").write_text("[default\n")
    status, text = command("inspect", source, AWS_SECRET_ACCESS_KEY="", HOME=str(folder))
    check("a damaged file of keys", status == 2 and ".aws/credentials, line 1" in text, text)


def damage():
    key = "large/pytorch_model_fsdp.bin"
    body = boto.get_object(Bucket="bucket", Key=key)["Body"].read()
    boto.put_object(Bucket="bucket", Key=key, Body=body[:5_000_000] + bytes([body[5_000_000] ^ 1]) + body[5_000_001:])
    status, text = command("verify", "s3://bucket/large")
    check("verify finds a changed bit", status == 1 and "pytorch_model_fsdp.bin" in text, text)
    boto.put_object(Bucket="bucket", Key=key, Body=body[:-100])
    status, text = command("verify", "s3://bucket/large")
    check("verify finds a short object", status == 1, text)


def killed(place, method, number, inner):
    """A job that is killed in a request of a save leaves no checkpoint; the next one removes what it left."""
    def names():
        return {key.split("/")[1] for key in keys(f"{place}/")}

    flags = ["--checkpoint", f"s3://bucket/{place}", "--checkpoint_every", "1", "--total_limit", "1"]
    begun = threading.Event()

    def stop(asked, path):
        if asked == method and path.endswith(f"checkpoint_{number}/{inner}"):
            begun.set()
            threading.Event().wait(20)  # the launcher is killed meanwhile
            return 503
        return None

    server.fault = stop
    job = subprocess.Popen(launch(2, "SHARDED_STATE_DICT", *SMALL, "--steps", "9", *flags), stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, env={**os.environ, **server.environment})
    check(f"{place}: the save began", begun.wait(200))
    job.send_signal(signal.SIGKILL)
    job.wait()
    server.fault = lambda method, path: None
    left = f"{place}/checkpoint_{number}"
    check(f"{place}: it is marked", f"{left}/.acc-unfinished" in keys(f"{place}/"), keys(f"{place}/"))
    status, text = command("inspect", f"s3://bucket/{left}")
    check(f"{place}: it is no checkpoint", status == 2 and "was not completed" in text, text)
    status, text = train(2, "--steps", "4", *flags)
    check(f"{place}: goes on from the one before", status == 0 and
          ("resuming" in text) == (number > 0) and (number == 0 or f"resuming from step {number}" in text), text)
    check(f"{place}: one remains",
          len(names()) == 2 and not [key for key in keys(f"{place}/") if "unfinished" in key], names())


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    (folder / "tmp").mkdir()
    os.environ["TMPDIR"] = str(folder / "tmp")
    (folder / "text").write_text("All work and no play. " * 400)
    server = S3Server()
    boto = boto3.client("s3", endpoint_url=server.endpoint, region_name=REGION, aws_access_key_id=KEY,
                        aws_secret_access_key=SECRET)
    boto.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": REGION})
    for part in (saves_and_loads, series, conversions, large, refusals, damage):
        part()
    for row in (("killed", "PUT", 2, "acc_checkpoint.json"), ("marked", "DELETE", 0, ".acc-unfinished")):
        killed(*row)
    check("signatures", not server.wrong_signatures or
          all("large" in path for _, path in server.wrong_signatures), server.wrong_signatures)
    check("no folder of that name on this machine", not Path("s3:").exists())
    server.stop()
exit_with(failures)
