#include "allocator/config.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/error.h"
#include "base/text.h"

namespace memest {
namespace {

/// The text cut at , : [ ] with spaces dropped, and a position in it.
class Tokens {
 public:
  explicit Tokens(std::string_view text) {
    std::string word;
    for (char c : text) {
      if (c == ',' || c == ':' || c == '[' || c == ']') {
        if (!word.empty()) tokens_.push_back(std::move(word));
        word.clear();
        tokens_.emplace_back(1, c);
      } else if (c != ' ' && c != '\t' && c != '\n') {
        word += c;
      }
    }
    if (!word.empty()) tokens_.push_back(std::move(word));
  }

  bool done() const { return at_ >= tokens_.size(); }
  bool next_is(std::string_view token) const { return !done() && tokens_[at_] == token; }
  std::string take(std::string_view what) {
    if (done() || tokens_[at_] == "," || tokens_[at_] == ":" || tokens_[at_] == "]") fail("expected " + std::string(what) + found());
    return tokens_[at_++];
  }
  void expect(std::string_view token) {
    if (!next_is(token)) fail("expected '" + std::string(token) + "'" + found());
    ++at_;
  }
  [[noreturn]] void fail(const std::string& message, std::string hint = {}) const {
    Error error(message, std::move(hint));
    if (!option_.empty()) error.within(option_);
    throw error.within("allocator settings");
  }
  /// Errors name this option from here on.
  void in_option(std::string name) { option_ = std::move(name); }

 private:
  std::string found() const { return done() ? " but the text ends" : ", found '" + tokens_[at_] + "'"; }

  std::vector<std::string> tokens_;
  std::size_t at_ = 0;
  std::string option_;
};

std::int64_t whole_number(Tokens& tokens, std::string_view what) {
  const std::string word = tokens.take(what);
  const auto value = parse_int(word);
  if (!value || *value < 0) tokens.fail("expected " + std::string(what) + ", found '" + word + "'");
  return *value;
}

double number(Tokens& tokens, std::string_view what) {
  const std::string word = tokens.take(what);
  const auto value = parse_number(word);
  if (!value) tokens.fail("expected " + std::string(what) + ", found '" + word + "'");
  return *value;
}

bool boolean(Tokens& tokens) {
  const std::string word = tokens.take("True or False");
  if (word != "True" && word != "False")
    tokens.fail("expected True or False, found '" + word + "'", "PyTorch reads exactly True or False here");
  return word == "True";
}

Bytes mebibytes(Tokens& tokens) {
  const std::int64_t value = whole_number(tokens, "a whole number of MiB");
  return std::min<std::int64_t>(value, AllocatorConfig::kUnlimited / kMiB) * kMiB;
}

bool power_of_two(std::int64_t value) { return value > 0 && std::has_single_bit(std::uint64_t(value)); }
int floor_log2(std::int64_t value) { return std::bit_width(std::uint64_t(value)) - 1; }

void read_roundup_list(Tokens& tokens, std::array<int, AllocatorConfig::kRoundupIntervals>& divisions) {
  constexpr int last_slot = AllocatorConfig::kRoundupIntervals - 1;
  int slot = -1;  // of the last size named
  while (!tokens.next_is("]")) {
    const std::string key = tokens.take("a size in MiB or '>'");
    tokens.expect(":");
    const std::int64_t value = whole_number(tokens, "a number of divisions");
    if (value != 0 && !power_of_two(value))
      tokens.fail("divisions must be a power of two, or 0 to switch rounding off, not " + std::to_string(value));
    if (key == ">") {  // every size above the last one named
      std::fill(divisions.begin() + std::max(0, slot + 1), divisions.end(), int(value));
    } else {
      const auto size = parse_int(key);
      if (!size || !power_of_two(*size)) tokens.fail("sizes must be powers of two in MiB or '>', found '" + key + "'");
      const bool first = slot < 0;
      slot = std::min(floor_log2(*size), last_slot);
      if (first) std::fill(divisions.begin(), divisions.begin() + slot, int(value));
      divisions[std::size_t(slot)] = int(value);
    }
    if (!tokens.next_is("]")) tokens.expect(",");
  }
  tokens.expect("]");
}

void read_roundup(Tokens& tokens, AllocatorConfig& config) {
  config.roundup_power2_divisions.fill(0);
  if (tokens.next_is("[")) {
    tokens.expect("[");
    return read_roundup_list(tokens, config.roundup_power2_divisions);
  }
  const std::int64_t value = whole_number(tokens, "a power of two or a list");
  if (!power_of_two(value)) tokens.fail("divisions must be a power of two, not " + std::to_string(value));
  config.roundup_power2_divisions.fill(int(value));
}

void read_backend(Tokens& tokens, AllocatorConfig&) {
  const std::string backend = tokens.take("a backend");
  if (backend == "native") return;
  if (backend == "cudaMallocAsync")
    tokens.fail("backend:cudaMallocAsync is not modelled: there the driver's own pool decides what is reserved",
                "leave it out to estimate with PyTorch's native allocator");
  tokens.fail("unknown backend '" + backend + "'", "PyTorch knows native and cudaMallocAsync");
}

/// A value that changes no size on the device: one word or a list.
void skip_value(Tokens& tokens, AllocatorConfig&) {
  if (!tokens.next_is("[")) {
    tokens.take("a value");
    return;
  }
  tokens.expect("[");
  while (!tokens.next_is("]")) {
    tokens.take("a name");
    tokens.expect(":");
    tokens.take("a value");
    if (!tokens.next_is("]")) tokens.expect(",");
  }
  tokens.expect("]");
}

struct Option {
  std::string_view name;
  void (*read)(Tokens&, AllocatorConfig&);
};

constexpr Option kOptions[] = {
    {"max_split_size_mb", [](Tokens& t, AllocatorConfig& c) { c.max_split_size = mebibytes(t); }},
    {"max_non_split_rounding_mb", [](Tokens& t, AllocatorConfig& c) { c.max_non_split_rounding = mebibytes(t); }},
    {"large_segment_size_mb",
     [](Tokens& t, AllocatorConfig& c) {
       c.large_segment_size = mebibytes(t);
       if (c.large_segment_size <= kMinLargeAlloc) t.fail("must be more than 10 MiB");
     }},
    {"roundup_power2_divisions", read_roundup},
    {"garbage_collection_threshold",
     [](Tokens& t, AllocatorConfig& c) {
       c.garbage_collection_threshold = number(t, "a share between 0 and 1");
       if (c.garbage_collection_threshold <= 0 || c.garbage_collection_threshold >= 1) t.fail("must lie between 0 and 1, both excluded");
     }},
    {"per_process_memory_fraction",
     [](Tokens& t, AllocatorConfig& c) {
       c.per_process_memory_fraction = number(t, "a share from 0 to 1");
       if (*c.per_process_memory_fraction < 0 || *c.per_process_memory_fraction > 1) t.fail("must lie from 0 to 1");
       if (*c.per_process_memory_fraction == 1) c.per_process_memory_fraction.reset();
     }},
    {"expandable_segments", [](Tokens& t, AllocatorConfig& c) { c.expandable_segments = boolean(t); }},
    {"backend", read_backend},
    {"release_lock_on_cudamalloc", [](Tokens& t, AllocatorConfig&) { boolean(t); }},
    {"throw_on_cudamalloc_oom", [](Tokens& t, AllocatorConfig&) { boolean(t); }},
    {"graph_capture_record_stream_reuse", [](Tokens& t, AllocatorConfig&) { boolean(t); }},
    {"expandable_segments_reserve", skip_value},
    {"expandable_segments_reserve_by_class", skip_value},
    {"pinned_use_cuda_host_register", [](Tokens& t, AllocatorConfig&) { boolean(t); }},
    {"pinned_use_background_threads", [](Tokens& t, AllocatorConfig&) { boolean(t); }},
    {"pinned_free_catch_all", [](Tokens& t, AllocatorConfig&) { boolean(t); }},
    {"pinned_num_register_threads", skip_value},
    {"pinned_reserve_segment_size_mb", skip_value},
};

void at_least_a_segment(Tokens& tokens, std::string_view option, Bytes value, Bytes segment) {
  if (value >= segment) return;
  tokens.in_option(std::string(option));
  tokens.fail("must be at least the size of a large segment, " + std::to_string(segment / kMiB) + " MiB");
}

}  // namespace

const std::vector<std::string>& AllocatorConfig::option_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Option& option : kOptions) all.emplace_back(option.name);
    return all;
  }();
  return names;
}

