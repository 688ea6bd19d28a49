# SPDX-License-Identifier: Apache-2.0
"""Changes of torch's DTensor, for parameters of sharded modules that a program uses as whole tensors: a penalty on
weights is added to a loss, `data` is exchanged, a step of the program's own takes plain tensors."""

import functools
import itertools
import weakref

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.utils.weak import WeakTensorKeyDictionary

from acclaunch import _rows
from acclaunch._library import NotSupportedError
from acclaunch._units import any_requires_grad, as_plain, map_tensors, requires_grad_of, tensors_in

# ---- whole values ---------------------------------------------------------------------------------

_full_tensor = DTensor.full_tensor


class _Whole(torch.autograd.Function):
    """The whole value of a DTensor, whose gradient is the sum of the ranks' gradients, divided by `factor`. The sum is
    one of zeros where a function gives no gradient, which torch's own backward of full_tensor does not expect."""

    @staticmethod
    def forward(ctx, tensor, factor):
        ctx.spec, ctx.factor = tensor._spec, factor
        return _full_tensor(tensor.detach())

    @staticmethod
    def backward(ctx, gradient):
        mesh = ctx.spec.mesh
        parts = DTensor.from_local(gradient, mesh, [Partial()] * mesh.ndim, run_check=False)
        return parts.redistribute(placements=[Replicate() if each.is_partial() else each
                                              for each in ctx.spec.placements]) / ctx.factor, None


def _whole(tensor):
    """The whole value of a DTensor. Its gradient is of this rank's part of the batch, so that it is the mean over the
    ranks that the DTensor gets, or what the divide factor of its unit makes of the sum. Collective, and so is its
    backward."""
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return _full_tensor(tensor)
    member = _rows.member_of(tensor)
    return _Whole.apply(tensor, (member and member.unit.state.divide_factor) or tensor.device_mesh.size())


@functools.wraps(_full_tensor)
def _full(self, *, grad_placements=None):
    return _whole(self) if grad_placements is None and _rows.is_row(self) else \
        _full_tensor(self, grad_placements=grad_placements)


# ---- operations on DTensors and plain tensors --------------------------------------------------------


def _changes_first(name):
    return name not in ("requires_grad_", "detach_", "__int__", "__index__", "__invert__") and (
        name.startswith("__i") or name == "__setitem__" or (name.endswith("_") and not name.endswith("__")))


def _changes_dtensor(name, arguments, keywords):
    """True for a function such as Tensor.add_ or torch._foreach_add_ of a DTensor, or of a list of them, or with one
    for its result, or for the first of several."""
    out = keywords.get("out")
    if isinstance(out[0] if isinstance(out, (tuple, list)) and out else out, DTensor):
        return True
    first = arguments[0] if arguments else None
    first = first[0] if isinstance(first, (tuple, list)) and first else first
    return isinstance(first, DTensor) and _changes_first(name)


# Functions that read one value of a tensor: torch takes a rank's part of a sum.
_VALUES = {"item", "tolist", "__bool__", "__complex__", "__float__", "__int__", "__index__"}
# Functions whose effect or result belongs to the tensor itself: never called with whole values instead.
_ACTIONS = {"__set__", "__setstate__", "backward", "detach_", "numpy", "register_hook",
            "register_post_accumulate_grad_hook", "requires_grad_", "retain_grad"}
# Functions that change some elements: torch fails, or changes a copy.
_CHANGES_OF_ELEMENTS = {
    "__setitem__", "fill_diagonal_", "index_add_", "index_copy_", "index_fill_", "index_put_", "index_reduce_",
    "masked_scatter_", "put_", "scatter_", "scatter_add_", "scatter_reduce_", "tril_", "triu_"}
# Functions whose results are views, but copies where torch gathers a DTensor.
_PARTS = {"__getitem__", "chunk", "diagonal", "dsplit", "hsplit", "narrow", "select", "split", "split_with_sizes",
          "tensor_split", "unbind", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "vsplit"}


# Copies of parts of DTensors, with the DTensor and what made the part of it: functions, their further arguments, and
# the number of the part among the results.
_copied_parts = WeakTensorKeyDictionary()


