#pragma once
/// \file security.hpp
/// Access to the reference server: keys and the allow-list, as plain values.
///
/// With `security` in the options of the server and of every worker, the control connection is CURVE (ZeroMQ
/// RFC 26: Curve25519, encrypted and authenticated, new session keys per connection). The server admits only
/// clients whose public key is on its allow-list; the workers identify the server by its public key.
///
///     using hub = tensorhub::hub<tensorhub::transports::tcp, tensorhub::blake3_128>;
///     auto server_keys = tensorhub::make_curve_keys();
///     auto worker_keys = tensorhub::make_curve_keys();
///     hub::reference_server server{{.security = tensorhub::server_security{
///         .keys = server_keys, .allowed_clients = {
///             {worker_keys.public_key, tensorhub::client_rules_of("rollouts may=read,serve")}}}}};
///     hub::subscriber rollout{{.server = server.address(), ...,
///         .security = tensorhub::client_security{.server_key = server_keys.public_key,
///                                                .keys = worker_keys}}};
///
/// Keys are texts of 40 characters (Z85, RFC 32 of ZeroMQ). Several workers may share a pair; a worker with
/// its own pair can be revoked alone. The servers of a list share one pair, or have one each. In the second
/// case `client_security::server_key` is a list as well, and an intruder on one machine cannot impersonate
/// the server on another. key_files.hpp stores keys in files; `reference_server --make-keys` creates them.
///
/// What a key may do, and about which models, types/client_rules.hpp says: give each role a key of its own,
/// and no more rights than it needs.
///
/// Data connections are secured by other means: transports/README.md.
///
/// Thread safety: values; the functions may be called from any thread.

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/client_rules.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

inline constexpr std::size_t curve_key_characters = 40;

/// The keys of a server, of one worker, or of several workers. Any process that knows the secret key can
/// act as their owner.
struct curve_key_pair {
  std::string public_key{};
  std::string secret_key{};
  bool operator==(const curve_key_pair&) const = default;
};

/// The admitted public keys, and what the owner of each may do. A name alone (which may be empty) names no
/// rights: `rights_of_unnamed`.
using client_allow_list = std::map<std::string, client_rules>;

/// The field `security` of `reference_server_options`.
struct server_security {
  curve_key_pair keys{};
  client_allow_list allowed_clients{};  ///< can be changed while the server runs: `allow`, `revoke`
};

/// The field `security` of `worker_options`.
struct client_security {
  /// The server's public key. For several servers: the key that they share, or one key each, separated by
  /// commas and bars as in `worker_options::server`, in its order.
  std::string server_key{};
  curve_key_pair keys{};  ///< this worker's own
  /// The weights may have an integrity policy that a source can forge, such as the default `xxh3_128`: every
  /// source is trusted not to. Otherwise a worker with keys needs one that resists: `hub<..., blake3_128>`.
  bool trust_sources = false;
  bool operator==(const client_security&) const = default;
};

/// Leaves one group of a list of servers with bars (detail/server_groups.hpp), and of their keys the ones
/// that belong to it. Throws `invalid_argument` if a group is empty, or if there are keys for other groups.
void choose_group(std::size_t group, std::string& servers, std::optional<client_security>& security);

/// Whether this text has the form of a key.
[[nodiscard]] bool is_curve_key(const std::string& text) noexcept;

/// Throws `invalid_argument` if a server cannot put this key on its allow-list, or has none.
void check_allowable(bool has_allow_list, const std::string& key);

/// Makes a new random pair. Throws `system_failed` if ZeroMQ was built without CURVE.
[[nodiscard]] curve_key_pair make_curve_keys();

/// The public key that belongs to a secret key. Throws `invalid_argument` if the secret key is invalid.
[[nodiscard]] std::string public_key_of(const std::string& secret_key);

namespace security_detail {

/// Throws `invalid_argument` if the pair is invalid; the error never contains a secret key.
void check_pair(const curve_key_pair& keys, const std::string& whose);

}  // namespace security_detail

/// Both functions throw `invalid_argument` and name the field that is wrong.
void validate(const server_security& security);
/// `servers`: number of servers in the list.
void validate(const client_security& security, std::size_t servers = 1);
/// The security of the connection to one server of the list.
[[nodiscard]] client_security for_server(client_security security, std::size_t index);

/// Whether only processes of this machine can reach a socket that is bound to this address.
[[nodiscard]] bool is_local_address(std::string_view address) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/security.ipp"
#endif
