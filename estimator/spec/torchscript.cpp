// TorchScript files: LibTorch runs the method once on the meta device (torch/record.cpp) and hands over the list of its calls.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "base/text.h"
#include "fake/counted.h"
#include "nn/custom.h"
#include "nn/tape.h"
#include "spec/json.h"
#include "spec/reader.h"
#include "spec/torch_plugin.h"
#include "spec/zip_file.h"

namespace memest::spec {
namespace {

using nn::GraphArgument;

GraphArgument constant(Value v) {
  GraphArgument a;
  a.constant = std::move(v);
  return a;
}

class TapeReader {
 public:
  explicit TapeReader(const Json& tape) : json_(tape) {}

  std::shared_ptr<nn::TapeRoot> modules() {
    std::shared_ptr<nn::TapeRoot> root;
    for (auto& m : json_.at("modules")) {
      const std::string path = m.at("path"), type = m.at("type");
      std::shared_ptr<nn::TapePart> module;
      if (!root)
        module = root = std::make_shared<nn::TapeRoot>(type);
      else
        module = std::make_shared<nn::TapePart>(type);
      for (const char* kind : {"parameters", "buffers"})
        for (auto& t : m.at(kind)) {
          Tensor& x = tensors_[t.at("value").get<int>()];
          const bool parameter = kind[0] == 'p';
          if (!x) x = tensor(t.at("value"));
          if (parameter) x->requires_grad = t.at("requires_grad").get<bool>();
          parameter ? module->register_parameter(t.at("name"), x) : module->register_buffer(t.at("name"), x);
        }
      if (!path.empty()) {
        const auto dot = path.rfind('.');
        auto& parent = by_path_.at(dot == std::string::npos ? "" : path.substr(0, dot));
        parent->register_module(path.substr(dot == std::string::npos ? 0 : dot + 1), module);
      }
      by_path_[path] = module;
    }
    if (!root) throw Error("LibTorch found no module in the file");
    return root;
  }

  /// Constants of the script that lie on the device: buffers where the file is frozen and has nothing else, else only moved with it.
  void constants(nn::TapeRoot& root, const std::map<int, Tensor>& known) {
    if (!json_.contains("constants")) return;
    const bool frozen = root.parameters().empty() && root.named_buffers().empty();
    int i = 0;
    for (auto& id : json_.at("constants")) {
      Tensor& x = tensors_[id.get<int>()];
      auto it = known.find(id.get<int>());
      x = it != known.end() ? it->second : tensor(id);
      if (it != known.end()) continue;
      frozen ? root.register_buffer(fmt::format("CONSTANTS.c{}", i++), x) : root.add_constant(x);
    }
  }

  std::shared_ptr<const nn::Tape> tape(nn::TapeRoot& root, const std::map<int, Tensor>& tensors) {
    auto tape = std::make_shared<nn::Tape>();
    const Json& values = json_.at("values");
    for (auto& v : values) tape->values.push_back(described(v));
    for (auto& [id, x] : tensors) tape->tensors.emplace_back(id, x);
    for (std::size_t i = 0; i < values.size(); ++i)
      if (values[i].contains("host")) tape->tensors.emplace_back(int(i), host_tensor(tape->values[i].sizes, tape->values[i].dtype));
    for (auto& input : json_.at("inputs")) tape->inputs.push_back(input.at("value"));
    for (auto& node : json_.at("nodes")) {
      nn::TapeCall call;
      call.target = node.at("op");
      call.record = find_op(call.target);
      const std::string path = node.at("module");
      call.module = root.find(path);
      if (!call.module) call.module = &root;
      for (auto& a : node.at("args")) call.args.push_back(argument(a));
      if (root.training) train_recurrent(call);
      if (node.contains("kwargs"))
        for (auto& [name, a] : node.at("kwargs").items()) call.kwargs.emplace_back(name, argument(a));
      for (auto& r : node.at("results")) call.results.push_back(result(r));
      if (node.contains("dead")) call.dead = node.at("dead").get<std::vector<int>>();
      tape->calls.push_back(std::move(call));
    }
    tape->output = result(json_.at("output"));
    return tape;
  }

  const std::map<int, Tensor>& tensors() const { return tensors_; }

