"""Writes TorchScript archives without PyTorch: the source, the objects pickled as torch.jit.save does, and zeros for the weights.

    write("net.pt", Script("Net", weight=Parameter(4, 3), fc=Script("Linear", ...), training=True), source)

`source` is the code of all classes, as the archive's code/__torch__.py has it; their qualified names start with __torch__.
"""
import io
import pickle
import struct
import sys
import types
import zipfile
from collections import OrderedDict

ITEM = {"Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Bool": 1}


def _module(name):
    module = sys.modules.get(name) or types.ModuleType(name)
    sys.modules[name] = module
    return module


_torch, _utils, _scripts = _module("torch"), _module("torch._utils"), _module("__torch__")
for _type in ITEM:
    setattr(_torch, f"{_type}Storage", type(f"{_type}Storage", (), {"__module__": "torch"}))


def _rebuild_tensor_v2():
    raise NotImplementedError


_rebuild_tensor_v2.__module__ = "torch._utils"
_utils._rebuild_tensor_v2 = _rebuild_tensor_v2


class Storage:
    def __init__(self, dtype, numel):
        self.dtype, self.numel, self.key = dtype, numel, None


class Tensor:
    """Zeros of this shape; a scalar number may be given."""

    def __init__(self, *shape, dtype="Float", requires_grad=False, value=None, device="cpu"):
        numel, strides = 1, []
        for size in reversed(shape):
            strides.insert(0, numel)
            numel *= size
        self.shape, self.strides, self.requires_grad, self.value, self.device = shape, tuple(strides), requires_grad, value, device
        self.storage = Storage(dtype, numel)
        self.storage.tensor = self

    def __reduce__(self):
        return _rebuild_tensor_v2, (self.storage, 0, self.shape, self.strides, self.requires_grad, OrderedDict())


def Parameter(*shape, **options):
    return Tensor(*shape, requires_grad=True, **options)


class Object:
    """An object of a script's class."""


def Script(name, **attributes):
    """An object of the class __torch__.NAME; the attributes' order is the class's."""
    kind = getattr(_scripts, name, None) or type(name, (Object,), {"__module__": "__torch__"})
    setattr(_scripts, name, kind)
    made = kind()
    made.__dict__.update(attributes)
    return made


class _Pickler(pickle._Pickler):
    def __init__(self, file):
        super().__init__(file, protocol=2)
        self.storages = []

    def save(self, obj, save_persistent_id=True):
        """LibTorch makes an object where its state is set, and remembers it after that."""
        if not isinstance(obj, Object) or id(obj) in self.memo:
            return super().save(obj, save_persistent_id)
        super().save(type(obj))
        self.write(pickle.EMPTY_TUPLE + pickle.NEWOBJ)
        super().save(obj.__dict__)
        self.write(pickle.BUILD)
        self.memoize(obj)

    def persistent_id(self, obj):
        if not isinstance(obj, Storage):
            return None
        if obj.key is None:
            obj.key = str(len(self.storages))
            self.storages.append(obj)
        return "storage", getattr(_torch, f"{obj.dtype}Storage"), obj.key, obj.tensor.device, obj.numel


def _bytes(storage):
    value = storage.tensor.value
    if value is not None:
        return struct.pack("<" + {"Long": "q", "Int": "i", "Float": "f", "Double": "d"}[storage.dtype], value)
    return bytes(storage.numel * ITEM[storage.dtype])


def write(path, root, source, constants=(), leave_out=()):
    """`constants` are CONSTANTS.c0, c1, ... of the source; members whose name is in `leave_out` are not written."""
    members = {}
    for name, obj, folder in (("data", root, "data"), ("constants", tuple(constants), "constants")):
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(obj)
        members[f"{name}.pkl"] = file.getvalue()
        for storage in pickler.storages:
            members[f"{folder}/{storage.key}"] = _bytes(storage)
            storage.key = None
    members["code/__torch__.py"] = source.encode()
    members["version"] = b"3\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            if name not in leave_out:
                archive.writestr(f"net/{name}", data)
