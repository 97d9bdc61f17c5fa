#include "spec/pickle.h"

#include <fmt/format.h>

#include <cstring>
#include <deque>
#include <map>
#include <set>

#include "base/bytes.h"
#include "base/error.h"

namespace memest::spec {
namespace {

struct Object {
  enum class Kind { none, boolean, integer, real, text, tuple, list, dict, global, call, persistent, mark };
  Kind kind = Kind::none;
  std::int64_t number = 0;
  std::string text;            ///< of texts and globals
  std::vector<Object*> items;  ///< elements; keys and values by turns; of a call: what is called, its arguments, its state
  int depth = 0;
};

class Unpickler {
 public:
  explicit Unpickler(std::string_view bytes) : bytes_(bytes) {}

  Object* read() {
    for (;;) {
      const int op = byte();
      if (op == '.') return pop();
      step(op);
    }
  }

 private:
  static constexpr std::size_t kMostObjects = 20'000'000;
  static constexpr int kDeepest = 200;

  Error bad(const std::string& what) const { return Error(fmt::format("the pickle is damaged: {} at byte {}", what, at_)); }
  int byte() {
    if (at_ >= bytes_.size()) throw bad("it ends early");
    return std::uint8_t(bytes_[at_++]);
  }
  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) throw bad("it ends early");
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }
  std::uint64_t little(int count) {
    std::uint64_t value = 0;
    const std::string_view raw = take(std::uint64_t(count));
    for (int i = count; i-- > 0;) value = value << 8 | std::uint8_t(raw[std::size_t(i)]);
    return value;
  }
  std::string line() {
    const auto end = bytes_.find('\n', at_);
    if (end == bytes_.npos) throw bad("it ends early");
    std::string text(bytes_.substr(at_, end - at_));
    at_ = end + 1;
    return text;
  }

  Object* make(Object::Kind kind) {
    if (objects_.size() >= kMostObjects) throw bad("too many objects");
    objects_.emplace_back();
    objects_.back().kind = kind;
    return &objects_.back();
  }
  void push(Object* o) { stack_.push_back(o); }
  Object* pop() {
    if (stack_.empty() || stack_.back()->kind == Object::Kind::mark) throw bad("its stack is empty");
    Object* o = stack_.back();
    stack_.pop_back();
    return o;
  }
  Object* top() {
    Object* o = pop();
    stack_.push_back(o);
    return o;
  }
  std::vector<Object*> to_mark() {
    std::size_t i = stack_.size();
    while (i > 0 && stack_[i - 1]->kind != Object::Kind::mark) --i;
    if (i == 0) throw bad("a mark is missing");
    std::vector<Object*> items(stack_.begin() + std::ptrdiff_t(i), stack_.end());
    stack_.resize(i - 1);
    return items;
  }
  void add(Object* into, Object* item) {
    if (item == into) throw bad("an object that contains itself");
    into->items.push_back(item);
    into->depth = std::max(into->depth, item->depth + 1);
    if (into->depth > kDeepest) throw bad(fmt::format("it nests deeper than {} levels", kDeepest));
  }
  void tuple(std::vector<Object*> items) {
    Object* o = make(Object::Kind::tuple);
    for (Object* item : items) add(o, item);
    push(o);
  }
  void text(std::string_view t) {
    Object* o = make(Object::Kind::text);
    o->text = t;
    push(o);
  }
  void number(std::int64_t value) {
    Object* o = make(Object::Kind::integer);
    o->number = value;
    push(o);
  }
  void long_number(std::string_view raw) {
    if (raw.size() > 8) {
      for (std::size_t i = 8; i < raw.size(); ++i)
        if (std::uint8_t(raw[i]) != ((std::uint8_t(raw[7]) & 0x80) ? 0xff : 0)) throw bad("an integer of more than 64 bits");
      raw = raw.substr(0, 8);
    }
    std::uint64_t value = !raw.empty() && (std::uint8_t(raw.back()) & 0x80) ? ~std::uint64_t{0} : 0;
    for (std::size_t i = raw.size(); i-- > 0;) value = value << 8 | std::uint8_t(raw[i]);
    number(std::int64_t(value));
  }
  void remember(std::uint64_t place) { memo_[place] = top(); }
  void recall(std::uint64_t place) {
    auto it = memo_.find(place);
    if (it == memo_.end()) throw bad("it recalls what it never remembered");
    push(it->second);
  }
  void set_items(Object* dict, const std::vector<Object*>& items) {
    if (items.size() % 2 != 0) throw bad("a key without a value");
    for (Object* item : items) add(dict, item);
  }

