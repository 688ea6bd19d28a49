# SPDX-License-Identifier: Apache-2.0
"""The Markdown page of a run, and its verdicts on the goals."""
import re

from . import formulas

MARKS = {"passed": "passed", "failed": "**failed**", "skipped": "skipped", "running": "unfinished",
         "not run": "not run"}


AIMS = {"tests": "the tests labelled gpu pass",
        "nccl": "NCCL works with one rank",
        "parity": "losses of PyTorch and of the CPU back end",
        "attention": "attention is as exact as PyTorch's",
        "products": "matrix products of bf16 are exact",
        "sanitizers": "compute-sanitizer finds nothing",
        "offload": "offload needs less GPU memory, and trains a model that exceeds it",
        "resume": "the same losses after a checkpoint",
        "strategies_staged": "every strategy, ranks sharing a GPU by staging",
        "strategies_nccl": "every strategy, ranks sharing a GPU by NCCL",
        "modules": "modules of PyTorch, every strategy"}


def device_slug(name):
    """File name for a device: "NVIDIA H200" -> "h200"."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return re.sub(r"^(nvidia|tesla|geforce)-", "", words) or "gpu"


def figures_of(data, step):
    return next((each["figures"] for each in data["steps"] if each["name"] == step), {})


def verdict(aim, figure, met):
    return {"aim": aim, "figure": figure, "met": met}


def status_verdict(data, name, aim):
    step = next(each for each in data["steps"] if each["name"] == name)
    late = sum(check["good"] is None for check in step["checks"])
    if late and step["status"] == "passed":
        return verdict(aim, f"{late} of {len(step['checks'])} checks were not decided", None)
    return verdict(aim, step["status"], {"passed": True, "failed": False}.get(step["status"]))


def speed_verdicts(data):
    hopper = tuple(data.get("capability") or ()) == formulas.HOPPER
    verdicts = []
    for size in ("gpt_124m", "gpt_1.3b"):
        runs = figures_of(data, size)
        ours = runs.get("train_gpt", {}).get("mfu")
        peers = {name: run["mfu"] for name, run in runs.items() if name.startswith("torch") and
                 "micro-batch" not in name and run.get("mfu")}
        if ours is None:
            verdicts.append(verdict(f"{size}: MFU above PyTorch's", "not measured", None))
            continue
        if peers:
            best = max(peers, key=peers.get)
            verdicts.append(verdict(f"{size}: MFU above PyTorch's",
                                    f"{ours:.3f} against {peers[best]:.3f} ({best})",
                                    ours > peers[best]))
        if hopper:
            verdicts.append(verdict(f"{size}: MFU of 0.5 or more", f"{ours:.3f}", ours >= 0.5))
        memory = runs["train_gpt"].get("memory_over_formula")
        if memory is not None:
            verdicts.append(verdict(f"{size}: peak memory within 5 % of formula and activations",
                                    f"{memory:+.1%}", abs(memory) <= 0.05))
    return verdicts


def adamw_verdict(data):
    figures = figures_of(data, "peak")
    ratio = figures.get("over_torch")
    if ratio is None:
        return verdict("fused AdamW as fast as torch's fused", "not measured", None)
    return verdict("fused AdamW as fast as torch's fused",
                   f"{ratio:.2f} times as fast; {figures.get('of_copy_rate', 0):.0%} of the copy "
                   "rate", ratio >= 1.0)


def overlap_verdict(data, gpus):
    share = figures_of(data, "overlap").get("hidden_share_least")
    aim = "95 % of communication behind compute, on two GPUs or more"
    if share is None:
        return verdict(aim, "not measured", None)
    return verdict(aim, f"{share:.1%} on {gpus} GPU(s)", share >= 0.95 if gpus > 1 else None)


def verdicts(data):
    """Every goal of the set with its measurement; `met` is None if this run cannot decide it."""
    listed = {step["name"] for step in data["steps"]}
    table = [status_verdict(data, name, aim) for name, aim in AIMS.items() if name in listed]
    if data["has_figures"] and "gpt_124m" in listed:
        table += [*speed_verdicts(data), adamw_verdict(data)]
    if data["has_figures"] and "overlap" in listed:
        table.append(overlap_verdict(data, data["device"].get("gpus", 1)))
    return table


def formatted(value):
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def rows_of(figures):
    """Lines of Markdown tables: one row per nested measurement; name and value of plain ones."""
    nested = {name: value for name, value in figures.items() if isinstance(value, dict)}
    plain = {name: value for name, value in figures.items() if name not in nested}
    lines = []
    if plain:
        lines += ["| figure | value |", "| --- | --- |"]
        lines += [f"| {name} | {formatted(value)} |" for name, value in plain.items()]
        lines.append("")
    if nested:
        columns = list(dict.fromkeys(key for row in nested.values() for key in row))
        lines += ["| | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
        for name, row in nested.items():
            lines.append(f"| {name} | " + " | ".join(formatted(row.get(c)) for c in columns) + " |")
        lines.append("")
    return lines


def bad_lines(check):
    """Lines for a check that failed or timed out. Output of several lines is quoted, because it is
    not Markdown."""
    what = ("failed: " if check["good"] is False else "skipped: ") + check["what"]
    if "\n" not in check["detail"]:
        return [f"- {what}: {check['detail']}"]
    return [f"- {what}", "", "```", check["detail"], "```", ""]


def step_lines(step):
    lines = [f"## {step['title']}", "",
             f"`{step['name']}`: {MARKS[step['status']]}" +
             (f" after {step['seconds']} s" if "seconds" in step else "") + "."]
    if "error" in step:
        lines += ["", "```", step["error"].strip(), "```"]
    bad = [check for check in step["checks"] if not check["good"]]
    late = sum(check["good"] is None for check in step["checks"])
    if step["checks"]:
        lines += ["", f"{len(step['checks']) - len(bad)} of {len(step['checks'])} checks passed" +
                  (f", {late} ran out of time." if late else ".")]
        lines += [line for check in bad for line in bad_lines(check)]
    lines += [""] + [f"- {note}" for note in step.get("notes", [])]
    return lines + [""] + rows_of(step["figures"])


def machine_lines(data):
    """The device, and the libraries and tools that the run used."""
    facts = {**data["device"], **data.get("software", {})}
    return ["## The machine", "", *rows_of({name: value for name, value in facts.items()
                                            if value is not None})]


def page(data):
    """The whole run as a Markdown page."""
    device = data["device"]
    title = device.get("name") or "no GPU"
    lines = [f"# {title}", ""]
    if not data["has_figures"]:
        made_on = "stand-in libraries on host memory" if data["standin"] else "tiny models"
        lines += [f"**Made on {made_on}: no measurements, only whether the steps run.**", ""]
    lines += [f"Written by `scripts/gpu_check` on {data.get('date', '?')}, version "
              f"{data.get('version', '?')}. Meaning of the columns: [README.md](README.md).", "",
              "| aim | figure | met |", "| --- | --- | --- |"]
    for row in data["verdicts"]:
        met = {True: "yes", False: "**no**", None: "open"}[row["met"]]
        lines.append(f"| {row['aim']} | {row['figure']} | {met} |")
    lines += [""]
    lines += machine_lines(data)
    for step in data["steps"]:
        lines += step_lines(step)
    return "\n".join(lines).rstrip() + "\n"
