#pragma once
/// \file security.hpp
/// Who may talk to the reference server: keys and the allow-list, as plain values.
///
/// With `security` in the options of the server and of every worker the control connection is CURVE (ZeroMQ
/// RFC 26: Curve25519, encrypted and authenticated, new session keys per connection). The server lets in the
/// public keys of its allow-list and nobody else; the workers know the server by its public key.
///
///     auto server_keys = tensorhub::make_curve_keys();
///     auto worker_keys = tensorhub::make_curve_keys();
///     hub::reference_server server{{.security = tensorhub::server_security{
///         .keys = server_keys, .allowed_clients = {{worker_keys.public_key, "rollouts"}}}}};
///     hub::subscriber rollout{{.server = server.address(), ...,
///         .security = tensorhub::client_security{.server_key = server_keys.public_key,
///                                                .keys = worker_keys}}};
///
/// Keys are text of 40 characters (Z85, RFC 32 of ZeroMQ). Several workers may share a pair; whoever has a
/// pair of its own can be revoked alone. The servers of a list have one pair between them, or one each: then
/// `client_security::server_key` is a list as well, and who breaks into one machine cannot pass for another.
/// key_files.hpp keeps them in files; `reference_server --make-keys` makes them.
///
/// Data connections are secured otherwise: transports/README.md.
///
/// Thread safety: values; the functions may be called from any thread.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/split_list.hpp"
#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

inline constexpr std::size_t curve_key_characters = 40;

/// Of a server, of one worker, or of several. Whoever knows the secret key is them.
struct curve_key_pair {
  std::string public_key{};
  std::string secret_key{};
};

/// Public keys that are let in, each with a name for log lines (which may be empty).
using client_allow_list = std::map<std::string, std::string>;

/// Of `reference_server_options`.
struct server_security {
  curve_key_pair keys{};
  client_allow_list allowed_clients{};  ///< can be changed while the server runs: `allow`, `revoke`
};

/// Of `worker_options`.
struct client_security {
  /// The server's public key; of several servers the one that all have, or one each, with commas between, in
  /// the order of `worker_options::server`.
  std::string server_key{};
  curve_key_pair keys{};  ///< this worker's own
};

/// Whether this text has the form of a key.
[[nodiscard]] inline bool is_curve_key(const std::string& text) noexcept {
  std::array<std::uint8_t, 32> bytes{};
  return text.size() == curve_key_characters && text.find('\0') == std::string::npos &&
         ::zmq_z85_decode(bytes.data(), text.c_str()) != nullptr;
}

/// A new pair of the system's random numbers. Throws `system_failed` where ZeroMQ was built without CURVE.
[[nodiscard]] inline curve_key_pair make_curve_keys() {
  std::array<char, curve_key_characters + 1> open{};
  std::array<char, curve_key_characters + 1> secret{};
  if (::zmq_curve_keypair(open.data(), secret.data()) != 0) {
    throw error(errc::system_failed,
                "this libzmq was built without CURVE: install one that has it (Debian's has)");
  }
  return {open.data(), secret.data()};
}

/// The public key that belongs to a secret one.
[[nodiscard]] inline std::string public_key_of(const std::string& secret_key) {
  std::array<char, curve_key_characters + 1> open{};
  if (!is_curve_key(secret_key) || ::zmq_curve_public(open.data(), secret_key.c_str()) != 0)
    throw error(errc::invalid_argument,
                "this is no secret key: make a pair with reference_server --make-keys");
  return open.data();
}

namespace security_detail {

/// Never shows a secret.
inline void check_pair(const curve_key_pair& keys, const std::string& whose) {
  const std::string advice = ": make a pair with make_curve_keys() or reference_server --make-keys";
  if (!is_curve_key(keys.secret_key))
    throw error(errc::invalid_argument, whose + ".secret_key is no key of 40 characters" + advice);
  if (!is_curve_key(keys.public_key))
    throw error(errc::invalid_argument, whose + ".public_key is no key of 40 characters" + advice);
  if (public_key_of(keys.secret_key) != keys.public_key)
    throw error(errc::invalid_argument, whose + " are not a pair: the public key is another one's" + advice);
}

}  // namespace security_detail

/// Throw `invalid_argument` with the field that is wrong.
inline void validate(const server_security& security) {
  security_detail::check_pair(security.keys, "server_security::keys");
  for (const auto& [key, name] : security.allowed_clients) {
    if (!is_curve_key(key)) {
      throw error(errc::invalid_argument, "server_security::allowed_clients has '" + key.substr(0, 64) +
                                              "' (" + name.substr(0, 64) +
                                              "), which is no public key of 40 characters");
    }
  }
}
/// `servers`: how many there are in the list.
inline void validate(const client_security& security, std::size_t servers = 1) {
  security_detail::check_pair(security.keys, "client_security::keys");
  const auto keys = detail::split_list(security.server_key);
  for (const std::string& each : keys) {
    if (!is_curve_key(each))
      throw error(errc::invalid_argument,
                  "client_security::server_key is no public key of 40 characters: take the one that the "
                  "server's --make-keys has written to server.public");
  }
  if (keys.size() != 1 && keys.size() != servers) {
    throw error(errc::invalid_argument, "client_security::server_key has " + std::to_string(keys.size()) +
                                            " keys for " + std::to_string(servers) +
                                            " servers: give one for all, or one for each");
  }
}
/// The same for one server of the list.
[[nodiscard]] inline client_security for_server(client_security security, std::size_t index) {
  auto keys = detail::split_list(security.server_key);
  security.server_key = std::move(keys[keys.size() == 1 ? 0 : index % keys.size()]);
  return security;
}

/// Whether only this machine's processes reach a socket that is bound there.
[[nodiscard]] inline bool is_local_address(std::string_view address) noexcept {
  if (!address.starts_with("tcp://")) return true;  // ipc, inproc
  address.remove_prefix(6);
  return address.starts_with("127.") || address.starts_with("localhost:") || address.starts_with("[::1]") ||
         address.starts_with("lo:");
}

}  // namespace tensorhub::inline TENSORHUB_MODE
