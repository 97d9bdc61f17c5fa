#!/usr/bin/env python3
"""Writes memest JSON specs from eager PyTorch modules, with their hierarchy and with the lifetimes of their values.

    export_spec.py resnet18 unet                     # specs that ship with memest, into model_specs/
    export_spec.py --shipped                         # all of them
    export_spec.py torchvision:resnet34 timm:vit_small_patch16_224 -o FOLDER
    export_spec.py 'my.module:Net(width=64)' --input x=batch,3,image,image --default image=224 -o FOLDER

Needs torch (and torchvision or timm for theirs) and a built memest, whose vocabulary of layers it asks for (--memest).

How it works. A module that memest knows becomes a layer with the arguments that differ from the defaults; Sequential and ModuleList stay what they are.
The forward of any other module runs once by itself on tensors without data (device "meta"), its children standing for single calls; every call of a torch function or
a tensor's method is written down as a node. Python runs as always, so branches are taken as the example's sizes say, while sizes asked of tensors stay nodes.
When a value dies is watched, not guessed: the tensors' own objects die where eager tensors would (rebinding, end of a helper's frame, end of forward), and a value that
outlives its last use is put under "keep", or shares its name with the value at whose assignment it dies, or is rebound to none().
The model is traced with several batch sizes, image sizes, numbers of classes and element types and in both modes, and constants that follow them become "$batch", "$image//16",
"$classes", "$training" and the dtype of a tensor.
A forward that takes another way in evaluation mode becomes a graph with "evaluation"; one that does so at another image size makes the spec one for that size.
Not seen: autocast contexts that a forward opens itself, and tensors that it makes at its first call and keeps (they are buffers, or made at each call in evaluation mode).
"""
import argparse
import contextlib
import copy
import dis
import functools
import importlib
import inspect
import json
import math
import re
import subprocess
import sys
import weakref
from pathlib import Path

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

ROOT = Path(__file__).resolve().parent.parent
HERE = str(Path(__file__).resolve())
TORCH = str(Path(torch.__file__).resolve().parent) + "/"


def repeated(layers):
    """Equal layers that follow one another as one with "repeat"; memest makes independent copies of it."""
    out = []
    for made in layers:
        if out and "name" not in made and {k: v for k, v in out[-1].items() if k != "repeat"} == made:
            out[-1]["repeat"] = out[-1].get("repeat", 1) + 1
        else:
            out.append(dict(made))
    return out


class ExportError(Exception):
    pass


# ---- memest's vocabulary -------------------------------------------------------------------------------------------------

class Vocabulary:
    """The layers that memest knows: {name: [(argument, default or REQUIRED), ...]}."""
    REQUIRED = object()

    def __init__(self, memest):
        self.layers = {}
        for line in subprocess.run([memest, "list", "layers"], capture_output=True, text=True, check=True).stdout.splitlines():
            if "(layers)" in line:  # a container
                continue
            if match := re.fullmatch(r"(\w+)\((.*)\)", line.strip()):
                self.layers[match[1]] = [self.argument(a) for a in re.split(r", (?![^\[(]*[\])])", match[2]) if a and a != "*"]

    def argument(self, text):
        words, equals, default = text.partition("=")
        name = words.split()[-1]
        if not equals:
            return name, self.REQUIRED
        try:
            return name, eval(default, {"inf": math.inf})
        except (NameError, SyntaxError):
            return name, default

    def layer_of(self, module):
        """The name of the layer that a module is: its class, or the class whose forward it inherits, one that memest knows by name and library."""
        for cls in type(module).__mro__:
            known = cls.__name__ in self.layers or cls.__name__ in ("Sequential", "ModuleList")
            library = "torch" if hasattr(nn, cls.__name__) else cls.__module__.split(".")[0]  # a library's own GELU is not torch.nn's
            if known and (cls.__module__.startswith("torch.nn.") if library == "torch" else library in ("torchvision", "timm")):
                own = [k for k in cls.__mro__[:-1] if k is not nn.Module]
                changed = {name for k in type(module).__mro__[: type(module).__mro__.index(cls)] for name in vars(k) if callable(vars(k)[name])}
                forward = {name for k in own for name in vars(k) if callable(vars(k)[name])} - {"__init__", "reset_parameters", "extra_repr", "_load_from_state_dict"}
                return None if changed & forward else cls.__name__
        return None

    def arguments(self, name, module):
        out = {}
        for argument, default in self.layers[name]:
            value = getter(name, argument)(module)
            if isinstance(value, nn.Module):
                kind = self.layer_of(value)
                if kind is None:
                    raise ExportError(f"{name}: its {argument} is a {type(value).__name__}, which memest does not know")
                out[argument] = {"type": kind, **self.arguments(kind, value)}
            elif not same(value, default):
                out[argument] = plain(value)
        return out


GETTERS = {
    **{(layer, argument): get for layer in ("TransformerEncoderLayer", "TransformerDecoderLayer") for argument, get in {
        "d_model": lambda m: m.self_attn.embed_dim, "nhead": lambda m: m.self_attn.num_heads, "dim_feedforward": lambda m: m.linear1.out_features, "dropout": lambda m: m.dropout.p,
        "activation": lambda m: "gelu" if m.activation is nn.functional.gelu else "relu", "layer_norm_eps": lambda m: m.norm1.eps, "batch_first": lambda m: m.self_attn.batch_first,
        "bias": lambda m: m.linear1.bias is not None}.items()},
    **{("Transformer", argument): get for argument, get in {
        "num_encoder_layers": lambda m: len(m.encoder.layers), "num_decoder_layers": lambda m: len(m.decoder.layers), "dim_feedforward": lambda m: m.encoder.layers[0].linear1.out_features,
        "dropout": lambda m: m.encoder.layers[0].dropout.p, "activation": lambda m: "gelu" if m.encoder.layers[0].activation is nn.functional.gelu else "relu",
        "layer_norm_eps": lambda m: m.encoder.layers[0].norm1.eps, "norm_first": lambda m: m.encoder.layers[0].norm_first, "bias": lambda m: m.encoder.layers[0].linear1.bias is not None,
        "custom_encoder": lambda m: None, "custom_decoder": lambda m: None}.items()},
    ("TransformerEncoder", "encoder_layer"): lambda m: m.layers[0],
    ("TransformerDecoder", "decoder_layer"): lambda m: m.layers[0],
    ("MultiheadAttention", "bias"): lambda m: m.in_proj_bias is not None,
    ("MultiheadAttention", "add_bias_kv"): lambda m: m.bias_k is not None,
    ("MultiheadAttention", "kdim"): lambda m: None if m.kdim == m.embed_dim else m.kdim,
    ("MultiheadAttention", "vdim"): lambda m: None if m.vdim == m.embed_dim else m.vdim,
    ("MaxPool2d", "stride"): lambda m: None if m.stride == m.kernel_size else m.stride,
    ("AvgPool2d", "stride"): lambda m: None if m.stride == m.kernel_size else m.stride,
}