 private:
  nn::Tape::Described described(const Json& v) const {
    nn::Tape::Described d;
    for (auto& size : v.at("shape")) d.sizes.push_back(size.get<std::int64_t>());
    auto type = dtype_from(v.at("dtype").get<std::string>());
    if (!type) throw Error(fmt::format("memest does not know the type {}", v.at("dtype").get<std::string>()));
    d.dtype = *type;
    return d;
  }
  Tensor tensor(const Json& id) const {
    const Json& v = json_.at("values").at(id.get<std::size_t>());
    const nn::Tape::Described d = described(v);
    Tensor x = host_tensor(d.sizes, d.dtype);
    if (v.contains("strides")) {
      Dims strides;
      for (auto& s : v.at("strides")) strides.push_back(s.get<std::int64_t>());
      if (is_dense(d.sizes, strides)) x->strides = strides;
    }
    return x;
  }
  GraphArgument value(int slot) const {
    GraphArgument a;
    a.form = GraphArgument::Form::value;
    a.slot = slot;
    if (slot < 0 || std::size_t(slot) >= json_.at("values").size())
      throw Error("LibTorch's list of calls names a value that it does not have");
    return a;
  }
  GraphArgument argument(const Json& j) const {
    if (j.is_null()) return constant(None{});
    if (j.is_boolean()) return constant(j.get<bool>());
    if (j.is_number_integer()) return constant(j.get<std::int64_t>());
    if (j.is_number()) return constant(j.get<double>());
    if (j.is_string()) return constant(j.get<std::string>());
    if (j.is_array()) {
      GraphArgument list;
      list.form = GraphArgument::Form::list;
      for (auto& item : j) list.items.push_back(argument(item));
      return list;
    }
    if (j.contains("value")) return value(j.at("value"));
    if (j.contains("float"))
      return constant(j.at("float") == "nan" ? std::numeric_limits<double>::quiet_NaN()
                                             : (j.at("float") == "inf" ? 1 : -1) * std::numeric_limits<double>::infinity());
    if (j.contains("dtype")) return constant(dtype_from(j.at("dtype").get<std::string>()).value());
    static constexpr std::pair<const char*, MemoryFormat> kFormats[] = {{"contiguous", MemoryFormat::contiguous},
                                                                        {"preserve", MemoryFormat::preserve},
                                                                        {"channels_last", MemoryFormat::channels_last},
                                                                        {"channels_last_3d", MemoryFormat::channels_last_3d}};
    for (auto& [format_name, format] : kFormats)
      if (j.value("memory_format", "") == format_name) return constant(format);
    throw Error("LibTorch's list of calls holds an argument that memest does not know");
  }
  /// A trace in evaluation mode holds train=False, with which cuDNN refuses the backward pass.
  static void train_recurrent(nn::TapeCall& call) {
    if (counts_libtorch()) return;
    if (!call.target.starts_with("aten::lstm") && !call.target.starts_with("aten::gru") && !call.target.starts_with("aten::rnn_")) return;
    const std::size_t train =
        call.target.ends_with(".data") ? 7 : 6;  // (input, [batch_sizes,] hx, params, has_biases, num_layers, dropout, train
    if (call.args.size() <= train) return;
    const bool* flag = std::get_if<bool>(&call.args[train].constant);
    if (!flag || *flag) return;
    call.args[train].constant = true;
    nn::report_note(
        {Diagnostic::Severity::warning, "traced-for-evaluation",
         "the file was traced in evaluation mode, in which cuDNN refuses the backward pass of recurrent layers; they are taken as "
         "in training mode",
         call.module->path(), ""});
  }
  GraphArgument result(const Json& j) const {
    if (j.is_number_integer()) return value(j);
    if (!j.is_array()) return constant(None{});
    GraphArgument list;
    list.form = GraphArgument::Form::list;
    for (auto& item : j) list.items.push_back(result(item));
    return list;
  }

  const Json& json_;
  std::map<int, Tensor> tensors_;
  std::map<std::string, std::shared_ptr<nn::TapePart>> by_path_;
};

/// The options that a recording depends on.
struct Recording {
  std::string path, method;
  std::optional<DType> dtype;
  struct Input {
    std::string name;
    std::optional<DType> dtype;
  };
  std::vector<Input> inputs;

  Json record(const std::vector<Dims>& sizes, bool training) const {
    Json request{{"what", "record"}, {"path", path}, {"method", method}, {"training", training}, {"grad", training}};
    if (dtype) request["dtype"] = name_of(*dtype);
    request["inputs"] = Json::array();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Json input{{"name", inputs[i].name}, {"shape", std::vector<std::int64_t>(sizes[i].begin(), sizes[i].end())}};
      if (inputs[i].dtype) input["dtype"] = name_of(*inputs[i].dtype);
      request["inputs"].push_back(std::move(input));
    }
    const Json tape = call_torch_plugin(request);
    for (auto& d : tape.at("diagnostics"))
      nn::report_note({Diagnostic::Severity::warning, d.at("code"), d.at("message"), d.at("where"), ""});
    return tape;
  }
};

class TorchScript final : public Reader {
 public:
  TorchScript() : Reader("torchscript") {}

