// Files that hold weights and no model: checkpoints of torch.save, safetensors (github.com/huggingface/safetensors, README.md), GGUF
// (github.com/ggml-org/ggml, docs/gguf.md version 3). What loading them takes is all that can be told: --mode infer does.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "fake/runtime.h"
#include "spec/file_kind.h"
#include "spec/json_stream.h"
#include "spec/pickle.h"
#include "spec/reader.h"
#include "spec/zip_file.h"

namespace memest::spec {
namespace {

class WeightsModule final : public nn::Module {
 public:
  using Module::Module;

 protected:
  Value forward(const Values&, const KeywordArguments&) override { return None{}; }
};

/// Modules by the dots in the weights' names.
class Tree {
 public:
  explicit Tree(const std::string& kind) : root_(std::make_shared<WeightsModule>(kind)) { modules_[""] = root_.get(); }
  void add(const std::string& name, Tensor x, bool buffer) {
    const auto dot = name.rfind('.');
    WeightsModule* owner = at(dot == name.npos ? "" : name.substr(0, dot));
    const std::string last = name.substr(dot == name.npos ? 0 : dot + 1);
    if (buffer)
      owner->register_buffer(last, std::move(x));
    else
      owner->register_parameter(last, std::move(x));
  }
  nn::ModulePtr root() const { return root_; }

