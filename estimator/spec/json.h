// JSON files of users: parsed with limits, every error with file, line or JSON pointer.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "ops/value.h"

namespace memest::spec {

using Json = nlohmann::ordered_json;

/// The whole file; throws Error for a folder, a missing or unreadable file, or one above `most` bytes.
std::string read_file(const std::string& path, Bytes most = 512 * kMiB);
/// Throws Error for text that is no JSON (with line and column), nests deeper than 200, repeats a key of an object, or is not UTF-8.
Json parse_json(const std::string& text);

/// A value with its JSON pointer: accessors throw Error that says where, what was found and what is allowed.
class Node {
 public:
  Node(const Json& json, std::string pointer) : json_(&json), pointer_(std::move(pointer)) {}
  const Json& json() const { return *json_; }
  const std::string& pointer() const { return pointer_; }
  std::string where() const { return pointer_.empty() ? "/" : pointer_; }

  bool has(const std::string& key) const { return json_->is_object() && json_->contains(key); }
  Node at(const std::string& key) const;
  Node at(std::size_t index) const;
  std::size_t size() const { return json_->size(); }
  const Node& object() const;
  const Node& array() const;
  std::string text() const;
  std::int64_t integer() const;
  bool boolean() const;
  /// Throws Error for a key that is not among these, with the nearest ones.
  void allow(std::initializer_list<const char*> keys) const;
  void each(const std::function<void(const std::string& key, const Node& value)>& f) const;
  Error error(const std::string& message, const std::string& hint = {}) const;
  /// "a list of 3", "'relu'", "3.5".
  std::string found() const;

 private:
  const Json* json_;
  std::string pointer_;
};

}  // namespace memest::spec