# Functions that torch computes of the rows of each rank first, and that fail on a rank without rows.
_NORMS = {"_foreach_norm", "linalg_matrix_norm", "linalg_norm", "linalg_vector_norm", "norm", "vector_norm"}
_OF_SOME_ROWS = {*_NORMS, "_foreach_max", "amax", "amin", "aminmax", "argmax", "argmin", "max", "min"}
# Those of them that torch computes by several operations, some of which fail where the function does not.
_BY_PARTS = {"linalg_matrix_norm", "linalg_norm"}


def _fails_without_rows(name, function, arguments, keywords, given):
    """True if some rank has no rows of one of the tensors, and the function fails there. The same on all ranks, which
    then compute with whole values alike."""
    if name not in _OF_SOME_ROWS or not any(
            isinstance(each, DTensor) and _rows.leaves_rank_without(each) for each in given):
        return False
    if name in _BY_PARTS:
        return True

    def without_rows(tensor):
        if not isinstance(tensor, DTensor):
            return tensor
        sharded = {each.dim for each in tensor.placements if each.is_shard()}
        return torch.empty([0 if dim in sharded else size for dim, size in enumerate(tensor.shape)], dtype=tensor.dtype)

    arguments, keywords = map_tensors(without_rows, (arguments, keywords))
    try:
        function(*arguments, **keywords)
    except (IndexError, RuntimeError):
        return True
    return False


def _fails_in_backward(name, given):
    """True for norms of parts of sums, such as that of a product of a parameter with itself."""
    return name in _NORMS and any(
        isinstance(each, DTensor) and requires_grad_of(each) and any(part.is_partial() for part in each.placements)
        for each in given)


def _may_change(function, keywords):
    """True for functions, such as collectives, whose names do not say whether they change their arguments."""
    return keywords.get("inplace") or isinstance(function, torch._ops.OpOverload) or (
        getattr(function, "__module__", None) or "").startswith("torch.distributed.")


def _has_one_row(tensor, error):
    """True if torch has refused to change a DTensor of one row with the values of a replicated one, or parts of a mean
    by a function that is not linear."""
    return "in-place operations that require placement changes" in str(error) and isinstance(tensor, DTensor) and not (
        torch.is_grad_enabled() and tensor.requires_grad) and all(
        type(each) is Partial for each in tensor._spec.placements if each.is_partial())  # not those of norms


def _with_whole(arguments):
    return map_tensors(lambda each: _full_tensor(each.detach()) if isinstance(each, DTensor) else each, arguments)


def _change_elements(function, name, tensor, arguments, keywords):
    """By a whole copy of a DTensor of rows, or of parts of a sum or mean. Collective."""
    whole = _full_tensor(tensor.detach()).clone()
    arguments, keywords = _with_whole((arguments, keywords))
    function(whole, *arguments, **keywords)
    mesh = tensor._spec.mesh
    if any(each.is_partial() for each in tensor._spec.placements):
        adds = [number for number, each in enumerate(tensor._spec.placements) if each.is_partial("sum")]
        tensor._local_tensor.copy_(whole if all(mesh.get_local_rank(number) == 0 for number in adds) else
                                   torch.zeros_like(whole))
    else:
        _rows.set_rows(tensor, _replicated(whole, mesh))
    return None if name == "__setitem__" else tensor


def _change_part(function, name, part, arguments, keywords):
    """A change of a part, which is a copy: changes the DTensor of which it is one, as a change of a view does. The part
    gets the values that it has then. Collective."""
    base, path = _copied_parts[part]
    _rows.before_change([base])
    whole = own = _full_tensor(base.detach()).clone()
    for made_by, *given, number in path:
        given, keys = _with_whole(given)
        results = []
        tensors_in(made_by(own, *given, **keys), results)
        own = results[number]
    arguments, keywords = _with_whole((arguments, keywords))
    function(own, *arguments, **keywords)
    _rows.set_rows(base, _replicated(whole, base._spec.mesh))
    made = _replicated(own.clone(), part._spec.mesh)
    part._local_tensor, part._spec = made._local_tensor, made._spec
    return None if name == "__setitem__" else part


