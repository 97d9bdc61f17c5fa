import random
import unittest

from common import InFolder, load, printed

script = load("tests/fuzz/run.py")


class Fuzz(InFolder):
    def run_on(self, body):
        return printed(script.main, ["--memest", str(self.fake_memest(body)), "--cases", "4"])

    def test_answers_and_refusals_pass(self):
        self.assertEqual(0, self.run_on("print('1 GiB')")[0])
        self.assertEqual(0, self.run_on("print('error: no such layer', file=sys.stderr)\nsys.exit(2)")[0])

    def test_crashes_are_found(self):
        self.assertEqual(1, self.run_on("os.abort()")[0])
        self.assertEqual(1, self.run_on("sys.exit(99)")[0])
        self.assertEqual(1, self.run_on("sys.exit(2)")[0])
        self.assertEqual(1, self.run_on("print('x.cpp:1: runtime error: signed integer overflow', file=sys.stderr)")[0])

    def test_the_same_seed_gives_the_same_cases(self):
        specs = [("a", {"memest_spec": 1, "inputs": [{"name": "x", "shape": ["batch", 8]}], "layers": [{"type": "Linear", "in_features": 8, "out_features": 2}]})]
        archives = [(script.ROOT / "tests/pt2/names.pt2").read_bytes()]
        first, second = ([script.case(rng, specs, archives) for _ in range(50)] for rng in (random.Random(3), random.Random(3)))
        self.assertEqual(first, second)


if __name__ == "__main__":
    unittest.main()
