// A subcommand: one file each, an options struct, a set-up and a run.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>

namespace memest::cli {

/// Adds its subcommand to the app; the returned function runs it and gives the exit code.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};
Command add_estimate(CLI::App& app);
Command add_list(CLI::App& app);
Command add_explain(CLI::App& app);
Command add_probe(CLI::App& app);
Command add_replay(CLI::App& app);

/// Exit codes (design 5.1).
enum Exit { kDone = 0, kDoesNotFit = 1, kUsage = 2, kCannotTell = 3, kGrew = 4 };

}  // namespace memest::cli