def getter(layer, argument):
    if (layer, argument) in GETTERS:
        return GETTERS[layer, argument]
    def get(module):
        if argument == "bias" and (isinstance(module._parameters.get("bias"), nn.Parameter) or "bias" in module._parameters):
            return module.bias is not None
        if not hasattr(module, argument):
            raise ExportError(f"{type(module).__name__} has no attribute '{argument}', which memest's layer {layer} takes")
        return getattr(module, argument)
    return get


def plain(value):
    """Layers' arguments as JSON: a tuple of equal numbers is the number."""
    if isinstance(value, (tuple, list)):
        return plain(value[0]) if len(value) > 1 and all(v == value[0] and type(v) is type(value[0]) and v is not None for v in value) else [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ExportError(f"an argument {value!r} of a layer is no number or text")


def same(value, default):
    if default is Vocabulary.REQUIRED:
        return False
    if isinstance(value, (tuple, list)) and not isinstance(default, (tuple, list)):
        return len(value) > 0 and all(same(v, default) for v in value)
    if isinstance(value, (tuple, list)):
        return list(value) == list(default)
    return type(value) in (int, float) and type(default) in (int, float) and value == default or type(value) is type(default) and value == default


# ---- tracing one forward ---------------------------------------------------------------------------------------------------

class Node:
    __slots__ = ("op", "target", "args", "kwargs", "event", "death", "hint", "pure", "name", "last", "until", "watched", "__weakref__")

    def __init__(self, op, target, args, kwargs, event, hint=None, pure=False):
        self.op, self.target, self.args, self.kwargs, self.event, self.hint, self.pure = op, target, args, kwargs, event, hint, pure
        self.watched, self.death = False, None  # the event after which its object died; None: it was never seen to die


def number(base):
    """A subclass of int or float that remembers the node which made it; arithmetic with it makes nodes."""
    class Number(base):
        node = None
    names = {"add": "add", "sub": "sub", "mul": "mul", "floordiv": "floordiv", "truediv": "truediv", "mod": "mod", "pow": "pow"}

    def binary(name, reverse):
        plain_op = getattr(base, f"__{'r' if reverse else ''}{name}__")

        def f(self, other, *rest):
            result = plain_op(self, other, *rest)
            frame = Frame.current
            if result is NotImplemented or frame is None or self.node is None or self.node.op is None or rest or isinstance(other, torch.Tensor):
                return result
            args = [other, self] if reverse else [self, other]
            return frame.number(result, "call_function", names[name], args)
        return f
    for name in names:
        setattr(Number, f"__{name}__", binary(name, False))
        setattr(Number, f"__r{name}__", binary(name, True))

    def negative(self):
        frame = Frame.current
        return base.__neg__(self) if frame is None or self.node is None else frame.number(base.__neg__(self), "call_function", "neg", [self])
    Number.__neg__ = negative
    Number.__deepcopy__ = lambda self, memo: base(self)
    Number.__reduce__ = lambda self: (base, (base(self),))
    Number.__name__ = base.__name__.capitalize()
    return Number


Int, Float = number(int), number(float)

# What is asked of a tensor and answered at once, as no op runs.
ANSWERED = {"dim", "ndim", "ndimension", "nelement", "is_floating_point", "is_complex", "is_contiguous", "stride", "storage_offset", "element_size", "get_device", "device", "layout", "is_cuda",
            "requires_grad", "is_meta", "is_sparse", "is_quantized", "is_leaf", "grad_fn", "grad", "__len__", "is_nested", "is_cpu", "is_mkldnn", "is_mps", "is_xla", "is_xpu", "is_inference", "__hash__",
            "is_same_size", "names", "untyped_storage", "is_nonzero", "__bool__", "__format__", "__repr__", "data_ptr", "is_signed", "itemsize", "nbytes", "requires_grad_", "names", "is_conj", "is_neg",
            "has_torch_function", "finfo", "get_default_dtype", "is_autocast_enabled", "is_grad_enabled", "is_tensor", "result_type", "promote_types", "can_cast", "iinfo", "is_storage", "__get__"}
DROPPED = {"device", "layout", "pin_memory", "generator", "requires_grad"}
DUNDERS = re.compile(r"__(\w+)__")
REVERSED = {"radd": "add", "rsub": "sub", "rmul": "mul", "rtruediv": "truediv", "rfloordiv": "floordiv", "rpow": "pow", "rmatmul": "matmul", "rmod": "mod", "rdiv": "truediv",
            "rand": "and_", "ror": "or_", "rxor": "xor"}
OPERATORS = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "invert": "bitwise_not", "div": "truediv", "idiv": "itruediv", "iand": "bitwise_and_", "ior": "bitwise_or_",
             "ipow": "pow_"}


GATHERED = {"meshgrid", "broadcast_tensors", "cartesian_prod", "block_diag"}  # of tensors one by one, which aten's take as a list


def name_of(func):
    """(name, is a method, is an attribute)"""
    if getattr(func, "__name__", "") == "__get__":
        return func.__self__.__name__, False, True
    full = resolve_name(func) or ""
    name = getattr(func, "__name__", None) or full.rpartition(".")[2]
    method = getattr(func, "__qualname__", "").startswith(("Tensor.", "TensorBase.", "_TensorBase.")) or type(func).__name__ in ("method_descriptor", "wrapper_descriptor")
    if match := DUNDERS.fullmatch(name):
        return match[1], False, False
    if full.startswith("torch.nn.functional.") and not method:
        name = full.rpartition(".")[2]
    return name.lstrip("_") if not name.endswith("__") else name, method, False


@functools.lru_cache(None)
def instructions(code):
    listed = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG", "PRECALL")]
    return {i.offset: n for n, i in enumerate(listed)}, listed


def names_assigned():
    """The local names to which the statement that is running assigns the result of the call at hand: read from the bytecode, which holds no references."""
    frame = sys._getframe(1)
    while frame and (frame.f_code.co_filename == HERE or frame.f_code.co_filename.startswith(TORCH)):
        frame = frame.f_back
    if not frame:
        return []
    index, listed = instructions(frame.f_code)
    at = index.get(frame.f_lasti)
    if at is None or at + 1 >= len(listed):
        return []
    after = listed[at + 1]
    if after.opname == "STORE_FAST":
        return [after.argval]
    if after.opname == "UNPACK_SEQUENCE":
        return [i.argval if i.opname == "STORE_FAST" else None for i in listed[at + 2: at + 2 + after.argval]]
    return []


