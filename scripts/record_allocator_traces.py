#!/usr/bin/env python3
"""Records what PyTorch's caching allocator does with random requests, as text for tests/accuracy/traces (format: tests/accuracy/trace_text.h).

    PYTORCH_ALLOC_CONF=max_split_size_mb:64 python scripts/record_allocator_traces.py --seed 22 --largest 32 > tests/accuracy/traces/random-max-split.txt

Needs torch with CUDA and a small card (or a driver that only pretends to be one), so that memory runs out: the traces hold the retries, garbage
collection and out-of-memory errors that a training run rarely has. Writes the memory history and torch.cuda.memory_stats().
"""
import argparse
import os
import random

import torch

MARKS = {"alloc": "+", "free_completed": "-", "segment_alloc": "S", "segment_free": "s", "segment_map": "M", "segment_unmap": "m", "oom": "O"}


def play(rng, requests, largest):
    """Random requests; one letter for each: A alloc, O alloc that failed, F free, E empty_cache."""
    done, live = [], []
    for _ in range(requests):
        choice = rng.random()
        if choice < 0.002:
            torch.cuda.empty_cache()
            done.append("E")
        elif len(live) < 3 or choice < 0.53:
            size = 1 + rng.randrange(1 << rng.randrange(4, largest))
            try:
                live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
                done.append("A")
            except torch.OutOfMemoryError:
                done.append("O")
        else:
            k = rng.randrange(len(live))
            live[k], live[-1] = live[-1], live[k]
            live.pop()
            done.append("F")
    return done, torch.cuda.memory._snapshot()["device_traces"][0], torch.cuda.memory_stats()


def lines(done, events):
    """The events in order, an E in front of what each empty_cache did."""
    events = [e for e in events if e["action"] in MARKS]
    base = min(e["addr"] for e in events if e["action"] != "oom")
    requests = iter(done)

    def flushes():
        for request in requests:
            if request != "E":
                return
            yield "E"

    yield from flushes()
    for e in events:
        action, size = e["action"], e["size"]
        address = e["device_free"] if action == "oom" else e["addr"] - base
        tail = "" if action == "free_completed" else f" {size if action == 'alloc' else size // 512}"
        yield f"{MARKS[action]} {address // 512}{tail}"
        if action in ("alloc", "free_completed", "oom"):
            yield from flushes()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--largest", type=int, default=31, help="requests are below 2 to this power")
    parser.add_argument("--fraction", type=float, help="set_per_process_memory_fraction")
    options = parser.parse_args()
    torch.cuda.init()
    conf = os.environ.get("PYTORCH_ALLOC_CONF", "")
    if options.fraction:
        torch.cuda.set_per_process_memory_fraction(options.fraction)
        conf += ("," if conf else "") + f"per_process_memory_fraction:{options.fraction}"
    limit, total = torch.cuda.mem_get_info()
    torch.cuda.memory._record_memory_history(max_entries=10_000_000, context=None, stacks="python")
    done, events, stats = play(random.Random(options.seed), options.requests, options.largest)
    print(f"trace random requests, torch {torch.__version__}, {torch.cuda.get_device_name()}, seed {options.seed}")
    print(f"conf {conf}".rstrip())
    print(f"memory {total}\nlimit {limit}")
    for line in lines(done, events):
        print(line)
    for name, value in sorted(stats.items()):
        print(f"stat {name} {value}")


if __name__ == "__main__":
    main()
