# SPDX-License-Identifier: Apache-2.0
"""engine_models_test.py ACCLAUNCH PACKAGE [--all] [--steps N] [--dtype bfloat16 --torch] [--zero STAGE]: trains tiny
random models of transformers, sharded at `_no_split_modules` by the engine acc (--zero: by DeepSpeed's interface), and
the same models unsharded in the same processes, with gradients that torch averages over the ranks (--torch: sharded by
torch's engine). Losses and norms must be equal, step by step; then one rank and three resume from the checkpoint of
two. Exits with 77 without transformers."""

import argparse
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

if not all(map(importlib.util.find_spec, ("torch", "transformers"))):
    print("skipped: no transformers")
    sys.exit(77)

sys.path.append(str(pathlib.Path(__file__).parent / "workers"))
PRELOADED = ("torch._dynamo,torch.distributed.fsdp,torch.distributed.checkpoint.state_dict,transformers.modeling_utils,"
             "peft")
WORDS, SIZE = 61, 16
COMMON = dict(vocab_size=WORDS, hidden_size=SIZE, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
ENCODER_DECODER = dict(d_model=SIZE, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                       decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, decoder_start_token_id=1,
                       forced_eos_token_id=2)
T5 = dict(d_model=SIZE, d_kv=4, d_ff=24, num_layers=2, num_heads=4, decoder_start_token_id=1)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, shared_expert_intermediate_size=12,
               decoder_sparse_step=1, router_jitter_noise=0.0, output_router_logits=True)
VISION = dict(image_size=16, patch_size=8, num_channels=3, num_labels=4)


# ---- inputs: functions of (torch, generator, rows) -----------------------------------------------

def words(torch, generator, rows):
    ids = torch.randint(3, WORDS, (rows, 9), generator=generator)
    return dict(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)


def padded(torch, generator, rows):
    ids = torch.randint(3, WORDS, (rows, 9), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, -2:] = 0
    return dict(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))


def sentences(torch, generator, rows):
    return words(torch, generator, rows) | dict(labels=torch.randint(4, (rows,), generator=generator))


def images(torch, generator, rows):
    return dict(pixel_values=torch.randn(rows, 3, 16, 16, generator=generator),
                labels=torch.randint(4, (rows,), generator=generator))


def large_images(torch, generator, rows):
    return dict(pixel_values=torch.randn(rows, 3, 64, 64, generator=generator),
                labels=torch.randint(4, (rows,), generator=generator))


def pairs(torch, generator, rows):
    ids = torch.randint(3, WORDS - 1, (rows, 9), generator=generator)
    ids[:, -1] = WORDS - 1  # the end of the text
    return dict(pixel_values=torch.randn(rows, 3, 16, 16, generator=generator), input_ids=ids, return_loss=True)


def sound(torch, generator, rows):
    return dict(input_values=torch.randn(rows, 400, generator=generator),
                labels=torch.randint(4, (rows,), generator=generator))


def speech(torch, generator, rows):
    return dict(input_features=torch.randn(rows, 8, 40, generator=generator),
                labels=torch.randint(3, WORDS, (rows, 6), generator=generator))


