// operator new and delete of the executable, which lives for milliseconds: a deleted small object's memory waits for the next one of its
// size in a list of the thread, since tensors, nodes and argument lists come and go by the thousand. Every object is a block of malloc's,
// so whatever frees it may free it. The sanitizers' build keeps malloc's own, and sees every use after the end of a life.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

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

constexpr std::size_t kUnit = 16, kClasses = 33;  // up to 512 bytes

struct Spare {
  Spare* next;
};
thread_local constinit Spare* spares[kClasses] = {};

std::size_t class_of(std::size_t bytes) { return (bytes + kUnit - 1) / kUnit; }

void* fresh(std::size_t bytes) {
  for (;;) {
    if (void* place = std::malloc(bytes)) return place;
    std::new_handler handler = std::get_new_handler();
    if (!handler) throw std::bad_alloc();
    handler();
  }
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
  return madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE) == 0;
}
const bool in_large_pages = reserve_heap();
#endif

}  // namespace

void* operator new(std::size_t bytes) {
  const std::size_t c = class_of(bytes);
  if (c >= kClasses) return fresh(bytes);
  Spare* place = spares[c];
  if (!place) return fresh(c ? c * kUnit : kUnit);
  spares[c] = place->next;
  return place;
}
void operator delete(void* place) noexcept { std::free(place); }
void operator delete(void* place, std::size_t bytes) noexcept {
  const std::size_t c = class_of(bytes);
  if (c >= kClasses || c == 0 || !place) return std::free(place);
  spares[c] = new (place) Spare{spares[c]};
}

#endif