def _replicated(whole, mesh):
    return DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)


@torch.no_grad()
def _fill(out, function, arguments, keywords):
    """A function without other DTensors, such as torch.eye(…, out=out), of which torch makes each rank's rows a whole
    result."""
    mesh, made = out.device_mesh, torch.empty(out.shape, dtype=out.dtype, device=out._local_tensor.device)
    function(*arguments, **{**keywords, "out": made})
    made = _replicated(made, mesh)
    if any(each.is_partial() for each in out.placements):  # torch.empty_like of a sum over rows
        out._local_tensor, out._spec = made._local_tensor, made._spec
    else:
        _rows.set_rows(out, made)
    return out


def _mark_parts(found, name, tensor, function, arguments, keywords):
    """Remembers which results of one of _PARTS are copies, and what is a view of one, with what made them of which
    DTensor, so that a change is one of that DTensor."""
    is_copy = tensor in _copied_parts
    index = arguments[1] if name == "__getitem__" else None
    if not is_copy and (name not in _PARTS or any(isinstance(each, (torch.Tensor, list)) for each in (
            index if isinstance(index, tuple) else (index,)))):
        return  # nothing that is a view elsewhere
    results = []
    tensors_in(found, results)
    for number, each in enumerate(results):
        if isinstance(each, DTensor) and is_copy == (each._local_tensor.untyped_storage().data_ptr() ==
                                                     tensor._local_tensor.untyped_storage().data_ptr()):
            _mark(each, tensor, function, arguments[1:], keywords, number)


def _mark(part, tensor, *made_by):
    base, path = _copied_parts.get(tensor, (tensor, ()))
    _copied_parts[part] = base, (*path, made_by)


def _mark_views(found, function, first, arguments, keywords, plain, mesh):
    """Results that are views of whole copies become DTensors, of which a change is one of the first argument."""
    copies = []
    tensors_in(arguments, copies)
    storages = {each.untyped_storage().data_ptr() for each in copies} - {
        each.untyped_storage().data_ptr() for each in plain}
    numbers = itertools.count()

    def mark(tensor):
        number = next(numbers)
        if tensor.requires_grad or tensor.untyped_storage().data_ptr() not in storages:
            return tensor
        tensor = _replicated(tensor, mesh)
        if isinstance(first, DTensor):
            _mark(tensor, first, function, arguments[1:], keywords, number)
        else:
            _copied_parts[tensor] = None, ()
        return tensor

    return map_tensors(mark, found)


def _has_norms_of_rows(tensor):
    """True for norms that are to be computed of the ranks' norms: torch (2.13) sums several of them first, as in
    torch.stack([each.norm() for each in parameters]).sum()."""
    return isinstance(tensor, DTensor) and tensor.dim() > 0 and any(
        type(each).__name__ == "_NormPartial" for each in tensor._spec.placements)


def _with_values(tensor):
    return tensor.redistribute(placements=[Replicate()] * tensor.device_mesh.ndim)


def _with_norms(tensor):
    return _with_values(tensor) if _has_norms_of_rows(tensor) else tensor


def _take_values(tensors):
    """Gives sums and norms of rows, which torch has not combined yet and does not change in place, their values. False
    if there are none, or one is in a graph, or another tensor has its memory and would not see the change."""
    def holders(tensor):
        return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)

    tensors = [each for each in tensors if isinstance(each, DTensor) and any(
        placement.is_partial() for placement in each._spec.placements)]
    if not tensors or any(each.requires_grad or holders(each._local_tensor) > holders(torch.empty(1))
                          for each in tensors):
        return False
    for each in tensors:
        made = _with_values(each)
        each._local_tensor, each._spec = made._local_tensor, made._spec
    return True


def _is_in_graph(value):
    found = []
    tensors_in(value, found)
    return any(each.grad_fn is not None for each in found)


