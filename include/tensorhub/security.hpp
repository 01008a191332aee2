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

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"

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
[[nodiscard]] bool is_curve_key(const std::string& text) noexcept;

/// A new pair of the system's random numbers. Throws `system_failed` where ZeroMQ was built without CURVE.
[[nodiscard]] curve_key_pair make_curve_keys();

/// The public key that belongs to a secret one.
[[nodiscard]] std::string public_key_of(const std::string& secret_key);

namespace security_detail {

/// Never shows a secret.
void check_pair(const curve_key_pair& keys, const std::string& whose);

}  // namespace security_detail

/// Throw `invalid_argument` with the field that is wrong.
void validate(const server_security& security);
/// `servers`: how many there are in the list.
void validate(const client_security& security, std::size_t servers = 1);
/// The same for one server of the list.
[[nodiscard]] client_security for_server(client_security security, std::size_t index);

/// Whether only this machine's processes reach a socket that is bound there.
[[nodiscard]] bool is_local_address(std::string_view address) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/security.ipp"
#endif
