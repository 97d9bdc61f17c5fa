#!/usr/bin/env python3
"""Records small memory snapshots of PyTorch's CUDA build for tests/replay, with what PyTorch itself counted.

    python scripts/record_snapshots.py            # all; a name records that one

Needs torch with two CUDA devices (or a driver that only pretends to have them). Each case runs in a process of its own, since the allocator
reads its settings once. index.json gets, for each device, max_memory_allocated, max_memory_reserved and the bytes at the end.
"""
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "replay"
MIB = 1 << 20
GIB = 1 << 30


def training(torch, record):
    """Two steps of a small network, from the first allocation on, with stacks."""
    record(stacks=True)
    net = torch.nn.Sequential(torch.nn.Linear(700, 900), torch.nn.GELU(), torch.nn.Linear(900, 10)).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(2):
        x = torch.randn(300, 700, device="cuda")
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
    return locals()


def late(torch, record):
    """Recording begins after the first step."""
    net = torch.nn.Sequential(torch.nn.Linear(2000, 900), torch.nn.GELU(), torch.nn.Linear(900, 10)).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(3):
        if step == 1:
            record()
        x = torch.randn(700, 2000, device="cuda")
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
    return locals()


def ring(torch, record):
    """The ring buffer holds the last 60 events."""
    record(60)
    live = []
    for i in range(90):
        live.append(torch.empty((i * 7919) % 3000 * 1000 + 1, dtype=torch.uint8, device="cuda"))
        if i % 3 == 2:
            del live[(i * 31) % len(live)]
    return live


def churn(torch, seed, largest=24, flush=True):
    state, live = seed, []

    def draw(n):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (state >> 33) % n

    for i in range(160):
        if flush and i in (70, 120):
            torch.cuda.empty_cache()
        if len(live) < 4 or draw(100) < 55:
            live.append(torch.empty(1 + draw(1 << (8 + draw(largest - 7))), dtype=torch.uint8, device="cuda"))
        else:
            live[draw(len(live))] = None
            live = [x for x in live if x is not None]
    return live


def expandable(torch, record):
    """Pages are mapped, unmapped by empty_cache(), and mapped again."""
    record()
    return churn(torch, 5)


def max_split(torch, record):
    record()
    return churn(torch, 6, 27)


def roundup(torch, record):
    record()
    return churn(torch, 7, 26)


def streams(torch, record):
    """Two streams, a block that waits for one, and a second device."""
    record()
    side = torch.cuda.Stream()
    x = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(side):
        y = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        z = torch.empty(1000, dtype=torch.uint8, device="cuda")
    x.record_stream(side)
    del x
    other = torch.empty(12 * MIB, dtype=torch.uint8, device="cuda:1")
    w = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    del y, other
    v = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    del v, w
    return locals()


def private_pool(torch, record):
    """A pool of its own, as CUDA graphs have."""
    record()
    pool = torch.cuda.MemPool()
    a = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    with torch.cuda.use_mem_pool(pool):
        b = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        del b
        b = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    c = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    del a
    return locals()


def fragmented(torch, record):
    """Out of memory though enough is free, in pieces; expandable segments would serve it."""
    record()
    _, total = torch.cuda.mem_get_info()
    size = total // 20
    blocks = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(6)]
    growing = [torch.empty(size * (10 + i) // 10, dtype=torch.uint8, device="cuda") for i in range(5)]
    del blocks, growing
    keep = [torch.empty(size // 8, dtype=torch.uint8, device="cuda") for _ in range(60)]
    keep = keep[::8]
    try:
        torch.empty(size * 16, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return keep
    raise SystemExit("the card is too large for this case")


def room(torch, record):
    """Cached segments go back because a request has no room, and because of empty_cache(): stacks tell which."""
    record(stacks=True)
    _, total = torch.cuda.mem_get_info()
    cached = [torch.empty(total // 7, dtype=torch.uint8, device="cuda") for _ in range(5)]
    del cached
    large = torch.empty(total // 2, dtype=torch.uint8, device="cuda")
    del large
    torch.cuda.empty_cache()
    return torch.empty(total // 3, dtype=torch.uint8, device="cuda")


CASES = {"room": (room, ""), "training": (training, ""), "late": (late, ""), "ring": (ring, ""), "expandable": (expandable, "expandable_segments:True"),
         "max_split": (max_split, "max_split_size_mb:32"), "roundup": (roundup, "roundup_power2_divisions:[1:8,16:4,>:2]"),
         "streams": (streams, ""), "private_pool": (private_pool, ""), "fragmented": (fragmented, "")}


def run(name):
    import torch
    torch.cuda.init()

    def record(entries=100000, stacks=False):
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.memory._record_memory_history(max_entries=entries, context="all" if stacks else None, stacks="python")

    held = CASES[name][0](torch, record)  # lives until the snapshot is taken
    counted = [torch.cuda.memory_stats(d) for d in range(torch.cuda.device_count())]
    snapshot = torch.cuda.memory._snapshot()
    del held
    (FOLDER / f"{name}.pickle").write_bytes(pickle.dumps(compact(snapshot)))
    print(json.dumps({"torch": torch.__version__, "devices": {d: {
        "allocated_peak_bytes": s["allocated_bytes.all.peak"], "allocated_end_bytes": s["allocated_bytes.all.current"],
        "reserved_peak_bytes": s["reserved_bytes.all.peak"], "reserved_end_bytes": s["reserved_bytes.all.current"],
        "retries": s["num_alloc_retries"], "out_of_memory": s["num_ooms"]} for d, s in enumerate(counted) if s["reserved_bytes.all.peak"]}}))


def compact(snapshot):
    """The same without times, annotations and all but the innermost frames, with file names that name no machine: a smaller file."""
    known = {}

    def frame(f):
        name = "/".join(Path(f["filename"]).parts[-4:])
        return known.setdefault((f["name"], name, f["line"]), {**f, "filename": known.setdefault(name, name)})

    for trace in snapshot["device_traces"]:
        for event in trace:
            event["time_us"] = 0
            if "frames" in event:
                event["frames"] = [frame(f) for f in event["frames"][:6]] if not event["action"].startswith("free") else []
    for segment in snapshot["segments"]:
        for part in (segment, *segment["blocks"]):
            part.pop("frames", None)
    return {key: snapshot[key] for key in ("segments", "device_traces", "allocator_settings")}


def main(names):
    if names[:1] == ["--run"]:
        return run(names[1])
    FOLDER.mkdir(exist_ok=True)
    index = FOLDER / "index.json"
    rows = json.loads(index.read_text()) if index.exists() else {}
    for name in names or CASES:
        print(name, flush=True)
        done = subprocess.run([sys.executable, __file__, "--run", name], env={**os.environ, "PYTORCH_ALLOC_CONF": CASES[name][1]}, check=True,
                              stdout=subprocess.PIPE, text=True)
        rows[name] = {"alloc_conf": CASES[name][1], **json.loads(done.stdout.splitlines()[-1])}
    index.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(rows[name])}" for name in sorted(rows)) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
