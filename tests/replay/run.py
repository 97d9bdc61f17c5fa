#!/usr/bin/env python3
"""Replays recorded snapshots with memest: run.py [--memest PATH] [--cases N] [--seed N] [NAME...]

- The snapshots of this folder (scripts/record_snapshots.py): what PyTorch counted, read from the events, and every event again, with its block's address, by the model.
- The traces that `memest estimate --trace` writes, under several settings: the same totals as the estimate's.
- Damaged pickles, made here: one message and exit code 2, never a crash; and seeded damage of the good ones (--cases).
The last line is "N passed, N failed, N skipped". Exits 1 where something failed.
"""
import argparse
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
INDEX = json.loads((HERE / "index.json").read_text())
MEMORY = 3 << 30
SIGNS_OF_A_CRASH = ("Sanitizer", "runtime error:", "terminate called", "Assertion", "what():", "std::", "internal error")
OPTIONS = None
MIB = 1 << 20


def run(*arguments):
    command = [str(OPTIONS.memest), *map(str, arguments)]
    environment = {**os.environ, "ASAN_OPTIONS": "exitcode=99", "UBSAN_OPTIONS": "exitcode=99"}
    if not OPTIONS.sanitized:
        command = ["bash", "-c", f'ulimit -v {MEMORY >> 10}; exec "$@"', "-", *command]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, timeout=60)


def event(action, addr, size, **more):
    return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": [], **more}


def snapshot(*events, segments=()):
    return {"segments": list(segments), "device_traces": [list(events)], "allocator_settings": {}}


class Temporary(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def file(self, content, name="snapshot.pickle"):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))
        return path

    def replayed(self, path, *options):
        p = run("replay", path, "--json", "-", *options)
        self.assertEqual(p.returncode, 0, p.stderr)
        return json.loads(p.stdout)

    def refused(self, content, message, *options):
        p = run("replay", self.file(content), *options)
        self.assertEqual(p.returncode, 2, p.stderr or p.stdout)
        self.assertEqual(p.stdout, "")
        self.assertTrue(p.stderr.startswith("memest: "), p.stderr)
        self.assertLessEqual(p.stderr.count("\n"), 2)
        self.assertIn(message, p.stderr)