  bool recognises(const std::string& path, const std::string& head) const override {
    if (!head.starts_with("PK")) return false;
    try {
      const ZipFile zip(path);
      return holds(zip, "constants.pkl") && !holds(zip, "archive_format");
    } catch (const Error&) {
      return false;
    }
  }

  std::unique_ptr<nn::Model> read(const std::string& path, const ReadOptions& options) const override {
    if (!holds(ZipFile(path), "data.pkl")) throw Error("this TorchScript file is damaged: its data.pkl is missing");
    auto symbols = std::make_shared<nn::Symbols>();
    for (auto& [size, value] : options.sizes) (*symbols)[size] = value;
    Recording recording{path, options.method.empty() ? "forward" : options.method, {}, {}};
    if (runtime().default_dtype != DType::float32) recording.dtype = runtime().default_dtype;
    std::vector<nn::InputSpec> specs;
    std::vector<Dims> sizes;
    std::vector<std::string> used;
    for (auto& given : options.inputs) {
      nn::InputSpec spec;
      spec.name = given.name;
      for (auto& s : given.shape) spec.shape.emplace_back(s);
      for (auto& s : spec.shape)
        for (auto& symbol : s.symbols()) used.push_back(symbol);
      sizes.push_back(spec.sizes(*symbols));
      recording.inputs.push_back({given.name, given.dtype});
      specs.push_back(std::move(spec));
    }
    for (auto& [size, value] : options.sizes)
      if ((size != "batch" || value != 1) && std::find(used.begin(), used.end(), size) == used.end())
        throw Error(fmt::format("no input's shape has the size '{}'", size),
                    "a TorchScript file says nothing of shapes: write --input NAME=" + size + "x...");

    const Json json = recording.record(sizes, options.training);
    TapeReader tape_reader(json);
    auto root = tape_reader.modules();
    tape_reader.constants(*root, {});
    root->training = options.training;
    if (options.training && root->parameters().empty() && !json.contains("packed"))
      throw Error("the file is frozen: its weights are constants, and nothing trains", "--mode infer");
    auto tensors = std::make_shared<std::map<int, Tensor>>(tape_reader.tensors());
    nn::TapeRoot* plain = root.get();
    auto model = std::make_unique<nn::TapeModel>(root, [recording, plain, tensors](const std::vector<Dims>& s, bool training) {
      return again(recording, *plain, *tensors, s, training);
    });
    model->kind = name;
    model->symbols = symbols;
    if (json.contains("packed")) {
      packed(json.at("packed"), *root, options);
      model->add({}, options.training, std::make_shared<nn::Tape>());  // nothing runs
      return model;
    }
    // The inputs in the method's order.
    std::vector<Recording::Input> order;
    std::vector<Dims> ordered_sizes;
    for (auto& input : json.at("inputs")) {
      const std::string input_name = input.at("name");
      auto it = std::find_if(specs.begin(), specs.end(), [&](auto& s) { return s.name == input_name; });
      if (it == specs.end()) throw Error("LibTorch's list of inputs is not the one that was asked for");
      it->keep_dtype = true;
      it->dtype = dtype_from(input.at("dtype").get<std::string>()).value();
      model->inputs.push_back(*it);
      ordered_sizes.push_back(it->sizes(*symbols));
    }
    model->add(ordered_sizes, options.training, tape_reader.tape(*root, *tensors));
    return model;
  }

 private:
  static std::shared_ptr<const nn::Tape> again(Recording recording, nn::TapeRoot& root, const std::map<int, Tensor>& tensors,
                                               const std::vector<Dims>& sizes, bool training) {
    const Json json = recording.record(sizes, training);
    TapeReader again_reader(json);
    std::map<int, Tensor> known = tensors;
    if (json.contains("constants"))
      for (auto& id : json.at("constants"))
        if (!known.contains(id.get<int>())) throw Error("the script makes other constants for other sizes, which memest does not follow");
    return again_reader.tape(root, known);
  }

  /// Whether the archive's folder holds this member.
  static bool holds(const ZipFile& zip, std::string_view member) {
    return std::any_of(zip.members().begin(), zip.members().end(), [&](auto& m) { return m.name.substr(m.name.find('/') + 1) == member; });
  }

  static void packed(const Json& list, nn::TapeRoot& root, const ReadOptions& options) {
    if (options.training) throw Error("the file holds quantised modules, which do not train", "--mode infer counts their weights");
    for (auto& p : list)
      root.register_buffer(p.at("path").get<std::string>() + ".packed", host_tensor({p.at("bytes").get<std::int64_t>()}, DType::uint8));
    nn::report_note(
        {Diagnostic::Severity::warning, "quantised",
         fmt::format("the file holds {} quantised modules, whose kernels run on the CPU only: their weights are counted, a forward is not",
                     list.size()),
         "", ""});
  }
};
const TorchScript reader;

}  // namespace
}  // namespace memest::spec
