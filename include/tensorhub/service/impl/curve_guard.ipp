#pragma once
/// \file curve_guard.ipp
/// Definitions of service/curve_guard.hpp.

#include "tensorhub/detail/started_thread.hpp"
#include "tensorhub/service/curve_guard.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL curve_guard::curve_guard(zmq::context_t& context, zmq::socket_t& router,
                                        const server_security& security, std::function<void()> wake)
    : questions_{context, zmq::socket_type::rep},
      failures_{context, router,
                handshake_failures | ZMQ_EVENT_LISTENING | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED},
      wake_{std::move(wake)} {
  for (const auto& [key, rules] : security.allowed_clients)
    allowed_.emplace(key, std::make_shared<const client_rules>(rules));
  questions_.set(zmq::sockopt::linger, 0);
  questions_.bind("inproc://zeromq.zap.01");
  router.set(zmq::sockopt::curve_server, true);
  router.set(zmq::sockopt::curve_secretkey, security.keys.secret_key);
  router.set(zmq::sockopt::zap_domain, std::string{"tensorhub"});
  thread_ = started_thread("the reference server", [this](const std::stop_token& stop) { run(stop); });
}

TENSORHUB_DECL curve_guard::~curve_guard() {
  thread_.request_stop();
  signal_.raise();
}

TENSORHUB_DECL void curve_guard::allow(const std::string& key, client_rules rules) {
  const std::lock_guard lock{mutex_};
  allowed_.insert_or_assign(key, std::make_shared<const client_rules>(std::move(rules)));
  has_changed_.store(true, std::memory_order_release);
}

TENSORHUB_DECL bool curve_guard::revoke(const std::string& key) {
  const std::lock_guard lock{mutex_};
  if (allowed_.erase(key) == 0) return false;
  has_changed_.store(true, std::memory_order_release);
  return true;
}

TENSORHUB_DECL std::shared_ptr<const client_rules> curve_guard::rules_of(std::string_view key) const {
  const std::lock_guard lock{mutex_};
  const auto found = allowed_.find(std::string{key});
  return found == allowed_.end() ? nullptr : found->second;
}

TENSORHUB_DECL void curve_guard::note(matter about, std::string text) {
  const std::lock_guard lock{mutex_};
  if (lines_.size() >= most_lines) return;
  log_line line{log_level::warning, std::move(text), {}};
  line.about.code = errc::refused;
  log_limiter& limiter = limiters_.try_emplace(about, 20, 2).first->second;
  if (auto passed = limiter.pass(std::move(line), log_limiter::clock::now()))
    lines_.push_back(*std::move(passed));
}

TENSORHUB_DECL std::vector<log_line> curve_guard::take_log() {
  const std::lock_guard lock{mutex_};
  return std::exchange(lines_, {});
}

TENSORHUB_DECL void curve_guard::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    bool is_busy = false;
    try {
      is_busy = answer_one();
      is_busy = hear_one() || is_busy;
      weigh(clock_.now());
      filter_arrivals();
    } catch (...) {  // no memory for the words: whoever comes next is answered all the same
      std::this_thread::sleep_for(pause_after_failure);
      continue;
    }
    if (is_busy) continue;
    zmq::pollitem_t items[] = {{questions_.handle(), 0, ZMQ_POLLIN, 0},
                               {failures_.socket().handle(), 0, ZMQ_POLLIN, 0},
                               {nullptr, signal_.descriptor(), ZMQ_POLLIN, 0}};
    try {
      zmq::poll(items, 3, weigh_interval);
    } catch (const zmq::error_t&) {  // interrupted by a signal
    }
    if ((items[2].revents & ZMQ_POLLIN) != 0) signal_.lower();
  }
}

TENSORHUB_DECL bool curve_guard::answer_one() {
  try {
    std::array<zmq::message_t, 7> parts;
    if (!questions_.recv(parts[0], zmq::recv_flags::dontwait)) return false;
    std::size_t count = 1;
    const auto receive = [this](zmq::message_t& part) {
      static_cast<void>(uninterrupted([&] { return questions_.recv(part, zmq::recv_flags::none); }));
    };
    while (parts[count - 1].more() && count < parts.size()) receive(parts[count++]);
    bool more = parts[count - 1].more();
    for (zmq::message_t rest; more; more = rest.more()) receive(rest);
    const bool understood = count == parts.size() && !parts.back().more() &&
                            parts[5].to_string_view() == "CURVE" && parts[6].size() == 32;
    std::array<char, curve_key_characters + 1> key{};
    if (understood) ::zmq_z85_encode(key.data(), parts[6].data<std::uint8_t>(), 32);
    bool welcome = false;
    try {  // whatever fails, the question is answered: else no other one could be heard
      welcome = understood && admits(key.data());
      const auto from = network_of(parts[3].to_string_view());
      if (from && welcome) arrivals_.proved(*from, clock_.now());
      if (from && !welcome) arrivals_.failed(*from, clock_.now());
      if (!welcome) turn_away(understood ? key.data() : "(none)", parts[3].to_string());
    } catch (...) {
      welcome = false;
    }
    const auto put = [&](std::string_view text, bool continued) {
      questions_.send(zmq::const_buffer{text.data(), text.size()},
                      continued ? zmq::send_flags::sndmore : zmq::send_flags::none);
    };
    put("1.0", true);
    put(count > 1 ? parts[1].to_string_view() : std::string_view{}, true);
    put(welcome ? "200" : "400", true);
    put(welcome ? "" : "this key is not on the allow-list", true);
    put(welcome ? std::string_view{key.data()} : std::string_view{}, true);
    put("", false);
    return true;
  } catch (const zmq::error_t&) {
    return false;
  }
}

