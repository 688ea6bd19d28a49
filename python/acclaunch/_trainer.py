# SPDX-License-Identifier: Apache-2.0
"""The setting memory_checkpoint_every with transformers' Trainer and --engine acc (docs/engine.md, "Snapshots in
memory"): Trainer keeps Snapshots after its steps, and goes on from the newest one of memory and disk."""

import dataclasses
import functools
import json

from acclaunch import _rejoin, snapshots
from acclaunch._library import lacks, refuse, say

_IN_MEMORY = "the snapshot in memory"  # in place of the folder of a checkpoint
_trained = set()  # epochs of the job in which a Trainer of this process has kept snapshots


class _Progress:
    """What a Trainer has beside its model, optimizer and schedule: its TrainerState, those of its callbacks, and the
    losses that it has not logged yet."""

    _OWN = ("max_steps", "num_train_epochs", "is_local_process_zero", "is_world_process_zero", "trial_name",
            "trial_params", "stateful_callbacks")  # of this process
    _SUMS = ("_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")

    def __init__(self, trainer):
        self.trainer = trainer
        self.loaded = None  # until the first epoch begins
        self.random = None  # numbers of the loaded snapshot
        self.begun = None  # those at the begin of the epoch, from which a sampler may draw its order
        self.ended = self.kept = 0  # the step that ends an epoch; the last one of a snapshot

    def _callbacks(self):
        return [each for each in [*self.trainer.callback_handler.callbacks, self.trainer.control]
                if hasattr(each, "state")]

    def state_dict(self):
        if self.loaded is not None:
            return self.loaded
        return {"state": json.dumps({name: value for name, value in dataclasses.asdict(self.trainer.state).items()
                                     if name not in self._OWN}),
                "callbacks": json.dumps([each.state()["attributes"] for each in self._callbacks()]),
                "sums": {name: getattr(self.trainer, name) for name in self._SUMS},
                "loss": self.trainer._tr_loss.detach(), "begun": self.begun}

    def load_state_dict(self, state):
        self.loaded, self.begun = state, state["begun"]
        for name, value in json.loads(state["state"]).items():
            setattr(self.trainer.state, name, value)
        for each, attributes in zip(self._callbacks(), json.loads(state["callbacks"]), strict=True):
            for name, value in attributes.items():
                setattr(each, name, value)

    def begin(self):
        """After Trainer has set its sums for a begin at this step."""
        if self.loaded is not None:
            for name, value in self.loaded["sums"].items():
                setattr(self.trainer, name, value)
            self.trainer._tr_loss = self.loaded["loss"].to(self.trainer._tr_loss.device)
            self.loaded = None

    def is_due(self):
        """True once for each step, and after the evaluation and the checkpoint of an epoch that ends with it."""
        step = self.trainer.state.global_step
        if float(self.trainer.state.epoch).is_integer() and self.ended != step:
            self.ended = step
            return False
        is_new, self.kept = self.kept != step, step
        return is_new


def serve(module):
    """module: transformers.trainer."""
    trainer = module.Trainer
    if lacks(trainer, "snapshots in memory are not served", "_prepare_for_training", "_run_epoch", "_load_rng_state",
             "_maybe_log_save_evaluate"):
        return
    prepare, run, load_random, end_step = (trainer._prepare_for_training, trainer._run_epoch, trainer._load_rng_state,
                                           trainer._maybe_log_save_evaluate)

    @functools.wraps(prepare)
    def prepare_for_training(self, *arguments, **keywords):
        prepared = prepare(self, *arguments, **keywords)
        self._acc_kept = None
        for what, is_given in (("--elastic_replicas", _rejoin.elastic() is not None),
                               ("auto_find_batch_size", self.args.auto_find_batch_size)):
            if is_given:
                refuse(f"memory_checkpoint_every with Trainer and {what}")
        if snapshots.made and not _trained:
            return prepared  # the program keeps them itself
        epoch = _rejoin.membership.epoch if _rejoin.membership is not None else 0
        if epoch in _trained:
            if self.args.process_index == 0:
                say("memory_checkpoint_every: only the first train() of a program is kept in memory")
            return prepared
        progress = _Progress(self)
        objects = {"model": self.model_wrapped, "optimizer": self.optimizer, "scheduler": self.lr_scheduler,
                   "scaler": getattr(self.accelerator, "scaler", None), "trainer": progress}
        kept = snapshots.Snapshots(**{name: each for name, each in objects.items() if each is not None})
        _trained.add(epoch)
        progress.kept = kept.resume(self.state.global_step or None)
        if progress.loaded is not None:
            progress.random = kept.random.state_dict()
        self._acc_kept = kept, progress
        return prepared

    @functools.wraps(run)
    def run_epoch(self, **keywords):
        kept, progress = self._acc_kept or (None, None)
        if kept is None:
            return run(self, **keywords)
        progress.begin()
        epoch, steps = divmod(progress.kept, keywords["num_update_steps_per_epoch"])
        if progress.random is None or keywords["epoch"] > epoch:
            progress.begun = kept.random.state_dict()
        elif keywords["epoch"] < epoch:
            return None
        else:
            keywords |= {"resume_from_checkpoint": _IN_MEMORY, "epochs_trained": epoch,
                         "steps_trained_in_current_epoch": steps * self.args.gradient_accumulation_steps}
            if steps == 0:
                progress.begun = progress.random
            elif not self.args.ignore_data_skip:
                kept.random.load_state_dict(progress.begun)
        return run(self, **keywords)

    @functools.wraps(load_random)
    def load_random_state(self, checkpoint):
        if checkpoint is not _IN_MEMORY:
            return load_random(self, checkpoint)
        kept, progress = self._acc_kept
        kept.random.load_state_dict(progress.random)
        progress.random = None

    @functools.wraps(end_step)
    def log_save_evaluate(self, *arguments, **keywords):
        end_step(self, *arguments, **keywords)
        kept, progress = self._acc_kept or (None, None)
        if kept is not None and progress.is_due():
            kept.keep(self.state.global_step)

    trainer._prepare_for_training, trainer._run_epoch = prepare_for_training, run_epoch
    trainer._load_rng_state, trainer._maybe_log_save_evaluate = load_random_state, log_save_evaluate
