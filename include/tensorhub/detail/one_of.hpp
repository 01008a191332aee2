#pragma once
/// \file one_of.hpp
/// A value of one of several types, as std::variant, but cheap to compile with dozens of alternatives.
///
/// A variant of the control messages instantiates thousands of templates in every file that includes the
/// service. This class has one small table of functions per operation. `get_if`,
/// `holds_alternative`, `holds_any_of` and `visit` are found by argument-dependent lookup.
///
/// The alternatives are distinct, default-constructible, copyable, and do not throw when they are moved. One
/// of more than `one_of_inside_bytes` lies on the heap, so that the others are cheap to move and to keep.
/// A value that was moved from may be assigned to and destroyed, and must not be read: what lay on the heap
/// is gone from it.
///
/// Thread safety: a value, no shared state.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <type_traits>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

template <std::size_t Index, typename First, typename... Others>
struct type_at : type_at<Index - 1, Others...> {};
template <typename First, typename... Others>
struct type_at<0, First, Others...> {
  using type = First;
};

inline constexpr std::size_t one_of_inside_bytes = 512;

template <typename... Alternatives>
class one_of {
  template <typename T>
  static constexpr bool is_inside = sizeof(T) <= one_of_inside_bytes;
  using first = typename type_at<0, Alternatives...>::type;

 public:
  template <std::size_t Index>
  using alternative = typename type_at<Index, Alternatives...>::type;
  static constexpr std::size_t size = sizeof...(Alternatives);
  /// The place of a type in the list; `size` for a type that is not in it.
  template <typename T>
  static constexpr std::size_t index_of = [] {
    constexpr bool same[] = {std::is_same_v<T, Alternatives>...};
    std::size_t at = 0;
    while (at < size && !same[at]) ++at;
    return at;
  }();

  /// The first alternative that lies inside.
  one_of() : index_{static_cast<std::uint16_t>(first_inside)} { make<alternative<first_inside>>(storage_); }
  template <typename T>
  requires(index_of<std::remove_cvref_t<T>> < size) one_of(T&& value)
      : index_{static_cast<std::uint16_t>(index_of<std::remove_cvref_t<T>>)} {
    make<std::remove_cvref_t<T>>(storage_, std::forward<T>(value));
  }
  one_of(const one_of& other) : index_{other.index_} { copies[index_](storage_, other.storage_); }
  one_of(one_of&& other) noexcept : index_{other.index_} { moves[index_](storage_, other.storage_); }
  one_of& operator=(const one_of& other) {
    if (this != &other) *this = one_of{other};
    return *this;
  }
  one_of& operator=(one_of&& other) noexcept {
    if (this == &other) return *this;
    destroys[index_](storage_);
    index_ = other.index_;
    moves[index_](storage_, other.storage_);
    return *this;
  }
  ~one_of() { destroys[index_](storage_); }

  [[nodiscard]] std::size_t index() const noexcept { return index_; }

  /// Becomes a default-constructed `T`.
  template <typename T>
  requires(index_of<T> < size) T& emplace() {
    if constexpr (is_inside<T> && std::is_nothrow_default_constructible_v<T>) {
      destroys[index_](storage_);
      index_ = static_cast<std::uint16_t>(index_of<T>);
      make<T>(storage_);
    } else {
      *this = one_of{T{}};
    }
    return *at<T>(storage_);
  }

  template <typename T>
  requires(index_of<T> < size) friend T* get_if(one_of* value) noexcept {
    return value != nullptr && value->index_ == index_of<T> ? at<T>(value->storage_) : nullptr;
  }
  template <typename T>
  requires(index_of<T> < size) friend const T* get_if(const one_of* value) noexcept {
    return value != nullptr && value->index_ == index_of<T> ? at<T>(value->storage_) : nullptr;
  }
  template <typename T>
  requires(index_of<T> < size) friend bool holds_alternative(const one_of& value) noexcept {
    return value.index_ == index_of<T>;
  }
  template <typename... Ts>
  requires((index_of<Ts> < size) && ...) friend bool holds_any_of(const one_of& value) noexcept {
    return ((value.index_ == index_of<Ts>) || ...);
  }
  /// Calls `visitor` with the value that is held. The visitor returns the same type for each alternative.
  template <typename Visitor>
  friend auto visit(Visitor&& visitor, one_of& value) {
    using result = std::invoke_result_t<Visitor&, first&>;
    using call = result (*)(Visitor&, std::byte*);
    static constexpr call calls[] = {
        [](Visitor& with, std::byte* in) -> result { return with(*at<Alternatives>(in)); }...};
    return calls[value.index_](visitor, value.storage_);
  }
  template <typename Visitor>
  friend auto visit(Visitor&& visitor, const one_of& value) {
    using result = std::invoke_result_t<Visitor&, const first&>;
    using call = result (*)(Visitor&, const std::byte*);
    static constexpr call calls[] = {
        [](Visitor& with, const std::byte* in) -> result { return with(*at<Alternatives>(in)); }...};
    return calls[value.index_](visitor, value.storage_);
  }

 private:
  using copy = void (*)(std::byte*, const std::byte*);
  using move = void (*)(std::byte*, std::byte*) noexcept;
  using destroy = void (*)(std::byte*) noexcept;

  /// Null: it was moved from.
  template <typename T>
  [[nodiscard]] static T* at(std::byte* storage) noexcept {
    if constexpr (is_inside<T>)
      return reinterpret_cast<T*>(storage);
    else
      return *reinterpret_cast<T**>(storage);
  }
  template <typename T>
  [[nodiscard]] static const T* at(const std::byte* storage) noexcept {
    if constexpr (is_inside<T>)
      return reinterpret_cast<const T*>(storage);
    else
      return *reinterpret_cast<T* const*>(storage);
  }
  template <typename T, typename... From>
  static void make(std::byte* storage, From&&... from) {
    if constexpr (is_inside<T>)
      std::construct_at(reinterpret_cast<T*>(storage), std::forward<From>(from)...);
    else
      std::construct_at(reinterpret_cast<T**>(storage),
                        std::make_unique<T>(std::forward<From>(from)...).release());
  }
  template <typename T>
  static void copy_to(std::byte* to, const std::byte* from) {
    make<T>(to, *at<T>(from));
  }
  template <typename T>
  static void move_to(std::byte* to, std::byte* from) noexcept {
    if constexpr (is_inside<T>)
      std::construct_at(reinterpret_cast<T*>(to), std::move(*at<T>(from)));
    else
      std::construct_at(reinterpret_cast<T**>(to), std::exchange(*reinterpret_cast<T**>(from), nullptr));
  }
  template <typename T>
  static void destroy_at(std::byte* storage) noexcept {
    if constexpr (is_inside<T>)
      std::destroy_at(at<T>(storage));
    else
      delete at<T>(storage);
  }
  static constexpr copy copies[] = {copy_to<Alternatives>...};
  static constexpr move moves[] = {move_to<Alternatives>...};
  static constexpr destroy destroys[] = {destroy_at<Alternatives>...};

  static constexpr std::size_t largest = [] {
    std::size_t bytes = 0;
    for (const std::size_t each : {(is_inside<Alternatives> ? sizeof(Alternatives) : sizeof(void*))...})
      bytes = each > bytes ? each : bytes;
    return bytes;
  }();
  static constexpr std::size_t first_inside = [] {
    constexpr bool inside[] = {is_inside<Alternatives>...};
    std::size_t found = 0;
    while (found < size && !inside[found]) ++found;
    return found < size ? found : 0;
  }();

  alignas(Alternatives...) alignas(void*) std::byte storage_[largest];
  std::uint16_t index_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
