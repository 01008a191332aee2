#pragma once
/// \file client_rules.hpp
/// What the owner of a key may do at a secured reference server.
///
///     client_rules rules{"rollouts"};
///     rules.models = {"policy-*"};
///     rules.replicas = {"rollout-*"};
///     rules.may = right::read | right::serve;
///
/// | right   | allows                                                                                      |
/// |---------|---------------------------------------------------------------------------------------------|
/// | read    | to join, to update, to wait, and to ask about the models that its rules name                 |
/// | serve   | to be read by others: without it, what the worker holds is offered to nobody                 |
/// | publish | to join, to publish, to roll back, and to ask about the models that its rules name           |
/// | retain  | to say which versions are retained                                                          |
/// | replace | to take the place of a living worker that has another key                                    |
/// | look    | to ask about the models that its rules name                                                  |
/// | evict   | to evict, drain and resume replicas                                                          |
///
/// service/catalog/authority.hpp says what each message needs.
///
/// Thread safety: values.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace limits {
inline constexpr std::size_t client_name_bytes = 128;  ///< name in an entry of the allow-list
}  // namespace limits

enum class right : std::uint8_t {
  read = 1,
  serve = 2,
  publish = 4,
  retain = 8,
  replace = 16,
  look = 32,
  evict = 64,
};

/// A set of rights.
class rights {
 public:
  constexpr rights() = default;
  constexpr rights(right one) noexcept : bits_{static_cast<std::uint8_t>(one)} {}  // NOLINT: a set of one

  [[nodiscard]] static constexpr rights all() noexcept { return rights{std::uint8_t{127}}; }

  [[nodiscard]] constexpr bool empty() const noexcept { return bits_ == 0; }
  [[nodiscard]] constexpr bool has(right one) const noexcept { return has_any_of(one); }
  [[nodiscard]] constexpr bool has_any_of(rights others) const noexcept {
    return (bits_ & others.bits_) != 0;
  }
  [[nodiscard]] friend constexpr rights operator|(rights a, rights b) noexcept {
    return rights{static_cast<std::uint8_t>(a.bits_ | b.bits_)};
  }
  [[nodiscard]] bool operator==(const rights&) const = default;

 private:
  explicit constexpr rights(std::uint8_t bits) noexcept : bits_{bits} {}
  std::uint8_t bits_ = 0;
};
[[nodiscard]] constexpr rights operator|(right a, right b) noexcept {
  return rights{a} | rights{b};
}

/// Of a key for which no rights were named.
inline constexpr rights rights_of_unnamed =
    right::read | right::serve | right::publish | right::retain | right::replace;

/// "read,serve"; "none".
[[nodiscard]] TENSORHUB_DECL std::string to_string(rights some);
/// The rights of these names, with commas between; empty: a name is none.
[[nodiscard]] TENSORHUB_DECL std::optional<rights> rights_named(std::string_view names);

/// Whether a name fits a pattern, in which one `*` stands for any characters, or none.
[[nodiscard]] TENSORHUB_DECL bool fits(std::string_view pattern, std::string_view name) noexcept;

struct client_rules {
  std::string name{};                    ///< for log lines and errors
  std::vector<std::string> models{"*"};  ///< patterns: the models that it may speak of
  /// Patterns: the replicas as which, or as whose parts (types/replica_name.hpp), it may join, or which it
  /// evicts.
  std::vector<std::string> replicas{"*"};
  std::optional<rights> may{};  ///< empty: not named, `rights_of_unnamed`

  client_rules() = default;
  client_rules(std::string of) : name{std::move(of)} {}  // NOLINT: a name alone says who it is
  client_rules(const char* of) : name{of} {}             // NOLINT: likewise

  [[nodiscard]] bool has_any_of(rights some) const noexcept {
    return may.value_or(rights_of_unnamed).has_any_of(some);
  }
  [[nodiscard]] TENSORHUB_DECL bool may_speak_of(std::string_view model) const noexcept;
  [[nodiscard]] TENSORHUB_DECL bool may_be(std::string_view replica) const noexcept;
  [[nodiscard]] bool operator==(const client_rules&) const = default;

  /// Without security everybody may do everything.
  [[nodiscard]] TENSORHUB_DECL static const client_rules& everything();
};

/// "rollouts models=policy-* replicas=rollout-* may=read,serve": a name, and what is not the default.
[[nodiscard]] TENSORHUB_DECL std::string to_string(const client_rules& rules);
/// The rules that such a text says. Throws `invalid_argument`, or `limit_exceeded` for a name of more than
/// limits::client_name_bytes.
[[nodiscard]] TENSORHUB_DECL client_rules client_rules_of(std::string_view text);

/// Who has sent a message, as its connection has proved it.
struct client_identity {
  std::string key{};                            ///< public key; empty without security
  std::shared_ptr<const client_rules> rules{};  ///< null: without security

  [[nodiscard]] const client_rules& may() const noexcept {
    return rules ? *rules : client_rules::everything();
  }
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/types/impl/client_rules.ipp"
#endif
