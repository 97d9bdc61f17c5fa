#!/usr/bin/env python3
"""Records what one of your models takes on your GPU, for comparing memest with it. Needs torch 2.4 or newer and a CUDA GPU; nothing of it leaves the machine.

    record_truth.py my.module:make --optimizer adamw --precision amp-bf16 --out row.json --snapshot run.pickle
    record_truth.py train.py:make --compare                   # also exports it, asks memest, and prints both
    memest replay run.pickle --alloc-conf expandable_segments:True

`make` is a function without arguments that returns (model, inputs) or (model, inputs, loss): the module in the type that it is trained in, on the host; a tensor, a tuple of positional
or a dictionary of keyword arguments, on the host; a function of the output that gives a scalar. Without a loss the output, which is then one tensor, is summed. With a loss the model and
the loss are one module whose output is the loss, here and in what memest reads.
The loop is the ordinary one: inputs to the device, zero_grad, forward, backward, step. The row has the bytes at the end of each phase and its peak, as shared truth rows do
(max_memory_allocated within the phase), the allocator's statistics and the environment; the snapshot is PyTorch's memory history of the whole run.
"""
import argparse
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Refused(Exception):
    """What the user can mend: one line, exit code 2."""


def load_torch():
    try:
        import torch
    except ImportError:
        raise Refused("PyTorch is not installed here: pip install torch, in the environment that trains the model") from None
    return torch


def load_factory(text):
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise Refused(f"'{text}' is neither MODULE:FUNCTION nor FILE.py:FUNCTION")
    sys.path.insert(0, os.getcwd())
    try:
        if place.endswith(".py"):
            if not Path(place).is_file():
                raise Refused(f"there is no file {place}")
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise Refused(f"{place} cannot be imported: {error}") from None
    factory = getattr(module, name, None)
    if not callable(factory):
        raise Refused(f"{place} has no function {name}")
    return factory


def made_by(torch, factory):
    made = factory()
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], torch.nn.Module):
        raise Refused("the function gives no (model, inputs) or (model, inputs, loss)")
    model, inputs, loss = (*made, None)[:3]
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, (tuple, list, dict)) or not all(isinstance(x, torch.Tensor) for x in (inputs.values() if isinstance(inputs, dict) else inputs)):
        raise Refused("inputs are a tensor, a tuple of tensors or a dictionary of tensors")
    if loss is not None:
        class WithLoss(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, *args, **kwargs):
                return loss(self.model(*args, **kwargs))

        model = WithLoss()
    return model, inputs if isinstance(inputs, dict) else tuple(inputs), loss is not None


def moved(inputs, device):
    return {k: x.to(device) for k, x in inputs.items()} if isinstance(inputs, dict) else tuple(x.to(device) for x in inputs)


def call(model, inputs):
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop", "adagrad": "Adagrad", "adadelta": "Adadelta", "adamax": "Adamax", "nadam": "NAdam", "radam": "RAdam", "asgd": "ASGD"}


def optimizer_of(torch, text, parameters):
    """memest's own notation: sgd:momentum=0.9,nesterov=true."""
    name, _, rest = text.partition(":")
    if name == "none" or not parameters:
        return None
    if name not in OPTIMIZERS:
        raise Refused(f"--optimizer {name}: this script makes {', '.join(OPTIMIZERS)} and none")
    options = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        try:
            options[key] = {"true": True, "false": False}[value] if value in ("true", "false") else float(value)
        except ValueError:
            raise Refused(f"--optimizer: '{part}' is no number and not true or false") from None
    try:
        return getattr(torch.optim, OPTIMIZERS[name])(parameters, **{"lr": 1e-3, **options})
    except TypeError as error:
        raise Refused(f"--optimizer {text}: {error}") from None


