"""Makes the ds_*_w2 sets: real DeepSpeed on two CPU ranks, with frozen parameters, buffers, a tied
name, two groups, sub-groups (stage 3) and a permuted order (round robin, stages 1 and 2).

  DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 make_deepspeed.py OUT STAGE [bf16|bf16_accumulate]

OUT gets the checkpoint and reference.safetensors: "param/NAME" as DeepSpeed's zero_to_fp32 merges
them, "exp_avg/NAME" and "exp_avg_sq/NAME" as its safe_get_full_optimizer_state gathers them, or
cut from the files by torch.
"""

import glob
import os
import sys

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from safetensors.torch import save_file


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Embedding(11, 7)
        self.frozen = torch.nn.Linear(7, 5)
        self.a = torch.nn.Linear(7, 13)
        self.norm = torch.nn.LayerNorm(13)
        self.b = torch.nn.Linear(13, 7)
        self.head = torch.nn.Linear(7, 11, bias=False)
        self.head.weight = self.emb.weight
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 7))
        self.register_buffer("seen", torch.arange(3))
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)

    def forward(self, tokens):
        h = self.emb(tokens)
        h = h * self.scale.to(h.dtype)
        h = h + self.b(self.norm(torch.relu(self.a(h)))) + self.frozen(h).sum(-1, keepdim=True)
        return self.head(h).float().logsumexp(-1).mean()


def moments_of_files(folder):
    """Each group's flat moments over both ranks, cut by param_shapes."""
    def load(pattern):
        files = sorted(glob.glob(os.path.join(folder, pattern)))
        return [torch.load(file, weights_only=False) for file in files]

    shapes = load("mp_rank_00_model_states.pt")[0]["param_shapes"]
    states = [file["optimizer_state_dict"]["base_optimizer_state"]["state"]
              for file in load("*_optim_states.pt")]
    result = {}
    for moment in ("exp_avg", "exp_avg_sq"):
        for group, parameters in enumerate(shapes):
            flat = torch.cat([state[group][moment] for state in states])
            parts = flat.split([s.numel() for s in parameters.values()]
                               + [flat.numel() - sum(s.numel() for s in parameters.values())])
            for (name, shape), part in zip(parameters.items(), parts):
                result[f"{moment}/{name}"] = part.view(shape).clone()
    return result


def main():
    out, stage, kind = sys.argv[1], int(sys.argv[2]), (sys.argv[3:] or [""])[0]
    torch.manual_seed(3)
    net = Net()
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0},
        ],
        lr=1e-3,
        betas=(0.9, 0.95),
    )
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": 1000,
            "stage3_param_persistence_threshold": 10,
            "sub_group_size": 150,
            "round_robin_gradients": True,
        },
    }
    if kind:
        config["bf16"] = {"enabled": True}
    if kind == "bf16_accumulate":
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(3):
        engine.backward(engine(torch.randint(0, 11, (4,), generator=generator)))
        engine.step()
    engine.save_checkpoint(out, client_state={"note": "x"})

    reference = {}
    # Stages 1 and 2 link these only after a load.
    gathers = stage == 3 or kind == "bf16_accumulate"
    for name, parameter in net.named_parameters():
        for moment in ("exp_avg", "exp_avg_sq") if parameter.requires_grad and gathers else ():
            value = safe_get_full_optimizer_state(parameter, moment)
            reference[f"{moment}/{name}"] = value.detach().float().clone()
        if kind == "bf16_accumulate" and parameter.requires_grad:
            # DeepSpeed's merge does not know that optimizer's files.
            reference[f"param/{name}"] = safe_get_full_fp32_param(parameter).detach().clone()
    dist.barrier()
    if dist.get_rank() == 0:
        for script in ("zero_to_fp32.py", "zero_to_torch.py"):
            os.remove(os.path.join(out, script))
        if kind != "bf16_accumulate":
            for name, value in get_fp32_state_dict_from_zero_checkpoint(out).items():
                reference[f"param/{name}"] = value.contiguous().clone()
        if not gathers:
            reference.update(moments_of_files(os.path.join(out, "global_step3")))
        save_file(reference, os.path.join(out, "reference.safetensors"))


if __name__ == "__main__":
    main()
