import unittest

from common import InFolder, load, printed

script = load("tests/golden/run.py")
ECHO = r'''
print("arguments", *arguments)
for name in arguments[1:]:
    if os.path.isfile(name): print(name, "holds", len(open(name).read()), "characters")
if os.environ.get("MODE"): print("mode", os.environ["MODE"], "in", os.getcwd())
Path("made.json").write_text("{}\n")
print("warning: 0.123 s", file=sys.stderr)
sys.exit(2 if "bad" in arguments else 0)
'''


class Golden(InFolder):
    def run_cases(self, *arguments, memest=ECHO):
        return printed(script.main, ["--memest", str(self.fake_memest(memest)), "--cases", str(self.folder / "cases"), *arguments])

    def case(self, text, name="one.txt"):
        return self.write("cases/" + name, text)

    def test_a_case_that_agrees_passes(self):
        self.case("# what it shows\n$ memest estimate a.json\n== file a.json ==\n{}\n== stdout ==\narguments estimate a.json\na.json holds 3 characters\n"
                  "== stderr ==\nwarning: {{[0-9.]+}} s\n== exit ==\n0\n")
        self.assertEqual((0, "1 passed, 0 failed, 0 skipped\n"), self.run_cases())

    def test_every_part_that_differs_is_shown(self):
        self.case("$ memest bad\n== stdout ==\narguments good\n== stderr ==\nwarning: {{[a-z]+}} s\n== exit ==\n0\n== made made.json ==\n[]\n== made other ==\nx\n")
        result, text = self.run_cases()
        self.assertEqual(1, result)
        for line in ("-arguments good", "+arguments bad", "-warning: {{[a-z]+}} s", "+warning: 0.123 s", "-0", "+2", "-[]", "+{}", "-x", "+(no such file)"):
            self.assertIn(f"\n{line}\n", text)
        self.assertTrue(text.endswith("0 passed, 1 failed, 0 skipped\n"))

    def test_a_missing_section_expects_nothing(self):
        self.case("$ memest x\n== stdout ==\narguments x\n")
        result, text = self.run_cases()
        self.assertEqual(1, result)
        self.assertIn("+warning: 0.123 s", text)

    def test_update_keeps_placeholders_that_still_match(self):
        path = self.case("# comment\n$ memest bad a b\n== stdout ==\nold\n== stderr ==\nwarning: {{[0-9.]+}} s\n== made made.json ==\n")
        self.assertEqual(0, self.run_cases("--update")[0])
        self.assertEqual("# comment\n$ memest bad a b\n== stdout ==\narguments bad a b\n== stderr ==\nwarning: {{[0-9.]+}} s\n== made made.json ==\n{}\n== exit ==\n2\n", path.read_text())
        self.assertEqual(0, self.run_cases()[0])

    def test_files_environment_and_the_folder(self):
        self.case("$ MODE=big memest deep.json sub/empty.json d\n== file deep.json times 1000 ==\n[{\n== file sub/empty.json ==\n== folder d ==\n== stdout ==\n"
                  "arguments deep.json sub/empty.json d\nmode big in <cwd>\n== stderr ==\nwarning: 0.123 s\n")
        result, text = self.run_cases()
        self.assertIn("+sub/empty.json holds 0 characters", text)
        self.assertEqual(1, result)

    def test_the_last_line_break_counts(self):
        self.case("$ memest x\n== stdout ==\nend\n")
        self.assertEqual(1, self.run_cases(memest="sys.stdout.write('end')")[0])
        self.case("$ memest x\n== stdout ==\nend\n\\ no newline at the end\n")
        self.assertEqual(0, self.run_cases(memest="sys.stdout.write('end')")[0])

    def test_a_crash_is_a_failure(self):
        self.case("$ memest x\n")
        result, text = self.run_cases(memest="os.abort()")
        self.assertEqual(1, result)
        self.assertIn("+-6", text)

    def test_cases_that_cannot_be_run_are_failures(self):
        self.case("no command\n", "a.txt")
        self.case("$ rm x\n", "b.txt")
        self.case("$ memest x\n== output ==\n", "c.txt")
        result, text = self.run_cases()
        self.assertEqual(1, result)
        self.assertIn("c.txt: unknown section 'output'", text)
        self.assertTrue(text.endswith("0 passed, 3 failed, 0 skipped\n"))

    def test_names_choose_and_no_case_is_a_failure(self):
        self.case("$ memest x\n== stdout ==\nwrong\n", "a.txt")
        self.assertEqual((1, "no case has such a name\n0 passed, 0 failed, 0 skipped\n"), self.run_cases("other"))


if __name__ == "__main__":
    unittest.main()
