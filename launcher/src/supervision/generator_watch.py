# SPDX-License-Identifier: Apache-2.0
"""The random number generators that the modules of --preload make (fork_server.py): those that nobody has seeded must
differ in workers, as they do in new processes."""
import functools
import gc
import importlib.machinery
import random
import sys


class Generators:
    """The random number generators that modules make. In new processes, those that nobody has seeded
    differ, and the others are the same. A number that SystemRandom gave, as NumPy takes it, is no seed."""
    FEWEST_BITS = 64  # of a number from the system that cannot be met by chance
    TORCH_SEED = 67280421310721  # of a new torch.Generator; torch.default_generator begins with 64 bits from the system

    def __init__(self):
        self.entropy = set()
        self.seeded = set()  # ids of random.Random
        self.unseeded_states = set()
        self.own = {name: getattr(random.Random, name) for name in ("seed", "getstate", "setstate")}
        self.own_bits = random.SystemRandom.getrandbits
        self.python = self.bit = self.sequences = self.legacy = ()
        self.torch = {}
        self.global_state = self.default = None
        self.torch_is_seeded = False
        self.watches = False

    def watch(self):
        """Notes seeds from now on."""
        self.watches = True
        own = self.own

        @functools.wraps(own["seed"])
        def seed(generator, a=None, version=2):
            own["seed"](generator, a, version)
            is_seeded = a is not None and not (isinstance(a, int) and a in self.entropy)
            (self.seeded.add if is_seeded else self.seeded.discard)(id(generator))

        @functools.wraps(own["getstate"])
        def getstate(generator):
            state = own["getstate"](generator)
            if id(generator) not in self.seeded:
                self.unseeded_states.add(hash(state))
            return state

        @functools.wraps(own["setstate"])
        def setstate(generator, state):
            own["setstate"](generator, state)
            (self.seeded.discard if hash(state) in self.unseeded_states else self.seeded.add)(id(generator))

        @functools.wraps(self.own_bits)
        def getrandbits(generator, k):
            number = self.own_bits(generator, k)
            if self.watches and k >= self.FEWEST_BITS:
                self.entropy.add(number)
            return number

        random.SystemRandom.getrandbits = getrandbits
        self.replace({"seed": seed, "getstate": getstate, "setstate": setstate})
        sys.meta_path.insert(0, self)

    def find_spec(self, name, path, target=None):
        """Watches torch.random when it is imported."""
        if name != "torch.random":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (load(module), self.watch_torch(module))
        return spec

    def watch_torch(self, module):
        self.torch = {name: getattr(module, name) for name in ("manual_seed", "seed", "get_rng_state", "set_rng_state")}
        own = self.torch

        @functools.wraps(own["manual_seed"])
        def manual_seed(seed):
            self.torch_is_seeded = seed not in self.entropy
            return own["manual_seed"](seed)

        @functools.wraps(own["seed"])
        def seed():
            self.torch_is_seeded = False
            return own["seed"]()

        @functools.wraps(own["get_rng_state"])
        def get_rng_state():
            state = own["get_rng_state"]()
            if not self.torch_is_seeded:
                self.unseeded_states.add(bytes(state.tolist()))
            return state

        @functools.wraps(own["set_rng_state"])
        def set_rng_state(new_state):
            own["set_rng_state"](new_state)
            self.torch_is_seeded = bytes(new_state.tolist()) not in self.unseeded_states

        for function in (manual_seed, seed, get_rng_state, set_rng_state):
            setattr(module, function.__name__, function)

    def replace(self, functions):
        for name, function in functions.items():
            setattr(random.Random, name, function)
            setattr(random, name, getattr(random._inst, name))

    def is_from_system(self, sequence):
        """True if a number from the system is in what seeds a generator of NumPy; also for a child of its sequence."""
        entropy = getattr(sequence, "entropy", None)
        numbers = entropy if isinstance(entropy, (list, tuple)) else [entropy]
        return any(isinstance(number, int) and number in self.entropy for number in numbers)

    def find(self):
        """Ends the watch, and finds the generators that workers must seed. Only objects that the garbage collector knows
        are found; it knows those of Python and NumPy. Tells which ones of torch seem to have a seed from the system."""
        self.replace(self.own)
        random.SystemRandom.getrandbits = self.own_bits
        self.watches = False
        sys.meta_path.remove(self)
        for name, function in self.torch.items():
            for module in ("torch", "torch.random"):
                setattr(sys.modules[module], name, function)
        numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
        kinds = {name: getattr(numpy, name, ()) for name in ("BitGenerator", "SeedSequence", "RandomState")}
        found = [thing for thing in gc.get_objects() if issubclass(type(thing), (random.Random, *kinds.values()))]
        self.python = [thing for thing in found if isinstance(thing, random.Random) and id(thing) not in self.seeded]
        self.bit = [thing for thing in found
                    if isinstance(thing, kinds["BitGenerator"]) and self.is_from_system(thing.seed_seq)]
        self.legacy = [thing for thing in found
                       if isinstance(thing, kinds["RandomState"]) and self.is_from_system(thing._bit_generator.seed_seq)]
        self.sequences = [thing for thing in found
                          if isinstance(thing, kinds["SeedSequence"]) and self.is_from_system(thing)]
        if id(random._inst) in self.seeded:  # a forked process seeds it by itself
            self.global_state = random.getstate()
        if hasattr(torch, "Generator"):
            default = torch.default_generator
            if not self.torch_is_seeded and default.initial_seed() >> 32:
                self.default = default
            named = {id(thing): (f"{module}.{name}", thing) for module, holder in reversed(list(sys.modules.items()))
                     for name, thing in list(getattr(holder, "__dict__", {}).items()) if type(thing) is torch.Generator}
            for name, thing in named.values():
                if thing is not default and thing.initial_seed() >> 32 and thing.initial_seed() != self.TORCH_SEED:
                    print(f"{name} has the seed {thing.initial_seed()}, which is the same in all workers; if its method "
                          "seed() chose it, it would differ without --preload", file=sys.stderr, flush=True)

    def renew(self):
        """Seeds them anew in a worker. They stay the same objects."""
        for generator in self.python:
            self.own["seed"](generator)
        if self.global_state is not None:
            random.setstate(self.global_state)
        for sequence in self.sequences:
            sequence.__init__(spawn_key=sequence.spawn_key, pool_size=sequence.pool_size)
        for generator in self.bit:
            type(generator).__init__(generator)
        if self.default is not None:
            self.default.seed()
        for generator in self.legacy:  # drops the normal number that it has kept
            state = generator.get_state(legacy=False)
            generator.set_state({**state, "has_gauss": 0, "gauss": 0.0})
