// JSON files of users: parsed with limits, every error with file, line or JSON pointer.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "ops/value.h"

namespace memest::spec {

using Json = nlohmann::ordered_json;

/// The whole file; throws Error for a folder, a missing or unreadable file, or one above `most` bytes.
std::string read_file(const std::string& path, Bytes most = 512 * kMiB);
/// Throws Error for text that is no JSON (with line and column), nests deeper than 200, repeats a key of an object, or is not UTF-8.
Json parse_json(const std::string& text);

/// A value that knows its place: accessors throw Error that says where, what was found and what is allowed. The place is a link to the node
/// it was reached from, which must live as long; its JSON pointer is written out only for an error.
class Node {
 public:
  explicit Node(const Json& root) : json_(&root) {}
  const Json& json() const { return *json_; }
  /// The JSON pointer (RFC 6901); "/" for the whole file.
  std::string where() const;

  bool has(const std::string& key) const { return json_->is_object() && json_->contains(key); }
  Node at(const char* key) const&;
  Node at(const char* key) const&& = delete;  // its parent would be gone
  Node at(std::size_t index) const&;
  Node at(std::size_t index) const&& = delete;
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
  Node(const Json& json, const Node& parent, std::string_view key, std::size_t index)
      : json_(&json), parent_(&parent), key_(key), index_(index) {}

  const Json* json_;
  const Node* parent_ = nullptr;
  std::string_view key_;  ///< in the parent, where that is an object
  std::size_t index_ = 0;
};

}  // namespace memest::spec
