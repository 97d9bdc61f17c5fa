// Runs every recorded case of tests/ops/recorded as the recording did and compares each allocation and free: README.md.
//   ops_test [FOLDER] [--only TEXT]...   the cases whose line contains every TEXT; all, and the checks of the records, without
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "nn/layer.h"
#include "ops/ops.h"
#include "optim/optimizer.h"

namespace memest {
namespace {
using Json = nlohmann::json;
namespace fs = std::filesystem;

/// What the runtime did between points, blocks numbered as they are allocated.
class Recording {
 public:
  /// The storages of `known` have the first numbers.
  void start(const Tensors& known) {
    position_ = runtime().trace.events.size();
    for (auto& x : known) {
      numbers_[x->storage->block] = ++count_;
      ops_.emplace_back("argument");
    }
  }
  void point(bool keep) {
    const auto& events = runtime().trace.events;
    std::string words;
    for (; position_ < events.size(); ++position_) {
      const MemoryEvent& e = events[position_];
      if (e.kind == MemoryEvent::Kind::alloc && keep) {
        numbers_[e.block] = ++count_;
        words += fmt::format("{}+{}", words.empty() ? "" : " ", e.bytes);
        ops_.push_back(e.op);
      } else if (e.kind == MemoryEvent::Kind::free && numbers_.contains(e.block)) {
        words += fmt::format("{}-{}", words.empty() ? "" : " ", numbers_[e.block]);
      }
    }
    if (keep) text_ += (parts_++ ? " | " : "") + words;
  }
  const std::string& text() const { return text_; }
  /// "1 aten::exp, 2 ExpBackward0": which op made each block.
  std::string ops() const {
    std::string out;
    for (std::size_t i = 0; i < ops_.size(); ++i) out += fmt::format("{}{} {}", i ? ", " : "", i + 1, ops_[i]);
    return out;
  }

 private:
  std::size_t position_ = 0;
  int count_ = 0, parts_ = 0;
  std::map<BlockId, int> numbers_;
  std::vector<std::string> ops_;
  std::string text_;
};

DType dtype_of(const std::string& name) {
  auto t = dtype_from(name);
  if (!t) throw Error("no dtype " + name);
  return *t;
}

/// The records that ran.
std::set<const OpRecord*> covered;

class Case {
 public:
  explicit Case(const Json& json) : json_(json), op_(json["op"]), dtype_(dtype_of(json["dtype"])) {}

  void run(Recording& recording) {
    Values args;
    for (auto& a : json_["args"]) args.push_back(value(a));
    KeywordArguments kwargs;
    const Json given = json_.value("kwargs", Json::object());
    for (auto& [name, v] : given.items()) kwargs.emplace_back(name, value(v));
    nn::ModulePtr layer;
    if (op_.starts_with("nn.")) layer = make_layer();
    Value out;
    recording.start(fresh_);
    fresh_.clear();
    const bool fresh = json_.value("fresh", false);
    {
      GradMode grad(!json_.value("no_grad", false));
      if (json_.contains("amp")) {
        AutocastContext autocast(true, dtype_of(json_["amp"]));
        out = call(layer, args, kwargs);
      } else {
        out = call(layer, args, kwargs);
      }
    }
    if (!fresh) recording.point(true);
    Tensors results;
    collect_tensors(out, results);
    out = None{};
    drop(args), kwargs.clear();
    if (fresh) recording.point(true);
    Tensors roots, ones;
    for (auto& r : results)
      if (r.requires_grad()) roots.push_back(r);
    for (auto& r : roots) ones.push_back(ops::ones_like(r, std::nullopt, std::nullopt));
    recording.point(false);
    if (!roots.empty()) backward(roots, ones);
    recording.point(true);
    roots.clear();
    while (!results.empty()) results.erase(results.begin());
    ones.clear();
    for (auto& x : inputs_) x->grad.reset();
    inputs_.clear();
    recording.point(true);
  }

 private:
  /// As a Python list lets go of its items: the last first.
  static void drop(Values& items) {
    for (; !items.empty(); items.pop_back())
      if (auto* list = std::get_if<std::shared_ptr<List>>(&items.back()); list && list->use_count() == 1) drop((*list)->items);
  }

  Value call(const nn::ModulePtr& layer, const Values& args, const KeywordArguments& kwargs) {
    if (layer) return layer->call(args, kwargs);
    if (op_.starts_with("aten::")) {
      const bool named = op_.find('.') != std::string::npos;  // an overload; else the first that fits, as call_op chooses
      std::vector<const OpRecord*> overloads = named ? std::vector<const OpRecord*>{find_op(op_)} : find_ops(op_);
      if (overloads.empty() || !overloads[0]) throw Error("memest has no record " + op_);
      std::string problem;
      for (auto* record : overloads)
        if (auto bound = bind_arguments(record->schema(), args, kwargs, problem)) {
          covered.insert(record);
          return record->call(*bound);
        }
      throw Error(problem);
    }
    return nn::call_function(op_.substr(op_.find('.') + 1), args, kwargs, op_.starts_with("Tensor."));
  }