class Frame(TorchFunctionMode):
    """Runs the forward of one module and writes down its calls."""
    current = None

    def __init__(self, root, example):
        super().__init__()
        self.root, self.example, self.calls = root, example, list(example.calls)
        self.nodes, self.known, self.events = [], {}, 0
        self.paths = {id(m): name for name, m in root.named_modules() if name}
        self.tensors = {}
        for path, m in root.named_modules():
            for name, t in [*m._parameters.items(), *m._buffers.items()]:
                if t is not None:
                    self.tensors.setdefault(id(t), f"{path}.{name}" if path else name)
        self.fetched, self.constants = {}, {}
        self.dtypes = {}

    # -- values
    def add(self, op, target, args=(), kwargs=None, hint=None, pure=False):
        node = Node(op, target, self.argument(list(args), target), {k: self.argument(v, target) for k, v in (kwargs or {}).items()}, self.events, hint, pure)
        self.nodes.append(node)
        return node

    def bind(self, tensor, node):
        """Knows the object as the node's value, and watches its death."""
        key = id(tensor)
        self.known[key] = node
        node.watched, node.death = True, None

        def died():
            node.death = self.events
            if self.known.get(key) is node:
                del self.known[key]
        weakref.finalize(tensor, died).atexit = False

    def value(self, result, node, names=()):
        """The result of a call as new objects that stand for the node, and getitem nodes for parts of a list."""
        if isinstance(result, torch.Tensor):
            if id(result) in self.known or id(result) in self.tensors:
                current, Frame.current = Frame.current, None
                result = torch.ops.aten.alias(result)
                Frame.current = current
            self.bind(result, node)
            return result
        if isinstance(result, (tuple, list)) and any(isinstance(r, (torch.Tensor, tuple, list)) for r in result):
            parts = []
            for i, part in enumerate(result):
                item = Node("call_function", "getitem", [node, i], {}, self.events, names[i] if i < len(names) else None)
                self.nodes.append(item)
                parts.append(self.value(part, item))
            if hasattr(result, "_fields"):
                return type(result)(*parts)
            return type(result)(parts) if type(result) in (tuple, list) or hasattr(result, "n_sequence_fields") else tuple(parts)
        if isinstance(result, dict):
            out = copy.copy(result)
            for key, part in result.items():
                item = Node("call_function", "getitem", [node, key], {}, self.events)
                self.nodes.append(item)
                out[key] = self.value(part, item)
            return out
        if type(result) is int:
            return self.tagged(Int(result), node)
        if type(result) is float:
            return self.tagged(Float(result), node)
        return result

    @staticmethod
    def tagged(number, node):
        number.node = node
        return number

    def number(self, value, op, target, args):
        if type(value) is bool or not isinstance(value, (int, float)):
            return value
        node = Node(op, target, self.argument(list(args), target), {}, self.events, pure=True)
        self.nodes.append(node)
        return self.tagged((Int if isinstance(value, int) else Float)(value), node)

    # -- arguments
    def argument(self, a, target=""):
        if isinstance(a, Node):
            return a
        if isinstance(a, torch.Tensor):
            return self.tensor(a)
        if isinstance(a, (Int, Float)) and a.node is not None and a.node.op is not None and a.node in self.nodes_set():
            return a.node
        if isinstance(a, (bool, str)) or a is None:
            return a
        if isinstance(a, int):
            return int(a)
        if isinstance(a, float):
            return float(a) if math.isfinite(a) else {"float": str(float(a))}
        if isinstance(a, slice):
            return slice(self.argument(a.start), self.argument(a.stop), self.argument(a.step))
        if isinstance(a, tuple):
            items = [self.argument(x) for x in a]
            return tuple(items) if target in ("getitem", "setitem", "") else items
        if isinstance(a, (list, torch.Size)):
            return [self.argument(x, target) for x in a]
        if isinstance(a, dict):
            return {"dict": {k: self.argument(v) for k, v in a.items()}}
        if a is Ellipsis:
            return {"ellipsis": True}
        if isinstance(a, torch.dtype):
            if a == EXAMPLE and a in self.dtypes:  # it was read from a tensor
                return self.dtypes[a]
            a = torch.float32 if a == EXAMPLE else a
            return {"dtype": str(a).removeprefix("torch.")}
        if isinstance(a, torch.memory_format):
            return {"memory_format": str(a).removeprefix("torch.")}
        if isinstance(a, (torch.device, torch.layout)):
            return a
        if hasattr(a, "value") and isinstance(getattr(a, "value"), (int, str)):  # an enum
            return a.value
        raise ExportError(f"{target} takes {a!r}, which a spec cannot hold")

    def nodes_set(self):
        if len(self._ids) != len(self.nodes):
            self._ids = set(self.nodes)
        return self._ids
    _ids = frozenset()

    def tensor(self, t):
        if id(t) in self.known:
            return self.known[id(t)]
        path = self.tensors.get(id(t))
        if path is None:
            # a tensor that is neither a parameter nor a value of this frame: kept as a buffer
            path = f"constant{len(self.constants)}"
            self.constants[path] = t
            self.tensors[id(t)] = path
        if path not in self.fetched:
            node = Node("get_attr", path, [], {}, self.events, hint=path.rpartition(".")[2] if not path.rpartition(".")[2].isdigit() else None, pure=True)
            self.nodes.append(node)
            self.fetched[path] = node
        return self.fetched[path]

    # -- what is intercepted
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if Frame.current is not self:
            return func(*args, **kwargs)
        name, method, attribute = name_of(func)
        if attribute and name == "shape" or name == "size" and method:
            return self.sizes(func, args, kwargs)
        if name == "numel" and method:
            return self.number(func(*args, **kwargs), "call_method", "numel", args)
        if name == "dtype" and attribute:
            dtype = func(*args, **kwargs)
            if isinstance(args[0], torch.Tensor) and dtype.is_floating_point:
                node = Node("call_function", "getattr", [self.tensor(args[0]), "dtype"], {}, self.events, pure=True)
                self.nodes.append(node)
                self.dtypes[dtype] = node
            return dtype
        if name in ANSWERED or name.startswith(("is_", "has_", "get_", "set_")):
            return func(*args, **kwargs)
        Frame.current = None
        try:
            result = func(*args, **kwargs)
        finally:
            Frame.current = self
        if not carries_tensor(result) and name != "setitem":
            if any(isinstance(a, torch.Tensor) for a in args) and isinstance(result, (int, float)) and not isinstance(result, bool):
                return self.value(result, self.begin() or self.add("call_method" if method else "call_function", name, args, kwargs))
            return result
        return self.call(func, name, method, attribute, args, kwargs, result)

    def begin(self):
        self.events += 1

    def call(self, func, name, method, attribute, args, kwargs, result):
        if name.endswith("_") and args and id(args[0]) in self.tensors and args[0].dim() == 0 and not args[0].is_floating_point() and not any(map(carries_tensor, args[1:])):
            return result  # num_batches_tracked.add_(1): takes no memory, and is often for one mode only
        names = names_assigned()
        self.begin()
        if attribute:
            node = self.add("call_function", "getattr", [args[0], name], hint=names[0] if len(names) == 1 else None)
            return self.value(result, node)
        args = [a for a in args if not isinstance(a, (torch.device, torch.layout))]
        kwargs = {k: v for k, v in kwargs.items() if k not in DROPPED and not k.startswith("_")}
        if name in ("to", "cuda", "cpu") and len(args) == 1 and not kwargs or name in ("detach_", "requires_grad_"):
            node = self.argument(args[0])  # only the device changes: everything is on one
            return self.value(result, node) if id(result) not in self.known else result
        if name in REVERSED:
            name, args = REVERSED[name], [args[1], args[0]]
        if not (name == "div" and kwargs.get("rounding_mode")):
            name = OPERATORS.get(name, name)
        if name in GATHERED and args and isinstance(args[0], torch.Tensor):
            args = [args]
        node = self.add("call_method" if method else "call_function", name, args, kwargs, hint=names[0] if len(names) == 1 else None)
        return self.value(result, node, names)

    def sizes(self, func, args, kwargs):
        result = func(*args, **kwargs)
        t = args[0]
        dims = [result] if isinstance(result, int) else list(result)
        first = (args[1:] or [kwargs.get("dim")])[0] if isinstance(result, int) else 0
        out = []
        for i, size in enumerate(dims):
            node = Node("call_method", "size", [self.tensor(t), (first if isinstance(result, int) else i)], {}, self.events, pure=True)
            self.nodes.append(node)
            out.append(self.tagged(Int(size), node))
        return out[0] if isinstance(result, int) else torch.Size(out)

    # -- running
    def call_module(self, module, args, kwargs, original):
        Frame.current = None
        try:
            known = self.calls.pop(0) if self.calls else (None, None)
            result = unlike(known[1]) if known[0] == id(module) else original(module, *args, **kwargs)
        finally:
            Frame.current = self
        names = names_assigned()
        self.begin()
        args, kwargs = call_arguments(module, args, kwargs)
        node = self.add("call_module", self.paths[id(module)], args, kwargs, hint=names[0] if len(names) == 1 else None)
        return self.value(result, node, names)

    def trace(self):
        args, kwargs = self.example.fresh()
        holders = []  # the caller's names
        for name, value in [*zip(positional_names(self.root, len(args)), args), *kwargs.items()]:
            node = Node("placeholder", name, [], {}, 0, hint=name)
            if isinstance(value, torch.Tensor):
                self.nodes.append(node)
                self.bind(value, node)
                holders.append(value)
            elif isinstance(value, (tuple, list)) and carries_tensor(value):
                self.nodes.append(node)
                parts = list(enumerate(value))
                for i, part in parts:
                    if not isinstance(part, torch.Tensor):
                        raise ExportError(f"input '{name}' of {type(self.root).__name__} is a list of lists")
                    item = Node("call_function", "getitem", [node, i], {}, 0, pure=True)
                    self.nodes.append(item)
                    self.bind(part, item)
                holders.append(value)
            elif type(value) is int:
                self.nodes.append(node)
                value = self.tagged(Int(value), node)
                args = [value if a is value else a for a in args]
                holders.append(value)
        values = dict(zip(positional_names(self.root, len(args)), args), **kwargs)
        for node in self.nodes:  # integers become remembering ones
            if node.op == "placeholder" and type(values[node.target]) is int:
                tagged = self.tagged(Int(values[node.target]), node)
                args = [tagged if n == node.target else a for n, a in zip(positional_names(self.root, len(args)), args)]
                kwargs = {k: tagged if k == node.target else v for k, v in kwargs.items()}
        del values
        with self, patched_calls():
            Frame.current = self
            try:
                result = self.root.forward(*args, **kwargs)
                self.events += 1
                output = self.argument(result)
            finally:
                Frame.current = None
        for node in self.nodes:  # the caller holds what it passed
            if node.op == "placeholder" or node.event == 0:
                node.watched = False
        end = Node("output", None, [output], {}, self.events)
        del result
        self.nodes.append(end)
        return self.finished()

    def finished(self):
        """Nodes without those that nobody needs, with names and lifetimes."""
        needed = set()
        for node in reversed(self.nodes):
            if not node.pure or node in needed:
                needed.add(node)
                visit(node.args, needed.add)
                visit(node.kwargs, needed.add)
        # a part of a tuple that nobody uses and that dies at once, as in chunk(...)[0]
        for node in self.nodes:
            node.last = None
        used = set()
        for node in self.nodes:
            if node in needed:
                visit(node.args, used.add)
                visit(node.kwargs, used.add)
        needed = {n for n in needed if n in used or n.target != "getitem" or n.death is None or n.death > n.event}
        nodes = [n for n in self.nodes if n in needed]
        index = {n: i for i, n in enumerate(nodes)}
        end = len(nodes) - 1
        for i, node in enumerate(nodes):
            node.last = i
            for user in (node.args, node.kwargs):
                visit(user, lambda n, i=i: setattr(n, "last", i))
        events = [n.event for n in nodes]
        for i, node in enumerate(nodes):
            node.until = node.last
            if node.op in ("placeholder", "get_attr", "output") or not node.watched or node.last == end:
                continue
            if node.death is None or node.death >= events[end - 1]:
                node.until = end if node.last < end - 1 else node.last
            elif node.death > nodes[node.last].event:
                node.until = max(node.last, max(j for j in range(len(nodes)) if events[j] <= node.death))
        return self.named(nodes, end)

    def named(self, nodes, end):
        out, keep, holder, count = [], [], {}, 0
        taken = {n.hint for n in nodes if n.op == "placeholder"}
        for i, node in enumerate(nodes):
            if node.op == "output":
                node.name = "output"
                out.append(node)
                continue
            ends = [w for w in nodes[:i] if w.until == i and w.last < i and w.name in holder]
            if ends:
                first = next((w for w in ends if w.hint and w.hint == node.hint), ends[0])
                node.name = first.name
            else:
                wanted = node.hint or f"v{i}"
                wanted = re.sub(r"\W", "_", wanted)
                name, k = wanted, 2
                while name in holder and not (holder[name].last == i and holder[name].until == i) or name in taken and node.op != "placeholder" and name not in holder or name == "output":
                    name, k = f"{wanted}_{k}", k + 1
                node.name = name
            holder[node.name] = node
            out.append(node)
            for w in ends:
                if w.name != node.name:
                    gone = Node("call_function", "none", [], {}, node.event)
                    gone.name = w.name
                    out.append(gone)
                    del holder[w.name]
            if node.until == end and node.last < end:
                keep.append(node.name)
        return out, sorted(set(keep), key=keep.index)


