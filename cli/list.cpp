// memest list specs|gpus|optimizers|losses|layers|ops
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "device/device.h"
#include "models/diffusers/model.h"
#include "models/hf/family.h"
#include "nn/layer.h"
#include "ops/op.h"
#include "optim/optimizer.h"
#include "run/loss.h"
#include "spec/reader.h"

namespace memest::cli {
namespace {

void list_specs() {
  for (auto& name : spec::shipped_specs()) fmt::print("{}\n", name);
}
void list_gpus() {
  fmt::print("{:<16} {:<30} {:>10} {:>4} {:>6} {:>10}  {}\n", "name", "product", "memory", "SMs", "sm", "context", "source");
  for (auto& d : device_catalogue())
    fmt::print("{:<16} {:<30} {:>10} {:>4} {:>6} {:>10}  {}\n", d.name, d.product, human(d.total_memory), d.multiprocessors,
               fmt::format("{}.{}", d.major, d.minor), human(d.context), d.source);
}
/// What SPEC may name: shipped specs, the model types of Hugging Face configs with their tasks, the classes of diffusers.
void list_models() {
  for (auto& name : spec::shipped_specs()) fmt::print("{:<24} shipped spec\n", name);
  for (auto& name : hf::all_model_types()) {
    std::vector<std::string> tasks;
    for (auto& c : hf::find_family(name)->classes)
      if (std::string task(hf::name_of(c.task)); std::find(tasks.begin(), tasks.end(), task) == tasks.end()) tasks.push_back(task);
    fmt::print("{:<24} config.json of Hugging Face: {}\n", name, join(tasks, ", "));
  }
  std::vector<std::string> classes;
  for (auto* c : diffusers::all_classes()) classes.emplace_back(c->name);
  std::sort(classes.begin(), classes.end());
  for (auto& name : classes) fmt::print("{:<24} config.json of diffusers\n", name);
}
void list_optimizers() {
  for (auto* record : optim::all_optimizers()) fmt::print("{}\n    state: {}\n", record->signature(), record->state);
  fmt::print("none\n");
}
void list_losses() {
  for (auto* loss : run::all_losses()) fmt::print("{:<23} {}\n", loss->name, loss->what);
}
void list_layers() {
  for (auto* c : nn::all_containers()) fmt::print("{}(layers)  {}\n", c->name, c->what);
  std::vector<std::string> signatures;
  for (auto* l : nn::all_layers()) signatures.emplace_back(l->signature());
  std::sort(signatures.begin(), signatures.end());
  for (auto& s : signatures) fmt::print("{}\n", s);
}
void list_ops() {
  std::vector<const OpRecord*> ops = all_ops();
  std::sort(ops.begin(), ops.end(), [](auto* a, auto* b) { return std::string_view(a->info.schema) < std::string_view(b->info.schema); });
  for (auto* op : ops)
    fmt::print("{}\n    saves: {}  autocast: {}  source: {}\n", op->info.schema, *op->info.saves ? op->info.saves : "nothing",
               name_of(op->info.autocast), *op->info.source ? op->info.source : "PyTorch's own schema");
}

struct Kind {
  const char* name;
  void (*print)();
};
constexpr Kind kKinds[] = {{"specs", list_specs},   {"models", list_models}, {"gpus", list_gpus}, {"optimizers", list_optimizers},
                           {"losses", list_losses}, {"layers", list_layers}, {"ops", list_ops}};

}  // namespace

Command add_list(CLI::App& app) {
  auto what = std::make_shared<std::string>();
  CLI::App* sub = app.add_subcommand("list", "What memest knows: specs, models, gpus, optimizers, losses, layers, ops");
  sub->add_option("WHAT", *what, "specs, models, gpus, optimizers, losses, layers or ops")->required();
  return {sub, [what] {
            std::vector<std::string> names;
            for (auto& kind : kKinds) {
              if (*what == kind.name) {
                kind.print();
                return int(kDone);
              }
              names.emplace_back(kind.name);
            }
            throw Error(fmt::format("list: '{}' is none of {}", what->substr(0, 60), join(names, ", ")), did_you_mean(*what, names));
          }};
}

}  // namespace memest::cli