  nn::ModulePtr make_layer() {
    KeywordArguments init;
    const Json given = json_.value("init", Json::object());
    for (auto& [name, v] : given.items()) init.emplace_back(name, value(v));
    Scoped<DType> dtype(runtime().default_dtype, dtype_);
    auto layer = nn::make_layer(op_.substr(3), init);
    layer->to_device();
    layer->train(!json_.value("eval", false));
    for (auto& p : layer->parameters()) inputs_.push_back(p);
    for (auto& [name, b] : layer->named_buffers()) inputs_.push_back(b);
    return layer;
  }

  bool in_place() const {  // "relu_", "add_.Tensor", but not "__and__"
    const auto end = op_.find('.', op_.starts_with("aten::") ? 0 : op_.find('.') + 1);
    const std::string name = op_.substr(0, end);
    return name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_';
  }

  Tensor tensor(const Json& spec) {
    const Dims sizes(spec["tensor"].get<std::vector<std::int64_t>>());
    const DType type = spec.contains("dtype") ? dtype_of(spec["dtype"]) : dtype_;
    const MemoryFormat last = sizes.size() == 5 ? MemoryFormat::channels_last_3d : MemoryFormat::channels_last;
    Tensor leaf;
    if (spec.value("host", false))
      leaf = host_tensor(sizes, type);
    else if (spec.contains("strides"))
      leaf = empty_strided(sizes, Dims(spec["strides"].get<std::vector<std::int64_t>>()), type);
    else
      leaf = empty(sizes, type,
                   json_.value("channels_last", false) && (sizes.size() == 4 || sizes.size() == 5) ? last : MemoryFormat::contiguous);
    const bool grad = spec.value("grad", false) && is_differentiable(type);
    leaf->requires_grad = grad;
    const bool first = inputs_.empty();
    inputs_.push_back(leaf);
    if (json_.value("fresh", false) && !leaf.on_host()) {
      Tensor copy = ops::clone(leaf, std::nullopt);
      fresh_.push_back(copy);
      return spec.contains("expand") ? Tensor(ops::expand(copy, Dims(spec["expand"].get<std::vector<std::int64_t>>()), false)) : copy;
    }
    if (spec.contains("expand")) return ops::expand(leaf, Dims(spec["expand"].get<std::vector<std::int64_t>>()), false);
    return grad && first && in_place() ? ops::clone(leaf, std::nullopt) : leaf;
  }

  Value value(const Json& j) {
    if (j.is_array()) {
      Values items;
      for (auto& i : j) items.push_back(value(i));
      return make_list(std::move(items));
    }
    if (j.is_object()) {
      if (j.contains("tensor")) return tensor(j);
      if (j.contains("dtype")) return dtype_of(j["dtype"]);
      if (j.contains("float")) return std::stod(j["float"].get<std::string>());  // "inf", "-inf", "nan"
      if (j.contains("memory_format")) {
        const std::string name = j["memory_format"];
        return name == "channels_last"      ? MemoryFormat::channels_last
               : name == "channels_last_3d" ? MemoryFormat::channels_last_3d
               : name == "preserve_format"  ? MemoryFormat::preserve
                                            : MemoryFormat::contiguous;
      }
      if (j.contains("tuple")) {
        Values items;
        for (auto& i : j["tuple"]) items.push_back(value(i));
        return make_tuple(std::move(items));
      }
      if (j.contains("slice")) {
        Values parts;
        for (auto& i : j["slice"]) parts.push_back(value(i));
        if (parts.size() == 1) parts.insert(parts.begin(), None{});
        parts.resize(3);
        return std::make_shared<Slice>(Slice{parts[0], parts[1], parts[2]});
      }
      if (j.contains("ellipsis")) return Ellipsis{};
      if (j.contains("same")) return inputs_.at(j["same"].get<std::size_t>());
      if (j.contains("type")) {  // a layer as another's argument
        auto layer = std::make_shared<Dict>();
        for (auto& [key, v] : j.items()) layer->items.emplace_back(key, value(v));
        return layer;
      }
      throw Error("no value: " + j.dump());
    }
    if (j.is_string()) return j.get<std::string>();
    if (j.is_boolean()) return j.get<bool>();
    if (j.is_number_integer()) return j.get<std::int64_t>();
    if (j.is_number()) return j.get<double>();
    return None{};
  }

  const Json& json_;
  std::string op_;
  DType dtype_;
  Tensors inputs_, fresh_;
};

struct Line {
  std::string file, case_text, expected;
};

std::vector<Line> read(const fs::path& folder) {
  std::vector<fs::path> files;
  for (auto& entry : fs::directory_iterator(folder / "recorded"))
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Line> lines;
  for (auto& file : files) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
      const auto tab = line.find('\t');
      if (tab != std::string::npos) lines.push_back({file.stem().string(), line.substr(0, tab), line.substr(tab + 1)});
    }
  }
  return lines;
}

