# SPDX-License-Identifier: Apache-2.0
"""What this package does when others are imported."""

import functools
import importlib.machinery
import importlib.util
import logging
import os
import sys
import weakref

optimizers = weakref.WeakSet()  # that the program has made, with --engine acc


def quietly(function):
    """Returns the result of `function`, which runs in another package's import: if it fails, that import must
    not fail, so None is returned and a line is logged. Only a program that was told to use this package
    (--cpu_backend acc, --engine acc) shows the line by default."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001: whatever it is
        is_told = os.environ.get("ACC_CPU_BACKEND") or os.environ.get("ACC_ENGINE")
        level = logging.WARNING if is_told else logging.INFO
        logging.getLogger("acclaunch").log(level, "a part of acclaunch cannot be used in this process: %s: %s",
                                           type(error).__name__, error)
        return None


class _Finder:
    """Calls a function with each of these modules at the end of its import."""

    def __init__(self, functions, call):
        self.functions, self.call = functions, call
        self.searching = None

    def find_spec(self, name, path=None, target=None):
        if name not in self.functions or name == self.searching:
            return None
        self.searching = name
        try:
            spec = self.call(lambda: importlib.util.find_spec(name))
        finally:
            self.searching = None
        if spec is not None:  # a program may look for a spec without an import, or import once more after a failure
            _call_after_import(spec, lambda module: self.functions.pop(name)(module))
        return spec


class _Finishing(importlib.machinery.ModuleSpec):
    """Of a module whose import has not ended: calls functions then. The import system sets `_initializing` when it
    begins and when it ends."""

    @property
    def _initializing(self):
        return self.begun

    @_initializing.setter
    def _initializing(self, begun):
        if begun:
            self.begun = True
            return
        functions = self.functions
        self.__class__ = importlib.machinery.ModuleSpec
        del self.functions, self.begun
        self._initializing = False
        if self.name in sys.modules:  # else the import has failed
            for function in functions:
                function(sys.modules[self.name])


def _call_after_import(spec, function):
    if not isinstance(spec, _Finishing):
        spec.functions, spec.begun, spec.__class__ = [], getattr(spec, "_initializing", False), _Finishing
    spec.functions.append(function)


def call_after_imports(functions, call=lambda function: function()):
    """Calls each of these functions, which are by the names of modules, with its module at the end of its import.
    call: calls what is done for them, such as `quietly`."""
    waiting = {}
    for name, given in functions.items():
        function = functools.partial(lambda given, module: call(lambda: given(module)), given)
        module = sys.modules.get(name)
        if module is None:
            waiting[name] = function
        elif getattr(module.__spec__, "_initializing", False):
            _call_after_import(module.__spec__, function)
        else:
            function(module)
    sys.meta_path.insert(0, _Finder(waiting, call))
