// An intrusive pointer: the count lives in the object, single-threaded (a run belongs to one thread).
#pragma once
#include <utility>

namespace memest {

/// T has an `int refs` and is destroyed by `dispose(T*)`, found by argument-dependent lookup.
template <class T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* object) : object_(object) {
    if (object_) ++object_->refs;
  }
  Ref(const Ref& other) : Ref(other.object_) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ && --object_->refs == 0) dispose(object_);
  }
  void reset() { *this = Ref(); }
  /// Gives the object up without disposing of it: the next Ref of it is its first.
  T* release() {
    if (object_) --object_->refs;
    return std::exchange(object_, nullptr);
  }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  T* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }
  bool operator==(const Ref& other) const { return object_ == other.object_; }

 private:
  T* object_ = nullptr;
};

}  // namespace memest