/// True where the case matches.
/// Whether memest makes the recorded sequence; says what differs unless the difference is known.
bool check(const Line& line, bool known) {
  std::string problem;
  Recording recording;
  const Json json = Json::parse(line.case_text);
  {
    Runtime rt(RunSettings::for_device(default_device(), TorchVersion::newest()));
    try {
      Case(json).run(recording);
    } catch (const Error& e) {
      problem = e.what();
    }
  }
  if (problem.empty() && recording.text() == line.expected) return true;
  if (known) return false;
  fmt::print("{}: {}\n    PyTorch {}\n", line.file, line.case_text, line.expected);
  if (!problem.empty())
    fmt::print("    memest  refuses: {}\n", problem);
  else
    fmt::print("    memest  {}\n            {}\n", recording.text(), recording.ops());
  return false;
}

/// C++ parameters against the parsed schema.
template <class R>
int check_kinds(const std::vector<const R*>& records, const char* (*signature)(const R*)) {
  int wrong = 0;
  for (auto* record : records) {
    std::vector<std::pair<Kind, bool>> wanted;
    for (auto& a : record->schema().arguments)
      if (a.kind != Kind::ignored) wanted.emplace_back(a.kind, a.optional);
    const auto found = record->parameter_kinds();
    bool same = found.size() == wanted.size();
    // A C++ parameter may be able to hold nothing where the schema does not allow it (a tensor is one), never the other way.
    for (std::size_t i = 0; same && i < found.size(); ++i)
      same = found[i].first == wanted[i].first && (found[i].second || !wanted[i].second);
    if (!same) {
      fmt::print("the C++ parameters are not those of the schema: {}\n", signature(record));
      ++wrong;
    }
  }
  return wrong;
}

int check_records() {
  int wrong = check_kinds<OpRecord>(all_ops(), [](const OpRecord* r) { return r->info.schema; });
  wrong += check_kinds<nn::LayerRecord>(nn::all_layers(), [](const nn::LayerRecord* r) { return r->signature(); });
  wrong += check_kinds<nn::FunctionRecord>(nn::all_functions(), [](const nn::FunctionRecord* r) { return r->signature(); });
  wrong += check_kinds<optim::OptimizerRecord>(optim::all_optimizers(), [](const optim::OptimizerRecord* r) { return r->signature(); });
  std::set<std::string> names;
  for (auto* op : all_ops())
    if (!names.insert(op->schema().full_name()).second) {
      fmt::print("two records of {}\n", op->schema().full_name());
      ++wrong;
    }
  return wrong;
}

/// Records without a recorded case that uncovered.txt does not name, and names there that are covered or no records.
int check_coverage(const fs::path& folder) {
  std::map<std::string, bool> allowed;  // name: met
  std::ifstream in(folder / "uncovered.txt");
  int wrong = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    const auto space = line.find(' ');
    if (space == std::string::npos) {
      fmt::print("uncovered.txt: no reason for {}\n", line);
      ++wrong;
    }
    allowed[line.substr(0, space)] = false;
  }
  for (auto* op : all_ops()) {
    const std::string name = op->schema().full_name();
    auto it = allowed.find(name);
    if (it != allowed.end()) it->second = true;
    if (covered.contains(op)) {
      if (it != allowed.end()) fmt::print("uncovered.txt names {}, which has recorded cases\n", name), ++wrong;
    } else if (it == allowed.end()) {
      fmt::print("no recorded case: {}\n", name);
      ++wrong;
    }
  }
  for (auto& [name, met] : allowed)
    if (!met) fmt::print("uncovered.txt names {}, which is no record\n", name), ++wrong;
  return wrong;
}

int run(int argc, char** argv) {
  fs::path folder = "tests/ops";
  std::vector<std::string> only;
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--only") && i + 1 < argc)
      only.emplace_back(argv[++i]);
    else
      folder = argv[i];
  }
  // Cases that are recorded and not met yet. One that is met must leave the list, so that it only shrinks.
  std::set<std::string> known;
  {
    std::ifstream in(folder / "known_differences.txt");
    for (std::string line; std::getline(in, line);)
      if (!line.empty() && line[0] != '#') known.insert(line);
  }
  int cases = 0, failed = 0;
  for (auto& line : read(folder)) {
    bool wanted = true;
    for (auto& text : only) wanted &= (line.file + ": " + line.case_text).find(text) != std::string::npos;
    if (!wanted) continue;
    ++cases;
    const std::string name = line.file + ": " + line.case_text;
    const bool is_known = known.contains(name), met = check(line, is_known);
    if (met && is_known) fmt::print("known_differences.txt names a case that is met: remove {}\n", name);
    failed += met == is_known;
  }
  int wrong = 0;
  if (only.empty()) wrong = check_records() + check_coverage(folder);
  fmt::print("{} cases, {} known to differ, {} wrong; {} records or their cases are wrong\n", cases, known.size(), failed, wrong);
  return failed || wrong || !cases ? 1 : 0;
}

}  // namespace
}  // namespace memest

int main(int argc, char** argv) {
  try {
    return memest::run(argc, argv);
  } catch (const std::exception& e) {
    fmt::print("ops_test: {}\n", e.what());
    return 2;
  }
}