def _of_one_kind(function, name, first, arguments, keywords, changes, given):
    """Calls a function that changes a DTensor, its first argument, with DTensors of one mesh, and any other one with
    plain tensors. given: all tensors."""
    mesh = next(each.device_mesh for each in given if isinstance(each, DTensor))

    def convert(tensor):
        if isinstance(tensor, DTensor):
            if changes and tensor.device_mesh == mesh:
                return tensor
            tensor = _whole(tensor)
        return _replicated(tensor, mesh) if changes else tensor

    arguments, keywords = map_tensors(convert, (arguments, keywords))
    try:
        found = function(*arguments, **keywords)
    except RuntimeError as error:
        if not _has_one_row(first, error):
            raise
        return _change_elements(function, name, first, tuple(arguments[1:]), keywords)
    plain = [each for each in given if not isinstance(each, DTensor)]
    return found if changes else _mark_views(found, function, first, arguments, keywords, plain, mesh)


# Methods with other names than functions of lists.
_METHODS = {"_foreach_maximum_": "clamp_min_", "_foreach_minimum_": "clamp_max_"}


def _change_each(name, targets, *others, **keywords):
    """A function such as torch._foreach_copy_, which torch (2.13) lacks for DTensors, or refuses because of one:
    changes each of them by itself."""
    change = getattr(torch.Tensor, _METHODS.get(name, name.removeprefix("_foreach_")))
    if name in ("_foreach_addcdiv_", "_foreach_addcmul_") and len(others) > 2:
        others, keywords["value"] = others[:2], others[2]
    for number, target in enumerate(targets):
        own = [each[number] if isinstance(each, (tuple, list)) else each for each in (*others, *keywords.values())]
        change(target, *own[:len(others)], **dict(zip(keywords, own[len(others):])))
    return targets


def _torch_function(cls, function, types, arguments=(), keywords=None):
    """Calls a function of torch with DTensors, and perhaps with plain tensors, with which torch would refuse it, except
    with those of one element, through which then no gradient could flow. Here the result is a plain tensor, of the
    whole values; what changes a DTensor takes its own rows of the plain ones. Parameters that stand for whole ones
    (whole_outside) are computed with as whole ones where a gradient can flow: torch's sums over rows are not those of
    factors that differ between ranks, and it lacks many functions."""
    name = getattr(function, "__name__", "").partition(".")[0]  # without the overload
    if name in ("__get__", "__set__"):  # of an attribute, which programs use often
        with as_plain():
            found = function(*arguments)
        if name == "__get__" and isinstance(found, DTensor) and arguments[0] in _copied_parts:
            _mark_parts(found, name, arguments[0], function, arguments[:1], {})
        if not isinstance(found, torch.Tensor) or found.grad_fn is None:
            return found
    if not all(each is torch.Tensor or issubclass(each, (DTensor, torch.nn.Parameter)) for each in types):
        return NotImplemented
    keywords = keywords or {}
    try:
        return _call(function, name, arguments, keywords)
    except RuntimeError as error:
        if not (name.startswith("_foreach_") and name.endswith("_")) or not (
                type(error) is NotImplementedError or "placement changes" in str(error)):
            raise
    return _change_each(name, *arguments, **keywords)