 private:
  WeightsModule* at(const std::string& path) {
    if (auto it = modules_.find(path); it != modules_.end()) return it->second;
    if (std::count(path.begin(), path.end(), '.') > 100) throw Error(fmt::format("the name '{}' has too many dots", path.substr(0, 80)));
    const auto dot = path.rfind('.');
    WeightsModule* parent = at(dot == path.npos ? "" : path.substr(0, dot));
    auto module = std::make_shared<WeightsModule>("Module");
    parent->register_module(path.substr(dot == path.npos ? 0 : dot + 1), module);
    return modules_[path] = module.get();
  }
  std::shared_ptr<WeightsModule> root_;
  std::map<std::string, WeightsModule*> modules_;
};

/// Integers are buffers: counters and tables, which no checkpoint tells from weights.
bool is_buffer(DType type) { return !is_differentiable(type); }

constexpr std::uint64_t kMostPickle = 512 << 20;

std::uint64_t size_of_file(std::ifstream& file) {
  file.seekg(0, std::ios::end);
  const auto size = std::uint64_t(file.tellg());
  file.seekg(0);
  return size;
}

void add_tensors(const std::vector<SavedTensor>& tensors, Tree& tree) {
  std::map<std::string, Tensor> by_storage;
  Bytes optimizer = 0;
  for (auto& t : tensors) {
    if (t.optimizer) {
      optimizer = checked_add(optimizer, checked_mul(t.sizes.numel(), item_size(t.dtype)));
      continue;
    }
    Tensor& first = by_storage[t.storage];
    const bool shared = first && first.sizes() == t.sizes && first.dtype() == t.dtype;
    if (!shared) first = host_tensor(t.sizes, t.dtype);
    tree.add(t.name, first, is_buffer(t.dtype));
  }
  if (optimizer > 0)
    runtime().diagnostics.add({Diagnostic::Severity::note, "optimizer-state",
                               fmt::format("{} bytes of an optimizer's state are in the file, too; they are not counted", optimizer), "",
                               ""});
}

void read_checkpoint(const std::string& path, Tree& tree) {
  const ZipFile zip(path);
  const ZipMember* data = nullptr;
  for (auto& m : zip.members())
    if (m.name == "data.pkl" || m.name.substr(m.name.find('/') + 1) == "data.pkl") data = &m;
  if (!data) throw Error("the checkpoint has no data.pkl");
  add_tensors(saved_tensors(zip.read(*data, kMostPickle)), tree);
}

/// The pickles stand first, and their size is not said: what follows them is not looked at.
void read_legacy_checkpoint(const std::string& path, Tree& tree) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes(std::size_t(std::min(size_of_file(file), kMostPickle)), '\0');
  file.read(bytes.data(), std::streamsize(bytes.size()));
  add_tensors(legacy_saved_tensors(bytes), tree);
}

std::uint64_t little(const char* at, int bytes) {
  std::uint64_t value = 0;
  for (int i = bytes; i-- > 0;) value = value << 8 | std::uint8_t(at[i]);
  return value;
}
void read_safetensors(const std::string& path, Tree& tree) {
  constexpr std::uint64_t kMostHeader = 100'000'000;  // the library's own limit
  static const std::map<std::string_view, DType> types{{"BOOL", DType::boolean},
                                                       {"U8", DType::uint8},
                                                       {"I8", DType::int8},
                                                       {"F8_E5M2", DType::float8_e5m2},
                                                       {"F8_E4M3", DType::float8_e4m3fn},
                                                       {"F8_E8M0", DType::uint8},
                                                       {"I16", DType::int16},
                                                       {"U16", DType::uint16},
                                                       {"F16", DType::float16},
                                                       {"BF16", DType::bfloat16},
                                                       {"I32", DType::int32},
                                                       {"U32", DType::uint32},
                                                       {"F32", DType::float32},
                                                       {"C64", DType::complex64},
                                                       {"F64", DType::float64},
                                                       {"I64", DType::int64},
                                                       {"U64", DType::uint64}};
  std::ifstream file(path, std::ios::binary);
  const std::uint64_t size = size_of_file(file);
  char raw[8];
  file.read(raw, 8);
  std::uint64_t left = little(raw, 8);
  if (left > kMostHeader || left > size - 8) throw Error(fmt::format("the header would have {} bytes: the file is cut off", left));
  const std::uint64_t data = size - 8 - left;
  JsonStream json(
      [&](char* into, std::size_t most) {
        const auto count = std::size_t(std::min<std::uint64_t>(most, left));
        file.read(into, std::streamsize(count));
        left -= count;
        return std::size_t(file.gcount());
      },
      "header");
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  json.object([&](std::string_view key) {
    if (key == "__metadata__") return json.skip();
    const std::string name(key);
    std::optional<DType> type;
    Dims sizes;
    std::vector<std::int64_t> offsets;
    json.object([&](std::string_view field) {
      if (field == "dtype") {
        const std::string text(json.string());
        auto it = types.find(text);
        if (it == types.end()) throw json.error(fmt::format("unknown dtype '{}'", text.substr(0, 40)));
        type = it->second;
      } else if (field == "shape") {
        json.array([&] {
          sizes.push_back(json.integer());
          if (sizes.back() < 0) throw json.error("a size is negative");
        });
      } else if (field == "data_offsets") {
        json.array([&] { offsets.push_back(json.integer()); });
      } else {
        json.skip();
      }
    });
    if (!type || offsets.size() != 2) throw json.error("a tensor has \"dtype\", \"shape\" and \"data_offsets\"");
    const Bytes bytes = checked_mul(sizes.numel(), item_size(*type));
    if (offsets[0] < 0 || offsets[1] < offsets[0] || std::uint64_t(offsets[1]) > data || offsets[1] - offsets[0] != bytes)
      throw json.error(
          fmt::format("its {} bytes do not lie at {} to {} of {}: the file is damaged or cut off", bytes, offsets[0], offsets[1], data));
    ranges.emplace_back(offsets[0], offsets[1]);
    tree.add(name, host_tensor(sizes, *type), is_buffer(*type));
  });
  json.finish();
  std::sort(ranges.begin(), ranges.end());
  std::int64_t end = 0;
  for (auto& [from, to] : ranges) {
    if (from != end) throw Error(fmt::format("the tensors {} at byte {} of the data", from < end ? "overlap" : "leave a hole", from));
    end = to;
  }
  if (std::uint64_t(end) != data) throw Error(fmt::format("the tensors end at byte {} of {} of data", end, data));
}

/// Reads numbers and texts, never beyond the end.
class GgufFile {
 public:
  explicit GgufFile(const std::string& path) : file_(path, std::ios::binary), size_(size_of_file(file_)) {}
  std::uint64_t number(int bytes) {
    char raw[8] = {};
    file_.read(raw, bytes);
    if (file_.gcount() != bytes) throw Error("the file ends within its header");
    return little(raw, bytes);
  }
  std::string text() {
    const std::uint64_t length = number(8);
    if (length > 16 << 20 || length > size_) throw Error(fmt::format("a text of {} bytes in the header", length));
    std::string t(length, '\0');
    file_.read(t.data(), std::streamsize(length));
    if (std::uint64_t(file_.gcount()) != length) throw Error("the file ends within its header");
    return t;
  }
  void skip(std::uint64_t bytes) {
    if (bytes > size_) throw Error("the file ends within its header");
    file_.seekg(std::streamoff(bytes), std::ios::cur);
  }
  /// A value of the key-value section.
  void skip_value(std::uint64_t type, int depth = 0) {
    static constexpr int sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type > 12 || depth > 4) throw Error(fmt::format("an unknown type {} in the header", type));
    if (type == 8) {
      text();
    } else if (type == 9) {
      const std::uint64_t inner = number(4), count = number(8);
      if (count > size_) throw Error(fmt::format("a list of {} values in the header", count));
      if (inner < 13 && sizes[inner] > 0) return skip(checked_mul(std::int64_t(count), sizes[inner]));
      for (std::uint64_t i = 0; i < count; ++i) skip_value(inner, depth + 1);
    } else {
      skip(std::uint64_t(sizes[type]));
    }
  }
  std::uint64_t size() const { return size_; }

 private:
  std::ifstream file_;
  std::uint64_t size_;
};

