// What names of releases begin with.
#pragma once
#include <optional>
#include <string_view>

namespace memest {

/// Reads "MAJOR.MINOR"; returns what follows, nothing where the text begins otherwise.
std::optional<std::string_view> after_release(std::string_view text, int& major, int& minor);

}  // namespace memest