TENSORHUB_DECL bool curve_guard::admits(const std::string& key) const {
  const std::lock_guard lock{mutex_};
  return allowed_.contains(key);
}

TENSORHUB_DECL void curve_guard::turn_away(const std::string& key, const std::string& address) {
  counted_.refused.fetch_add(1, std::memory_order_relaxed);
  note(matter::key,
       "refused a client with the key " + key + " at " + address + ": it is not on the allow-list");
  wake_();
}

TENSORHUB_DECL bool curve_guard::hear_one() {
  const auto event = failures_.next();
  if (!event) return false;
  if (event->kind == ZMQ_EVENT_LISTENING) {
    listening_ = static_cast<int>(event->value);
  } else if (event->kind == ZMQ_EVENT_ACCEPTED) {
    const peer& from = peers_[event->value] = peer_of(static_cast<int>(event->value));
    if (from.network) arrivals_.arrived(*from.network, clock_.now());
  } else if (event->kind == ZMQ_EVENT_DISCONNECTED) {
    if (failure_) say_failed(*std::exchange(failure_, std::nullopt), peers_[event->value]);
    peers_.erase(event->value);
  } else if (event->kind != ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {  // this guard refused those itself
    failure_ = *event;
  }
  return true;
}

TENSORHUB_DECL void curve_guard::offended(std::string_view peer_address) {
  const auto from = network_of(peer_address);
  if (!from) return;
  {
    const std::lock_guard lock{mutex_};
    if (offenders_.size() < most_lines) offenders_.push_back(*from);
  }
  signal_.raise();
}

TENSORHUB_DECL std::optional<std::uint64_t> curve_guard::bytes_received_by(int descriptor) noexcept {
  // struct tcp_info of linux/tcp.h, up to tcpi_bytes_received. (That header and netinet/tcp.h exclude each
  // other.)
  constexpr std::size_t place = 128;
  std::array<std::byte, place + sizeof(std::uint64_t)> seen{};
  socklen_t bytes = seen.size();
  constexpr int tcp_info_option = 11;
  if (::getsockopt(descriptor, IPPROTO_TCP, tcp_info_option, seen.data(), &bytes) != 0 || bytes < seen.size())
    return std::nullopt;
  std::uint64_t out = 0;
  std::memcpy(&out, seen.data() + place, sizeof out);
  return out;
}

TENSORHUB_DECL void curve_guard::weigh(time_point now) {
  if (now < weigh_at_) return;
  // A look takes less than 1 us: 2 % of the time at most.
  weigh_at_ = now + std::max<duration>(weigh_interval, std::chrono::microseconds{50} * peers_.size());
  for (auto& [descriptor, each] : peers_) {
    const auto received = bytes_received_by(static_cast<int>(descriptor));
    if (!received) continue;
    const std::uint64_t before = std::exchange(each.received, *received);
    each.bytes.refill(now, heard_bytes_per_second, most_bytes);
    if (each.received > before) each.bytes.left -= static_cast<std::int64_t>(each.received - before);
    if (each.bytes.left >= 0) continue;
    each.bytes.left = 0;
    // The connection may be gone, and its number another socket's, before its end is heard of.
    if (peer_of(static_cast<int>(descriptor)).text != each.text) continue;
    if (::shutdown(static_cast<int>(descriptor), SHUT_RDWR) != 0) continue;
    counted_.closed.fetch_add(1, std::memory_order_relaxed);
    if (each.network) arrivals_.offended(*each.network, now);
    note(matter::bytes,
         "closed the connection of the client at " + each.text + ": it has sent more than its messages need");
    wake_();
  }
}

TENSORHUB_DECL void curve_guard::filter_arrivals() {
  {
    const std::lock_guard lock{mutex_};
    for (const ip_network& each : std::exchange(offenders_, {})) arrivals_.offended(each, clock_.now());
  }
  if (!arrivals_.refresh(clock_.now()) || !listening_) return;
  const bool is_done = accept_none_of(arrivals_.blocked(), *listening_);
  const int reason = errno;
  const bool has_blocked = counted_.blocked.exchange(arrivals_.times_blocked()) != arrivals_.times_blocked();
  if (!has_blocked || arrivals_.blocked().empty()) return;
  const std::string last = to_string(arrivals_.blocked().back());
  note(matter::network,
       is_done ? "accepts no new connection from " + last + " for some seconds: too many of its clients " +
                     "showed no key of the list, or sent too much; connections that exist go on"
               : "cannot block " + last + ", whose clients fail too often: the kernel says '" +
                     std::generic_category().message(reason) + "'; block it in the firewall");
  wake_();
}

TENSORHUB_DECL void curve_guard::say_failed(const handshake_event& event, const peer& from) {
  counted_.failed.fetch_add(1, std::memory_order_relaxed);
  if (from.network) arrivals_.failed(*from.network, clock_.now());
  const char* why = "it closed the connection before it had shown a key";
  if (event.value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
    why = "it takes this server for one with another public key";
  else if (event.value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
    why = "it does not use CURVE";
  else if (event.kind == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL)
    why = "it does not keep to the protocol";
  note(matter::handshake, "a handshake with a client at " +
                              (from.text.empty() ? "an unknown address" : from.text) + " failed: " + why);
  wake_();
}

TENSORHUB_DECL curve_guard::peer curve_guard::peer_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return {};
  peer out{{}, network_of(address)};
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    if (::inet_ntop(AF_INET, &four.sin_addr, text.data(), text.size()) != nullptr)
      out.text = std::string{text.data()} + ":" + std::to_string(ntohs(four.sin_port));
  } else if (address.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    if (::inet_ntop(AF_INET6, &six.sin6_addr, text.data(), text.size()) != nullptr)
      out.text = "[" + std::string{text.data()} + "]:" + std::to_string(ntohs(six.sin6_port));
  }
  return out;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