def visit(a, f):
    if isinstance(a, Node):
        f(a)
    elif isinstance(a, (list, tuple)):
        for x in a:
            visit(x, f)
    elif isinstance(a, dict):
        for x in a.values():
            visit(x, f)
    elif isinstance(a, slice):
        for x in (a.start, a.stop, a.step):
            visit(x, f)


def carries_tensor(a):
    return isinstance(a, torch.Tensor) or isinstance(a, (list, tuple)) and any(map(carries_tensor, a)) or isinstance(a, dict) and any(map(carries_tensor, a.values()))


def like(a):
    """An example input: what is needed to make another one."""
    if isinstance(a, torch.Tensor):
        return ("tensor", tuple(a.shape), a.stride(), a.dtype)
    if isinstance(a, (list, tuple)):
        return ("list", type(a), [like(x) for x in a])
    if isinstance(a, dict):
        return ("dict", type(a), {k: like(v) for k, v in a.items()})
    return ("value", int(a) if isinstance(a, Int) else a)


def unlike(a):
    if a[0] == "tensor":
        return torch.empty_strided(a[1], a[2], dtype=a[3], device="meta")
    if a[0] == "list":
        return a[1](unlike(x) for x in a[2]) if a[1] in (list, tuple) else tuple(unlike(x) for x in a[2])
    if a[0] == "dict":
        return a[1]((k, unlike(v)) for k, v in a[2].items())
    return a[1]


