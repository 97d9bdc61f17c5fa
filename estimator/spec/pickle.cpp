#include "spec/pickle.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "base/bytes.h"
#include "base/error.h"
#include "spec/pickle_machine.h"

namespace memest::spec {
namespace {

using Object = PickleObject;

class Collector {
 public:
  std::vector<SavedTensor> take(const Object* top) {
    visit(top, "");
    return std::move(tensors_);
  }

 private:
  /// What checkpoints hold beside tensors; anything else that a pickle would call is refused.
  static bool harmless(std::string_view name) {
    static const std::set<std::string_view> known{"collections.OrderedDict",
                                                  "collections.defaultdict",
                                                  "builtins.dict",
                                                  "builtins.set",
                                                  "builtins.slice",
                                                  "builtins.complex",
                                                  "torch.Size",
                                                  "torch.device",
                                                  "torch._utils._rebuild_parameter",
                                                  "torch._utils._rebuild_parameter_with_state",
                                                  "torch._utils._rebuild_tensor",
                                                  "torch._utils._rebuild_tensor_v2",
                                                  "torch._utils._rebuild_tensor_v3",
                                                  "torch._tensor._rebuild_from_type_v2",
                                                  "torch.nn.parameter.Parameter",
                                                  "argparse.Namespace",
                                                  "numpy.dtype",
                                                  "_codecs.encode",
                                                  "numpy.core.multiarray.scalar",
                                                  "numpy._core.multiarray.scalar",
                                                  "torch.serialization._get_layout"};
    return known.contains(name);
  }
  static DType dtype_of(std::string_view storage) {
    static const std::map<std::string_view, DType> types{{"torch.FloatStorage", DType::float32},
                                                         {"torch.DoubleStorage", DType::float64},
                                                         {"torch.HalfStorage", DType::float16},
                                                         {"torch.BFloat16Storage", DType::bfloat16},
                                                         {"torch.LongStorage", DType::int64},
                                                         {"torch.IntStorage", DType::int32},
                                                         {"torch.ShortStorage", DType::int16},
                                                         {"torch.CharStorage", DType::int8},
                                                         {"torch.ByteStorage", DType::uint8},
                                                         {"torch.BoolStorage", DType::boolean},
                                                         {"torch.ComplexFloatStorage", DType::complex64},
                                                         {"torch.ComplexDoubleStorage", DType::complex128},
                                                         {"torch.storage.UntypedStorage", DType::uint8},
                                                         {"torch.float32", DType::float32},
                                                         {"torch.float16", DType::float16},
                                                         {"torch.bfloat16", DType::bfloat16},
                                                         {"torch.float64", DType::float64},
                                                         {"torch.int64", DType::int64},
                                                         {"torch.int32", DType::int32},
                                                         {"torch.uint8", DType::uint8},
                                                         {"torch.int8", DType::int8},
                                                         {"torch.bool", DType::boolean},
                                                         {"torch.float8_e4m3fn", DType::float8_e4m3fn},
                                                         {"torch.float8_e5m2", DType::float8_e5m2},
                                                         {"torch.uint16", DType::uint16},
                                                         {"torch.uint32", DType::uint32},
                                                         {"torch.uint64", DType::uint64}};
    auto it = types.find(storage);
    if (it == types.end()) throw Error(fmt::format("a tensor of the unknown type '{}'", storage.substr(0, 60)));
    return it->second;
  }
  static const Object& item(const Object* o, std::size_t i) {
    if (i >= o->items.size()) throw Error("a tensor of the checkpoint lacks its description");
    return *o->items[i];
  }

  /// (storage, offset, size, stride, ...) of _rebuild_tensor_v2; v3 names the type as its last argument.
  void tensor(const Object* arguments, const std::string& name, bool v3) {
    SavedTensor t;
    t.name = name;
    const Object* id = &item(&item(arguments, 0), 0);
    if (item(arguments, 0).kind != Object::Kind::persistent || id->items.size() < 5)
      throw Error("a tensor of the checkpoint has no storage");
    t.dtype = dtype_of(v3 ? item(arguments, 6).text : item(id, 1).text);
    t.storage = item(id, 2).text;
    t.storage_numel = item(id, 4).number;
    const Object& sizes = item(arguments, 2);
    const std::string where = name.substr(0, 100);
    std::int64_t furthest = item(arguments, 1).number + 1;
    bool nothing = false;
    for (std::size_t d = 0; d < sizes.items.size(); ++d) {
      const std::int64_t size = sizes.items[d]->number, stride = item(&item(arguments, 3), d).number;
      if (sizes.items[d]->kind != Object::Kind::integer || size < 0)
        throw Error(fmt::format("a size of {} is negative", size)).within(where);
      t.sizes.push_back(size);
      nothing = nothing || size == 0;
      if (size > 0) furthest = checked_add(furthest, checked_mul(size - 1, stride));
    }
    try {
      t.sizes.numel();
    } catch (Error& e) {
      throw e.within(where);
    }
    if (!nothing && !v3 && (furthest > t.storage_numel || furthest < 0))
      throw Error(fmt::format("it reaches element {} of a storage of {}", furthest, t.storage_numel)).within(where);
    tensors_.push_back(std::move(t));
  }

