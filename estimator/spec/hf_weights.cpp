// Sources: transformers 5.24 modeling_utils.py (from_pretrained), conversion_mapping.py; huggingface_hub's index files.
#include "spec/hf_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/text.h"
#include "fake/runtime.h"
#include "spec/json.h"

namespace memest::spec {
namespace fs = std::filesystem;
namespace {

using Places = std::map<std::string, Tensor>;
void collect(const nn::Module& m, const std::string& path, Places& parameters, Places& buffers) {
  const std::string prefix = path.empty() ? "" : path + ".";
  for (auto& [name, p] : m.own_parameters())
    if (p) parameters[prefix + name] = p;
  for (auto& [name, b] : m.own_buffers())
    if (b) buffers[prefix + name] = b;
  for (auto& [name, child] : m.children()) collect(*child, prefix + name, parameters, buffers);
}

/// Keys that from_pretrained passes over: tables that are made anew, and counters.
bool ignored(const std::string& name) {
  static constexpr const char* kEnds[] = {
      "inv_freq",           "masked_bias", "attn.bias", "attention.bias", "position_ids", "rotary_emb.cos_cached", "rotary_emb.sin_cached",
      "num_batches_tracked"};
  return std::any_of(std::begin(kEnds), std::end(kEnds), [&](const char* end) { return name.ends_with(end); });
}
/// TensorFlow's names of a normalisation's parameters.
std::string renamed(std::string name) {
  for (auto& [old, now] : {std::pair{".gamma", ".weight"}, std::pair{".beta", ".bias"}})
    if (name.ends_with(old)) name.replace(name.size() - std::string(old).size(), std::string::npos, now);
  return name;
}
/// The parameter of that name, with or without the base model's prefix ("model.", "bert.").
std::string place_of(const std::string& stored, const nn::Module& root, const Places& parameters, const Places& buffers) {
  const std::string name = renamed(stored);
  auto there = [&](const std::string& n) { return parameters.contains(n) || buffers.contains(n); };
  if (there(name)) return name;
  for (auto& [child, module] : root.children())
    if (there(child + "." + name)) return child + "." + name;
  if (const auto dot = name.find('.'); dot != std::string::npos && there(name.substr(dot + 1))) return name.substr(dot + 1);
  return {};
}

std::string examples(const std::vector<std::string>& names) {
  std::vector<std::string> first(names.begin(), names.begin() + std::ptrdiff_t(std::min<std::size_t>(names.size(), 3)));
  for (auto& name : first) name = name.substr(0, 100);
  return join(first, ", ") + (names.size() > 3 ? ", ..." : "");
}
void warn(const char* code, std::string message, std::string hint = {}) {
  runtime().diagnostics.add({Diagnostic::Severity::warning, code, std::move(message), "", std::move(hint)});
}

}  // namespace

void WeightFiles::add_file(const std::string& path) {
  try {
    for (auto& t : read_safetensors_header(path)) {
      sums_.bytes = checked_add(sums_.bytes, t.bytes);
      sums_.dtypes[t.stored_type] += t.bytes;
      const std::string name = t.name;
      tensors_[name] = std::move(t);
    }
  } catch (Error& e) {
    e.within(fs::path(path).filename().string());
    throw;
  }
}

void WeightFiles::read_index(const std::string& folder, const std::string& path) {
  std::set<std::string> shards;
  Bytes total = 0;
  try {
    const Json json = parse_json(read_file(path, 256 * kMiB));
    const Node top(json);
    const Node map = top.at("weight_map");
    map.object().each([&](const std::string& name, const Node& shard) {
      const std::string file = shard.text();
      if (fs::path(file).filename() != file) throw shard.error("a file of this folder, found '" + file.substr(0, 80) + "'");
      shards.insert(file);
      tensors_[name];
    });
    if (top.has("metadata")) {
      const Node metadata = top.at("metadata");
      if (metadata.has("total_size")) {
        const Node size = metadata.at("total_size");
        const double bytes = size.json().is_number() ? size.json().get<double>() : -1;  // some writers give 1.35e10
        if (!(bytes >= 0 && bytes < 9e18)) throw size.error("a number of bytes, found " + size.found());
        total = size.json().is_number_integer() ? size.json().get<Bytes>() : Bytes(bytes);
      }
    }
  } catch (Error& e) {
    e.within(fs::path(path).filename().string());
    throw;
  }
  sums_.files = std::int64_t(shards.size());
  for (auto& shard : shards) {
    const fs::path file = fs::path(folder) / shard;
    if (fs::is_regular_file(file))
      add_file(file.string());
    else
      ++absent_;
  }
  if (absent_ > 0) sums_.bytes = std::max(sums_.bytes, total);
}

std::optional<WeightFiles> WeightFiles::find(const std::string& folder) {
  WeightFiles files;
  const fs::path index = fs::path(folder) / "model.safetensors.index.json", whole = fs::path(folder) / "model.safetensors";
  if (fs::is_regular_file(index)) {
    files.read_index(folder, index.string());
  } else if (fs::is_regular_file(whole)) {
    files.add_file(whole.string());
    files.sums_.files = 1;
  } else {
    return {};
  }
  files.sums_.tensors = std::int64_t(files.tensors_.size());
  return files;
}

std::optional<DType> WeightFiles::dtype() const {
  static constexpr std::pair<const char*, DType> kFloating[] = {
      {"F32", DType::float32}, {"BF16", DType::bfloat16}, {"F16", DType::float16}};
  std::optional<DType> most;
  Bytes bytes = 0;
  for (auto& [name, type] : kFloating)
    if (auto it = sums_.dtypes.find(name); it != sums_.dtypes.end() && it->second > bytes) most = type, bytes = it->second;
  return most;
}

/// Names, shapes and numbers of elements of the files and of the model.
void WeightFiles::compare(const nn::Module& root) {
  Places parameters, buffers;
  collect(root, "", parameters, buffers);
  nn::StoredWeights& w = sums_;
  std::set<const TensorImpl*> loaded;
  std::int64_t missing_elements = 0, unexpected_elements = 0;
  bool sizes_known = true;
  for (auto& [name, tensor] : tensors_) {
    const std::string place = place_of(name, root, parameters, buffers);
    if (place.empty()) {
      if (ignored(name)) continue;
      w.unexpected.push_back(name);
      if (tensor) unexpected_elements += tensor->sizes.numel();
      sizes_known = sizes_known && tensor;
      continue;
    }
    const Tensor& x = parameters.contains(place) ? parameters[place] : buffers[place];
    loaded.insert(x.get());
    if (tensor && !(tensor->sizes == x.sizes()))
      w.mismatched.push_back(fmt::format("{} {} instead of {}", name, to_string(tensor->sizes), to_string(x.sizes())));
  }
  for (auto& [name, p] : parameters) {
    if (!loaded.insert(p.get()).second) continue;
    w.missing.push_back(name);
    missing_elements += p.numel();
  }
  // experts that are stored one by one, and the like: transformers joins and renames them as it loads
  const bool converted = sizes_known ? missing_elements == unexpected_elements : w.unexpected.size() > w.missing.size();
  if (converted && !w.missing.empty() && !w.unexpected.empty()) {
    runtime().diagnostics.add({Diagnostic::Severity::note, "weights-converted",
                               fmt::format("{} tensors of the files have other names than the {} parameters that they make{}",
                                           w.unexpected.size(), w.missing.size(), sizes_known ? ", and as many elements" : ""),
                               "", ""});
    w.missing.clear();
    w.unexpected.clear();
  }
  if (!w.missing.empty())
    warn("weights-missing", fmt::format("the files lack {} of the model's parameters: {}", w.missing.size(), examples(w.missing)),
         "transformers makes them anew; the config or --task names another model than the files hold");
  if (!w.unexpected.empty())
    warn("weights-unexpected",
         fmt::format("the files hold {} tensors that the model has not: {}", w.unexpected.size(), examples(w.unexpected)),
         "they are not loaded: a model that uses them takes more");
  if (!w.mismatched.empty())
    warn("weights-shape",
         fmt::format("{} tensors have another shape than the config says: {}", w.mismatched.size(), examples(w.mismatched)),
         "transformers refuses to load them; the figures are those of the config");
}

nn::StoredWeights WeightFiles::compared_with(const nn::Module& root, bool quantized) {
  if (absent_ > 0)
    runtime().diagnostics.add(
        {Diagnostic::Severity::note, "weights-absent",
         fmt::format("{} of {} files that the index names are not here: their tensors are known by name", absent_, sums_.files),
         "model.safetensors.index.json", ""});
  if (!quantized) compare(root);
  return std::move(sums_);
}

}  // namespace memest::spec
