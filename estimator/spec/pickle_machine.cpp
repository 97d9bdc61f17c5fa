#include "spec/pickle_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/error.h"

namespace memest::spec {
namespace {
using Kind = PickleObject::Kind;

bool holds(const PickleObject& o) { return o.kind >= Kind::tuple && o.kind != Kind::global && !o.items.empty(); }

/// Refuses cycles, nesting and repetition beyond the limits: lists are filled after they were put somewhere, so only the end can tell.
class Check {
 public:
  explicit Check(const PickleLimits& limits) : limits_(limits) {}

  void walk(const PickleObject* top) {
    enter(top);
    while (!path_.empty()) {
      Step& step = path_.back();
      if (step.next < step.object->items.size()) {
        enter(step.object->items[step.next++]);
      } else {
        const std::size_t visits = step.visits;
        State& state = states_[step.object];
        state = {true, visits, step.height};
        const int height = step.height;
        path_.pop_back();
        if (!path_.empty()) add(visits, height);
      }
    }
  }

 private:
  struct Step {
    const PickleObject* object;
    std::size_t next = 0, visits = 1;
    int height = 0;
  };
  struct State {
    bool done = false;
    std::size_t visits = 0;
    int height = 0;
  };

  [[noreturn]] static void refuse(const std::string& what) { throw Error("the pickle is damaged: " + what); }
  void add(std::size_t visits, int height) {
    Step& step = path_.back();
    step.visits = step.visits > limits_.most_visits - std::min(visits, limits_.most_visits) ? limits_.most_visits : step.visits + visits;
    step.height = std::max(step.height, height + 1);
    if (step.visits >= limits_.most_visits) refuse("its contents repeat one another without end");
    if (step.height > limits_.deepest) refuse(fmt::format("it nests deeper than {} levels", limits_.deepest));
  }
  void enter(const PickleObject* o) {
    if (!holds(*o)) {
      if (!path_.empty()) add(1, 0);
      return;
    }
    if (auto it = states_.find(o); it != states_.end()) {
      if (!it->second.done) refuse("an object that contains itself");
      if (!path_.empty()) add(it->second.visits, it->second.height);
      return;
    }
    if (path_.size() > std::size_t(limits_.deepest)) refuse(fmt::format("it nests deeper than {} levels", limits_.deepest));
    states_.emplace(o, State{});
    path_.push_back({o});
  }

  const PickleLimits& limits_;
  std::vector<Step> path_;
  std::unordered_map<const PickleObject*, State> states_;
};

}  // namespace

class PickleMachine {
 public:
  PickleMachine(PickleTree& tree, std::string_view bytes, const PickleLimits& limits) : tree_(tree), bytes_(bytes), limits_(limits) {
    mark_ = make(Kind::mark);
    nothing_ = make(Kind::none);
    for (int b = 0; b < 2; ++b) (booleans_[std::size_t(b)] = make(Kind::boolean))->number = b;
    empty_tuple_ = make(Kind::tuple);
    for (std::size_t n = 0; n < small_.size(); ++n) (small_[n] = make(Kind::integer))->number = std::int64_t(n);
  }

  const PickleObject* read() {
    for (;;) {
      const int op = byte();
      if (op == '.') break;
      step(op);
    }
    const PickleObject* top = pop();
    Check(limits_).walk(top);
    tree_.size_ = at_;
    return top;
  }

 private:
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
  std::string_view line() {
    const auto end = bytes_.find('\n', at_);
    if (end == bytes_.npos) throw bad("it ends early");
    const std::string_view text = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return text;
  }