  void visit(const Object* o, const std::string& name) {
    auto below = [&](const std::string& key) { return name.empty() ? key : name + "." + key; };
    switch (o->kind) {
      case Object::Kind::dict: return entries(o, 0, name);
      case Object::Kind::list:
      case Object::Kind::tuple:
        for (std::size_t i = 0; i < o->items.size(); ++i) visit(o->items[i], below(std::to_string(i)));
        return;
      case Object::Kind::call: break;
      default: return;
    }
    const Object &callable = item(o, 0), &arguments = item(o, 1);
    if (callable.kind != Object::Kind::global) throw Error("the pickle calls what is no name");
    const std::string_view f = callable.text;
    if (!harmless(f))
      throw Error(fmt::format("the pickle calls '{}': memest calls nothing, and knows no such object of a checkpoint", f.substr(0, 80)));
    if (f.starts_with("torch._utils._rebuild_tensor")) return tensor(&arguments, name, f.ends_with("_v3"));
    if (f.starts_with("torch._utils._rebuild_parameter")) {
      const std::size_t before = tensors_.size();
      visit(&item(&arguments, 0), name);
      for (std::size_t i = before; i < tensors_.size(); ++i) tensors_[i].parameter = true;
      return;
    }
    if (f == "torch._tensor._rebuild_from_type_v2") {  // (function, type, arguments, state)
      const Object &inner = item(&arguments, 0), &given = item(&arguments, 2);
      if (inner.kind == Object::Kind::global && inner.text.starts_with("torch._utils._rebuild_tensor"))
        return tensor(&given, name, inner.text.ends_with("_v3"));
      return;
    }
    // an OrderedDict: its items follow the call
    if (f == "collections.OrderedDict" || f == "collections.defaultdict" || f == "builtins.dict") {
      const std::size_t extra = (o->items.size() - 2) % 2;  // _metadata
      entries_from(o, 2, o->items.size() - extra, name);
      for (auto* given : arguments.items) visit(given, name);
    }
    for (std::size_t i = 2; i < o->items.size(); ++i)
      if (f == "argparse.Namespace") visit(o->items[i], name);
  }
  void entries(const Object* o, std::size_t first, const std::string& name) {
    const std::size_t before = tensors_.size();
    entries_from(o, first, o->items.size(), name);
    if (o->find("state") && o->find("param_groups"))  // torch.optim.Optimizer.state_dict()
      for (std::size_t i = before; i < tensors_.size(); ++i) tensors_[i].optimizer = true;
  }
  void entries_from(const Object* o, std::size_t first, std::size_t end, const std::string& name) {
    for (std::size_t i = first; i + 1 < end; i += 2) {
      const Object* key = o->items[i];
      const std::string own = key->kind == Object::Kind::text ? std::string(key->text) : std::to_string(key->number);
      visit(o->items[i + 1], name.empty() ? own : name + "." + own);
    }
  }

  std::vector<SavedTensor> tensors_;
};

}  // namespace

namespace {
constexpr PickleLimits kLimits{.most_visits = 20'000'000};
}

std::vector<SavedTensor> saved_tensors(std::string_view pickle) {
  const PickleTree tree(pickle, kLimits);
  return Collector().take(&tree.top());
}

std::vector<SavedTensor> legacy_saved_tensors(std::string_view file) {
  std::size_t at = kLegacyCheckpoint.size();
  for (const char* part : {"protocol", "machine"}) {
    try {
      at += PickleTree(file.substr(at), kLimits).size();
    } catch (Error& e) {
      throw e.within(part);
    }
  }
  return saved_tensors(file.substr(at));
}

}  // namespace memest::spec