  void step(int op) {
    using K = Object::Kind;
    switch (op) {
      case 0x80:  // PROTO
        if (const int protocol = byte(); protocol > 5) throw bad(fmt::format("protocol {}", protocol));
        return;
      case 0x95: take(8); return;  // FRAME
      case '(': return push(make(K::mark));
      case 'N': return push(make(K::none));
      case 0x88:
      case 0x89: {
        Object* o = make(K::boolean);
        o->number = op == 0x88;
        return push(o);
      }
      case 'J': return number(std::int32_t(std::uint32_t(little(4))));
      case 'K': return number(byte());
      case 'M': return number(std::int64_t(little(2)));
      case 0x8a: return long_number(take(std::uint64_t(byte())));
      case 0x8b: return long_number(take(little(4)));
      case 'G': {
        take(8);
        return push(make(K::real));
      }
      case 'X': return text(take(little(4)));
      case 0x8c: return text(take(std::uint64_t(byte())));
      case 0x8d: return text(take(little(8)));
      case 'U': return text(take(std::uint64_t(byte())));
      case 'T': return text(take(little(4)));
      case 'C': return text(take(std::uint64_t(byte())));
      case 'B': return text(take(little(4)));
      case ')': return tuple({});
      case 0x85: {
        Object* a = pop();
        return tuple({a});
      }
      case 0x86: {
        Object *b = pop(), *a = pop();
        return tuple({a, b});
      }
      case 0x87: {
        Object *c = pop(), *b = pop(), *a = pop();
        return tuple({a, b, c});
      }
      case 't': return tuple(to_mark());
      case ']': return push(make(K::list));
      case '}': return push(make(K::dict));
      case 0x8f: return push(make(K::list));  // EMPTY_SET
      case 'a': {
        Object* item = pop();
        return add(top(), item);
      }
      case 'e':
      case 0x90: {
        const auto items = to_mark();
        for (Object* item : items) add(top(), item);
        return;
      }
      case 's': {
        Object *value = pop(), *key = pop();
        return set_items(top(), {key, value});
      }
      case 'u': {
        const auto items = to_mark();
        return set_items(top(), items);
      }
      case 'c': {
        Object* o = make(K::global);
        const std::string module = line();
        o->text = module + "." + line();
        return push(o);
      }
      case 0x93: {
        Object *name = pop(), *module = pop();
        Object* o = make(K::global);
        o->text = module->text + "." + name->text;
        return push(o);
      }
      case 'R':
      case 0x81: {
        Object *arguments = pop(), *callable = pop();
        Object* o = make(K::call);
        add(o, callable);
        add(o, arguments);
        return push(o);
      }
      case 'b': {
        Object* built = pop();
        return add(top(), built);
      }
      case 'Q': {
        Object* id = pop();
        Object* o = make(K::persistent);
        add(o, id);
        return push(o);
      }
      case 'q': return remember(std::uint64_t(byte()));
      case 'r': return remember(little(4));
      case 0x94: return remember(memo_.size());
      case 'h': return recall(std::uint64_t(byte()));
      case 'j': return recall(little(4));
      case '0': pop(); return;
      case '2': return push(top());
      default: throw bad(fmt::format("an unknown opcode {:#04x}", op));
    }
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
  std::deque<Object> objects_;
  std::vector<Object*> stack_;
  std::map<std::uint64_t, Object*> memo_;
};

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
    const std::string& f = callable.text;
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
  void entries(const Object* o, std::size_t first, const std::string& name) { entries_from(o, first, o->items.size(), name); }
  void entries_from(const Object* o, std::size_t first, std::size_t end, const std::string& name) {
    for (std::size_t i = first; i + 1 < end; i += 2) {
      const Object* key = o->items[i];
      const std::string own = key->kind == Object::Kind::text ? key->text : std::to_string(key->number);
      visit(o->items[i + 1], name.empty() ? own : name + "." + own);
    }
  }

  std::vector<SavedTensor> tensors_;
};

}  // namespace

std::vector<SavedTensor> saved_tensors(std::string_view pickle) {
  Unpickler unpickler(pickle);
  const Object* top = unpickler.read();
  return Collector().take(top);
}

}  // namespace memest::spec
