// Parses, runs, prints, maps errors to exit codes.
#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"

namespace {
using namespace memest;

int report(const Error& e) {
  std::string text = "memest: ";
  if (e.has_place()) text += e.where() + ": ";
  text += e.message();
  if (!e.hint().empty()) text += "\n  " + e.hint();
  fmt::print(stderr, "{}\n", text);
  return e.kind() == Error::Kind::unknown ? cli::kCannotTell : cli::kUsage;
}

/// What was wrong with the command line, with the nearest names where an option or subcommand does not exist.
int usage(const CLI::App& app, const CLI::ParseError& e, int argc, char** argv) {
  if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
  const CLI::App* at = &app;
  for (auto* sub : app.get_subcommands()) at = sub;
  std::string message = e.what(), hint;
  std::vector<std::string> names;
  for (auto* option : at->get_options({}))
    for (auto& name : option->get_lnames()) names.push_back("--" + name);
  for (auto* sub : at->get_subcommands([](const CLI::App*) { return true; })) names.push_back(sub->get_name());
  if (at == &app && argc > 1 && argv[1][0] != '-') {
    message = fmt::format("there is no subcommand '{}'", std::string_view(argv[1]).substr(0, 60));
    hint = did_you_mean(argv[1], names);
  } else if (dynamic_cast<const CLI::ExtrasError*>(&e)) {
    for (auto& extra : at->remaining(true)) {
      const std::string name = extra.substr(0, extra.find('='));
      if (!name.starts_with('-')) continue;
      message = fmt::format("there is no option {}", name.substr(0, 60));
      hint = did_you_mean(name, names);
      break;
    }
  }
  const std::string help = (at == &app ? std::string("memest --help") : "memest " + at->get_name() + " --help") + " lists what there is";
  return report(Error(message, hint.empty() ? help : hint));
}

}  // namespace

int main(int argc, char** argv) {
  std::set_terminate([] {  // memory that ends while an object is destroyed, say
    std::fputs("memest: memest ran out of memory on this input, or met an internal error\n", stderr);
    std::_Exit(cli::kUsage);
  });
  CLI::App app(
      "memest: how much GPU memory PyTorch will take for a model, run this way, and what it is made of. Needs no GPU and no Python.",
      "memest");
  app.set_version_flag("--version", "memest " MEMEST_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done (and fits, where a GPU was named), 1 does not fit, 2 wrong usage or unreadable input,\n"
      "            3 cannot tell (--strict met an unknown), 4 grew past the baseline.");
  const cli::Command commands[] = {cli::add_estimate(app), cli::add_list(app), cli::add_explain(app), cli::add_probe(app),
                                   cli::add_replay(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return usage(app, e, argc, argv);
  }
  try {
    for (auto& command : commands)
      if (command.app->parsed()) return command.run();
  } catch (const Error& e) {
    return report(e);
  } catch (const std::bad_alloc&) {
    return report(Error("memest ran out of memory on this input"));
  } catch (const std::exception& e) {
    return report(Error(std::string("internal error: ") + e.what(), "please report it with the command and the file"));
  }
  return cli::kUsage;
}
