#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

namespace memest {
namespace {

/// Edits (insert, delete, replace, swap of neighbours) from one text to the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = std::exchange(last, row);
  }
  return last[b.size()];
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return char(c >= 'A' && c <= 'Z' ? c + 32 : c); });
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

std::string human(Bytes bytes) {
  const double size = std::fabs(double(bytes));
  if (size < 1024) return fmt::format("{} B", bytes);
  static constexpr const char* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = double(bytes) / 1024;
  int unit = 0;
  while (std::fabs(value) >= 999.5 && unit < 5) value /= 1024, ++unit;
  const double magnitude = std::fabs(value);
  return fmt::format("{:.{}f} {}", value, magnitude < 9.995 ? 2 : magnitude < 99.95 ? 1 : 0, units[unit]);
}

std::string grouped(std::int64_t number) {
  std::string digits = std::to_string(number);
  for (int i = int(digits.size()) - 3, first = number<0; i> first; i -= 3) digits.insert(std::size_t(i), ",");
  return digits;
}

std::optional<std::int64_t> parse_int(std::string_view text) {
  std::int64_t value = 0;
  auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc{} || end != text.data() + text.size() || text.empty()) return {};
  return value;
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc{} || end != text.data() + text.size() || text.empty() || !std::isfinite(value)) return {};
  return value;
}

std::optional<Bytes> parse_size(std::string_view text) {
  static constexpr std::pair<std::string_view, double> units[] = {{"tib", 1024. * 1024 * 1024 * 1024},
                                                                  {"gib", 1024. * 1024 * 1024},
                                                                  {"mib", 1024. * 1024},
                                                                  {"kib", 1024.},
                                                                  {"tb", 1e12},
                                                                  {"gb", 1e9},
                                                                  {"mb", 1e6},
                                                                  {"kb", 1e3},
                                                                  {"bytes", 1.},
                                                                  {"b", 1.}};
  std::string low = lower(trimmed(text));
  double unit = 1;
  for (auto& [name, size] : units)
    if (low.ends_with(name)) {
      low.resize(low.size() - name.size());
      unit = size;
      break;
    }
  auto value = parse_number(trimmed(low));
  if (!value || *value < 0 || *value * unit > 9e18) return {};
  return Bytes(std::llround(*value * unit));
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t start = 0;;) {
    const std::size_t end = text.find(separator, start);
    parts.emplace_back(text.substr(start, end - start));
    if (end == std::string_view::npos) return parts;
    start = end + 1;
  }
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (auto& part : parts) (text += text.empty() ? std::string_view{} : separator) += part;
  return text;
}

bool glob_match(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t]) && pattern[p] != '*') {
      ++p, ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::vector<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates, std::size_t most) {
  const std::string wanted = lower(name.substr(0, 100));
  std::vector<std::pair<std::size_t, std::string>> scored;
  for (auto& candidate : candidates) {
    const std::string low = lower(candidate);
    std::size_t distance = edit_distance(wanted, low);
    if (wanted.size() >= 3 && (low.find(wanted) != std::string::npos || (low.size() >= 3 && wanted.find(low) != std::string::npos)))
      distance = std::min<std::size_t>(distance, 1);
    if (distance <= std::max<std::size_t>(1, wanted.size() / 3)) scored.emplace_back(distance, candidate);
  }
  std::stable_sort(scored.begin(), scored.end(), [](auto& a, auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (auto& [distance, candidate] : scored)
    if (names.size() < most && std::find(names.begin(), names.end(), candidate) == names.end()) names.push_back(candidate);
  return names;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  auto names = nearest(name, candidates);
  if (names.empty()) return {};
  std::string text = "did you mean " + names[0];
  for (std::size_t i = 1; i < names.size(); ++i) text += (i + 1 == names.size() ? " or " : ", ") + names[i];
  return text + "?";
}

}  // namespace memest