class Example:
    """One call of a module: what was given, and what the modules that it called returned."""

    def __init__(self, args, kwargs, calls):
        self.args, self.kwargs, self.calls = args, kwargs, calls

    def fresh(self):
        return [unlike(a) for a in self.args], {k: unlike(v) for k, v in self.kwargs.items()}


def positional_names(module, count):
    names, rest = [], None
    for p in inspect.signature(module.forward).parameters.values():
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(p.name)
        elif p.kind == p.VAR_POSITIONAL:
            rest = p.name
    while len(names) < count and rest:
        names.append(f"{rest}{len(names)}")
    return names[:count]


def is_input(value):
    return carries_tensor(value) or type(value) in (int, Int)


def call_arguments(module, args, kwargs):
    """What the caller of a traced module passes: its inputs only, the constants being part of its trace."""
    if VOCABULARY.layer_of(module):
        return list(args), kwargs
    names = positional_names(module, len(args))
    given = [is_input(a) for a in args]
    if all(given):
        return list(args), {k: v for k, v in kwargs.items() if is_input(v)}
    prefix = given.index(False)
    later = {n: a for n, a, g in list(zip(names, args, given))[prefix:] if g}
    return list(args[:prefix]), {**later, **{k: v for k, v in kwargs.items() if is_input(v)}}


# Models are traced in this type, so that float32 in a trace is one that the code asks for, and this one is the type of the model or of a tensor.
EXAMPLE = torch.bfloat16
# Functions that memest has as such: {module: names}. Their branches depend on sizes, and memest takes them itself.
WHOLE = {"torchvision.models.swin_transformer": ["shifted_window_attention"], "torchvision.ops.stochastic_depth": ["stochastic_depth"], "timm.layers.drop": ["drop_path"]}
VOCABULARY = None
_original_call = nn.Module.__call__


@contextlib.contextmanager
def patched_calls():
    def call(module, *args, **kwargs):
        frame = Frame.current
        if frame is not None and id(module) in frame.paths:
            return frame.call_module(module, args, kwargs, _original_call)
        return _original_call(module, *args, **kwargs)
    nn.Module.__call__ = call
    replaced = []
    for name, functions in WHOLE.items():
        if library := sys.modules.get(name):
            for function in functions:
                original = getattr(library, function)
                for place in [m for m in sys.modules.values() if m and vars(m).get(function) is original]:
                    replaced.append((place, function, original))
                    setattr(place, function, whole(function, original))
    try:
        yield
    finally:
        nn.Module.__call__ = _original_call
        for place, function, original in replaced:
            setattr(place, function, original)


def whole(name, original):
    def call(*args, **kwargs):
        frame = Frame.current
        if frame is None:
            return original(*args, **kwargs)
        Frame.current = None
        try:
            result = original(*args, **kwargs)
        finally:
            Frame.current = frame
        return frame.call(original, name, False, False, args, kwargs, result)
    return call


# ---- a model ---------------------------------------------------------------------------------------------------------------

class Exporter:
    def __init__(self, model, inputs, vocabulary):
        self.model, self.vocabulary, self.warnings = model, vocabulary, []
        self.examples = {}
        shared = {}
        for name, module in model.named_modules(remove_duplicate=False):
            shared.setdefault(id(module), []).append(name)
        self.tied = {}
        seen = {}
        for name, p in model.named_parameters(remove_duplicate=False):
            if id(p) in seen:
                self.tied[name] = seen[id(p)]
            else:
                seen[id(p)] = name
        running = [[]]

        def call(module, *args, **kwargs):
            example = Example([like(a) for a in args], {k: like(v) for k, v in kwargs.items()}, [])
            self.examples.setdefault(id(module), example)
            running.append(example.calls)
            result = _original_call(module, *args, **kwargs)
            running.pop()
            running[-1].append((id(module), like(result)))
            return result
        batch_norm, nn.functional.batch_norm = nn.functional.batch_norm, lambda input, *args, **kwargs: torch.empty_like(input)  # slow on the meta device
        nn.Module.__call__ = call
        try:
            model(*inputs)
        finally:
            nn.Module.__call__, nn.functional.batch_norm = _original_call, batch_norm

    def module(self, m):
        layer = self.vocabulary.layer_of(m)
        if layer in ("Sequential", "ModuleList"):
            layers = []
            for i, (name, child) in enumerate(m.named_children_with_duplicates() if hasattr(m, "named_children_with_duplicates") else m._modules.items()):
                made = self.module(child)
                layers.append({"type": made.pop("type"), **({"name": name} if name != str(i) else {}), **made})
            return {"type": layer, "layers": repeated(layers)}
        if layer:
            return {"type": layer, **self.vocabulary.arguments(layer, m)}
        return self.graph(m)

    def graph(self, m):
        out = {"type": "Graph"}
        example = self.examples.get(id(m))
        if example is None:  # never called: it only holds modules and parameters
            nodes, keep, constants = None, [], {}
        else:
            frame = Frame(m, example)
            nodes, keep = frame.trace()
            constants = frame.constants
            out["inputs"] = [n.name for n in nodes if n.op == "placeholder"]
        modules = {name: self.module(child) for name, child in m._modules.items() if child is not None}
        if modules:
            out["modules"] = modules
        parameters = {name: described(p, requires_grad=p.requires_grad) for name, p in m._parameters.items() if p is not None}
        if parameters:
            out["parameters"] = parameters
        buffers = {name: described(b) for name, b in [*m._buffers.items(), *constants.items()] if b is not None}
        if constants:
            self.warnings.append(f"{type(m).__name__}: {len(constants)} tensors that are neither parameters nor buffers became buffers")
        if buffers:
            out["buffers"] = buffers
        out["nodes"] = [written(n) for n in nodes] if nodes else [{"name": "output", "op": "output", "args": [None]}]
        if keep:
            out["keep"] = keep
        return out

    def export(self):
        spec = self.module(self.model)
        if spec["type"] in ("Sequential",):
            return {"layers": spec["layers"]}
        if spec["type"] != "Graph":
            return {"layers": [spec]}
        spec.pop("type")
        spec.pop("inputs", None)
        if self.tied:
            spec["tie"] = self.tied
        return spec


