import unittest

from common import InFolder, load, printed

script = load("scripts/check_includes.py")


class CheckIncludes(InFolder):
    def found(self):
        return [f"{path}:{line}: {target}" for path, line, target, _ in script.problems(self.folder)]

    def test_left_own_and_system_includes_are_fine(self):
        self.write("estimator/base/bytes.h", "#include <vector>\n")
        self.write("estimator/ops/mm.cpp", '#include "base/bytes.h"\n#include "ops/gemm.h"\n#include "helper.h"\n#include <fmt/core.h>\n')
        self.write("estimator/ops/helper.h", '#include "fake/tensor.h"\n')
        self.assertEqual([], self.found())

    def test_a_folder_to_the_right_is_named_with_its_line(self):
        self.write("estimator/base/bytes.h", "// comment\n\n  #  include \"trace/trace.h\"\n")
        result, text = printed(script.main, [str(self.folder)])
        self.assertEqual(1, result)
        self.assertEqual("estimator/base/bytes.h:3: includes trace/trace.h; base/ may include base\n", text)

    def test_relative_paths_do_not_get_around_it(self):
        self.write("estimator/run/loop.h", "")
        self.write("estimator/nn/linear.cpp", '#include "../run/loop.h"\n')
        self.assertEqual(["estimator/nn/linear.cpp:1: ../run/loop.h"], self.found())

    def test_models_and_optim_do_not_see_each_other(self):
        self.write("estimator/models/m.cpp", '#include "optim/adam.h"\n')
        self.write("estimator/optim/o.cpp", '#include "models/m.h"\n')
        self.write("estimator/run/r.cpp", '#include "optim/adam.h"\n#include "models/m.h"\n')
        self.assertEqual(["estimator/models/m.cpp:1: optim/adam.h", "estimator/optim/o.cpp:1: models/m.h"], self.found())

    def test_allocator_and_report_stay_away_from_the_runtime(self):
        self.write("estimator/allocator/a.cpp", '#include "trace/trace.h"\n#include "fake/storage.h"\n')
        self.write("estimator/report/r.cpp", '#include "allocator/replay.h"\n#include "run/run.h"\n#include "spec/reader.h"\n')
        self.assertEqual(["estimator/allocator/a.cpp:2: fake/storage.h", "estimator/report/r.cpp:3: spec/reader.h"], self.found())

    def test_only_the_pipeline_and_the_command_line_include_all(self):
        self.write("estimator/estimate.h", "")
        self.write("estimator/estimate.cpp", '#include "report/table.h"\n#include "spec/reader.h"\n')
        self.write("cli/main.cpp", '#include <CLI/CLI.hpp>\n#include "estimate.h"\n#include "report/table.h"\n')
        self.write("estimator/run/r.cpp", '#include "estimate.h"\n')
        self.write("estimator/other.cpp", '#include "base/bytes.h"\n')
        self.assertEqual(["estimator/other.cpp:1: base/bytes.h", "estimator/run/r.cpp:1: estimate.h"], self.found())

    def test_libraries_stay_behind_their_doors(self):
        self.write("estimator/nn/a.cpp", "#include <nlohmann/json.hpp>\n#include <CLI/CLI.hpp>\n#include <torch/script.h>\n")
        self.write("estimator/spec/b.cpp", "#include <nlohmann/json.hpp>\n")
        self.write("cli/c.cpp", "#include <nlohmann/json.hpp>\n#include <CLI/CLI.hpp>\n")
        self.write("estimator/torch/d.cpp", "#include <torch/script.h>\n")
        self.assertEqual(["cli/c.cpp:1: nlohmann/json.hpp"] + [f"estimator/nn/a.cpp:{n}: {t}" for n, t in ((1, "nlohmann/json.hpp"), (2, "CLI/CLI.hpp"), (3, "torch/script.h"))], self.found())

    def test_a_new_folder_needs_a_rule(self):
        self.write("estimator/misc/a.cpp", '#include "base/bytes.h"\n')
        self.assertEqual(["estimator/misc/a.cpp:1: base/bytes.h"], self.found())


if __name__ == "__main__":
    unittest.main()