def sizes_of(torch, tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def record(torch, options, factory):
    """The row, and the snapshot."""
    memory = torch.cuda.memory
    training, precision = options.mode == "train", options.precision
    model, inputs, has_loss = made_by(torch, factory)
    whole = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    if whole:
        model = model.to(whole)
        cast = lambda x: x.to(whole) if x.is_floating_point() else x
        inputs = {k: cast(x) for k, x in inputs.items()} if isinstance(inputs, dict) else tuple(map(cast, inputs))
    model.train(training)
    torch.cuda.init()
    memory._record_memory_history(max_entries=1_000_000, context="alloc", stacks="python")
    model = model.to("cuda")
    gc.collect()
    parameters, buffers = list(model.parameters()), list(model.buffers())
    trainable = [p for p in parameters if p.requires_grad]
    truth = {"model": {"parameters": sum(p.numel() for p in parameters), "trainable": sum(p.numel() for p in trainable), "parameter_tensors": len(parameters),
                       "parameter_bytes": sizes_of(torch, parameters), "buffer_tensors": len(buffers), "buffer_bytes": sizes_of(torch, buffers), "gradient_bytes": sizes_of(torch, trainable)},
             "input_bytes": sizes_of(torch, inputs.values() if isinstance(inputs, dict) else inputs), "after_load": memory.memory_allocated(), "reserved_after_load": memory.memory_reserved(),
             "iterations": []}
    optimizer = optimizer_of(torch, options.optimizer, trainable) if training else None
    scaler = torch.amp.GradScaler("cuda") if precision == "amp-fp16" and training else None
    amp = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}.get(precision)

    def end(row, phase, field):
        row["peak_by_phase"][phase] = memory.max_memory_allocated()
        row[field] = memory.memory_allocated()
        row["max_reserved"] = max(row.get("max_reserved", 0), memory.max_memory_reserved())
        memory.reset_peak_memory_stats()

    x = out = loss = None
    try:
        for _ in range(options.steps):
            row = {"peak_by_phase": {}}
            truth["iterations"].append(row)
            memory.reset_peak_memory_stats()
            x = moved(inputs, "cuda")
            end(row, "inputs", "after_inputs")
            if training:
                (optimizer or model).zero_grad()
                end(row, "zero_grad", "after_zero_grad")
            with contextlib.nullcontext() if training else torch.no_grad(), torch.autocast("cuda", dtype=amp) if amp else contextlib.nullcontext():
                out = call(model, x)
                if not isinstance(out, torch.Tensor):
                    raise Refused("the output is no single tensor: let the function give a loss, too")
                if training:
                    loss = out if has_loss else out.sum()
            end(row, "forward", "after_forward")
            if training:
                (scaler.scale(loss) if scaler else loss).backward()
                end(row, "backward", "after_backward")
                if scaler and optimizer:
                    scaler.step(optimizer)
                    scaler.update()
                elif optimizer:
                    optimizer.step()
                end(row, "optimizer", "after_step")
            stats = memory.memory_stats()
            row.update(peak={"bytes": max(row["peak_by_phase"].values())}, reserved=memory.memory_reserved(), segments=stats["segment.all.current"], retries=stats["num_alloc_retries"])
    except torch.OutOfMemoryError as error:
        truth["error"] = str(error).splitlines()[0]
    torch.cuda.synchronize()
    if optimizer:
        state = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor) and t.is_cuda]
        truth["optimizer_bytes"], truth["optimizer_tensors"] = sizes_of(torch, state), len(state)
    truth["allocator"] = {k: v for k, v in memory.memory_stats().items() if isinstance(v, int)}
    snapshot = memory._snapshot()
    memory._record_memory_history(enabled=None)
    properties = torch.cuda.get_device_properties(0)
    env = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "device": properties.name, "total_memory": properties.total_memory,
           "method": "measured", "python": sys.version.split()[0], "cudnn_benchmark": torch.backends.cudnn.benchmark, "allow_tf32": torch.backends.cuda.matmul.allow_tf32,
           "variables": {k: v for k, v in os.environ.items() if k.startswith(("PYTORCH_", "TORCH_CUBLAS", "CUBLAS", "CUDA_VISIBLE"))}}
    run = {"mode": options.mode, "precision": precision, "optimizer": options.optimizer if training else "none", "steps": options.steps, "loss": "own" if has_loss else "sum",
           "inputs": {str(k): f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for k, x in (inputs.items() if isinstance(inputs, dict) else enumerate(inputs))}}
    conf = env["variables"].get("PYTORCH_ALLOC_CONF", env["variables"].get("PYTORCH_CUDA_ALLOC_CONF"))
    if conf:
        run["alloc_conf"] = conf
    return {"id": f"{options.model} {options.mode} {precision} {run['optimizer']}", "model": {"name": options.model}, "run": run, "truth": truth, "env": env}, snapshot


def export(torch, options, factory, path):
    """The program with the shapes of the weights and without their values, where the function can make the model so."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    for mode in (FakeTensorMode(allow_non_fake_inputs=True), contextlib.nullcontext()):
        try:
            with mode:
                model, inputs, _ = made_by(torch, factory)
                arguments = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
                torch.export.save(torch.export.export(model.train(options.mode == "train"), *arguments, strict=False), path)
            return
        except Exception as error:  # the exporter has no exception of its own
            problem = error
    raise Refused(f"torch.export cannot export the model: {str(problem).splitlines()[0][:300]}")


def card(memest, name, total):
    """memest's name of the card, or its memory."""
    listed = subprocess.run([memest, "list", "gpus"], capture_output=True, text=True).stdout.splitlines()
    known = [line.split()[0] for line in listed if name in line]
    return ["--gpu", known[0]] if known else ["--gpu-memory", str(total)]