def described(t, requires_grad=True):
    out = {"shape": list(t.shape)}
    if t.dtype != EXAMPLE:
        out["dtype"] = str(t.dtype).removeprefix("torch.")
    if t.dtype == torch.float32:  # the model was moved to another type, and this one stayed
        out["keep_dtype"] = True
    if not requires_grad:
        out["requires_grad"] = False
    return out


def written(node):
    def value(a):
        if isinstance(a, Node):
            return "%" + a.name
        if isinstance(a, tuple):
            return {"tuple": [value(x) for x in a]}
        if isinstance(a, list):
            return [value(x) for x in a]
        if isinstance(a, slice):
            return {"slice": [value(a.start), value(a.stop), value(a.step)]}
        if isinstance(a, dict):
            return {k: value(v) for k, v in a.items()}
        if isinstance(a, str) and a[:1] in "%$" and a:
            return a[0] + a
        return a
    out = {"name": node.name, "op": node.op}
    if node.op in ("call_module", "call_function", "call_method", "get_attr"):
        out["target"] = node.target
    if node.args:
        out["args"] = [value(a) for a in node.args]
    if node.kwargs:
        out["kwargs"] = {k: value(v) for k, v in node.kwargs.items()}
    return out


# ---- symbols: traces at several settings made one -----------------------------------------------------------------------------

