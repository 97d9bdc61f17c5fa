#!/usr/bin/env python3
"""Records rows of --master-weights for tests/accuracy: record_master_weights.py > rows

Runs small networks with PyTorch's CUDA build under the loops of apex's amp (opt_level O2), of DeepSpeed's FP16_Optimizer and of its
BF16_Optimizer (one process, no ZeRO partition), written below from their sources (apex/amp/_process_optimizer.py at 20d00ab1;
deepspeed/runtime/fp16/fused_optimizer.py, runtime/bf16_optimizer.py and runtime/utils.py of 0.19), and prints one row of
tests/accuracy/rows.jsonl a line. It needs torch and a CUDA device, or a stand-in whose allocator counts.
"""
import json

import torch
from torch import nn

memory = torch.cuda.memory
PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16}
flatten, unflatten = torch._utils._flatten_dense_tensors, torch._utils._unflatten_dense_tensors


class Apex:
    """A float32 copy of each parameter, made at the first backward; gradients are unscaled into float32 ones."""

    def __init__(self, optimizer):
        self.optimizer, self.masters = optimizer, None
        self.overflow = torch.zeros(1, dtype=torch.int32, device="cuda")

    def before_backward(self, loss):
        if self.masters is None:
            self.models, self.masters = [], []
            for group in self.optimizer.param_groups:
                for i, param in enumerate(group["params"]):
                    master = param.detach().clone().float()
                    master.requires_grad = True
                    group["params"][i] = master
                    self.models.append(param)
                    self.masters.append(master)
        for param in self.models:
            param.grad = None
        self.scaled_loss = loss.float() * 65536.0  # the name of the with statement
        return self.scaled_loss

    def after_backward(self):
        for param, master in zip(self.models, self.masters):
            if param.grad is not None and master.grad is None:
                master.grad = torch.empty_like(master)

    def clip(self):
        nn.utils.clip_grad_norm_(self.masters, 1.0)

    def step(self):
        self.optimizer.step()

    def zero_grad(self):
        for param in self.models if self.masters is not None else []:
            if param.grad is not None:
                param.grad.zero_()
        for master in self.masters or []:
            master.grad = None


class DeepSpeedFp16:
    """Parameters as views of one flat tensor, its float32 copy the optimizer's only parameter; states before the first step."""

    zero_after_step = True

    def __init__(self, optimizer):
        self.optimizer = optimizer
        group = optimizer.param_groups[0]
        self.params = list(group["params"])
        self.flat = flatten([p.clone().detach() for p in self.params])
        for p, q in zip(self.params, unflatten(self.flat, self.params)):
            p.data = q.data
        self.master = self.flat.clone().float().detach()
        self.master.requires_grad = True
        group["params"] = [self.master]
        self.master.grad = torch.zeros(self.master.size(), device="cuda")
        optimizer.step()
        self.master.grad = None

    def before_backward(self, loss):
        return loss.float() * 65536.0

    def after_backward(self):
        pass

    def clip(self):
        pass  # with the scale: one number on the host

    def step(self):
        for p in self.params:
            if p.grad is not None:
                float(p.grad.data.float().sum())
        overflow = torch.zeros(1, dtype=torch.uint8, device="cuda")
        overflow[0].item()
        del overflow
        gradients = [flatten([p.grad.to(torch.float32) for p in self.params])]
        self.master.grad = gradients[0]
        if not hasattr(self, "mask"):
            self.mask = [torch.tensor([], device="cuda")]
        for p in self.params:
            p.grad = None
        norm = self.master.grad.data.float().norm(2.0)
        norm.item()
        total = torch.zeros(1, device="cuda")
        total[0].item()
        for g in gradients:
            g.data.mul_(0.5)
        del norm, total  # names of functions that have returned
        self.optimizer.step()
        self.master.grad = None
        for p, q in zip(self.params, unflatten(self.master, self.params)):
            p.data.copy_(q.data)

    def zero_grad(self):
        for p in self.params:
            p.grad = None


class DeepSpeedBf16:
    """The same with a flat float32 gradient buffer, to which each backward's gradients are added."""

    zero_after_step = True

    def __init__(self, optimizer):
        self.optimizer = optimizer
        group = optimizer.param_groups[0]
        self.params = list(group["params"])
        self.flat = self.aligned(self.params)
        for p, q in zip(self.params, unflatten(self.flat, self.params)):
            p.data = q.data
        self.master = self.flat.narrow(0, 0, self.flat.numel()).clone().float().detach()
        self.master.requires_grad = True
        self.buffer = torch.zeros_like(self.flat, dtype=torch.float32)
        self.views, offset = [], 0
        for p in self.params:
            self.views.append(self.buffer.narrow(0, offset, p.numel()))
            offset += p.numel()
        group["params"] = [self.master]
        self.norms = None

    @staticmethod
    def aligned(tensors):
        if sum(t.numel() for t in tensors) % 2:
            tensors = tensors + [torch.zeros(1, device="cuda", dtype=tensors[0].dtype)]
        return flatten(tensors)

    def before_backward(self, loss):
        grads = [p.grad for p in self.params if p.grad is not None]
        if grads:
            torch._foreach_zero_(grads)
        return loss

    def after_backward(self):
        with torch.no_grad():
            for p, view in zip(self.params, self.views):
                if p.grad is not None:
                    view.data.add_(p.grad.data.to(torch.float32).view(view.shape))

    def clip(self):
        self.clips = True

    clips = False

    @torch.no_grad()
    def step(self):
        norm = self.norm()
        bool(norm > 0.0)
        if self.clips:
            coefficient = 1.0 / (norm + 1e-6)
            bool(coefficient < 1)
            for view in self.views:
                view.detach().mul_(coefficient)
            del coefficient
        self.master.grad = self.buffer.narrow(0, 0, self.buffer.numel())
        self.optimizer.step()
        self.flat.data.copy_(self.master.data)
        self.buffer.zero_()
        self.last_norm = norm  # the engine holds the former one until now

    def norm(self):
        if self.norms is None:
            self.norms = [torch.empty([], dtype=torch.float, device="cuda") for _ in self.views]
        for i, view in enumerate(self.views):
            self.norms[i].data.copy_(view.data.float().norm(2.0) ** 2.0)
            if i:
                self.norms[0].data.add_(self.norms[i].data)
        total = self.norms[0].float().detach().to("cuda").pow(1.0 / 2.0)
        infinite, nan = total.isinf(), total.isnan()
        bad = nan.logical_or(infinite)
        minus_one = torch.tensor(-1.0, device="cuda", dtype=torch.float)
        total.masked_fill_(bad, minus_one)
        return total

    def zero_grad(self):
        for p in self.params:
            p.grad = None
        self.buffer.zero_()


