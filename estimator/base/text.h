// Text for people: sizes, lists, near names.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace memest {

/// "4.41 GiB", "195 MiB", "512 B": three significant digits.
std::string human(Bytes bytes);
/// "25,557,032".
std::string grouped(std::int64_t number);
/// "24GiB", "11.5 GB", "512MiB", "1024", "1024 bytes"; nothing where the text is no size.
std::optional<Bytes> parse_size(std::string_view text);
/// A decimal integer that fills the whole text.
std::optional<std::int64_t> parse_int(std::string_view text);
/// A finite number that fills the whole text.
std::optional<double> parse_number(std::string_view text);
std::vector<std::string> split(std::string_view text, char separator);
std::string join(const std::vector<std::string>& parts, std::string_view separator);
/// Shell-style match of a whole name: * any run, ? one character.
bool glob_match(std::string_view pattern, std::string_view text);
/// The few candidates nearest to a name, by edits and common starts; none where all are far.
std::vector<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates, std::size_t most = 3);
/// "did you mean a, b or c?", or "" where none is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace memest