def _call(function, name, arguments, keywords):
    given = []
    with as_plain():
        tensors_in(arguments, given)
        tensors_in(keywords, given)
        if any(_has_norms_of_rows(each) for each in given):
            arguments, keywords = map_tensors(_with_norms, (arguments, keywords))
        first, changes = arguments[0] if arguments else None, _changes_dtensor(name, arguments, keywords)
        if name in _VALUES and not all(each.is_replicate() for each in first._spec.placements):
            return function(_full_tensor(first.detach()))
        if name == "__format__" and first.dim() == 0:  # torch refuses it
            return format(_full_tensor(first.detach()).item(), *arguments[1:])
        out = keywords.get("out")
        if changes:
            changed = []
            tensors_in(first if out is None else out, changed)
            if out is None and any(each in _copied_parts for each in changed):
                base = _copied_parts[first][0] if isinstance(first, torch.Tensor) else None
                if base is None or torch.is_grad_enabled() and base.requires_grad:
                    raise NotSupportedError(
                        f"{name} of a copy of a part of a DTensor, which has the rows of several ranks, would be lost: "
                        "change the part in the DTensor itself, as in tensor[0] = value, in torch.no_grad()")
                return _change_part(function, name, first, tuple(arguments[1:]), keywords)
            _rows.before_change(changed)
            if name.startswith("_foreach_"):  # torch (2.13) does not count them as changes of DTensors
                for each in changed:
                    if not each.is_inference():
                        torch.autograd.graph.increment_version(each)
        if changes and name in _CHANGES_OF_ELEMENTS and not (torch.is_grad_enabled() and first.requires_grad) \
                and any(each.is_shard() for each in first._spec.placements):
            return _change_elements(function, name, first, tuple(arguments[1:]), keywords)
        plain = [each for each in given if not isinstance(each, DTensor)]
        if isinstance(out, DTensor) and len(given) == len(plain) + 1 and not (
                out.requires_grad and torch.is_grad_enabled()):
            return _fill(out, function, arguments, keywords)
        if not changes and isinstance(first, torch.Tensor) and not isinstance(first, DTensor) \
                and first.numel() == 1 and _changes_first(name):  # torch would take it for a DTensor
            return _of_one_kind(function, name, first, arguments, keywords, changes, given)
        has_graph = torch.is_grad_enabled()
        stands_for_whole = has_graph and any(getattr(each, "_acc_whole", False) for each in given)
        by_rows = changes or not (_fails_without_rows(name, function, arguments, keywords, given)
                                  or has_graph and _fails_in_backward(name, given))
        if by_rows and not (has_graph and any_requires_grad(plain)):
            try:
                found = function(*arguments, **keywords)
                if isinstance(first, DTensor):
                    _mark_parts(found, name, first, function, arguments, keywords)
                    if name == "detach":
                        _note_parameter(first, found)
                        if _rows.awaits_memory(first):
                            _note_alias(first, found)
                if not stands_for_whole or not _is_in_graph(found):
                    return found
            except RuntimeError as error:
                if changes and "placement changes" in str(error) and _take_values(changed):
                    return function(*arguments, **keywords)
                if _has_one_row(first, error):
                    return _change_elements(function, name, first, tuple(arguments[1:]), keywords)
                is_mixed = "got mixed torch.Tensor and DTensor" in str(error) or \
                    "on inputs with different meshes" in str(error)  # as a teacher's and a student's
                if name in _ACTIONS or not is_mixed and (changes and not stands_for_whole
                                                         or _may_change(function, keywords)):
                    raise
        return _of_one_kind(function, name, first, arguments, keywords, changes, given)


def whole_outside(parameters):
    """Lets these parameters be whole ones for functions of torch outside of their modules."""
    for each in parameters:
        each._acc_whole = True


# ---- attributes -----------------------------------------------------------------------------------

_data = torch.Tensor.data


def _plain(attribute):
    """An attribute of tensors, without __torch_function__, in half of its time."""
    def read(self):
        with as_plain():
            return attribute.__get__(self)

    def write(self, value):
        with as_plain():
            attribute.__set__(self, value)

    return property(read, write)


# By tensor, not in its __dict__, which is pickled and copied with it.
_aliases = WeakTensorKeyDictionary()  # of a parameter
_parameters = WeakTensorKeyDictionary()  # of an alias


def _note_alias(parameter, made):
    """For RowMember.adopt, which exchanges the memory of the parameter: `made` is over it too."""
    _aliases[parameter] = [each for each in _aliases.get(parameter, ()) if each() is not None] + [weakref.ref(made)]


def _note_parameter(parameter, made):
    """For parameter_of, of parameters that stand for whole ones."""
    if getattr(parameter, "_acc_whole", False):
        _parameters[made] = weakref.ref(parameter)


def parameter_of(tensor):
    """The parameter that stands for a whole one of which the tensor is a result of detach() or `data`; else the
    tensor."""
    parameter = _parameters.get(tensor, lambda: None)()
    return tensor if parameter is None or parameter._local_tensor.data_ptr() != tensor._local_tensor.data_ptr() \
        else parameter