class Recorded(Temporary):
    def test_snapshots(self):
        for name, row in INDEX.items():
            with self.subTest(name):
                found = self.replayed(HERE / f"{name}.pickle", "--alloc-conf", "max_split_size_mb:64")
                self.assertEqual(found["alloc_conf"], row["alloc_conf"])
                devices = {str(d["device"]): d for d in found["devices"]}
                self.assertEqual(devices.keys(), row["devices"].keys())
                for number, counted in row["devices"].items():
                    recorded = devices[number]["recorded"]
                    # the ring buffer may have lost the peak
                    for field in [f for f in counted if f.endswith("_bytes") and not (name == "ring" and "peak" in f)]:
                        self.assertEqual(recorded[field], counted[field], field)
                    self.assertEqual((recorded["out_of_memory"], recorded["flushes_for_room"]), (counted["out_of_memory"], counted["retries"]))
                    own = devices[number]["settings"][0]
                    self.assertIsNone(own["difference"])
                    self.assertGreater(own["same_events"], recorded["mallocs"])
                    played = own["within_limit"] or own
                    for field in ("allocated_end_bytes", "reserved_peak_bytes", "reserved_end_bytes", "allocated_peak_bytes"):
                        self.assertEqual(played[field], recorded[field], field)

    def test_out_of_memory(self):
        """What ran out of memory in pieces is served by expandable segments."""
        found = self.replayed(HERE / "fragmented.pickle", "--alloc-conf", "expandable_segments:True")["devices"][0]
        self.assertEqual([s["unserved"] for s in found["settings"]], [1, 0])
        self.assertLess(found["limit_bytes"], found["settings"][0]["reserved_peak_bytes"])
        p = run("replay", HERE / "fragmented.pickle", "--gpu-memory", "24GiB")
        self.assertEqual(p.returncode, 1)
        self.assertIn("runs out of memory at event", p.stdout)

    def test_older(self):
        found = self.replayed(HERE / "late.pickle")
        self.assertEqual([d["code"] for d in found["diagnostics"]], ["lived-before"])
        self.assertGreater(found["devices"][0]["before"]["allocated_bytes"], 2000 * 900 * 4 * 3)
        self.assertEqual([d["code"] for d in self.replayed(HERE / "ring.pickle")["diagnostics"]], ["lived-before"])

    def test_streams(self):
        found = self.replayed(HERE / "streams.pickle")
        self.assertEqual([d["streams"] for d in found["devices"]], [2, 1])
        self.assertEqual(len(self.replayed(HERE / "streams.pickle", "--device", "1")["devices"]), 1)
        self.assertEqual(self.replayed(HERE / "private_pool.pickle")["devices"][0]["pools"], 2)

    def test_wait(self):
        """record_stream: a block is free when the other stream has passed it."""
        at = 1 << 40
        waits = [event("segment_alloc", at, 20 * MIB), event("alloc", at, 3 * MIB), event("free_requested", at, 3 * MIB), event("alloc", at + 3 * MIB, 3 * MIB),
                 event("free_completed", at, 3 * MIB), event("alloc", at, 2 * MIB)]
        device = self.replayed(self.file(snapshot(*waits)))["devices"][0]
        self.assertEqual((device["recorded"]["waits_for_streams"], device["recorded"]["allocated_peak_bytes"]), (1, 6 * MIB))  # the last one fills its hole: what remains is too short to split off
        self.assertIsNone(device["settings"][0]["difference"])

    def test_traces_of_memest(self):
        path = self.folder / "trace.json"
        for spec, conf in (("lenet5", ""), ("resnet18", "expandable_segments:True"), ("mlp", "max_split_size_mb:64,roundup_power2_divisions:4")):
            with self.subTest(spec):
                p = run("estimate", spec, "--batch", "16", "--trace", path, "--json", "-", "--alloc-conf", conf)
                totals = json.loads(p.stdout)["totals"]
                found = self.replayed(path)
                self.assertEqual(found["alloc_conf"], conf)
                device = found["devices"][0]
                for played in (device["recorded"], device["settings"][0]):
                    self.assertEqual((played["allocated_peak_bytes"], played["reserved_peak_bytes"]), (totals["allocated_peak_bytes"], totals["reserved_peak_bytes"]))
                self.assertIsNone(device["settings"][0]["difference"])
                self.assertIn("step", device["recorded"]["peak_place"])

    def test_schema(self):
        try:
            import jsonschema
        except ImportError:
            self.skipTest("the Python module jsonschema is missing (Debian package python3-jsonschema)")
        schema = json.loads((ROOT / "estimator/report/replay.schema.json").read_text())
        for name in INDEX:
            jsonschema.validate(self.replayed(HERE / f"{name}.pickle", "--alloc-conf", "expandable_segments:True"), schema)