  PickleObject* make(Kind kind) {
    if (tree_.objects_.size() >= limits_.most_objects) throw bad("too many objects");
    PickleObject* o = &tree_.objects_.emplace_back();
    o->kind = kind;
    return o;
  }
  void push(PickleObject* o) { stack_.push_back(o); }
  PickleObject* pop() {
    if (stack_.empty() || stack_.back()->kind == Kind::mark) throw bad("its stack is empty");
    PickleObject* o = stack_.back();
    stack_.pop_back();
    return o;
  }
  PickleObject* top() {
    PickleObject* o = pop();
    stack_.push_back(o);
    return o;
  }
  std::vector<PickleObject*> to_mark() {
    std::size_t i = stack_.size();
    while (i > 0 && stack_[i - 1]->kind != Kind::mark) --i;
    if (i == 0) throw bad("a mark is missing");
    std::vector<PickleObject*> items(stack_.begin() + std::ptrdiff_t(i), stack_.end());
    stack_.resize(i - 1);
    return items;
  }
  /// What grows must be a container of its own: the small objects are shared.
  void grow(PickleObject* into, const std::vector<PickleObject*>& items) {
    if (into->kind != Kind::list && into->kind != Kind::dict && into->kind != Kind::call) throw bad("it adds to what holds nothing");
    into->items.insert(into->items.end(), items.begin(), items.end());
  }
  void tuple(std::vector<PickleObject*> items) {
    if (items.empty()) return push(empty_tuple_);
    PickleObject* o = make(Kind::tuple);
    o->items = std::move(items);
    push(o);
  }
  void text(std::string_view t) {
    PickleObject* o = make(Kind::text);
    o->text = t;
    push(o);
  }
  void number(std::int64_t value) {
    if (value >= 0 && value < std::int64_t(small_.size())) return push(small_[std::size_t(value)]);
    PickleObject* o = make(Kind::integer);
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
  void list(Kind kind, std::vector<PickleObject*> items) {
    if (kind == Kind::dict && items.size() % 2 != 0) throw bad("a key without a value");
    PickleObject* o = make(kind);
    o->items = std::move(items);
    push(o);
  }
  void set_items(PickleObject* dict, const std::vector<PickleObject*>& items) {
    if (items.size() % 2 != 0) throw bad("a key without a value");
    grow(dict, items);
  }
  void global(std::string_view module, std::string_view name) {
    const std::string& text = tree_.names_.emplace_back(fmt::format("{}.{}", module, name));
    if (!limits_.globals) throw bad(fmt::format("it names '{}', which memest never looks up,", text.substr(0, 80)));
    PickleObject* o = make(Kind::global);
    o->text = text;
    push(o);
  }
  void call(std::initializer_list<PickleObject*> parts, Kind kind = Kind::call) {
    if (!limits_.globals) throw bad("it calls something, which memest never does,");
    PickleObject* o = make(kind);
    o->items = parts;
    push(o);
  }
  /// A place of the memo: Python counts them up, so none is beyond the bytes read.
  void remember(std::uint64_t place) {
    if (place > bytes_.size()) throw bad("it remembers at a place beyond the file");
    if (place >= memo_.size()) memo_.resize(place + 1);
    if (!memo_[place]) ++remembered_;
    memo_[place] = top();
  }
  void recall(std::uint64_t place) {
    if (place >= memo_.size() || !memo_[place]) throw bad("it recalls what it never remembered");
    push(memo_[place]);
  }

  void step(int op) {
    switch (op) {
      case 0x80:  // PROTO
        if (const int protocol = byte(); protocol > 5) throw bad(fmt::format("protocol {}", protocol));
        return;
      case 0x95: take(8); return;  // FRAME
      case '(': return push(mark_);
      case 'N': return push(nothing_);
      case 0x88:
      case 0x89: return push(booleans_[op == 0x88]);
      case 'J': return number(std::int32_t(std::uint32_t(little(4))));
      case 'K': return number(byte());
      case 'M': return number(std::int64_t(little(2)));
      case 0x8a: return long_number(take(std::uint64_t(byte())));
      case 0x8b: return long_number(take(little(4)));
      case 'G': take(8); return push(make(Kind::real));
      case 'X':
      case 'B':
      case 'T': return text(take(little(4)));
      case 0x8c:
      case 'U':
      case 'C': return text(take(std::uint64_t(byte())));
      case 0x8d: return text(take(little(8)));
      case ')': return push(empty_tuple_);
      case 0x85: return tuple({pop()});
      case 0x86: {
        PickleObject *b = pop(), *a = pop();
        return tuple({a, b});
      }
      case 0x87: {
        PickleObject *c = pop(), *b = pop(), *a = pop();
        return tuple({a, b, c});
      }
      case 't': return tuple(to_mark());
      case ']': return list(Kind::list, {});
      case '}': return list(Kind::dict, {});
      case 'l': return list(Kind::list, to_mark());
      case 'd': return list(Kind::dict, to_mark());
      case 0x8f: return list(Kind::list, {});  // EMPTY_SET
      case 'a': {
        PickleObject* item = pop();
        return grow(top(), {item});
      }
      case 'e':
      case 0x90: {
        const auto items = to_mark();
        return grow(top(), items);
      }
      case 's': {
        PickleObject *value = pop(), *key = pop();
        return set_items(top(), {key, value});
      }
      case 'u': {
        const auto items = to_mark();
        return set_items(top(), items);
      }
      case 'c': {
        const std::string_view module = line();
        return global(module, line());
      }
      case 0x93: {
        PickleObject *name = pop(), *module = pop();
        return global(module->text, name->text);
      }
      case 'R':
      case 0x81: {
        PickleObject *arguments = pop(), *callable = pop();
        return call({callable, arguments});
      }
      case 'b': {
        PickleObject* built = pop();
        return grow(top(), {built});
      }
      case 'Q': return call({pop()}, Kind::persistent);
      case 'q': return remember(std::uint64_t(byte()));
      case 'r': return remember(little(4));
      case 0x94: return remember(remembered_);
      case 'h': return recall(std::uint64_t(byte()));
      case 'j': return recall(little(4));
      case '0': pop(); return;
      case '2': return push(top());
      default: throw bad(fmt::format("an unknown opcode {:#04x}", op));
    }
  }

  PickleTree& tree_;
  const std::string_view bytes_;
  const PickleLimits& limits_;
  std::size_t at_ = 0, remembered_ = 0;
  std::vector<PickleObject*> stack_, memo_;
  PickleObject *mark_, *nothing_, *empty_tuple_;
  std::array<PickleObject*, 2> booleans_;
  std::array<PickleObject*, 256> small_;
};

PickleTree::PickleTree(std::string_view bytes, const PickleLimits& limits) { top_ = PickleMachine(*this, bytes, limits).read(); }

const PickleObject* PickleObject::find(std::string_view key) const {
  for (std::size_t i = 0; i + 1 < items.size(); i += 2)
    if (items[i]->kind == Kind::text && items[i]->text == key) return items[i + 1];
  return nullptr;
}

}  // namespace memest::spec
