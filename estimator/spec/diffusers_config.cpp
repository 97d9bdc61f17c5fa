#include "spec/diffusers_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "fake/runtime.h"
#include "models/diffusers/model.h"
#include "spec/config_values.h"

namespace memest::spec {
namespace fs = std::filesystem;
namespace {

struct ClassDefaults {
  const char* class_name;
  const char* json;
};
constexpr ClassDefaults kDefaults[] = {
#include "spec/diffusers_defaults.inc"
};

Json defaults_of(const std::string& class_name) {
  for (auto& d : kDefaults)
    if (class_name == d.class_name) return Json::parse(d.json);
  return Json::object();
}

class DiffusersModel final : public nn::Model {
 public:
  DiffusersModel(diffusers::NetworkPtr network, bool training) : network_(std::move(network)), training_(training) { root = network_; }
  nn::Outcome forward(const Tensors& batch) override { return network_->run(batch); }
  bool computes_loss() const override { return training_; }
  bool checkpoints_itself() const override { return true; }

 private:
  diffusers::NetworkPtr network_;
  bool training_;
};

const diffusers::ModelClass& class_of(const std::string& name) {
  std::vector<std::string> names;
  for (auto* c : diffusers::all_classes()) {
    if (name == c->name) return *c;
    names.emplace_back(c->name);
  }
  std::sort(names.begin(), names.end());
  const std::string near = did_you_mean(name, names);
  throw Error(fmt::format("memest does not build the class '{}' of diffusers", name.substr(0, 60)),
              (near.empty() ? "" : near + " ") + "it builds " + join(names, ", "))
      .within("/_class_name");
}

}  // namespace

void refuse_pipeline(const std::string& model_index) {
  const Json index = parse_json(read_file(model_index, 64 * kMiB));
  std::vector<std::string> parts;
  if (index.is_object())
    for (auto& [key, value] : index.items())
      if (!key.starts_with("_") && value.is_array() && value.size() == 2 && value[0].is_string())
        parts.push_back((fs::path(model_index).parent_path() / key).string());
  throw Error("this is a pipeline of diffusers: several models, each in a folder of its own",
              parts.empty() ? "" : "estimate one of them: " + join(parts, ", "));
}

std::unique_ptr<nn::Model> read_diffusers_config(const Json& file, const std::string& path, const ReadOptions& options) {
  const Node top(file);
  const std::string class_name = top.at("_class_name").text();
  if (class_name.ends_with("Pipeline")) refuse_pipeline(path);
  const diffusers::ModelClass& made = class_of(class_name);
  if (!options.task.empty() && !made.tasks) throw Error(fmt::format("--task: {} has one task", class_name), "leave --task out");
  if (options.generates) throw Error("--new-tokens: a model of diffusers does not generate tokens", "leave --new-tokens out");
  const std::pair<const char*, bool> others[] = {{"--transformers-version", options.transformers.has_value()},
                                                 {"--experts", !options.experts.empty()},
                                                 {"--use-cache", options.use_cache.has_value()}};
  for (auto& [option, there] : others)
    if (there) throw Error(fmt::format("{}: it is of transformers, and {} of diffusers", option, class_name), "leave it out");
  for (auto& [symbol, value] : options.sizes)
    if (symbol == "src_seq" || symbol == "tgt_seq" || symbol == "images" || symbol == "classes")
      throw Error(fmt::format("{} has no such size: {}", class_name, symbol), "docs/diffusers.md lists the inputs");
  if (options.attention != "sdpa")
    throw Error(fmt::format("--attn {}: a model of diffusers calls scaled_dot_product_attention", options.attention), "use sdpa or math");

  Json given = Json::object();
  for (auto& [key, value] : file.items())
    if (!key.starts_with("_")) given[key] = value;
  const Config config(class_name, setting_of(given), setting_of(defaults_of(class_name)), {}, "");
  diffusers::Options o;
  o.training = options.training;
  o.checkpoint = options.checkpoint && !options.reentrant;  // settle() refuses a reentrant one
  o.task = options.task;
  diffusers::NetworkPtr network = made.make(config, o);
  if (!network->runs()) {
    const std::string knows = "memest knows the parameters of " + class_name + ", and not its run";
    if (options.training) throw Error(knows, "--mode infer says what loading them takes");
    runtime().diagnostics.add(
        {Diagnostic::Severity::warning, "weights-only", knows + ": the figures are what loading takes, and nothing runs", "", ""});
  }
  auto model = std::make_unique<DiffusersModel>(network, o.training);
  model->kind = "diffusers-config";
  const fs::path p(path);
  model->name = p.filename() == "config.json" ? class_name : p.stem().string();
  for (auto& [symbol, value] : network->default_sizes()) (*model->symbols)[symbol] = value;
  for (auto& [symbol, value] : options.sizes) (*model->symbols)[symbol] = value;
  model->inputs = network->inputs();
  override_inputs(*model, options);
  for (auto& input : model->inputs) {
    const Dims sizes = input.sizes(*model->symbols);
    if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end())
      throw Error(fmt::format("{} is empty: {}", input.name, to_string(sizes)), "give larger images with --image");
  }
  if (const std::string latents = network->latents(); !latents.empty())
    runtime().diagnostics.add({Diagnostic::Severity::note, "latents", "the image's size is in pixels: " + latents, "", ""});
  return model;
}

}  // namespace memest::spec
