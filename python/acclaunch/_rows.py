# SPDX-License-Identifier: Apache-2.0
"""DTensors over rows: the parameters of sharded modules between uses, their gradients, and the states of their
optimizers. Each rank that shards has as many rows as torch.chunk gives it."""

import weakref

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._pytree import tree_map_only

# ---- meshes --------------------------------------------------------------------------------------

_meshes = {}  # by the arguments of mesh_of: the default process group of the time when they were made, and the mesh


def mesh_of(shape, device=None, names=None):
    """A mesh of all ranks, of which those of the last dimension shard. names: of its dimensions."""
    world, key = dist.group.WORLD, (shape, device, names)
    if key not in _meshes or _meshes[key][0] is not world:
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        _meshes[key] = world, init_device_mesh(device, shape, mesh_dim_names=names)
    return _meshes[key][1]


def placements_of(mesh):
    return (Shard(0),) if mesh.ndim == 1 else (Replicate(), Shard(0))


# ---- tensors -------------------------------------------------------------------------------------


def _row_range(count, mesh, rank=None):
    each = -(-count // mesh.size(mesh.ndim - 1))
    begin = min(count, each * (mesh.get_local_rank(mesh.ndim - 1) if rank is None else rank))
    return begin, min(count, begin + each)


def leaves_rank_without(tensor):
    """True if some rank has no rows of a DTensor."""
    return any(size * (ranks - 1) >= tensor.shape[each.dim] for each, ranks, size in (
        (each, ranks, -(-tensor.shape[each.dim] // ranks))
        for each, ranks in zip(tensor.placements, tensor.device_mesh.shape) if each.is_shard()) if ranks > 1)


def own_rows(whole, mesh, rank=None):
    """The rows of this rank, or of another one, of a whole tensor: a view. Each rank has all of a scalar."""
    if whole.dim() == 0:
        return whole.detach()
    begin, end = _row_range(whole.shape[0], mesh, rank)
    return whole.detach()[begin:end]


def own_elements(like, rank=None):
    """The elements [begin, end) of a DTensor that are this rank's rows, or those of another rank."""
    if like.dim() == 0:
        return 0, 1
    begin, end = _row_range(like.shape[0], like.device_mesh, rank)
    numel = like.numel() // like.shape[0] if like.shape[0] else 0
    return begin * numel, end * numel


def of_rows(rows, like):
    """A DTensor with the shape and the placements of `like`, whose local tensor is `rows`."""
    return DTensor.from_local(rows, like.device_mesh, like.placements, run_check=False, shape=like.shape,
                              stride=like.stride())


def with_spec(local, spec):
    """A DTensor with the specification of another one. DTensor() takes several times as long, for torch.compile."""
    return DTensor.__new__(DTensor, local, spec, requires_grad=False)


def distributed(value, like):
    """A DTensor of this rank's rows of the whole value of a parameter, or of anything with its shape. Returns other
    values as they are."""
    if not isinstance(value, torch.Tensor) or isinstance(value, DTensor) or not isinstance(like, DTensor) \
            or value.shape != like.shape:
        return value
    return of_rows(own_rows(value, like.device_mesh).to(like._local_tensor.device, copy=True), like)


@torch.no_grad()
def set_rows(parameter, whole):
    """Gives a parameter the values of a whole tensor, or of a DTensor. Collective for one in another layout."""
    if not isinstance(parameter, DTensor):
        parameter.copy_(whole)
        return
    if isinstance(whole, DTensor) and parameter.device_mesh.size() == 1:  # torch refuses placements of sums
        own = whole_of(whole)
    elif isinstance(whole, DTensor):
        own = whole.redistribute(parameter.device_mesh, parameter.placements)._local_tensor
    else:
        own = own_rows(whole, parameter.device_mesh)
    local = parameter._local_tensor
    if not torch.equal(local, own.to(local)):  # else autograd would take notice of a change
        local.copy_(own)


@torch.no_grad()
def whole_of(tensor):
    """The whole value of a tensor: a DTensor that one rank has in its memory, or no DTensor at all, is not copied.
    Collective for rows of several ranks."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    return tensor.detach().full_tensor() if tensor.numel() else tensor._local_tensor.new_empty(tensor.shape)


def copy_of(tensor):
    """A copy of the whole value of a DTensor. Collective."""
    whole = whole_of(tensor)
    return whole.clone() if whole.data_ptr() == tensor._local_tensor.data_ptr() else whole


def local_of(value):
    """This rank's rows of a DTensor; any other value as it is."""
    return value._local_tensor if isinstance(value, DTensor) else value


def of_all_ranks(value):
    """The values of all ranks, which pickle serves. Collective."""
    if not dist.is_initialized():
        return [value]
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, value)
    return every


def norm_over_ranks(own, norm_type, mesh):
    """Norms of order `norm_type` of what all ranks that shard have, of which `own` are this rank's: a tensor of the
    shape of `own`, float64. Collective."""
    group = mesh.get_group(mesh.ndim - 1)
    own = own.detach().to(mesh.device_type, torch.float64)
    every = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, own, group=group)
    return torch.linalg.vector_norm(torch.stack(every), norm_type, dim=0)


# States that have one value for a parameter, also for one without dimensions, and tables and scales of bitsandbytes,
# whose length may be that of a parameter.
_SINGLE = {"step", "mu_product", "eta", "mu", "qmap1", "qmap2", "absmax1", "absmax2"}


def is_elementwise(key, value, like):
    """True for a state of an optimizer that has a value for each element of a parameter of the shape of `like`."""
    return isinstance(value, torch.Tensor) and value.shape == like.shape and key not in _SINGLE


def distribute_states(optimizer, keys=None):
    """Makes rows of the states that a program has given an optimizer as whole tensors, as by the state dict of one that
    is not sharded. keys: of states with a value for each element; default all but those known as single values."""
    for parameter, state in optimizer.state.items():
        if not isinstance(state, dict):  # in a file, which has rows
            continue
        for key in state if keys is None else state.keys() & keys:
            if is_elementwise(key, state[key], parameter):
                state[key] = distributed(state[key], parameter)


def exchange(optimizer, successors):
    """Lets an optimizer update rows in place of whole parameters. successors: by a parameter, the DTensor in its
    place."""
    for group in optimizer.param_groups:
        group["params"][:] = [successors.get(each, each) for each in group["params"]]  # LBFGS keeps the list
    for parameter in successors.keys() & optimizer.state.keys():
        sharded = successors[parameter]
        optimizer.state[sharded] = {name: distributed(value, sharded) if is_elementwise(name, value, sharded) else value
                                    for name, value in optimizer.state.pop(parameter).items()}


# ---- the models that use the rows ----------------------------------------------------------------

models = weakref.WeakValueDictionary()  # by their numbers: in the order of their first forwards, the same on all ranks


def is_row(parameter):
    """True for a parameter of a module that has had its first forward."""
    return getattr(parameter, "_acc_model", None) in models


def awaits_memory(parameter):
    """True for a parameter of a module that has not had its first forward, which exchanges its memory."""
    return getattr(parameter, "_acc_model", None) == -1


def member_of(parameter):
    """What the engine has of a parameter of a module that has had its first forward (RowMember), or None."""
    model = models.get(getattr(parameter, "_acc_model", None))
    return model.by_parameter.get(parameter) if model is not None else None


def memory_of(tensor):
    """The same for tensors, also without elements, of which one is a view of the other."""
    return tensor.untyped_storage()._cdata


def before_change(tensors):
    """Before the program changes tensors on all ranks: if one is a parameter, or a view of one, that other ranks may
    still read in a forward whose backward has not run, waits for them; and if each rank can read it whole, no rank
    reads whole values by itself any more. Collective then. A backward before the next forward waits for the changes of
    all ranks."""
    for number in sorted(models):
        model = models.get(number)
        if model is not None and (model.unfenced or model.published is not None or not model.is_changed):
            changed = (each for each in tensors if isinstance(each, DTensor)
                       and memory_of(each._local_tensor) in model.storages)
            first = next(changed, None)
            if first is not None:
                model.is_changed = True
                model.await_ranks()
                if model.published is not None:
                    model.unpublish([first, *changed])


def fence(numbers=models):
    """Before the program reads or changes rows of these models: waits until no rank uses them any more. Collective."""
    for number in sorted(numbers):
        model = models.get(number)
        if model is not None:
            model.fence()


def successor_of(parameter):
    """The parameter that has taken the place of this one when its module was sharded, and its name there."""
    return parameter.__dict__.get("_acc_successor", (None, None))


class Replaced(torch.Tensor):
    """A parameter from before the module was sharded, in a list of the program. What torch does with it, it does with
    the parameter that has taken its place: FullyShardedDataParallel and DeepSpeed keep the objects."""

    _is_param = True  # isinstance(…, torch.nn.Parameter)

    @classmethod
    def __torch_function__(cls, function, _, arguments=(), keywords=None):
        arguments, keywords = tree_map_only(cls, current, (arguments, keywords or {}))
        return function(*arguments, **keywords)


def current(parameter):
    """The parameter that has taken the place of one that is Replaced; any other value as it is."""
    return successor_of(parameter)[0] if type(parameter) is Replaced else parameter


def replace(parameters):
    """Frees the values of whole parameters, whose modules have been sharded, and makes them Replaced."""
    for each in parameters:
        if type(each) is not Replaced:  # by a wrapper inside that has the same parameter
            each.grad = None
            each.data = each.data.new_empty(0)
            each.__class__ = Replaced