# By name: (model type, class, inputs, settings of the configuration, further words).
MODELS = {
    "bert": ("bert", "ForMaskedLM", padded, {}),
    "bert, sentences": ("bert", "ForSequenceClassification", sentences, dict(num_labels=4)),
    "roberta": ("roberta", "ForMaskedLM", padded, {}),
    "deberta": ("deberta-v2", "ForMaskedLM", padded, dict(relative_attention=True, pos_att_type=["p2c", "c2p"])),
    "electra": ("electra", "ForMaskedLM", words, dict(embedding_size=8)),
    "albert": ("albert", "ForMaskedLM", words, dict(embedding_size=8)),
    "distilbert": ("distilbert", "ForMaskedLM", words, dict(dim=SIZE, n_layers=2, n_heads=4, hidden_dim=24)),
    "modernbert": ("modernbert", "ForMaskedLM", padded, {}),
    "gpt2": ("gpt2", "ForCausalLM", words, dict(n_embd=SIZE, n_layer=2, n_head=4)),
    "gpt2, recomputed": ("gpt2", "ForCausalLM", words, dict(n_embd=SIZE, n_layer=2, n_head=4), "recomputed"),
    "gpt2, LoRA": ("gpt2", "ForCausalLM", words, dict(n_embd=SIZE, n_layer=2, n_head=4), "LoRA"),
    "llama": ("llama", "ForCausalLM", padded, {}),
    "llama, tied": ("llama", "ForCausalLM", words, dict(tie_word_embeddings=True)),
    "llama, recomputed": ("llama", "ForCausalLM", words, dict(tie_word_embeddings=True), "recomputed"),
    "llama, LoRA": ("llama", "ForCausalLM", words, {}, "LoRA"),
    "mistral": ("mistral", "ForCausalLM", words, dict(sliding_window=4)),
    "qwen2": ("qwen2", "ForCausalLM", words, dict(tie_word_embeddings=True)),
    "qwen3": ("qwen3", "ForCausalLM", words, dict(head_dim=4)),
    "gemma2": ("gemma2", "ForCausalLM", words, dict(head_dim=4, query_pre_attn_scalar=4)),
    "phi3": ("phi3", "ForCausalLM", words, {}),
    "opt": ("opt", "ForCausalLM", words, dict(ffn_dim=24, word_embed_proj_dim=8)),
    "bloom": ("bloom", "ForCausalLM", words, dict(n_layer=2, n_head=4)),
    "falcon": ("falcon", "ForCausalLM", words, dict(alibi=False)),
    "gpt-neox": ("gpt_neox", "ForCausalLM", words, {}),
    "mixtral": ("mixtral", "ForCausalLM", words, EXPERTS | dict(num_local_experts=4)),
    "qwen2-moe": ("qwen2_moe", "ForCausalLM", words, EXPERTS),
    "olmoe": ("olmoe", "ForCausalLM", words, EXPERTS),
    "t5": ("t5", "ForSeq2SeqLM", words, T5),
    "t5, LoRA": ("t5", "ForSeq2SeqLM", words, T5, "LoRA"),
    "mt5": ("mt5", "ForSeq2SeqLM", words, T5),
    "bart": ("bart", "ForSeq2SeqLM", words, ENCODER_DECODER),
    "vit": ("vit", "ForImageClassification", images, VISION),
    "resnet": ("resnet", "ForImageClassification", large_images,
               dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=4)),
    "convnext": ("convnext", "ForImageClassification", large_images,
                 dict(hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, num_labels=4)),
    "swin": ("swin", "ForImageClassification", images,
             dict(image_size=16, patch_size=2, embed_dim=8, depths=[1, 2], num_heads=[2, 2], window_size=2,
                  num_labels=4)),
    "clip": ("clip", "ForZeroShotImageClassification", pairs, dict(
        projection_dim=8, text_config=COMMON | dict(eos_token_id=WORDS - 1), vision_config=COMMON | VISION)),
    "wav2vec2": ("wav2vec2", "ForAudioClassification", sound, dict(
        conv_dim=[8, 8], conv_stride=[5, 2], conv_kernel=[10, 3], num_feat_extract_layers=2, num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, num_labels=4, classifier_proj_size=8, mask_time_prob=0.0, layerdrop=0.3)),
    "whisper": ("whisper", "ForSpeechSeq2Seq", speech, ENCODER_DECODER | dict(
        num_mel_bins=8, max_source_positions=20, max_target_positions=16, suppress_tokens=None,
        begin_suppress_tokens=None)),
    "mamba": ("mamba", "ForCausalLM", words, dict(state_size=4, expand=2, conv_kernel=4, time_step_rank=4)),
    "rwkv": ("rwkv", "ForCausalLM", words, dict(attention_hidden_size=SIZE, context_length=16)),
}
CHOSEN = "bert", "gpt2, recomputed", "llama, LoRA", "mixtral", "t5", "resnet", "clip", "wav2vec2", "mamba"


def made(name, dtype):
    import torch
    import transformers

    kind, head, _, settings, *further = MODELS[name]
    torch.manual_seed(11)
    common = {} if kind in ("clip", "swin") else COMMON
    config = transformers.AutoConfig.for_model(kind, **common | settings)
    model = getattr(transformers, f"AutoModel{head}").from_config(config).to(dtype)
    model.train()
    for module in model.modules():
        for attribute, each in list(module._parameters.items()):
            if each is not None and each.dim() == 0:  # which fully_shard does not shard
                setattr(module, attribute, torch.nn.Parameter(each.detach().reshape(1)))
    if "LoRA" in further:
        from peft import LoraConfig, get_peft_model
        targets = {"gpt2": ["c_attn"], "t5": ["q", "v"]}.get(kind, ["q_proj", "v_proj"])
        model = get_peft_model(model, LoraConfig(r=2, target_modules=targets, lora_dropout=0.1))
    if "recomputed" in further:
        model.gradient_checkpointing_enable()
    return model


