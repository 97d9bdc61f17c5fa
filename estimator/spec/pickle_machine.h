// Python's pickle machine without Python: a stream of opcodes becomes plain records, and nothing that it names is looked up or called
// (Lib/pickletools.py of CPython). For protocols 2 to 5; of older ones only the opcodes that those still have.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace memest::spec {

struct PickleObject {
  enum class Kind : std::uint8_t { none, boolean, integer, real, text, tuple, list, dict, global, call, persistent, mark };
  Kind kind = Kind::none;
  std::int64_t number = 0;           ///< of booleans and integers
  std::string_view text;             ///< of texts and globals ("module.name")
  std::vector<PickleObject*> items;  ///< elements; keys and values by turns; of a call: what is called, its arguments, its state

  /// The value of a dict's key, null where it has none.
  const PickleObject* find(std::string_view key) const;
};

struct PickleLimits {
  bool globals = true;                        ///< false: names of functions and classes are refused, as are calls of them
  std::size_t most_objects = 20'000'000;      ///< containers, texts, numbers that are not small
  std::size_t most_visits = std::size_t(-1);  ///< objects that a walk over all contents meets, those that are shared as often as they occur
  int deepest = 200;
};

/// The object that a pickle holds. No object contains itself, and none nests deeper than the limit says, so a walk over it ends.
class PickleTree {
 public:
  /// The bytes must live as long as the tree, whose texts lie in them. Throws Error for a damaged pickle or one beyond the limits.
  PickleTree(std::string_view bytes, const PickleLimits& limits);
  const PickleObject& top() const { return *top_; }
  /// Bytes up to the pickle's end, after which another one may begin.
  std::size_t size() const { return size_; }

 private:
  friend class PickleMachine;
  std::deque<PickleObject> objects_;
  std::deque<std::string> names_;  // of globals
  const PickleObject* top_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace memest::spec