void read_gguf(const std::string& path, Tree& tree) {
  /// ggml.h: types by number, elements of a block and its bytes.
  struct Block {
    int elements, bytes;
  };
  static const std::map<std::uint64_t, Block> blocks{
      {2, {32, 18}},   {3, {32, 20}},    {6, {32, 22}},    {7, {32, 24}},    {8, {32, 34}},    {9, {32, 36}},
      {10, {256, 84}}, {11, {256, 110}}, {12, {256, 144}}, {13, {256, 176}}, {14, {256, 210}}, {15, {256, 292}},
      {16, {256, 66}}, {17, {256, 74}},  {18, {256, 98}},  {19, {256, 50}},  {20, {32, 18}},   {21, {256, 110}},
      {22, {256, 82}}, {23, {256, 136}}, {29, {256, 56}},  {34, {256, 54}},  {35, {256, 66}},  {39, {32, 17}}};
  static const std::map<std::uint64_t, DType> plain{{0, DType::float32}, {1, DType::float16}, {24, DType::int8},    {25, DType::int16},
                                                    {26, DType::int32},  {27, DType::int64},  {28, DType::float64}, {30, DType::bfloat16}};
  GgufFile file(path);
  file.number(4);
  const std::uint64_t version = file.number(4);
  if (version < 2 || version > 3) throw Error(fmt::format("GGUF version {}; memest reads 2 and 3 (little-endian)", version));
  const std::uint64_t tensors = file.number(8), values = file.number(8);
  if (tensors > file.size() || values > file.size()) throw Error("the header counts more entries than the file has bytes");
  for (std::uint64_t i = 0; i < values; ++i) {
    file.text();
    file.skip_value(file.number(4));
  }
  Bytes total = 0;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    const std::string name = file.text();
    const std::uint64_t dims = file.number(4);
    if (dims > 8) throw Error(fmt::format("'{}' has {} dimensions", name.substr(0, 80), dims));
    Dims sizes;
    for (std::uint64_t d = 0; d < dims; ++d) {
      sizes.insert(0, std::int64_t(file.number(8)));
      if (sizes[0] < 0) throw Error(fmt::format("a size of '{}' is negative", name.substr(0, 80)));
    }
    const std::uint64_t type = file.number(4);
    file.number(8);
    Tensor x;
    if (auto it = plain.find(type); it != plain.end()) {
      x = host_tensor(sizes, it->second);
    } else if (auto block = blocks.find(type); block != blocks.end()) {
      x = host_tensor({checked_mul(ceil_div(sizes.numel(), block->second.elements), block->second.bytes)}, DType::uint8);
    } else {
      throw Error(fmt::format("'{}' has an unknown type {}", name.substr(0, 80), type));
    }
    total = checked_add(total, checked_mul(x.numel(), item_size(x.dtype())));
    tree.add(name, x, false);
  }
  if (std::uint64_t(total) > file.size()) throw Error("the tensors have more bytes than the file: it is cut off");
}

class Weights final : public Reader {
 public:
  Weights() : Reader("weights") {}
  bool recognises(const std::string& path, const std::string& head) const override { return kind_of(path, head) != nullptr; }
  std::unique_ptr<nn::Model> read(const std::string& path, const ReadOptions& options) const override {
    std::ifstream file(path, std::ios::binary);
    std::string head(4096, '\0');
    file.read(head.data(), std::streamsize(head.size()));
    head.resize(std::size_t(file.gcount()));
    const Kind* kind = kind_of(path, head);
    if (options.training) throw not_a_model(path, head);
    auto model = std::make_unique<nn::Model>();
    Tree tree(kind->type);
    kind->read(path, tree);
    model->root = tree.root();
    model->kind = name;
    runtime().diagnostics.add(
        {Diagnostic::Severity::warning, "weights-only",
         fmt::format("this {} holds weights and no model: the figures are what loading them takes, and nothing runs", kind->text), "", ""});
    return model;
  }

 private:
  struct Kind {
    const char *type, *text;
    void (*read)(const std::string&, Tree&);
  };
  static const Kind* kind_of(const std::string& path, const std::string& head) {
    static constexpr Kind checkpoint{"Checkpoint", "checkpoint of torch.save", read_checkpoint};
    static constexpr Kind legacy{"Checkpoint", "checkpoint of torch.save before 1.6", read_legacy_checkpoint};
    static constexpr Kind safetensors{"Safetensors", "safetensors file", read_safetensors};
    static constexpr Kind gguf{"GGUF", "GGUF file", read_gguf};
    const std::string_view h(head);
    if (h.starts_with("GGUF")) return &gguf;
    if (h.size() > 9 && h[8] == '{' && h.substr(4, 4) == std::string_view("\0\0\0\0", 4)) return &safetensors;
    if (h.starts_with(kLegacyCheckpoint)) return &legacy;
    if (!h.starts_with("PK")) return nullptr;
    try {
      const ZipFile zip(path);
      bool data = false, script = false;
      for (auto& m : zip.members()) {
        const std::string_view member = std::string_view(m.name).substr(m.name.find('/') + 1);
        data = data || member == "data.pkl";
        script = script || member == "constants.pkl" || member == "archive_format";
      }
      return data && !script ? &checkpoint : nullptr;
    } catch (const Error&) {
      return nullptr;
    }
  }
};
const Weights reader;

}  // namespace
}  // namespace memest::spec
