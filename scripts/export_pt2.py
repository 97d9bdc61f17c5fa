#!/usr/bin/env python3
"""Exports a module of yours as a .pt2 file for memest, with a dynamic batch. Needs torch 2.6 or newer; nothing runs on a GPU, and no weights need exist.

    export_pt2.py 'my.module:Net(width=64)' --input x=4,3,224,224
    export_pt2.py 'my.module:make_model()' --input ids=2,128:int64 --dynamic 'ids=1:seq' -o model.pt2
    memest estimate model.pt2 --batch 32

The model is the expression after the colon, in the names of the module before it (found from the current folder, too). --input gives the shape of one example input; the first
dimension of each is the batch, so take more than one sample: torch.export takes a size of one for a constant. --dynamic names further sizes that memest may set (--set seq=512; the
file calls them s0, s27, ...). The module is exported in training mode, which memest can evaluate, too; --eval exports it in evaluation mode.
"""
import argparse
import contextlib
import importlib
import sys
import traceback
from pathlib import Path

try:
    import torch
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode
except ModuleNotFoundError as missing:
    sys.exit(f"export_pt2.py: {missing}: run it with the Python that has your model's torch (2.6 or newer)")


def build(text):
    module, _, expression = text.partition(":")
    sys.path.insert(0, "")
    return eval(expression, {**vars(importlib.import_module(module)), "nn": nn, "torch": torch})


def without_initialisation():
    """Weights have no values, so functions of nn.init have nothing to do."""
    for name in dir(nn.init):
        if name.endswith("_") and not name.startswith("_") and callable(getattr(nn.init, name)):
            setattr(nn.init, name, lambda tensor, *args, **kwargs: tensor)


def keep_helpers():
    """Stack traces keep the functions that a forward calls, too, whose locals hold values until they return; torch itself keeps functions named forward."""
    from torch.fx.proxy import TracerBase
    if not hasattr(TracerBase, "_filter_traceback_frames"):
        return print("this release of torch keeps no lines of functions that a forward calls: their locals are not in the file", file=sys.stderr)
    forwards, inside_torch = TracerBase._filter_traceback_frames, str(Path(torch.__file__).parent) + "/"

    def kept(self, frames):
        known = {id(frame) for frame in forwards(self, frames)}
        first = next((i for i, frame in enumerate(frames) if id(frame) in known), len(frames))
        return traceback.StackSummary.from_list([f for f in frames[first:] if id(f) in known or not f.filename.startswith(inside_torch)])

    TracerBase._filter_traceback_frames = kept


def example(text):
    name, _, rest = text.partition("=")
    shape, _, dtype = rest.partition(":")
    sizes = [int(n) for n in shape.split(",")]
    return name, torch.empty(sizes, dtype=getattr(torch, dtype or "float32"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="MODULE:EXPRESSION")
    parser.add_argument("--input", action="append", required=True, help="NAME=SIZE,SIZE,...[:DTYPE]; the names are those of forward")
    parser.add_argument("--dynamic", action="append", default=[], help="INPUT=DIMENSION:NAME, a size beside the batch")
    parser.add_argument("--static", action="store_true", help="no dynamic size at all")
    parser.add_argument("--eval", action="store_true", help="export model.eval()")
    parser.add_argument("--strict", action="store_true", help="trace with TorchDynamo instead of Python")
    parser.add_argument("--real", action="store_true", help="build the model with weights: for one that looks at their values while it is made")
    parser.add_argument("-o", "--output", default="model.pt2")
    options = parser.parse_args()
    without_initialisation()
    keep_helpers()
    # Fake tensors: the file gets the shapes of the weights, and no bytes of them.
    with contextlib.nullcontext() if options.real else FakeTensorMode(allow_non_fake_inputs=True):
        model = build(options.model).train(not options.eval)
        inputs = dict(example(text) for text in options.input)
        batch = torch.export.Dim("batch", min=2)  # a program for one sample would be another one
        shapes = {name: {} if options.static or x.dim() == 0 else {0: batch} for name, x in inputs.items()}
        named = {}
        for text in options.dynamic:
            name, _, rest = text.partition("=")
            dimension, _, symbol = rest.partition(":")
            shapes[name][int(dimension)] = named.setdefault(symbol, torch.export.Dim(symbol, min=2))
        program = torch.export.export(model, (), inputs, dynamic_shapes=shapes, strict=options.strict)
        torch.export.save(program, options.output)
    print(f"{options.output}: {len(program.graph.nodes)} nodes, {sum(p.numel() for p in model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
