// The one exception type: "cannot go on". Thrown where it is found, given its place on the way up, caught once in main.
#pragma once
#include <exception>
#include <string>
#include <utility>

namespace memest {

class Error : public std::exception {
 public:
  /// What the process's exit code says of it.
  enum class Kind {
    usage,    ///< wrong usage or unreadable input: exit 2
    unknown,  ///< cannot tell (--strict met an unknown): exit 3
  };

  explicit Error(std::string message, std::string hint = {}, Kind kind = Kind::usage)
      : message_(std::move(message)), hint_(std::move(hint)), kind_(kind) {}

  const char* what() const noexcept override { return message_.c_str(); }
  const std::string& message() const { return message_; }
  /// File, JSON pointer or node and module path; outermost first. Empty where nobody said.
  const std::string& where() const { return where_; }
  /// What to try next; may be empty.
  const std::string& hint() const { return hint_; }
  Kind kind() const { return kind_; }

  /// Puts a place in front of those already there.
  Error& within(const std::string& place) {
    where_ = where_.empty() ? place : place + ": " + where_;
    return *this;
  }
  bool has_place() const { return !where_.empty(); }

 private:
  std::string message_, where_, hint_;
  Kind kind_;
};

}  // namespace memest
