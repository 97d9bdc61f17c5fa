import unittest

from common import InFolder, load, printed

readme = load("scripts/regen_readme.py")
summary = load("tests/summary.py")
PAGE = "text\n<!-- output of: memest one --two -->\n```\nold\n```\n\n```\nuntouched\n```\n<!-- output of: memest three | head -n 1 -->\n```text\n```\n"


class Readme(InFolder):
    def run_on(self, text, *arguments, memest="print(*arguments, '  ')\nprint('second')"):
        path = self.write("README.md", text)
        result, out = printed(readme.main, [str(path), "--memest", str(self.fake_memest(memest)), *arguments])
        return result, out, path.read_text()

    def test_blocks_are_filled_and_then_agree(self):
        result, _, text = self.run_on(PAGE)
        self.assertEqual(0, result)
        self.assertEqual(PAGE.replace("old\n", "one --two\nsecond\n").replace("```text\n", "```text\nthree\n"), text)
        self.assertEqual((0, "", text), self.run_on(text, "--check"))

    def test_check_changes_nothing_and_shows_the_difference(self):
        result, out, text = self.run_on(PAGE, "--check")
        self.assertEqual(1, result)
        self.assertEqual(PAGE, text)
        self.assertIn("-old\n+one --two\n", out)

    def test_a_command_that_crashes_or_prints_nothing_is_a_failure(self):
        self.assertEqual(1, self.run_on(PAGE, memest="os.abort()")[0])
        self.assertEqual(1, self.run_on(PAGE, memest="pass")[0])

    def test_a_page_without_outputs_is_a_failure(self):
        self.assertEqual(1, self.run_on("text\n", "--check")[0])


class Summary(InFolder):
    def total(self, *cases):
        body = "".join(f'<testcase name="{name}" status="{status}"><system-out>{out}</system-out></testcase>' for name, status, out in cases)
        return printed(summary.main, str(self.write("tests.xml", f"<testsuite>{body}</testsuite>")))

    def test_counts_of_runners_and_of_catch_are_added_up(self):
        result, text = self.total(("golden", "run", "noise\n12 passed, 0 failed, 1 skipped\n"), ("unit", "run", "All tests passed (99 assertions in 30 test cases)\n"), ("plain", "run", ""))
        self.assertEqual((0, "skipped in golden\n43 passed, 0 failed, 1 skipped\n"), (result, text))

    def test_failures(self):
        result, text = self.total(("unit", "fail", "test cases:  12 | 10 passed |  2 failed\nassertions: 20 | 18 passed | 2 failed\n"), ("crash", "fail", "3 passed, 0 failed, 0 skipped\nSegmentation fault"),
                                  ("other", "fail", ""), ("lost", "notrun", ""))
        self.assertEqual(1, result)
        self.assertTrue(text.endswith("failed: unit\nfailed: crash\nfailed: other\n13 passed, 4 failed, 1 skipped\n"), text)

    def test_skipped_wholly(self):
        self.assertEqual((1, "skipped in schema: no module\n0 passed, 0 failed, 1 skipped\n"), self.total(("schema", "notrun", "skipped: no module\n0 passed, 0 failed, 1 skipped")))

    def test_no_results_are_a_failure(self):
        self.assertEqual(1, printed(summary.main, str(self.folder / "none.xml"))[0])


class Sums(unittest.TestCase):
    """tests/accuracy/validate_json.py: what a schema cannot say."""

    def document(self):
        return {"totals": {"allocated_peak_bytes": 100, "reserved_peak_bytes": 150, "device_peak_bytes": 160}, "overhead": {"cached_bytes": 50, "context_bytes": 10},
                "peak": {"step": 1, "phase": "forward", "categories": {"parameter": 60, "activation": 40}}, "states": {"parameters_bytes": 60, "buffers_bytes": 0, "gradients_bytes": 60},
                "model": {"parameters": {"bytes": 60, "trainable_bytes": 60, "count": 15, "trainable_count": 15}, "buffers": {"bytes": 0}},
                "phases": [{"step": 1, "phase": "forward", "peak_bytes": 100, "end_bytes": 90}]}

    def test_sums(self):
        script = load("tests/accuracy/validate_json.py")
        self.assertEqual([], script.sums(self.document()))
        for part, key, value in (("peak", "categories", {"parameter": 99}), ("overhead", "cached_bytes", 49), ("totals", "device_peak_bytes", 1), ("totals", "reserved_peak_bytes", 99),
                                 ("states", "parameters_bytes", 61), ("states", "gradients_bytes", 1), ("peak", "step", 2)):
            document = self.document()
            document[part][key] = value
            self.assertTrue(script.sums(document), f"{part}.{key}")


if __name__ == "__main__":
    unittest.main()
