import json
import unittest

from common import InFolder, load, printed

script = load("tests/accuracy/run.py")
ROW = {"set": "s", "id": "net batch=1", "arguments": ["net", "--batch", "1"], "states": {"parameters_bytes": 8, "gradients_bytes": 8},
       "phases": [{"step": 1, "phase": "inputs", "end": 512, "peak": 512}, {"step": 1, "phase": "forward", "end": 1024, "peak": 2048}], "reserved": 2097152}
ANSWER = {"states": {"parameters_bytes": 8, "gradients_bytes": 8, "optimizer_state_bytes": 0}, "totals": {"reserved_peak_bytes": 2097152},
          "phases": [{"step": 1, "phase": "inputs", "end_bytes": 512, "peak_bytes": 512}, {"step": 1, "phase": "forward", "end_bytes": 900, "peak_bytes": 2048},
                     {"step": 1, "phase": "forward", "end_bytes": 1024, "peak_bytes": 700}]}
EVENTS = {"fields": ["action", "address", "bytes", "step", "phase", "module", "op", "category"],
          "events": [["segment_alloc", 0, 2097152, 0, "load", "", "", ""], ["alloc", 0, 8, 0, "load", "fc", "", "parameter"], ["alloc", 512, 100, 1, "forward", "fc", "aten::mm", "activation"],
                     ["free_completed", 512, 100, 1, "forward", "fc", "aten::mm", "activation"], ["free_completed", 0, 8, 1, "forward", "", "", "parameter"]]}
LIST = "# net batch=1\nsegment_alloc 2097152\n+ 8\n+ 100\n- 1\n- 0\n"


class Accuracy(InFolder):
    def run_rows(self, answer=ANSWER, known="", lists=LIST, rows=(ROW,), code=0):
        self.write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        self.write("known_differences.txt", "# comment\n\n" + known)
        if lists:
            self.write("allocations/net.txt", lists)
        memest = self.fake_memest(f"print({json.dumps(answer)!r})\nif '--trace' in arguments: Path(arguments[arguments.index('--trace') + 1]).write_text({json.dumps(EVENTS)!r})\nsys.exit({code})")
        return printed(script.main, ["--memest", str(memest), "--data", str(self.folder)])

    def changed(self, **parts):
        return json.loads(json.dumps(ANSWER | parts))

    def test_exact_rows_pass_with_the_last_end_and_the_highest_peak_of_a_phase(self):
        result, text = self.run_rows()
        self.assertEqual("1 of 1 rows exact to the byte, 0 known to differ, 1 compared allocation by allocation\n1 passed, 0 failed, 0 skipped\n", text)
        self.assertEqual(0, result)

    def test_one_byte_is_a_difference(self):
        answer = self.changed(states={"parameters_bytes": 9, "gradients_bytes": 8}, totals={"reserved_peak_bytes": 2097153})
        answer["phases"][2]["end_bytes"] = 1023
        answer["phases"][0]["peak_bytes"] = 0
        result, text = self.run_rows(answer)
        self.assertEqual(1, result)
        for line in ("parameters_bytes: 9 for 8", "reserved: 2,097,153 for 2,097,152", "step 1 forward end: 1,023 for 1,024", "step 1 inputs peak: 0 for 512", "memest estimate net --batch 1"):
            self.assertIn(line, text)

    def test_a_missing_phase_and_a_refusal_are_differences(self):
        self.assertIn("step 1 inputs end: no such phase for 512", self.run_rows(self.changed(phases=ANSWER["phases"][1:]))[1])
        result, text = self.run_rows(code=2)
        self.assertEqual(1, result)
        self.assertIn("exit 2", text)

    def test_not_fitting_is_an_answer(self):
        self.assertEqual(0, self.run_rows(code=1)[0])

    def test_the_first_event_that_differs_is_shown_with_its_op(self):
        result, text = self.run_rows(lists=LIST.replace("+ 100", "+ 104"))
        self.assertEqual(1, result)
        self.assertIn("equal for 2 of memest's 5 and PyTorch's 5 events", text)
        self.assertIn("m + 100                        1 forward fc aten::mm activation", text)
        self.assertIn("p + 104", text)

    def test_a_list_that_ends_early_differs(self):
        self.assertEqual(1, self.run_rows(lists=LIST + "+ 5\n")[0])

    def test_known_differences_need_a_cause_and_must_still_differ(self):
        wrong = self.changed(totals={"reserved_peak_bytes": 1})
        self.assertEqual(0, self.run_rows(wrong, known="net batch=1 :: a mechanism\n")[0])
        result, text = self.run_rows(known="net batch=1 :: a mechanism\n")
        self.assertEqual(1, result)
        self.assertIn("remove it from known_differences.txt", text)
        self.assertEqual(1, self.run_rows(known="other :: a mechanism\n")[0])
        with self.assertRaises(ValueError):
            self.run_rows(known="net batch=1\n")


if __name__ == "__main__":
    unittest.main()