AllocatorConfig AllocatorConfig::parse(std::string_view text) {
  AllocatorConfig config;
  Tokens tokens(text);
  bool rounding_given = false;
  while (!tokens.done()) {
    const std::string name = tokens.take("an option");
    const Option* option = std::find_if(std::begin(kOptions), std::end(kOptions), [&](const Option& o) { return o.name == name; });
    if (option == std::end(kOptions)) tokens.fail("unknown option '" + name + "'", did_you_mean(name, option_names()));
    tokens.in_option(name);
    tokens.expect(":");
    option->read(tokens, config);
    tokens.in_option({});
    rounding_given |= name == "max_non_split_rounding_mb";
    if (!tokens.done()) tokens.expect(",");
  }
  if (!rounding_given) config.max_non_split_rounding = config.large_segment_size;
  at_least_a_segment(tokens, "max_split_size_mb", config.max_split_size, config.large_segment_size);
  at_least_a_segment(tokens, "max_non_split_rounding_mb", config.max_non_split_rounding, config.large_segment_size);
  return config;
}

Bytes AllocatorConfig::round_size(Bytes bytes) const {
  if (bytes < kMinBlockSize) return kMinBlockSize;
  const int log2 = floor_log2(bytes);
  const Bytes divisions = roundup_power2_divisions[std::size_t(std::clamp(log2 - 20, 0, kRoundupIntervals - 1))];
  if (divisions <= 1 || bytes <= kMinBlockSize * divisions) return round_up(bytes, kMinBlockSize);
  const Bytes step = (Bytes{1} << log2) / divisions;  // not 0: the size is more than 512 steps
  return round_up(bytes, step);
}

Bytes AllocatorConfig::allocation_size(Bytes rounded) const {
  if (rounded <= kSmallSize) return kSmallBuffer;
  if (rounded < kMinLargeAlloc) return large_segment_size;
  return round_up(rounded, kRoundLarge);
}

}  // namespace memest