def fitted(values, settings):
    """An expression over the symbols that gives the values at the settings."""
    symbols = [s for s in settings[0] if len({x[s] for x in settings}) > 1]
    for s in symbols:
        for f, text in [(lambda v: v, "${}")] + [(lambda v, k=k: v // k, "${}//%d" % k) for k in (2, 4, 8, 16, 32, 64, 14, 7, 28, 56)] \
                + [(lambda v, k=k: v * k, "${}*%d" % k) for k in range(2, 65)]:
            if all(f(x[s]) == v for x, v in zip(settings, values)):
                return text.format(s)
    for s in symbols:  # linear in s or in s//k
        for k in (1, 2, 4, 8, 16, 32, 64, 14):
            points = {(x[s] // k, v) for x, v in zip(settings, values)}
            xs = sorted({p[0] for p in points})
            if len(points) == len(xs) and len(xs) > 1:
                (x0, v0), (x1, v1) = sorted(points)[0], sorted(points)[-1]
                if (v1 - v0) % (x1 - x0) == 0:
                    a = (v1 - v0) // (x1 - x0)
                    b = v0 - a * x0
                    if a and all(a * x + b == v for x, v in points):
                        base = f"{s}//{k}" if k > 1 else s
                        return f"${base}{f'*{a}' if a != 1 else ''}{f' + {b}' if b > 0 else f' - {-b}' if b < 0 else ''}"
    if "image" in symbols and "batch" in symbols:
        for k in (1, 2, 4, 8, 16, 32, 64, 7, 14):
            for power in (1, 2):
                ratios = {v / (x["batch"] * (x["image"] // k) ** power) for x, v in zip(settings, values)}
                if len(ratios) == 1 and (r := ratios.pop()) == int(r):
                    side = f"(image//{k})" if k > 1 else "image"
                    return f"$batch*{'*'.join([side] * power)}{f'*{int(r)}' if r != 1 else ''}"
    if "image" in symbols:
        for k in (1, 2, 4, 8, 16, 32, 64, 7, 14):
            ratios = {v / (x["image"] // k) ** 2 for x, v in zip(settings, values)}
            if len(ratios) == 1 and (r := ratios.pop()) == int(r):
                side = f"(image//{k})" if k > 1 else "image"
                return f"${side}*{side}{f'*{int(r)}' if r != 1 else ''}"
    return None


def merged(versions, settings, where=""):
    first = versions[0]
    if all(v == first and type(v) is type(first) for v in versions):
        return first
    if all(isinstance(v, dict) for v in versions) and all(list(v) == list(first) for v in versions):
        return {k: merged([v[k] for v in versions], settings, f"{where}/{k}") for k in first}
    if all(isinstance(v, list) and len(v) == len(first) for v in versions):
        return [merged([v[i] for v in versions], settings, f"{where}/{i}") for i in range(len(first))]
    if all(type(v) is bool for v in versions):
        if all(v == bool(x["training"]) for v, x in zip(versions, settings)):
            return "$training"
        if all(v != bool(x["training"]) for v, x in zip(versions, settings)):
            return "$not_training"
    if all(type(v) is int for v in versions):
        if expression := fitted(versions, settings):
            return expression
    if all(isinstance(v, list) for v in versions) and where.endswith("/nodes"):
        other = next(v for v in versions if len(v) != len(first))
        at = next((i for i, (x, y) in enumerate(zip(first, other)) if x != y), min(len(first), len(other)))
        raise ExportError(f"{where}: the forward takes another way with {settings[versions.index(other)]}: {json.dumps(first[at:at + 1])} became {json.dumps(other[at:at + 1])}")
    raise ExportError(f"{where}: depends on the settings in a way that no expression fits: {[str(v)[:60] for v in versions]}")


def by_mode(versions, settings, where=""):
    """Like merged(); a graph whose forward takes another way in evaluation mode gets a second list of nodes."""
    try:
        return merged(versions, settings, where)
    except ExportError:
        first = versions[0]
        if isinstance(first, dict) and "nodes" in first:
            return graph_by_mode(versions, settings, where)
        if isinstance(first, dict) and all(isinstance(v, dict) and list(v) == list(first) for v in versions):
            return {k: by_mode([v[k] for v in versions], settings, f"{where}/{k}") for k in first}
        if isinstance(first, list) and not where.endswith("/nodes") and all(isinstance(v, list) and len(v) == len(first) for v in versions):
            return [by_mode([v[i] for v in versions], settings, f"{where}/{i}") for i in range(len(first))]
        raise


def graph_by_mode(versions, settings, where):
    ways = {}
    for mode in (1, 0):
        chosen = [(v, s) for v, s in zip(versions, settings) if s["training"] == mode]
        ways[mode] = {k: merged([v.get(k, {}) for v, _ in chosen], [s for _, s in chosen], f"{where}/{k}") for k in ("nodes", "keep", "buffers") if any(k in v for v, _ in chosen)}
    given = next(n["name"] for n in ways[0]["nodes"] if n["op"] == "placeholder")
    for node in ways[0]["nodes"]:  # what only evaluation has is a cache that a forward fills: made where it is used
        if node["op"] == "get_attr" and node["target"].startswith("constant") and node["target"] not in ways[1].get("buffers", {}):
            made = ways[0]["buffers"].pop(node["target"])
            node.update(op="call_method", target="new_zeros", args=["%" + given, made["shape"]], **({"kwargs": {"dtype": {"dtype": made["dtype"]}}} if "dtype" in made else {}))
    renamed = {name for name, b in ways[0].get("buffers", {}).items() if ways[1].get("buffers", {}).get(name, b) != b}
    for node in ways[0]["nodes"]:
        if node["op"] == "get_attr" and node["target"] in renamed:
            node["target"] = "evaluation_" + node["target"]
    buffers = {**ways[1].get("buffers", {}), **{("evaluation_" if n in renamed else "") + n: b for n, b in ways[0].get("buffers", {}).items()}}
    out = {}
    for key in dict.fromkeys(k for v in versions for k in v):
        if key == "nodes":
            out["nodes"] = ways[1]["nodes"]
        elif key == "keep":
            out.update({"keep": ways[1]["keep"]} if ways[1].get("keep") else {})
        elif key != "buffers":
            out[key] = by_mode([v[key] for v in versions], settings, f"{where}/{key}")
    if buffers:
        out = {**{k: v for k, v in out.items() if k not in ("nodes", "keep")}, "buffers": buffers, **{k: out[k] for k in ("nodes", "keep") if k in out}}
    if ways[0]["nodes"] != ways[1]["nodes"] or ways[0].get("keep") != ways[1].get("keep"):
        out["evaluation"] = {k: ways[0][k] for k in ("nodes", "keep") if ways[0].get(k)}
    return out


# ---- writing ----------------------------------------------------------------------------------------------------------------

BLOCKS = {"layers", "nodes", "modules", "parameters", "buffers"}  # what is written one item a line


def rendered(value, indent=0, width=200):
    """JSON that a person can read and a diff shows well: one layer, module or node a line."""
    blocks = BLOCKS & set(value) if isinstance(value, dict) else ()
    flat = json.dumps(value)
    if not isinstance(value, (dict, list)) or not blocks and indent and len(flat) + indent <= width:
        return flat
    pad, end = "\n" + " " * (indent + 1), "\n" + " " * indent
    if isinstance(value, list):
        return "[" + pad + ("," + pad).join(rendered(v, indent + 1, width) for v in value) + end + "]"
    parts = []
    for key, v in value.items():
        if key in ("modules", "parameters", "buffers"):
            inner = "," + pad + " "
            text = "{" + pad + " " + inner.join(f"{json.dumps(k)}: {rendered(x, indent + 2, width)}" for k, x in v.items()) + pad + "}"
        else:
            text = rendered(v, indent + 1, width)
        parts.append((key in BLOCKS or key == "keep" or not indent, f"{json.dumps(key)}: {text}"))
    out = "{"
    for i, (own_line, text) in enumerate(parts):
        out += (pad if own_line else " " if i else "") + text + ("," if i + 1 < len(parts) else "")
    return out + (end if any(own for own, _ in parts) else "") + "}"


# ---- the models that ship -----------------------------------------------------------------------------------------------------

OWN = ["lenet5", "mlp", "unet", "transformer_encoder", "lstm_classifier"]
TORCHVISION = """resnet18 resnet34 resnet50 resnet101 resnet152 wide_resnet50_2 resnext50_32x4d vgg16 mobilenet_v2 alexnet squeezenet1_0 densenet121 googlenet inception_v3
    mobilenet_v3_small mobilenet_v3_large mnasnet0_5 mnasnet1_0 shufflenet_v2_x1_0 efficientnet_b0 efficientnet_v2_s regnet_x_400mf regnet_y_400mf convnext_tiny convnext_base
    vit_b_16 vit_l_16 swin_t swin_v2_t maxvit_t fcn_resnet50 deeplabv3_resnet50""".split()
TIMM = ["vit_small_patch16_224", "vit_base_patch16_224", "vit_large_patch16_224", "vit_huge_patch14_224"]


class Source:
    """Builds a model and says what goes into it."""

    def __init__(self, text, image=None, classes=True):
        self.text = text
        kind, _, self.rest = text.partition(":")
        self.kind = kind
        self.image = image or (299 if self.rest == "inception_v3" else 224)
        self.inputs = [("x", ["batch", 3, "image", "image"], torch.float32)]
        self.defaults = {"image": self.image, "classes": 1000}
        self.loss = "cross_entropy"
        self.description = None
        if kind == "own":
            sys.path.insert(0, str(ROOT / "scripts"))
            own = importlib.import_module("spec_models")
            self.make, self.inputs, self.defaults, self.loss, self.description = own.MODELS[self.rest]
        elif kind == "torchvision":
            import torchvision
            options = {"aux_logits": False, "init_weights": False} if self.rest in ("googlenet", "inception_v3") else {}
            self.make = lambda classes=1000: torchvision.models.get_model(self.rest, num_classes=classes, **options)
            if hasattr(torchvision.models.segmentation, self.rest):
                options = {"weights_backbone": None, "aux_loss": False}
                self.defaults["classes"] = 21
            self.description = f"torchvision.models.{self.rest}" + (f" ({', '.join(f'{k}={v}' for k, v in options.items() if k in ('aux_logits',))})" if options else "")
        elif kind == "timm":
            import timm
            self.make = lambda classes=1000: timm.create_model(self.rest, num_classes=classes)
            self.image = timm.models.get_pretrained_cfg(self.rest).input_size[-1]
            self.defaults["image"] = self.image
            self.description = f"timm.create_model('{self.rest}')"
        else:
            module, _, expression = text.partition(":")
            scope = {**vars(nn), **vars(importlib.import_module(module)), "nn": nn, "torch": torch}
            self.make = lambda classes=None: eval(expression, scope)
            self.defaults, self.loss = {}, None

    def build(self, classes):
        make = (lambda: self.make(classes)) if "classes" in self.defaults else self.make
        with no_initialisation():
            try:
                with torch.device("meta"):
                    return make().to(EXAMPLE)
            except (RuntimeError, NotImplementedError):  # it computes something when it is made
                return make().to("meta", EXAMPLE)

    def batch(self, setting):
        def size(s):
            return s if isinstance(s, int) else int(eval(s, {}, dict(setting)))
        return [torch.empty([size(s) for s in shape], dtype=EXAMPLE if dtype == torch.float32 else dtype, device="meta") for _, shape, dtype in self.inputs]


@contextlib.contextmanager
def no_initialisation():
    """Weights have no values on the meta device; the functions of nn.init would only take time."""
    saved = {name: getattr(nn.init, name) for name in dir(nn.init) if name.endswith("_") and not name.startswith("_") and callable(getattr(nn.init, name))}
    for name in saved:
        setattr(nn.init, name, lambda tensor, *a, **k: tensor)
    try:
        yield
    finally:
        for name, f in saved.items():
            setattr(nn.init, name, f)


def export(source, vocabulary, log=lambda text: print(text, file=sys.stderr)):
    """The spec of a model, as a dictionary."""
    global VOCABULARY
    VOCABULARY = vocabulary
    base = {"batch": 2, **source.defaults, "training": 1}
    settings = [base, {**base, "batch": 3}]
    if "image" in base:
        settings.append({**base, "image": base["image"] + 64})
    if "classes" in base:
        settings.append({**base, "classes": base["classes"] + 7})
    for key in base:
        if key not in ("batch", "training", "image", "classes"):
            settings.append({**base, key: base[key] + 16})
    traces, models = {}, {}

    def traced(setting):
        key = json.dumps(setting)
        if key not in traces:
            classes = setting.get("classes")
            if classes not in models:
                models[classes] = source.build(classes)
            model = models[classes].train(bool(setting["training"]))
            with torch.inference_mode():
                try:
                    exporter = Exporter(model, source.batch(setting), vocabulary)
                except (RuntimeError, AssertionError) as error:
                    if setting is base:
                        raise
                    if setting.get("image") != base.get("image"):  # the model is for one size of image
                        traces[key] = None
                        return None
                    raise ExportError(f"with {setting}: {error}") from error
                traces[key] = exporter.export()
            if setting is base:
                for text in dict.fromkeys(exporter.warnings):
                    log(f"{source.text}: {text}")
        return traces[key]

    def both(chosen, merge):
        used = [s for s in chosen if traced(s) is not None]
        return merge([copy.deepcopy(traced(s)) for s in used], used)
    evaluation = [{**s, "training": 0} for s in settings]
    one_image = lambda chosen: [s for s in chosen if s.get("image") == base.get("image")]  # noqa: E731
    ways = [(settings + evaluation[:1], merged), (settings + evaluation, by_mode), (one_image(settings + evaluation[:1]), merged), (one_image(settings + evaluation), by_mode)]
    for i, (chosen, merge) in enumerate(ways):
        try:
            body = both(chosen, merge)
            break
        except ExportError:
            if i + 1 == len(ways):
                raise
    if i >= 2 and "image" in source.defaults:  # its forward takes another way at other sizes
        log(f"{source.text}: the spec is for images of {source.defaults['image']}")
        size = source.defaults.pop("image")
        source.inputs = [(name, [size if s == "image" else s for s in shape], dtype) for name, shape, dtype in source.inputs]
    head = {"memest_spec": 1, "name": source.rest if source.kind in ("own", "torchvision", "timm") else source.text}
    if source.description:
        head["description"] = source.description
    head["inputs"] = [{"name": name, "shape": shape, "dtype": str(dtype).removeprefix("torch.")} for name, shape, dtype in source.inputs]
    if source.defaults:
        head["defaults"] = source.defaults
    if source.loss:
        head["loss"] = source.loss
    return {**head, **body}


def counts(source):
    """What the eager model itself counts: parameters, their bytes in fp32, buffers and their bytes."""
    model = source.build(source.defaults.get("classes")).to(torch.float32)
    parameters, buffers = list(model.parameters()), list(model.buffers())
    return sum(p.numel() for p in parameters), len(buffers), sum(b.numel() * b.element_size() for b in buffers)


def shipped():
    return {**{n: f"own:{n}" for n in OWN}, **{n: f"torchvision:{n}" for n in TORCHVISION}, **{n: f"timm:{n}" for n in TIMM}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--shipped", action="store_true", help="every spec that ships with memest")
    parser.add_argument("--memest", default=ROOT / "build/release/memest")
    parser.add_argument("-o", "--output", default=ROOT / "model_specs", type=Path)
    parser.add_argument("--classes", type=int, help="default of the symbol \"classes\"")
    parser.add_argument("--input", action="append", default=[], help="NAME=SIZE,SIZE,...[:DTYPE], for a model of your own")
    parser.add_argument("--counts", type=Path, help="write what the shipped models count by PyTorch itself to this file (tests/unit/spec/shipped_counts.txt), and export nothing")
    parser.add_argument("--trace", action="store_true", help="show where an error comes from")
    parser.add_argument("--default", action="append", default=[], help="SYMBOL=NUMBER")
    options = parser.parse_args()
    if options.counts:
        lines = [f"{name} {' '.join(map(str, counts(Source(text))))}" for name, text in sorted(shipped().items())]
        options.counts.write_text("# name, parameters, buffers, bytes of buffers: as PyTorch counts them (scripts/export_spec.py --counts)\n" + "\n".join(lines) + "\n")
        return 0
    vocabulary = Vocabulary(str(options.memest))
    models = [*options.models, *(shipped() if options.shipped else [])]
    failed = 0
    for text in models:
        source = Source(shipped().get(text, text))
        if options.input:
            source.inputs = []
            for given in options.input:
                name, _, rest = given.partition("=")
                shape, _, dtype = rest.partition(":")
                source.inputs.append((name, [int(s) if s.isdigit() else s for s in shape.split(",")], getattr(torch, dtype or "float32")))
        source.defaults.update({k: int(v) for k, _, v in (d.partition("=") for d in options.default)})
        if options.classes and "classes" in source.defaults:
            source.defaults["classes"] = options.classes
        try:
            spec = export(source, vocabulary)
        except Exception as error:  # the model's own code may raise anything
            if options.trace:
                raise
            print(f"{text}: {type(error).__name__ if not isinstance(error, ExportError) else ''} {str(error)[:500]}", file=sys.stderr)
            failed += 1
            continue
        path = options.output / (re.sub(r"\W+", "_", spec["name"]) + ".json")
        path.write_text(rendered(spec) + "\n")
        print(path)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
