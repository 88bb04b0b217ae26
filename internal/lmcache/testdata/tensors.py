"""The Python half of the pickle tests. torch is replaced by stubs of the few names that
a pickled tensor list mentions, so that Python's own pickle does the work.

  tensors.py load < PICKLE    prints one line a tensor: dtype, shape, SHA-256 of its bytes
  tensors.py dump N...        writes lists of N tensors as a stock client pickles them, each
                              with protocols 3, 4 and 5 and behind its length (int64)
"""

import collections
import hashlib
import io
import json
import pickle
import struct
import sys
import types

MAGIC = 0x1950A86A20F9469CFC6C
ITEM = {"BFloat16Storage": 2, "HalfStorage": 2, "FloatStorage": 4, "DoubleStorage": 8,
        "ByteStorage": 1, "CharStorage": 1, "ShortStorage": 2, "IntStorage": 4,
        "LongStorage": 8, "BoolStorage": 1}
NAME = {"BFloat16Storage": "bfloat16", "HalfStorage": "float16", "FloatStorage": "float32",
        "DoubleStorage": "float64", "ByteStorage": "uint8", "CharStorage": "int8",
        "ShortStorage": "int16", "IntStorage": "int32", "LongStorage": "int64", "BoolStorage": "bool"}
WIDE = {"uint16": 2, "uint32": 4, "uint64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1,
        "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1}


class DType:
    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return self.name  # a global of module torch

    __module__ = "torch"


torch = types.ModuleType("torch")
utils = types.ModuleType("torch._utils")
storage = types.ModuleType("torch.storage")
sys.modules.update({"torch": torch, "torch._utils": utils, "torch.storage": storage})
for cls in ITEM:
    setattr(torch, cls, type(cls, (), {"__module__": "torch"}))
for name in WIDE:
    setattr(torch, name, DType(name))


class Storage:
    def __init__(self, cls, data):
        self.cls, self.data = cls, data

    def __reduce__(self):
        return storage._load_from_bytes, (save(self),)


class Loader(pickle.Unpickler):
    def persistent_load(self, pid):
        kind, cls, key, location, numel, view = pid
        assert kind == "storage" and location == "cpu" and view is None, pid
        self.named = (cls, key, numel)
        return self.named


class Saver(pickle.Pickler):
    def persistent_id(self, obj):
        return obj.pid if isinstance(obj, Named) else None


class Named:
    def __init__(self, pid):
        self.pid = pid


def save(st):
    out = io.BytesIO()
    key, numel = str(id(st)), len(st.data) // ITEM[st.cls]
    for obj in (MAGIC, 1001, {"protocol_version": 1001, "little_endian": True,
                              "type_sizes": {"short": 2, "int": 4, "long": 4}},
                Named(("storage", getattr(torch, st.cls), key, "cpu", numel, None)), [key]):
        Saver(out, 2).dump(obj)
    return out.getvalue() + struct.pack("<q", numel) + st.data


def load_from_bytes(data):
    assert type(data) is bytes
    f = io.BytesIO(data)
    assert pickle.load(f) == MAGIC
    assert pickle.load(f) == 1001
    assert pickle.load(f)["little_endian"] is True
    loader = Loader(f)
    cls, key, numel = loader.load()
    assert pickle.load(f) == [key]
    assert struct.unpack("<q", f.read(8)) == (numel,)
    raw = f.read()
    assert len(raw) == numel * ITEM[cls.__name__], (len(raw), numel, cls)
    return Storage(cls.__name__, raw)


class Tensor:
    def __init__(self, dtype, item, st, offset, size, stride):
        assert offset == 0 and type(size) is tuple and type(stride) is tuple
        n = item
        for d, s in reversed(list(zip(size, stride))):
            assert s * item == n, (size, stride)
            n *= d
        assert n == len(st.data), (size, len(st.data))
        self.dtype, self.st, self.size, self.stride = dtype, st, size, stride

    def __reduce__(self):
        return utils._rebuild_tensor_v2, (self.st, 0, self.size, self.stride, False, collections.OrderedDict())


def rebuild_v2(st, offset, size, stride, requires_grad, hooks):
    assert requires_grad is False and hooks == collections.OrderedDict()
    return Tensor(NAME[st.cls], ITEM[st.cls], st, offset, size, stride)


def rebuild_v3(st, offset, size, stride, requires_grad, hooks, dtype):
    assert requires_grad is False and hooks == collections.OrderedDict()
    assert st.cls == "ByteStorage"
    return Tensor(dtype.name, WIDE[dtype.name], st, offset, size, stride)


for fn, module, name in ((rebuild_v2, utils, "_rebuild_tensor_v2"), (rebuild_v3, utils, "_rebuild_tensor_v3"),
                         (load_from_bytes, storage, "_load_from_bytes")):
    fn.__module__, fn.__qualname__, fn.__name__ = module.__name__, name, name
    setattr(module, name, fn)


def load():
    tensors = pickle.loads(sys.stdin.buffer.read())
    assert type(tensors) is list
    for t in tensors:
        print(json.dumps({"dtype": t.dtype, "shape": t.size, "sha256": hashlib.sha256(t.st.data).hexdigest()}))


def dump(n):
    # The tuples are new each time, as torch has them: otherwise pickle refers back to them.
    tensors = [Tensor("float16", 2, Storage("HalfStorage", struct.pack("<6H", *range(i, i + 6))), 0,
                      tuple([2, 3]), tuple([3, 1])) for i in range(n)]
    for protocol in (3, 4, 5):
        data = pickle.dumps(tensors, protocol)
        sys.stdout.buffer.write(struct.pack("<q", len(data)) + data)


if __name__ == "__main__":
    if sys.argv[1] == "load":
        load()
    else:
        for n in sys.argv[2:]:
            dump(int(n))
