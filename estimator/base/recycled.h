// Class-specific operator new and delete for small objects that come and go by the thousand: a deleted one's memory waits for the next.
#pragma once
#include <cstddef>
#include <new>

namespace memest {

/// Base of a class `T` whose memory is kept in a list of the thread when an object goes, and given back when the thread ends. A build with
/// the address sanitizer keeps none, so that it sees every use after the end of a life.
template <class T>
class Recycled {
 public:
  static void* operator new(std::size_t size) {
    if (!spare_ || size != sizeof(T)) return ::operator new(size);
    Spare* place = spare_;
    spare_ = place->next;
    return place;
  }
  static void operator delete(void* place, std::size_t size) {
#ifndef __SANITIZE_ADDRESS__
    if (size == sizeof(T) && !ended_) {
      if (!spare_) give_back_at_end();
      spare_ = new (place) Spare{spare_};
      return;
    }
#endif
    ::operator delete(place, size);
  }

 private:
  struct Spare {
    Spare* next;
  };
  static void give_back_at_end() {
    struct Owner {
      ~Owner() {
        ended_ = true;
        while (Spare* place = spare_) {
          spare_ = place->next;
          ::operator delete(place, sizeof(T));
        }
      }
    };
    thread_local Owner owner;
  }
  static inline thread_local constinit Spare* spare_ = nullptr;
  static inline thread_local constinit bool ended_ = false;
};

}  // namespace memest
