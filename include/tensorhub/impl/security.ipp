#pragma once
/// \file security.ipp
/// Definitions of security.hpp.

#include "tensorhub/security.hpp"

#include <zmq.h>

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "tensorhub/detail/server_groups.hpp"
#include "tensorhub/detail/split_list.hpp"
#include "tensorhub/detail/wipe.hpp"
#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL bool is_curve_key(const std::string& text) noexcept {
  std::array<std::uint8_t, 32> bytes{};
  const bool is_one = text.size() == curve_key_characters && text.find('\0') == std::string::npos &&
                      ::zmq_z85_decode(bytes.data(), text.c_str()) != nullptr;
  detail::wipe(bytes.data(), bytes.size());
  return is_one;
}

TENSORHUB_DECL void check_allowable(bool has_allow_list, const std::string& key) {
  if (!has_allow_list)
    throw error(errc::invalid_argument, "this server has no allow-list: it admits every client");
  if (!is_curve_key(key))
    throw error(errc::invalid_argument, "'" + key.substr(0, 64) + "' is no public key of 40 characters");
}

TENSORHUB_DECL curve_key_pair make_curve_keys() {
  std::array<char, curve_key_characters + 1> open{};
  std::array<char, curve_key_characters + 1> secret{};
  if (::zmq_curve_keypair(open.data(), secret.data()) != 0) {
    throw error(errc::system_failed,
                "this libzmq was built without CURVE: install one that has it (Debian's has)");
  }
  curve_key_pair out{open.data(), secret.data()};
  detail::wipe(secret.data(), secret.size());
  return out;
}

TENSORHUB_DECL std::string public_key_of(const std::string& secret_key) {
  std::array<char, curve_key_characters + 1> open{};
  if (!is_curve_key(secret_key) || ::zmq_curve_public(open.data(), secret_key.c_str()) != 0)
    throw error(errc::invalid_argument,
                "not a valid CURVE secret key; create a pair with reference_server --make-keys");
  return open.data();
}

namespace security_detail {

TENSORHUB_DECL void check_pair(const curve_key_pair& keys, const std::string& whose) {
  const std::string advice =
      ": make a pair with reference_server --make-keys, or by a call (C++: make_curve_keys, Python: "
      "make_keys)";
  if (!is_curve_key(keys.secret_key))
    throw error(errc::invalid_argument, whose + " secret_key is no key of 40 characters" + advice);
  if (!is_curve_key(keys.public_key))
    throw error(errc::invalid_argument, whose + " public_key is no key of 40 characters" + advice);
  if (public_key_of(keys.secret_key) != keys.public_key)
    throw error(errc::invalid_argument,
                whose + " keys are not a pair: the public key is another one's" + advice);
}

}  // namespace security_detail

TENSORHUB_DECL void validate(const server_security& security) {
  security_detail::check_pair(security.keys, "the server's");
  for (const auto& [key, rules] : security.allowed_clients) {
    if (!is_curve_key(key)) {
      throw error(errc::invalid_argument, "the server's list of allowed clients has '" + key.substr(0, 64) +
                                              "' (" + rules.name.substr(0, 64) +
                                              "), which is no public key of 40 characters");
    }
  }
}

TENSORHUB_DECL void validate(const client_security& security, std::size_t servers) {
  security_detail::check_pair(security.keys, "this client's");
  const auto keys = detail::split_list(security.server_key);
  for (const std::string& each : keys) {
    if (!is_curve_key(each))
      throw error(errc::invalid_argument,
                  "server_key is no public key of 40 characters: take the one that the "
                  "server's --make-keys has written to server.public");
  }
  if (keys.size() != 1 && keys.size() != servers) {
    throw error(errc::invalid_argument, "server_key has " + std::to_string(keys.size()) + " keys for " +
                                            std::to_string(servers) +
                                            " servers: give one for all, or one for each");
  }
}

TENSORHUB_DECL void choose_group(std::size_t group, std::string& servers,
                                 std::optional<client_security>& security) {
  std::vector<std::string> groups = detail::split_groups(servers);
  for (const std::string& each : groups) {
    if (groups.size() > 1 && each.find_first_not_of(' ') == each.npos)
      throw error(errc::invalid_argument, "the list of servers '" + servers.substr(0, 256) +
                                              "' has an empty group: give an address at either side of '|'");
  }
  if (security) {
    std::vector<std::string> keys = detail::split_groups(security->server_key);
    if (keys.size() != 1 && keys.size() != groups.size())
      throw error(errc::invalid_argument, "server_key has " + std::to_string(keys.size()) +
                                              " groups of keys for " + std::to_string(groups.size()) +
                                              " groups of servers: give one key for all, or as many groups");
    security->server_key = std::move(keys[keys.size() == 1 ? 0 : group]);
  }
  servers = std::move(groups[group]);
}

TENSORHUB_DECL client_security for_server(client_security security, std::size_t index) {
  auto keys = detail::split_list(security.server_key);
  security.server_key = std::move(keys[keys.size() == 1 ? 0 : index % keys.size()]);
  return security;
}

TENSORHUB_DECL bool is_local_address(std::string_view address) noexcept {
  if (!address.starts_with("tcp://")) return true;  // ipc, inproc
  address.remove_prefix(6);
  return address.starts_with("127.") || address.starts_with("localhost:") || address.starts_with("[::1]") ||
         address.starts_with("lo:");
}

}  // namespace tensorhub::inline TENSORHUB_MODE