def units_of(model):
    """Modules that Accelerate's TRANSFORMER_BASED_WRAP would shard, the inner ones first."""
    names = set().union(*(getattr(each, "_no_split_modules", None) or () for each in model.modules()))
    lists = [each for parent in model.modules() if type(parent).__name__ == "ModuleList" for each in parent]
    chosen = [each for each in model.modules() if type(each).__name__ in names]
    return [each for each in reversed(chosen or lists) if any(True for _ in each.parameters())]


class Engine:
    """What both trainings have in common: torch's functions."""

    def shard(self, training):
        pass

    def backward(self, training, loss, is_last):
        loss.backward()

    def step(self, training):
        """Returns the norm of the gradients before they were clipped."""
        import torch
        norm = torch.nn.utils.clip_grad_norm_(training.model.parameters(), 0.5)
        training.optimizer.step()
        training.optimizer.zero_grad()
        return (norm.full_tensor() if hasattr(norm, "full_tensor") else norm).item()

    def state(self, training):
        from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
        return {"model": get_model_state_dict(training.model),
                "optimizer": get_optimizer_state_dict(training.model, training.optimizer)}

    def set_state(self, training, state):
        from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict
        set_model_state_dict(training.model, state["model"])
        set_optimizer_state_dict(training.model, training.optimizer, state["optimizer"])


class Plain(Engine):
    """The unsharded model. has_zeros: a parameter that no rank has used gets a gradient of zeros."""

    def __init__(self, has_zeros):
        self.has_zeros = has_zeros

    def shard(self, training):
        for each in training.model.modules():
            each._is_fsdp_managed_module = True  # then transformers computes what layerdrop skips

    def step(self, training):
        import torch
        import torch.distributed as dist
        for each in training.model.parameters():
            reached = torch.tensor(float(each.grad is not None or (self.has_zeros and each.requires_grad)))
            dist.all_reduce(reached)
            if reached:
                each.grad = torch.zeros_like(each) if each.grad is None else each.grad
                dist.all_reduce(each.grad)
                each.grad /= dist.get_world_size()
        return super().step(training)

    def save(self, training, path):
        import torch
        import torch.distributed as dist
        if dist.get_rank() == 0:
            torch.save(self.state(training), path)

    def load(self, training, path):
        import torch
        self.set_state(training, torch.load(path, weights_only=False))


class Sharded(Engine):
    def __init__(self, fully_shard, policy):
        self.fully_shard, self.policy = fully_shard, policy

    def shard(self, training):
        keywords = {"mp_policy": self.policy} if self.policy else {}
        for each in units_of(training.model):
            self.fully_shard(each, **keywords)
        self.fully_shard(training.model, **keywords)

    def backward(self, training, loss, is_last):
        training.model.set_requires_gradient_sync(is_last)
        loss.backward()

    def save(self, training, path):
        import torch.distributed.checkpoint as dcp
        dcp.save(self.state(training), checkpoint_id=path)

    def load(self, training, path):
        import torch.distributed.checkpoint as dcp
        state = self.state(training)
        dcp.load(state, checkpoint_id=path)
        self.set_state(training, state)


class Zero(Engine):
    """DeepSpeed's interface."""

    def __init__(self, stage):
        self.stage = stage

    def shard(self, training):
        import deepspeed
        import plain_muon  # noqa: F401
        import torch
        config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "gradient_clipping": 0.5,
                  "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": self.stage}}
        trained = [each for each in training.model.parameters() if each.requires_grad]
        training.model, training.optimizer, *_ = deepspeed.initialize(
            model=training.model, config=config, optimizer=torch.optim.AdamW(trained, lr=1e-2))

    def backward(self, training, loss, is_last):
        training.model.backward(loss, scale_wrt_gas=False)
        if not is_last:
            training.model.step()

    def step(self, training):
        training.model.step()
        return float(training.model.get_global_grad_norm())

    def save(self, training, path):
        training.model.save_checkpoint(path)

    def load(self, training, path):
        training.model.load_checkpoint(path)


