#pragma once
/// \file message_samples.hpp
/// Every field of every control message, independently of the codec: to fill, to compare and to weigh
/// messages.
///
/// The structured bindings name all members, so a message that gains a field stops compiling here until it is
/// added; the round-trip tests then fail until the codec writes it too.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tensorhub/service/envelope.hpp"

namespace message_samples {

namespace th = tensorhub;
namespace msg = tensorhub::messages;

template <typename Tag>
auto fields(th::strong_id<Tag>& m) {
  return std::tie(m.value);
}
inline auto fields(th::version_number& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(th::version_selector& m) {
  return std::tie(m.kind, m.version);
}
inline auto fields(th::digest128& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(th::shard_of& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(th::location& m) {
  auto& [a, b, c, d] = m;
  return std::tie(a, b, c, d);
}
inline auto fields(th::transport_address& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(th::remote_region& m) {
  auto& [a, b, c] = m;
  return std::tie(a, b, c);
}
inline auto fields(th::told_region& m) {
  auto& [a, b, c] = m;
  return std::tie(a, b, c);
}
inline auto fields(th::tensor_spec& m) {
  auto& [a, b, c] = m;
  return std::tie(a, b, c);
}
inline auto fields(msg::status& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(msg::reference& m) {
  auto& [a, b, c, d, e, f] = m;
  return std::tie(a, b, c, d, e, f);
}
inline auto fields(msg::assignment& m) {
  auto& [a, b, c, d, e, f, g, h, i, j, k, l, n, o, p] = m;
  return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, n, o, p);
}
inline auto fields(msg::rollback& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(msg::retention& m) {
  auto& [a, b, c, d] = m;
  return std::tie(a, b, c, d);
}
inline auto fields(msg::manage_request& m) {
  auto& [a, b, c, d] = m;
  return std::tie(a, b, c, d);
}
inline auto fields(msg::manage_reply& m) {
  auto& [a, b, c] = m;
  return std::tie(a, b, c);
}
inline auto fields(msg::retain_request& m) {
  auto& [a, b, c, d] = m;
  return std::tie(a, b, c, d);
}
inline auto fields(msg::offload_failed_request& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(msg::committed_push& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(msg::retention_push& m) {
  auto& [a] = m;
  return std::tie(a);
}
inline auto fields(msg::offload_push& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(msg::drop_push&) {
  return std::tuple<>{};
}
inline auto fields(msg::announcement& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(msg::receiving_request& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(msg::holding_request& m) {
  auto& [a] = m;
  return std::tie(a);
}
inline auto fields(msg::why_request& m) {
  auto& [a, b, c] = m;
  return std::tie(a, b, c);
}
inline auto fields(msg::why_reply& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(msg::stuck_request& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(msg::stuck_entry& m) {
  auto& [a, b, c, d, e, f, g, h, i, j, k] = m;
  return std::tie(a, b, c, d, e, f, g, h, i, j, k);
}
inline auto fields(msg::stuck_reply& m) {
  auto& [a, b, c] = m;
  return std::tie(a, b, c);
}
inline auto fields(msg::replica_entry& m) {
  auto& [a, b, c, d, e, f] = m;
  return std::tie(a, b, c, d, e, f);
}
inline auto fields(msg::model_entry& m) {
  auto& [a, b, c, d, e, f] = m;
  return std::tie(a, b, c, d, e, f);
}
/// In the order of the wire.
inline auto fields(msg::join_request& m) {
  auto& [model, replica, shard, place, spot, temporary, address, capability_key, proof, form, before] = m;
  auto& [transport, consistency, integrity, digest, bytes, chunks, tensors] = form;
  auto& [server, moved, returns, held, operation, reading, receiving, well, decided, latest, peers, keeps,
         barred] = before;
  return std::tie(model, replica, shard, place, spot, transport, consistency, integrity, address, digest,
                  bytes, chunks, tensors, held, operation, reading, receiving, well, decided, latest, peers,
                  keeps, temporary, capability_key, server, moved, returns, barred, proof);
}
inline auto fields(msg::join_reply& m) {
  auto& [a, b, c, d, e, f, g, h, i] = m;
  return std::tie(a, b, c, d, e, f, g, h, i);
}
inline auto fields(msg::publish_request& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(msg::unpublish_request& m) {
  auto& [a, b, c, d] = m;
  return std::tie(a, b, c, d);
}
inline auto fields(msg::drained_reply& m) {
  auto& [a, b, c, d, e, f, g] = m;
  return std::tie(a, b, c, d, e, f, g);
}
inline auto fields(msg::update_request& m) {
  auto& [a, b, c, d, e, f] = m;
  return std::tie(a, b, c, d, e, f);
}
inline auto fields(msg::update_reply& m) {
  auto& [a, b, c, d, e, f, g, h, i] = m;
  return std::tie(a, b, c, d, e, f, g, h, i);
}
inline auto fields(msg::sources_request& m) {
  auto& [a, b, c, d, e, f] = m;
  return std::tie(a, b, c, d, e, f);
}
inline auto fields(msg::lease_released_request& m) {
  auto& [a] = m;
  return std::tie(a);
}
inline auto fields(msg::finish_request& m) {
  auto& [a, b, c, d, e, f] = m;
  return std::tie(a, b, c, d, e, f);
}
inline auto fields(msg::cut_off_done_request& m) {
  auto& [a] = m;
  return std::tie(a);
}
inline auto fields(msg::wait_request& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(msg::version_reply& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(msg::list_request& m) {
  auto& [a] = m;
  return std::tie(a);
}
inline auto fields(msg::list_reply& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(msg::describe_request& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(msg::describe_reply& m) {
  auto& [a, b, c, d] = m;
  return std::tie(a, b, c, d);
}
inline auto fields(msg::leave_request&) {
  static_assert(std::is_empty_v<msg::leave_request>);
  return std::tuple<>{};
}
inline auto fields(msg::heartbeat_request& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(msg::heartbeat_reply& m) {
  auto& [a, b, c] = m;
  return std::tie(a, b, c);
}
inline auto fields(msg::status_reply& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(msg::version_push& m) {
  auto& [a] = m;
  return std::tie(a);
}
inline auto fields(msg::reassign_push& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(msg::cut_off_push& m) {
  auto& [a] = m;
  return std::tie(a);
}
inline auto fields(msg::abort_push& m) {
  auto& [a, b] = m;
  return std::tie(a, b);
}
inline auto fields(msg::goodbye_push& m) {
  auto& [a, b, c, d] = m;
  return std::tie(a, b, c, d);
}
inline auto fields(msg::envelope& m) {
  auto& [a, b, c, d, e, f] = m;
  return std::tie(a, b, c, d, e, f);
}

template <typename T>
inline constexpr bool is_optional = false;
template <typename T>
inline constexpr bool is_optional<std::optional<T>> = true;
template <typename T>
inline constexpr bool is_vector = false;
template <typename T>
inline constexpr bool is_vector<std::vector<T>> = true;
template <typename T>
inline constexpr bool is_variant = false;
template <typename... T>
inline constexpr bool is_variant<th::detail::one_of<T...>> = true;

/// Random values, so that two fields that are swapped or one that is left out are seen.
class filler {
 public:
  explicit filler(std::uint64_t seed) : random_{seed} {}

  template <typename T>
  void fill(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      value = below(2) == 1;
    } else if constexpr (std::is_same_v<T, th::errc>) {
      value = static_cast<T>(below(23));
    } else if constexpr (std::is_same_v<T, th::dtype>) {
      value = static_cast<T>(below(15));
    } else if constexpr (std::is_same_v<T, th::version_selector::kind_type>) {
      value = static_cast<T>(below(3));
    } else if constexpr (std::is_same_v<T, msg::update_reach>) {
      value = static_cast<T>(below(2));
    } else if constexpr (std::is_same_v<T, msg::sources_wanted>) {
      value = static_cast<T>(below(3));
    } else if constexpr (std::is_same_v<T, msg::manage_kind>) {
      value = static_cast<T>(below(4));
    } else if constexpr (std::is_same_v<T, msg::stuck_kind>) {
      value = static_cast<T>(below(8));
    } else if constexpr (std::is_arithmetic_v<T>) {
      value = static_cast<T>(random_());
    } else if constexpr (std::is_same_v<T, std::string>) {
      value.resize(below(40));
      for (char& c : value) c = static_cast<char>(below(256));
    } else if constexpr (std::is_same_v<T, th::remote_key>) {
      value = {};
      value.used_bytes = static_cast<std::uint8_t>(below(value.bytes.size() + 1));
      for (std::size_t i = 0; i < value.used_bytes; ++i) value.bytes[i] = static_cast<std::byte>(below(256));
    } else if constexpr (is_vector<T>) {
      value.resize(below(5));
      for (auto& element : value) fill(element);
    } else if constexpr (is_optional<T>) {
      value.reset();
      if (below(3) != 0) fill(value.emplace());
    } else {
      std::apply([&](auto&... field) { (fill(field), ...); }, fields(value));
    }
  }

  /// A message of the type with this number.
  [[nodiscard]] msg::envelope sample(std::size_t type) {
    msg::envelope out;
    fill(out.sender);
    fill(out.sequence);
    fill(out.acknowledged);
    fill(out.recipient);
    fill(out.open);
    std::ranges::sort(out.open);
    out.open.erase(std::unique(out.open.begin(), out.open.end()), out.open.end());
    emplace(out.body, type, std::make_index_sequence<msg::message::size>{});
    return out;
  }

  [[nodiscard]] std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

 private:
  template <std::size_t... Index>
  void emplace(msg::message& body, std::size_t type, std::index_sequence<Index...>) {
    (void)((Index == type ? (fill(body.emplace<msg::message::alternative<Index>>()), true) : false) || ...);
  }

  std::mt19937_64 random_;
};

template <typename T>
[[nodiscard]] bool equal(T& a, T& b) {
  if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::string> ||
                std::is_same_v<T, th::remote_key>) {
    return a == b;
  } else if constexpr (is_vector<T>) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (!equal(a[i], b[i])) return false;
    }
    return true;
  } else if constexpr (is_optional<T>) {
    return a.has_value() == b.has_value() && (!a || equal(*a, *b));
  } else if constexpr (is_variant<T>) {
    return a.index() == b.index() &&
           visit([&b](auto& body) { return equal(body, *get_if<std::decay_t<decltype(body)>>(&b)); }, a);
  } else {
    return [&]<std::size_t... I>(std::index_sequence<I...>, [[maybe_unused]] auto left,
                                 [[maybe_unused]] auto right) {
      return (equal(std::get<I>(left), std::get<I>(right)) && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<decltype(fields(a))>>{}, fields(a), fields(b));
  }
}

/// Bytes that a value has allocated, its own size not counted.
template <typename T>
[[nodiscard]] std::size_t allocated_bytes(T& value) {
  if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, th::remote_key>) {
    return 0;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return value.capacity() > std::string{}.capacity() ? value.capacity() : 0;
  } else if constexpr (is_vector<T>) {
    std::size_t total = value.capacity() * sizeof(typename T::value_type);
    for (auto& element : value) total += allocated_bytes(element);
    return total;
  } else if constexpr (is_optional<T>) {
    return value ? allocated_bytes(*value) : 0;
  } else if constexpr (is_variant<T>) {
    return visit([](auto& body) { return allocated_bytes(body); }, value);
  } else {
    return std::apply([](auto&... field) { return (std::size_t{0} + ... + allocated_bytes(field)); },
                      fields(value));
  }
}

}  // namespace message_samples