def take_aliases(parameter):
    """The tensors that _note_alias has noted, once."""
    return [each for each in (each() for each in _aliases.pop(parameter, ())) if each is not None]


def _get_data(self):
    made = _data.__get__(self)
    if _rows.is_row(self) or _rows.awaits_memory(self):
        _note_alias(self, made)
    _note_parameter(self, made)
    return made


def _set_data(self, value):
    """`tensor.data = value`. torch exchanges the memory of a DTensor, which has none, and leaves its local tensor. Of a
    plain value it gets its rows."""
    if isinstance(value, torch.Tensor) and value.shape == self.shape:
        value = _rows.distributed(value.detach(), self)
        value = value.detach().redistribute(self._spec.mesh, self._spec.placements)
        if _are_same(value._local_tensor, self._local_tensor):
            return
        _rows.before_change([self])
    elif isinstance(value, torch.Tensor) and _rows.is_row(self):  # torch would change the shape alone
        raise NotSupportedError(f"data of shape {[*value.shape]} for a parameter of a sharded module, which has shape "
                                f"{[*self.shape]}: the engine acc does not support it; change it before fully_shard")
    _data.__set__(self, value)
    if isinstance(value, DTensor):
        self._local_tensor, self._spec = value._local_tensor, value._spec


def _are_same(one, other):
    """True for tensors of one shape over the same memory."""
    return _rows.memory_of(one) == _rows.memory_of(other) and (one.dtype, one.storage_offset(), one.stride()) == (
        other.dtype, other.storage_offset(), other.stride())


_swap_tensors = torch.utils.swap_tensors


@functools.wraps(_swap_tensors)
def _swap(t1, t2):
    """Of DTensors as `t1.data = t2`, as when a module's parameters change their dtype or device: torch would exchange
    their attributes, and refuses tensors with weak references."""
    both = isinstance(t1, DTensor) and isinstance(t2, DTensor)
    if both and torch._has_compatible_shallow_copy_type(t1, t2):
        _set_data(t1, t2)
        return
    if both:  # one is on the meta device
        take_aliases(t1)
    _swap_tensors(t1, t2)
    if both:
        t1.__dict__, t2.__dict__ = t2.__dict__, t1.__dict__


# ---- gradients --------------------------------------------------------------------------------------


def _refusing_rows(function, position):
    """torch.autograd.backward or grad. Sharded parameters, of which `inputs` has some, are not in a graph of a module,
    which computes with whole ones."""
    @functools.wraps(function)
    def run(*arguments, **keywords):
        found = function(*arguments, **keywords)
        inputs = keywords.get("inputs", arguments[position] if len(arguments) > position else None)
        given = [inputs] if isinstance(inputs, torch.Tensor) else inputs or ()
        for number, each in enumerate(given):
            if isinstance(each, DTensor) and _rows.is_row(each) and (found is None or found[number] is None):
                raise NotSupportedError(f"torch.autograd.{function.__name__} with the parameters of a sharded module "
                                        "as inputs: the engine acc does not support it; freeze the other parameters")
        return found

    return run


def place_gradient(parameter):
    """Gives the gradient of a DTensor that autograd has made, such as that of its sum, the DTensor's placements.
    Collective if it has parts of sums."""
    gradient = parameter.grad
    if gradient._spec.placements != parameter._spec.placements:
        parameter.grad = gradient.detach().redistribute(parameter._spec.mesh, parameter._spec.placements)


def serve():
    DTensor.full_tensor = _full
    DTensor.data = property(_get_data, _set_data)
    DTensor.grad, DTensor.requires_grad = _plain(torch.Tensor.grad), _plain(torch.Tensor.requires_grad)
    DTensor.__torch_function__ = classmethod(_torch_function)
    torch.utils.swap_tensors = _swap
    torch.autograd.backward = _refusing_rows(torch.autograd.backward, 5)
    torch.autograd.grad = _refusing_rows(torch.autograd.grad, 1)
