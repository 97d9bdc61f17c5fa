#include "spec/zip_file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"

namespace memest::spec {
namespace {

constexpr std::uint64_t kMostMembers = 4'000'000, kMostDirectory = std::uint64_t{1} << 30;
constexpr std::size_t kPiece = 256 * 1024;

std::uint64_t little(const char* at, int bytes) {
  std::uint64_t value = 0;
  for (int i = bytes; i-- > 0;) value = value << 8 | std::uint8_t(at[i]);
  return value;
}

struct Directory {
  std::uint64_t offset, size, entries;
  std::uint64_t end;  ///< offset of the record that describes it
};

std::string bytes_at(std::ifstream& file, std::uint64_t offset, std::uint64_t count) {
  std::string bytes(count, '\0');
  file.clear();
  file.seekg(std::streamoff(offset));
  file.read(bytes.data(), std::streamsize(count));
  if (std::uint64_t(file.gcount()) != count) throw Error("the file ends within the zip's directory");
  return bytes;
}

/// The end record is the last thing in the file but for its own comment: an archive stored inside ends earlier.
Directory find_directory(std::ifstream& file, std::uint64_t base, std::uint64_t size) {
  constexpr std::uint64_t kEnd = 22, kComment = 65535, kLocator = 20, kEnd64 = 56;
  const std::uint64_t tail_size = std::min(size, kEnd + kComment);
  const std::string tail = bytes_at(file, base + size - tail_size, tail_size);
  for (std::size_t at = tail.size() < kEnd ? 0 : tail.size() - kEnd + 1; at-- > 0;) {
    const char* p = tail.data() + at;
    if (std::memcmp(p, "PK\5\6", 4) != 0 || at + kEnd + little(p + 20, 2) != tail.size()) continue;
    Directory d{little(p + 16, 4), little(p + 12, 4), little(p + 10, 2), size - tail_size + at};
    if (little(p + 4, 2) != 0 && little(p + 4, 2) != 0xffff) throw Error("the zip is one part of several");
    if (d.end < kLocator) return d;
    const std::string locator = bytes_at(file, base + d.end - kLocator, kLocator);
    if (std::memcmp(locator.data(), "PK\6\7", 4) != 0) return d;
    const std::uint64_t record = little(locator.data() + 8, 8);
    if (record > d.end - kLocator || d.end - kLocator - record < kEnd64) throw Error("the zip64 record lies outside the file");
    const std::string end64 = bytes_at(file, base + record, kEnd64);
    if (std::memcmp(end64.data(), "PK\6\6", 4) != 0) throw Error("the zip64 record is damaged");
    return {little(end64.data() + 48, 8), little(end64.data() + 40, 8), little(end64.data() + 32, 8), record};
  }
  throw Error("the zip's end is missing: the file is cut off", "download or save it again");
}

/// Sizes of 4 GiB and more stand in an extra field.
void apply_zip64(ZipMember& m, std::string_view extra) {
  while (extra.size() >= 4) {
    const std::uint64_t id = little(extra.data(), 2), length = little(extra.data() + 2, 2);
    if (length > extra.size() - 4) return;
    if (id == 1) {
      std::string_view field = extra.substr(4, length);
      for (std::uint64_t* value : {&m.size, &m.compressed, &m.header}) {
        if (*value != 0xffffffff || field.size() < 8) continue;
        *value = little(field.data(), 8);
        field.remove_prefix(8);
      }
    }
    extra.remove_prefix(4 + length);
  }
}

}  // namespace

ZipFile::ZipFile(const std::string& path) : path_(path) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(0, std::ios::end);
  if (!file) throw Error("cannot be read");
  size_ = std::uint64_t(file.tellg());
  read_directory();
}
ZipFile::ZipFile(const ZipFile& outer, const ZipMember& member) : path_(outer.path_), size_(member.size) {
  if (member.method != 0 || member.size != member.compressed) throw Error("an archive that is packed in another cannot be read in place");
  std::ifstream file(path_, std::ios::binary);
  base_ = outer.start_of(file, member);
  read_directory();
}

void ZipFile::read_directory() {
  std::ifstream file(path_, std::ios::binary);
  const Directory d = find_directory(file, base_, size_);
  if (d.offset > d.end || d.size != d.end - d.offset) throw Error("the zip's directory is not where its end says");
  if (d.size > kMostDirectory || d.entries > kMostMembers)
    throw Error(fmt::format("the zip's directory has {} entries in {} bytes: memest reads {} and {} at most", d.entries, d.size,
                            kMostMembers, kMostDirectory));
  const std::string directory = bytes_at(file, base_ + d.offset, d.size);
  std::string_view rest(directory);
  while (!rest.empty()) {
    constexpr std::size_t kEntry = 46;
    if (rest.size() < kEntry || std::memcmp(rest.data(), "PK\1\2", 4) != 0) throw Error("the zip's directory is damaged");
    const char* p = rest.data();
    const std::size_t name = little(p + 28, 2), extra = little(p + 30, 2), comment = little(p + 32, 2);
    if (rest.size() < kEntry + name + extra + comment) throw Error("the zip's directory is damaged");
    ZipMember m;
    m.name = rest.substr(kEntry, name);
    m.flags = std::uint16_t(little(p + 8, 2));
    m.method = std::uint16_t(little(p + 10, 2));
    m.crc = std::uint32_t(little(p + 16, 4));
    m.compressed = little(p + 20, 4);
    m.size = little(p + 24, 4);
    m.header = little(p + 42, 4);
    apply_zip64(m, rest.substr(kEntry + name, extra));
    members_.push_back(std::move(m));
    rest.remove_prefix(kEntry + name + extra + comment);
  }
  if (members_.size() != d.entries)
    throw Error(fmt::format("the zip's end counts {} members, its directory has {}", d.entries, members_.size()));
  // No member may reach into the next one or the directory.
  std::vector<const ZipMember*> ordered;
  for (auto& m : members_) ordered.push_back(&m);
  std::sort(ordered.begin(), ordered.end(), [](auto* a, auto* b) { return a->header < b->header; });
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    const std::uint64_t end = i + 1 < ordered.size() ? ordered[i + 1]->header : d.offset;
    constexpr std::uint64_t kLocal = 30;
    const ZipMember& m = *ordered[i];
    if (m.header > end || end - m.header < kLocal + m.name.size() || end - m.header - kLocal - m.name.size() < m.compressed)
      throw Error(fmt::format("the zip's member '{}' overlaps another or lies outside the file", m.name.substr(0, 80)));
  }
}

