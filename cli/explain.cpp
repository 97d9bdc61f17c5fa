// memest explain op NAME
#include <fmt/core.h>

#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "nn/layer.h"
#include "ops/op.h"

namespace memest::cli {
namespace {

/// A function or a layer that calls ops: its signature.
bool explain_record(const std::string& name) {
  const std::string last = name.substr(name.rfind('.') + 1);
  bool found = false;
  auto print = [&](const char* kind, const auto& records) {
    for (auto* record : records) {
      if (record->name() != last) continue;
      fmt::print("{}\n  {}  {}\n  made of   the ops that PyTorch's own calls\n", last, kind, record->signature());
      found = true;
    }
  };
  print("function", nn::all_functions());
  print("layer   ", nn::all_layers());
  return found;
}

int explain_op(const std::string& name) {
  const std::string full = name.starts_with("aten::") ? name : "aten::" + name;
  std::vector<const OpRecord*> ops = find_ops(full);
  if (auto* one = find_op(full); one && full.find('.') != std::string::npos) ops = {one};
  if (ops.empty() && explain_record(name)) return kDone;
  if (ops.empty()) {
    std::vector<std::string> names;
    for (auto* op : all_ops()) names.emplace_back(op->name());
    throw Error(fmt::format("memest knows no op '{}'", name.substr(0, 80)), did_you_mean(full, names));
  }
  for (auto* op : ops) {
    const Schema& s = op->schema();
    fmt::print("{}\n  schema    {}\n", s.full_name(), op->info.schema);
    fmt::print("  saves     {}\n", *op->info.saves ? op->info.saves : "nothing");
    fmt::print("  autocast  {}\n", name_of(op->info.autocast));
    fmt::print("  source    {}\n", *op->info.source ? op->info.source : "PyTorch's own schema");
  }
  return kDone;
}

}  // namespace

Command add_explain(CLI::App& app) {
  auto what = std::make_shared<std::string>();
  auto name = std::make_shared<std::string>();
  CLI::App* sub = app.add_subcommand("explain", "What memest knows of one thing: explain op aten::mm");
  sub->add_option("WHAT", *what, "op")->required();
  sub->add_option("NAME", *name, "its name, as aten::mm")->required();
  return {sub, [what, name] {
            if (*what != "op") throw Error(fmt::format("explain: '{}' is none of op", what->substr(0, 60)));
            return explain_op(*name);
          }};
}

}  // namespace memest::cli
