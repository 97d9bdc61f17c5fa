// What a run noticed and goes on with: collected as values, printed in one spot.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace memest {

struct Diagnostic {
  enum class Severity { note, warning };
  Severity severity = Severity::warning;
  std::string code;     ///< stable, for scripts: "unknown-op"
  std::string message;  ///< one sentence
  std::string where;    ///< file, JSON pointer, node or module path; may be empty
  std::string hint;     ///< what to try; may be empty
};

class Diagnostics {
 public:
  /// Adds it unless the same code and message are there already.
  void add(Diagnostic d) {
    for (auto& old : list_)
      if (old.code == d.code && old.message == d.message) return;
    list_.push_back(std::move(d));
  }
  const std::vector<Diagnostic>& list() const { return list_; }

 private:
  std::vector<Diagnostic> list_;
};

inline std::string_view name_of(Diagnostic::Severity s) { return s == Diagnostic::Severity::note ? "note" : "warning"; }

}  // namespace memest