def compare(options, row, program):
    env, run = row["env"], row["run"]
    version = ".".join(env["torch"].split(".")[:2])
    arguments = ["--mode", run["mode"], "--optimizer", run["optimizer"], "--steps", str(run["steps"]), "--torch-version", version, *card(options.memest, env["device"], env["total_memory"])]
    arguments += ["--precision", run["precision"]]
    if run["mode"] == "train":
        arguments += ["--loss", "none" if run["loss"] == "own" else "sum"]
    if run.get("alloc_conf"):
        arguments += ["--alloc-conf", run["alloc_conf"]]
    for variable in ("TORCH_CUBLAS_WORKSPACE_CACHE", "CUBLAS_WORKSPACE_CONFIG"):
        if variable in env["variables"]:
            arguments += ["--env", f"{variable}={env['variables'][variable]}"]
    done = subprocess.run([options.memest, "estimate", program, *arguments, "--json", "-"], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise Refused(f"memest: {done.stderr.strip()}")
    estimate = json.loads(done.stdout)
    print(f"memest estimate {Path(program).name} {' '.join(arguments)}\n")
    print(f"{'':<22}{'memest':>18}{'PyTorch':>18}{'difference':>16}")

    def line(name, mine, real):
        print(f"{name:<22}{mine:>18,}{real:>18,}{mine - real:>+16,}{100 * (mine - real) / max(real, 1):>+9.2f} %")

    fields = {"inputs": "after_inputs", "zero_grad": "after_zero_grad", "forward": "after_forward", "backward": "after_backward", "optimizer": "after_step"}
    for phase in estimate["phases"]:
        step = row["truth"]["iterations"][phase["step"] - 1] if phase["step"] <= len(row["truth"]["iterations"]) else {}
        if fields[phase["phase"]] in step:
            line(f"{phase['step']} {phase['phase']} end", phase["end_bytes"], step[fields[phase["phase"]]])
            line(f"{phase['step']} {phase['phase']} peak", phase["peak_bytes"], step["peak_by_phase"][phase["phase"]])
    done_steps = [s for s in row["truth"]["iterations"] if "peak" in s]
    if done_steps:
        line("allocated", estimate["totals"]["allocated_peak_bytes"], max(row["truth"]["after_load"], *(s["peak"]["bytes"] for s in done_steps)))
        line("reserved", estimate["totals"]["reserved_peak_bytes"], max(s["max_reserved"] for s in done_steps))
    for note in estimate["diagnostics"]:
        print(f"{note['severity']}: {note['message']}")


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="MODULE:FUNCTION or FILE.py:FUNCTION")
    parser.add_argument("--mode", default="train", choices=["train", "infer"])
    parser.add_argument("--precision", default="fp32", choices=["fp32", "amp-fp16", "amp-bf16", "bf16", "fp16"])
    parser.add_argument("--optimizer", default="adamw", help="as memest names it: sgd:momentum=0.9, adamw:fused=true, none")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--out", type=Path, help="append the row to this file, one line of JSON")
    parser.add_argument("--snapshot", type=Path, help="write the memory history, for memest replay and pytorch.org/memory_viz")
    parser.add_argument("--export", type=Path, help="write the exported program, for memest estimate")
    parser.add_argument("--compare", action="store_true", help="ask memest about the exported program, and print its figures beside PyTorch's")
    parser.add_argument("--memest", default=HERE / "memest", type=Path)
    options = parser.parse_args(arguments)
    torch = load_torch()
    if not torch.cuda.is_available():
        raise Refused("torch finds no CUDA GPU (torch.cuda.is_available() is False): this records a run on one")
    factory = load_factory(options.model)
    with tempfile.TemporaryDirectory() as folder:
        program = options.export or Path(folder) / "model.pt2"
        if options.export or options.compare:
            export(torch, options, factory, program)
        row, snapshot = record(torch, options, factory)
        if options.out:
            with options.out.open("a") as out:
                out.write(json.dumps(row) + "\n")
        if options.snapshot:
            options.snapshot.write_bytes(pickle.dumps(snapshot))
        if options.compare:
            compare(options, row, program)
        elif not options.out:
            print(json.dumps(row))
    if "error" in row["truth"]:
        print(f"record_truth.py: the run ended: {row['truth']['error']}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Refused as refused:
        print(f"record_truth.py: {refused}", file=sys.stderr)
        sys.exit(2)
