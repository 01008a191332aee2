#pragma once
/// \file action.hpp
/// The action of an event: `std::function<void()>` without its costs, for queues of millions of events.
///
/// Move-only, so that an action may own its captures. Captures of up to 40 bytes lie inside the object;
/// larger captures, and captures that may throw when moved, lie on the heap. Trivially copyable captures are
/// moved by memcpy, without an indirect call.

#include <concepts>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

class action {
 public:
  action() noexcept = default;

  /// Takes any callable without arguments; not explicit, as for std::function.
  template <typename Callable>
  requires(!std::same_as<std::remove_cvref_t<Callable>, action> &&
           std::invocable<std::remove_cvref_t<Callable>&>) action(Callable&& callable) {
    using held = std::remove_cvref_t<Callable>;
    if constexpr (fits<held>) {
      ::new (static_cast<void*>(storage_)) held(std::forward<Callable>(callable));
      table_ = &inline_table<held>;
    } else {
      ::new (static_cast<void*>(storage_)) held*(new held(std::forward<Callable>(callable)));
      table_ = &heap_table<held>;
    }
  }

  action(action&& other) noexcept { take(other); }
  action& operator=(action&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  ~action() { reset(); }

  [[nodiscard]] explicit operator bool() const noexcept { return table_ != nullptr; }

  /// Must not be called on an empty action.
  void operator()() { table_->call(storage_); }

  void reset() noexcept {
    if (table_ != nullptr && table_->destroy != nullptr) table_->destroy(storage_);
    table_ = nullptr;
  }

 private:
  static constexpr std::size_t inline_bytes = 40;

  struct operations {
    void (*call)(std::byte* at);
    void (*move)(std::byte* to, std::byte* from) noexcept;  ///< also destroys `from`; null: memcpy
    void (*destroy)(std::byte* at) noexcept;                ///< null: destruction does nothing
  };

  template <typename Held>
  static constexpr bool fits = sizeof(Held) <= inline_bytes &&
                               alignof(Held) <= alignof(void*) && std::is_nothrow_move_constructible_v<Held>;
  template <typename Held>
  static constexpr bool is_trivial =
      std::is_trivially_copyable_v<Held>&& std::is_trivially_destructible_v<Held>;

  template <typename Held>
  static Held& held_at(std::byte* at) noexcept {
    return *std::launder(reinterpret_cast<Held*>(at));
  }
  template <typename Held>
  static void call_held(std::byte* at) {
    held_at<Held>(at)();
  }
  template <typename Held>
  static void move_held(std::byte* to, std::byte* from) noexcept {
    Held& moved = held_at<Held>(from);
    ::new (static_cast<void*>(to)) Held(std::move(moved));
    std::destroy_at(&moved);
  }
  template <typename Held>
  static void destroy_held(std::byte* at) noexcept {
    std::destroy_at(&held_at<Held>(at));
  }
  template <typename Held>
  static void call_owned(std::byte* at) {
    (*held_at<Held*>(at))();
  }
  template <typename Held>
  static void destroy_owned(std::byte* at) noexcept {
    delete held_at<Held*>(at);
  }

  template <typename Held>
  static constexpr operations inline_table{&call_held<Held>, is_trivial<Held> ? nullptr : &move_held<Held>,
                                           is_trivial<Held> ? nullptr : &destroy_held<Held>};
  template <typename Held>
  static constexpr operations heap_table{&call_owned<Held>, nullptr, &destroy_owned<Held>};

  void take(action& other) noexcept {
    table_ = std::exchange(other.table_, nullptr);
    if (table_ == nullptr) return;
    if (table_->move != nullptr)
      table_->move(storage_, other.storage_);
    else
      std::memcpy(storage_, other.storage_, inline_bytes);
  }

  alignas(void*) std::byte storage_[inline_bytes]{};
  const operations* table_ = nullptr;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