class Malformed(Temporary):
    def test_truncated(self):
        data = (HERE / "streams.pickle").read_bytes()
        for length in [*range(1, len(data) - 1, 97), len(data) - 1]:
            self.refused(data[:length], "snapshot.pickle: ")

    def test_not_a_snapshot(self):
        self.refused(b"", "the file is empty")
        self.refused(b"\n\n", "the file is empty")
        self.refused({"a": 1}, "no memory snapshot")
        self.refused([{"device": 0}], "memory_snapshot() gives")
        self.refused(snapshot(), "has no events")
        self.refused(b"\x1f\x8b\x08", "gzip")
        self.refused(b"{}", "no trace of memest")
        self.refused(b'{"events": [["alloc", 0, 512], ["alloc"', "trace: ")
        self.refused(b'{"events": [["alloc", 0, -512]]}', "/events/0")
        self.refused(b"hello", "a recording is")

    def test_never_executes(self):
        class Evil:
            def __reduce__(self):
                return (os.system, ("touch executed",))

        for protocol in (2, 4, 5):
            self.refused(pickle.dumps(Evil(), protocol), "system', which memest never looks up")
        self.refused(pickle.dumps(snapshot(event("alloc", Evil(), 5))), "which memest never looks up")
        self.refused(b"\x80\x02)}R.", "it calls something")
        self.refused(pickle.dumps(Evil(), 0), "a recording is")
        self.assertFalse(Path("executed").exists())

    def test_opcodes(self):
        self.refused(b"\x80\x04\xff.", "unknown opcode 0xff")
        self.refused(b"\x80\x09N.", "protocol 9")
        self.refused(b"\x80\x04.", "its stack is empty")
        self.refused(b"\x80\x04(.", "its stack is empty")
        self.refused(b"\x80\x04h\x05.", "never remembered")
        self.refused(b"\x80\x04Nr\xff\xff\xff\xff.", "beyond the file")
        self.refused(b"\x80\x04Na.", "its stack is empty")
        self.refused(b"\x80\x04NNa.", "holds nothing")
        self.refused(b"\x80\x04)Na.", "holds nothing")
        self.refused(b"\x80\x04}N(Nu.", "without a value")
        self.refused(b"\x80\x04t.", "a mark is missing")
        self.refused(b"\x80\x04X\xff\xff\xff\x7fabc.", "it ends early")
        self.refused(b"\x80\x04\x8d" + b"\xff" * 8 + b"abc.", "it ends early")
        self.refused(b"\x80\x04\x8a\x09" + b"\xff" * 8 + b"\x01.", "more than 64 bits")

    def test_bombs(self):
        deep = b"\x80\x02" + b"]" * 100000 + b"a" * 99999 + b"."
        self.refused(deep, "nests deeper")
        self.refused(b"\x80\x02]q\x00h\x00a.", "contains itself")
        self.refused(b"\x80\x02]q\x00]q\x01h\x00ah\x00h\x01aa.", "contains itself")
        self.refused(b"\x80\x02(" + b"]" * 3_000_000 + b"l.", "memory_snapshot() gives")
        one = [event("alloc", 0, 512)] * 3000  # the same list for each of 250 devices, and again
        many = snapshot()
        many["device_traces"] = [one * 100] * 250
        self.refused(many, "events")
        many["device_traces"] = [one] * 100000
        self.refused(many, "100000 devices")

    def test_values(self):
        a = event("alloc", 1 << 40, 512)
        segment = event("segment_alloc", 1 << 40, 2 * MIB)
        good = (segment, a)
        self.assertEqual(self.replayed(self.file(snapshot(*good)))["devices"][0]["recorded"]["allocated_peak_bytes"], 512)
        for bad, message in (({"size": -1}, "a size of -1"), ({"size": 0}, "a size of 0"), ({"size": 1 << 62}, "a size of"), ({"addr": -5}, "an address of"), ({"addr": "x"}, '"addr" is no integer'),
                             ({"action": "aloc"}, "alloc"), ({"action": 7}, '"action" is no text'), ({"stream": None}, '"stream" is no integer'), ({"frames": [7]}, "a frame is a dict"),
                             ({"addr": 77}, "no free memory"), ({"size": 4 * MIB}, "are free")):
            self.refused(snapshot(segment, {**a, **bad}), message)
        self.refused(snapshot(segment, 5), "device_traces[0][1]: a dict is expected")
        self.refused(snapshot(segment, {"action": "alloc"}), 'there is no "size"')
        self.refused(snapshot(*good, a), "allocated twice")
        self.refused({**snapshot(*good), "segments": [{}]}, "segments[0]")
        self.refused({**snapshot(*good), "segments": 5}, "segments: a list is expected")
        self.refused({**snapshot(*good), "device_traces": [5]}, "device_traces[0]: a list is expected")
        block = {"size": 3 * MIB, "state": "inactive"}
        self.refused(snapshot(*good, segments=[{"device": 0, "address": 0, "total_size": 2 * MIB, "stream": 0, "blocks": [block]}]), "larger than the segment")
        self.refused(snapshot(*good, segments=[{"device": 5000, "address": 0, "total_size": 2 * MIB, "stream": 0, "blocks": []}]), "numbered 5000")
        settings = {**snapshot(*good), "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "no_such:1"}}
        self.assertEqual(self.replayed(self.file(settings))["diagnostics"][0]["code"], "unknown-settings")

    def test_usage(self):
        path = HERE / "streams.pickle"
        for options, message in ((["--alloc-conf", "expandable:True"], "expandable_segments"), (["--gpu", "a100-81gb"], "a100-80gb"), (["--gpu-memory", "much"], "is no size"),
                                 (["--gpu", "a100-80gb", "--gpu-memory", "3GiB"], "exclude each other"), (["--torch-version", "1.0"], "2.4 to 2.15"), (["--device", "7"], "nothing of device 7"),
                                 (["--jsn", "x"], "--json")):
            p = run("replay", path, *options)
            self.assertEqual((p.returncode, p.stdout), (2, ""), options)
            self.assertIn(message, p.stderr)
        self.assertIn("no such file", run("replay", "nowhere.pickle").stderr)

    def test_fuzz(self):
        rng = random.Random(OPTIONS.seed)
        files = [p.read_bytes() for p in sorted(HERE.glob("*.pickle"))]
        trace = self.folder / "trace.json"
        run("estimate", "mlp", "--batch", "4", "--steps", "1", "--trace", trace, "--quiet")
        files.append(trace.read_bytes())
        for case in range(OPTIONS.cases):
            data = bytearray(rng.choice(files))
            for _ in range(rng.choice([1, 1, 2, 5])):
                at = rng.randrange(len(data))
                what = rng.randrange(4)
                if what == 0:
                    data[at:at + 1] = bytes([rng.choice([0, 1, 255, *b".()N]}h0123456789abcdKMJrqlstu\x85\x86\x87\x8a\x94", rng.randrange(256)])])
                elif what == 1:
                    data[at:at + rng.randrange(1, 9)] = b""
                elif what == 2:
                    data[at:at] = data[at:at + rng.randrange(1, 200)]
                else:
                    data[at:at + 4] = struct.pack("<i", rng.choice([0, -1, 1 << 30, -(1 << 31)]))
            path = self.file(bytes(data))
            p = run("replay", path, "--alloc-conf", rng.choice(["", "expandable_segments:True", "max_split_size_mb:20"]), *rng.choice([[], ["--json", "-"], ["--gpu-memory", "10MiB"]]))
            self.assertIn(p.returncode, (0, 1, 2), f"case {case}: {p.stderr[:400]}")
            self.assertFalse([s for s in SIGNS_OF_A_CRASH if s in p.stderr], f"case {case}: {p.stderr[:400]}")
            if p.returncode == 2:
                self.assertTrue(p.stderr.startswith("memest: ") and not p.stdout, f"case {case}: {p.stderr[:400]}")


def main():
    global OPTIONS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memest", default=ROOT / "build/release/memest", type=Path)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("names", nargs="*")
    OPTIONS = parser.parse_args()
    OPTIONS.memest = OPTIONS.memest.resolve()
    OPTIONS.sanitized = b"__asan_init" in OPTIONS.memest.read_bytes()
    tests = [t for c in (Recorded, Malformed) for t in unittest.defaultTestLoader.loadTestsFromTestCase(c)]
    result = unittest.TextTestRunner(stream=sys.stdout).run(unittest.TestSuite(t for t in tests if not OPTIONS.names or any(n in t.id() for n in OPTIONS.names)))
    for _, reason in result.skipped:
        print(f"skipped: {reason}")
    failed = len({test.id().partition(" ")[0] for test, _ in result.failures + result.errors})
    print(f"{result.testsRun - failed - len(result.skipped)} passed, {failed} failed, {len(result.skipped)} skipped")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
