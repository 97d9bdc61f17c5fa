// operator new and delete of the executable, which lives for milliseconds: tensors, nodes and argument lists come and go by the thousand.
// Small objects are cut from spans of one size in a range of addresses of their own, and a deleted one's memory waits for the next of its
// size in a list of the thread; larger objects are malloc's. The sanitizers' build keeps malloc's own, and sees every use after the end of
// a life.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#ifdef __GLIBC__
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MEMEST_PLAIN_MEMORY
#endif
#endif
#if !defined(__SANITIZE_ADDRESS__) && !defined(MEMEST_PLAIN_MEMORY)

namespace {

constexpr std::size_t kUnit = 16, kMostSmall = 512, kClasses = kMostSmall / kUnit + 1;

struct Spare {
  Spare* next;
};
thread_local constinit Spare* spares[kClasses] = {};

std::size_t class_of(std::size_t bytes) { return bytes ? (bytes + kUnit - 1) / kUnit : 1; }

void* of_malloc(std::size_t bytes) {
  for (;;) {
    if (void* place = std::malloc(bytes)) return place;
    std::new_handler handler = std::get_new_handler();
    if (!handler) throw std::bad_alloc();
    handler();
  }
}

constexpr std::size_t kSpan = 64 << 10, kSpans = 1 << 14;  // 1 GiB of addresses; where they end, or are not to be had, malloc goes on
/// What is left of a thread's span of one class.
struct Rest {
  char* next;
  std::size_t bytes;
};
thread_local constinit Rest rests[kClasses] = {};
constinit char* range = nullptr;
constinit std::atomic<std::size_t> spans_taken = kSpans;
constinit unsigned char class_of_span[kSpans] = {};

bool in_range(const void* place) { return std::size_t(static_cast<const char*>(place) - range) < kSpan * kSpans && range; }

void* fresh(std::size_t c) {
  Rest& rest = rests[c];
  const std::size_t bytes = c * kUnit;
  if (rest.bytes < bytes) {
    if (spans_taken.load(std::memory_order_relaxed) >= kSpans) return of_malloc(bytes);
    const std::size_t span = spans_taken.fetch_add(1, std::memory_order_relaxed);
    if (span >= kSpans) return of_malloc(bytes);
    class_of_span[span] = static_cast<unsigned char>(c);
    rest = {range + span * kSpan, kSpan};
  }
  rest.bytes -= bytes;
  return std::exchange(rest.next, rest.next + bytes);
}

#ifdef __GLIBC__
/// The heap gets its addresses at once, in large pages where the system has them (a page fault costs as much as some hundred lines of a
/// run), and gives none back meanwhile.
bool reserve_heap() {
  constexpr std::size_t kHeap = 64 << 20, kLargePage = 2 << 20;
  mallopt(M_TOP_PAD, kHeap);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  void* volatile more_than_the_heap_has = std::malloc(1 << 20);  // volatile: the pair would be optimized away
  std::free(more_than_the_heap_has);
  const auto end = reinterpret_cast<std::uintptr_t>(sbrk(0));
  const auto begin = (end - kHeap + kLargePage - 1) / kLargePage * kLargePage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  void* place = mmap(nullptr, kSpan * kSpans, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return false;
  madvise(place, kSpan * kSpans, MADV_HUGEPAGE);
  range = static_cast<char*>(place);
  spans_taken = 0;
  return true;
}
const bool in_large_pages = reserve_heap();
#endif

}  // namespace

void* operator new(std::size_t bytes) {
  if (bytes > kMostSmall) return of_malloc(bytes);
  const std::size_t c = class_of(bytes);
  Spare* place = spares[c];
  if (!place) return fresh(c);
  spares[c] = place->next;
  return place;
}
void operator delete(void* place) noexcept {
  if (!in_range(place)) return std::free(place);
  const std::size_t c = class_of_span[std::size_t(static_cast<char*>(place) - range) / kSpan];
  spares[c] = new (place) Spare{spares[c]};
}
void operator delete(void* place, std::size_t bytes) noexcept {
  if (bytes > kMostSmall || !place) return std::free(place);
  const std::size_t c = class_of(bytes);
  spares[c] = new (place) Spare{spares[c]};
}

#endif