STYLES = {("apex", "fp16"): Apex, ("deepspeed", "fp16"): DeepSpeedFp16, ("deepspeed", "bf16"): DeepSpeedBf16}
NETWORKS = {
    "mlp": ("specs/nn-sequential-linear-784-512-relu-linear-512-512-7dfc7f.json", [784],
            lambda: nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))),
    "odd": ("specs/odd-mlp.json", [33], lambda: nn.Sequential(nn.Linear(33, 257), nn.GELU(), nn.LayerNorm(257), nn.Linear(257, 5))),
}
OPTIMIZERS = {"adamw": (torch.optim.AdamW, {}), "adam:fused=true": (torch.optim.Adam, {"fused": True}),
              "sgd:momentum=0.9": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})}


def size(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def run(style, precision, network, batch, optimizer_name, micro, clip):
    spec, shape, build = NETWORKS[network]
    dtype = PRECISIONS[precision]
    model = build().to(dtype)
    host = torch.zeros(batch, *shape, dtype=dtype), torch.zeros(batch, dtype=torch.int64)
    memory.empty_cache()
    memory.reset_peak_memory_stats()
    model.to("cuda")
    parameters = size(model.parameters())
    kind, options = OPTIMIZERS[optimizer_name]
    optimizer = kind(model.parameters(), **options)
    wrapper = STYLES[style, precision](optimizer)
    phases, reserved = [], memory.max_memory_reserved()
    memory.reset_peak_memory_stats()

    def end(step, phase):
        nonlocal reserved
        row = next((p for p in phases if p["step"] == step and p["phase"] == phase), None)
        if row is None:
            phases.append(row := {"step": step, "phase": phase, "end": 0, "peak": 0})
        row["end"], row["peak"] = memory.memory_allocated(), max(row["peak"], memory.max_memory_allocated())
        reserved = max(reserved, memory.max_memory_reserved())
        memory.reset_peak_memory_stats()

    x = y = out = loss = None
    after = getattr(wrapper, "zero_after_step", False)
    for step in (1, 2, 3):
        for i in range(micro):
            moved = [t.to("cuda") for t in host]
            x, y = moved
            del moved
            end(step, "inputs")
            if not after and i == 0:
                wrapper.zero_grad()
                end(step, "zero_grad")
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
            if micro > 1:
                loss = loss / micro
            end(step, "forward")
            wrapper.before_backward(loss).backward()
            wrapper.after_backward()
            end(step, "backward")
        if clip:
            wrapper.clip()
        wrapper.step()
        if after:
            wrapper.zero_grad()
        end(step, "optimizer")
    state = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor) and t.is_cuda]
    words = [spec, "--batch", str(batch), "--mode", "train", "--precision", precision, "--optimizer", optimizer_name, "--loss", "cross_entropy", "--master-weights", style,
             "--gpu", "a100-80gb", "--torch-version", "2.15"]
    words += ["--grad-accum", str(micro)] if micro > 1 else []
    words += ["--clip-grad-norm"] if clip else []
    name = f"master-weights: {style} {network} batch={batch} precision={precision} optimizer={optimizer_name} accumulate={micro}{' clip' if clip else ''}"
    return {"set": "master-weights", "id": name, "arguments": words,
            "states": {"parameters_bytes": parameters, "buffers_bytes": 0, "gradients_bytes": parameters, "optimizer_state_bytes": size(state)},
            "phases": phases, "reserved": reserved}


def main():
    first = True
    for style, precision in STYLES:
        for network, batch in (("mlp", 512), ("odd", 19)):
            for optimizer, micro, clip in (("adamw", 1, False), ("adam:fused=true", 2, False), ("sgd:momentum=0.9", 1, True)):
                row = run(style, precision, network, batch, optimizer, micro, clip)
                if first:  # what the first use of the libraries sets up belongs to no row
                    row, first = run(style, precision, network, batch, optimizer, micro, clip), False
                print(json.dumps(row, separators=(",", ":")))
                torch.cuda.synchronize()
                memory.empty_cache()


if __name__ == "__main__":
    main()