class Training:
    def __init__(self, name, engine, dtype):
        import torch
        self.name, self.engine, self.optimizer = name, engine, None
        self.model = made(name, dtype)
        engine.shard(self)
        self.optimizer = self.optimizer or torch.optim.AdamW(
            [each for each in self.model.parameters() if each.requires_grad], lr=1e-2)

    def steps(self, numbers):
        """Losses and norms: one more row in the first batch of each step than in the second."""
        import torch
        import torch.distributed as dist
        found = []
        for number in numbers:
            torch.manual_seed(100 * number + dist.get_rank())
            generator = torch.Generator().manual_seed(100 * number + dist.get_rank())
            for rows in (3, 2):
                loss = self.model(**MODELS[self.name][2](torch, generator, rows)).loss / 2
                self.engine.backward(self, loss, rows == 2)
                found.append(loss.item())
            found.append(self.engine.step(self))
        self.model.eval()
        with torch.no_grad():
            found.append(self.model(**MODELS[self.name][2](torch, generator, 1)).loss.item())
        self.model.train()
        return found


def expect_equal(ours, theirs, tolerance):
    difference = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(ours, theirs, strict=True))
    assert difference <= tolerance, f"differ by {difference:.1e}:\n{ours}\n{theirs}"
    return difference


def compare(name, engines, options, folder):
    import torch
    import torch.distributed as dist

    tolerance = 1e-5 if options.dtype == "float32" else 2e-2  # some losses are bfloat16, of 8 bits
    ours, theirs = trainings = [Training(name, engine, torch.float32) for engine in engines]
    if options.resume:
        for number, training in enumerate(trainings):
            training.engine.load(training, f"{folder}/{number}")
        difference = 0
    else:
        numbers = range(options.steps)
        difference = expect_equal(ours.steps(numbers), theirs.steps(numbers), tolerance)
        for number, training in enumerate(trainings):
            for each in training.model.buffers():  # each rank has its own statistics (BatchNorm)
                dist.broadcast(each, 0)
            training.engine.save(training, f"{folder}/{number}")
    numbers = range(options.steps, options.steps + 2)
    return max(difference, expect_equal(ours.steps(numbers), theirs.steps(numbers), tolerance))


def worker(options):
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy
    from torch.distributed.fsdp import fully_shard as of_torch

    from acclaunch._fsdp2 import fully_shard
    from leave import leave

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    policy = None if options.dtype == "float32" else MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    engines = (Sharded(fully_shard, policy) if options.zero is None else Zero(options.zero),
               Sharded(of_torch, policy) if options.torch else Plain(options.zero is not None))
    failed = 0
    for name in options.models:
        folder = pathlib.Path(options.folder) / name.replace(", ", "_")
        folder.mkdir(exist_ok=True)
        try:
            difference = compare(name, engines, options, folder)
            result = f"equal ({difference:.0e})"
        except Exception as error:
            if not options.keep_on:
                raise
            failed += 1
            result = f"{type(error).__name__}: {error}"
        if dist.get_rank() == 0 or not result.startswith("equal"):
            print(f"{name:20} {dist.get_world_size()} ranks {options.dtype} {result}", flush=True)
    assert not failed
    print("trained", flush=True)
    leave()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("acclaunch")
    parser.add_argument("package")
    parser.add_argument("--models", nargs="*", default=CHOSEN)
    parser.add_argument("--all", action="store_const", const=list(MODELS), dest="models")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--torch", action="store_true", help="the other engine is torch's")
    parser.add_argument("--zero", type=int, help="the interface is DeepSpeed's, with this stage")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--keep_on", action="store_true")
    parser.add_argument("--folder")
    options = parser.parse_args()
    if options.folder:
        return worker(options)
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (2,) if options.torch else (2, 1, 3):
            engine = [] if options.zero is None else ["--engine", "acc"]
            preloaded = PRELOADED if options.zero is None else f"{PRELOADED},deepspeed"
            run = subprocess.Popen([options.acclaunch, "torchrun", "--standalone", "--nproc_per_node", str(ranks),
                                    *engine, "--preload", preloaded, os.path.abspath(__file__), *sys.argv[1:],
                                    "--folder", folder, *["--resume"] * (ranks != 2)],
                                   env=os.environ | {"PYTHONPATH": options.package, "PYTHON_EXEC": sys.executable,
                                                     "DS_ACCELERATOR": "cpu"},
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            output = []
            for line in run.stdout:
                output.append(line)
                if f" ranks {options.dtype} " in line:
                    print(line, end="", flush=True)
            assert run.wait() == 0 and sum("trained\n" in line for line in output) == ranks, "".join(output)


if __name__ == "__main__":
    main()