const ZipMember* ZipFile::find(std::string_view name) const {
  const ZipMember* found = nullptr;
  for (auto& m : members_) {
    if (m.name != name) continue;
    if (found) throw Error(fmt::format("the archive holds two members '{}'", name.substr(0, 80)));
    found = &m;
  }
  return found;
}

struct ZipFile::Stream::State {
  std::ifstream file;
  ZipMember member;
  std::uint64_t packed_left = 0, left = 0;
  uLong crc = 0;
  bool inflating = false;
  z_stream inflater{};
  std::string piece;

  Error damaged(const std::string& what) const { return Error(what).within(member.name.substr(0, 200)); }
  std::size_t packed(char* into, std::size_t most) {
    const auto count = std::size_t(std::min<std::uint64_t>(most, packed_left));
    file.read(into, std::streamsize(count));
    if (std::size_t(file.gcount()) != count) throw damaged("the file ends within this member");
    packed_left -= count;
    return count;
  }
  std::size_t unpacked(char* into, std::size_t most) {
    if (!inflating) return packed(into, most);
    inflater.next_out = reinterpret_cast<Bytef*>(into);
    inflater.avail_out = uInt(most);
    while (inflater.avail_out > 0) {
      if (inflater.avail_in == 0 && packed_left > 0) {
        piece.resize(kPiece);
        inflater.avail_in = uInt(packed(piece.data(), piece.size()));
        inflater.next_in = reinterpret_cast<Bytef*>(piece.data());
      }
      const int status = inflate(&inflater, Z_NO_FLUSH);
      if (status == Z_STREAM_END) break;
      if (status != Z_OK) throw damaged("its deflated data is damaged");
    }
    return most - inflater.avail_out;
  }
  ~State() {
    if (inflating) inflateEnd(&inflater);
  }
};

ZipFile::Stream::Stream(std::unique_ptr<State> state) : state_(std::move(state)) {}
ZipFile::Stream::Stream(Stream&&) noexcept = default;
ZipFile::Stream::~Stream() = default;

std::size_t ZipFile::Stream::read(char* into, std::size_t most) {
  State& s = *state_;
  const auto wanted = std::size_t(std::min<std::uint64_t>(most, s.left));
  if (wanted == 0) return 0;
  const std::size_t got = s.unpacked(into, wanted);
  if (got != wanted) throw s.damaged("it unpacks to fewer bytes than the zip's directory says");
  s.crc = crc32(s.crc, reinterpret_cast<const Bytef*>(into), uInt(got));
  s.left -= got;
  if (s.left == 0 && std::uint32_t(s.crc) != s.member.crc)
    throw s.damaged("its checksum (CRC-32) is not the one that the zip's directory gives: the file is damaged");
  return got;
}

/// Where the member's bytes start in the file.
std::uint64_t ZipFile::start_of(std::ifstream& file, const ZipMember& m) const {
  char local[30];
  file.seekg(std::streamoff(base_ + m.header));
  file.read(local, sizeof local);
  if (file.gcount() != sizeof local || std::memcmp(local, "PK\3\4", 4) != 0)
    throw Error("its local header is damaged").within(m.name.substr(0, 200));
  const std::uint64_t start = m.header + sizeof local + little(local + 26, 2) + little(local + 28, 2);
  if (start > size_ || size_ - start < m.compressed) throw Error("it reaches beyond the end of the file").within(m.name.substr(0, 200));
  return base_ + start;
}

ZipFile::Stream ZipFile::open(const ZipMember& m) const {
  auto state = std::make_unique<Stream::State>();
  state->member = m;
  if (m.flags & 1) throw state->damaged("this member is encrypted");
  if (m.method != 0 && m.method != 8)
    throw state->damaged(fmt::format("this member is packed with method {}; memest reads stored and deflated ones", m.method));
  if (m.method == 0 && m.size != m.compressed) throw state->damaged("a stored member has two sizes");
  // deflate packs 1032:1 at best, and text of a model never comes near that
  if (m.method == 8 && m.size / 200 > m.compressed + 64)
    throw state->damaged(fmt::format("{} bytes unpack to {}: this is no model but a zip bomb", m.compressed, m.size));
  state->file.open(path_, std::ios::binary);
  state->file.seekg(std::streamoff(start_of(state->file, m)));
  state->packed_left = m.compressed;
  state->left = m.size;
  state->crc = crc32(0, nullptr, 0);
  if (m.method == 8) {
    if (inflateInit2(&state->inflater, -MAX_WBITS) != Z_OK) throw state->damaged("zlib does not start");
    state->inflating = true;
  }
  return Stream(std::move(state));
}

std::string ZipFile::read(const ZipMember& member, std::uint64_t most) const {
  if (member.size > most)
    throw Error(fmt::format("this member has {} bytes; {} are allowed", member.size, most)).within(member.name.substr(0, 200));
  std::string text(member.size, '\0');
  Stream stream = open(member);
  stream.read(text.data(), text.size());
  return text;
}

}  // namespace memest::spec
