#pragma once
/// \file server.ipp
/// The loop of the reference server: moves messages between its socket and the catalog, and time into the
/// catalog.
/// It decides nothing about versions; it knows only which workers are connected, and with which keys.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tensorhub/detail/descriptor_limit.hpp"
#include "tensorhub/detail/exception_text.hpp"
#include "tensorhub/detail/random_id.hpp"
#include "tensorhub/detail/server_groups.hpp"
#include "tensorhub/detail/started_thread.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/policy/steady_clock.hpp"
#include "tensorhub/server.hpp"
#include "tensorhub/service/catalog.hpp"
#include "tensorhub/service/codec.hpp"
#include "tensorhub/service/curve_guard.hpp"
#include "tensorhub/service/log_limiter.hpp"
#include "tensorhub/service/recorders.hpp"
#include "tensorhub/service/zmq_socket.hpp"
#include "tensorhub/types/incarnation_proof.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class catalog_server::loop {
 public:
  loop(options how, any_scheduler scheduler, any_consistency consistency)
      : options_{checked(std::move(how))},
        epoch_{new_epoch(options_.term)},
        catalog_{options_.catalog, epoch_, std::move(scheduler), std::move(consistency)},
        context_{options_.security ? detail::new_context("the reference server", detail::server_io_threads)
                                   : detail::shared_context("the reference server")},
        socket_{detail::bounded_socket(*context_, zmq::socket_type::router)} {
    tally_.round_at.store(clock_.now().nanoseconds);
    try {
      socket_.set(zmq::sockopt::router_mandatory, true);  // reports an error if the connection is gone
      if (options_.security) {
        guard_.emplace(*context_, socket_, *options_.security, [this] { signal_.raise(); });
        socket_.set(zmq::sockopt::router_handover,
                    true);  // to the same secret name, after a broken connection
      }
      if (!options_.address.ends_with(":*") && !detail::is_server_address(options_.address, 0))
        throw error(errc::invalid_argument, "the reference server cannot listen at '" + options_.address +
                                                "': expected tcp://host:port, with port 0 for any");
      detail::set_family(socket_, options_.address);
      socket_.bind(options_.address);
      address_ = socket_.get(zmq::sockopt::last_endpoint);
    } catch (const zmq::error_t& e) {
      const bool is_malformed = e.num() == EINVAL || e.num() == EPROTONOSUPPORT;
      const bool is_name = e.num() == ENODEV;
      throw error(
          is_malformed ? errc::invalid_argument : errc::transport_failed,
          "the reference server cannot listen at '" + options_.address + "': " + e.what() +
              (is_name ? ": give a numeric address of this machine, an interface's name, or * for all" : ""));
    }
    thread_ =
        detail::started_thread("the reference server", [this](const std::stop_token& stop) { run(stop); });
  }
  ~loop() {
    thread_.request_stop();
    signal_.raise();
  }
  loop(const loop&) = delete;
  loop& operator=(const loop&) = delete;

  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  [[nodiscard]] server_epoch epoch() const noexcept { return epoch_; }
  [[nodiscard]] reference_server_statistics statistics() const noexcept {
    reference_server_statistics out;
    static_cast<catalog_statistics&>(out) = shown_.statistics.look();
    out.messages = tally_.messages.value();
    out.bad_frames = tally_.bad_frames.value();
    out.crowded_messages = tally_.crowded.value();
    out.flooding_connections = tally_.flooding.value();
    out.unread_answers = tally_.unread.value();
    out.descriptor_shortages = tally_.short_of_descriptors.value();
    if (guard_) {
      out.flooding_connections += guard_->closed();
      out.refused_connections = guard_->refused();
      out.failed_handshakes = guard_->failed();
      out.blocked_networks = guard_->blocked();
      out.forged_messages = tally_.forged.value();
      out.revoked_messages = tally_.revoked.value();
    }
    return out;
  }

  [[nodiscard]] std::vector<model_versions> versions() const {
    const std::lock_guard lock{shown_.mutex};
    return shown_.versions;
  }

  [[nodiscard]] duration hangs_for() const noexcept {
    return duration{clock_.now().nanoseconds - tally_.round_at.load()};
  }

  void allow(const std::string& key, client_rules rules) {
    check_allowable(guard_.has_value(), key);
    guard_->allow(key, std::move(rules));
    signal_.raise();
  }
  bool revoke(const std::string& key) {
    const bool was_allowed = guard_ && guard_->revoke(key);
    if (was_allowed) signal_.raise();
    return was_allowed;
  }

 private:
  /// The connection of an incarnation, and the key that owns it.
  struct route {
    std::string connection{};  ///< its ROUTER identity; five bytes unless the peer chose its own
    client_identity client{};  ///< whose it is, and what it may do (revoked: null); empty without security
  };

  /// Who speaks over a connection.
  struct speakers {
    std::unordered_set<incarnation> all{};  ///< never empty
    std::size_t admitted = 0;               ///< of them, when they were counted
    time_point count_at{};
  };

  [[nodiscard]] static options checked(options how) {
    how.log = never_throwing(std::move(how.log));
    how.catalog = validated(std::move(how.catalog));
    if (how.security) validate(*how.security);
    if (how.term > server_term_max)
      throw error(errc::limit_exceeded, "term " + std::to_string(how.term) + " is over " +
                                            std::to_string(server_term_max) + ": give a smaller one");
    return how;
  }

  /// A random number below the term.
  [[nodiscard]] static server_epoch new_epoch(std::uint64_t term) {
    const std::uint64_t random = detail::random_id<server_epoch>().value >> (64 - server_term_shift);
    return {term << server_term_shift | std::max<std::uint64_t>(random, 1)};
  }

  void run(const std::stop_token& stop) {
    if (!guard_ && !is_local_address(address_)) {
      say({log_level::warning,
           "the reference server listens at " + address_ +
               " without security: any client that reaches it can join and read the model; give "
               "it keys and a list of allowed clients (program: --keys and --allow)",
           {}});
    }
    say_unnamed_rights();
    static constexpr std::chrono::milliseconds pause_after_failure{10};
    while (!stop.stop_requested()) {
      try {
        step();
      } catch (...) {
        say_failure();
        std::this_thread::sleep_for(pause_after_failure);
      }
    }
  }

  void say_unnamed_rights() const {
    if (!options_.security) return;
    const auto& allowed = options_.security->allowed_clients;
    const auto unnamed =
        detail::count_if(allowed, [](const auto& entry) { return !entry.second.may.has_value(); });
    if (unnamed > 0)
      say({log_level::warning,
           std::to_string(unnamed) + " of " + std::to_string(allowed.size()) +
               " keys on the allow-list have no rights named: each may " + to_string(rights_of_unnamed) +
               "; give each role its own key, with models=, replicas= and may= (tensorhub/key_files.hpp)",
           {}});
  }

  /// One round of the thread: what has come, then what is due, as a message that came counts before silence
  /// is judged; then it waits.
  void step() {
    const time_point began = clock_.now();
    tally_.round_at.store(began.nanoseconds);
    detect_pause(began);
    const bool more = receive_some();
    const time_point now = clock_.now();
    detect_pause(now);
    detect_shortage(now);
    if (guard_) review_rights();
    if (now >= next_timer()) catalog_.advance(now, drained_ < began && is_behind(now));
    flush();
    shown_.statistics.show(catalog_.statistics());
    const time_point before = clock_.now();
    show_versions(before);
    detect_pause(before);
    back_by_ = more ? before : std::min(next_timer(), before + std::chrono::seconds{1});
    if (!more) detail::wait_for_input(socket_, signal_, before, next_timer());
  }

  /// Once a second, whatever comes: there may be many models.
  void show_versions(time_point now) {
    if (now < shown_.next_versions) return;
    auto versions = catalog_.versions();
    const std::lock_guard lock{shown_.mutex};
    shown_.versions = std::move(versions);
    shown_.next_versions = now + std::chrono::seconds{1};
  }

  /// Pre-condition: an exception is being handled.
  void say_failure() const noexcept {
    try {
      say({log_level::error,
           "the reference server's thread has failed, and goes on: " + detail::exception_text(),
           {}});
    } catch (...) {  // no memory for the words
    }
  }

  [[nodiscard]] time_point next_timer() const { return std::max(catalog_.next_deadline(), timers_from_); }

  /// Detects that this process was stopped (SIGSTOP, migration of a virtual machine). All workers then seem
  /// silent, while their messages wait in the socket: the server processes those before it checks liveness.
  void detect_pause(time_point now) {
    const auto interval = options_.catalog.heartbeat_interval;
    const time_point expected = std::exchange(back_by_, now);
    if (now <= expected + interval) return;
    timers_from_ = now + 2 * interval;
    say({log_level::warning,
         "the reference server's process was stopped for " +
             std::to_string((now - expected).count() / 1'000'000) +
             " ms: liveness timeouts are suspended until queued heartbeats are processed",
         {}});
  }

  /// A process that is not accepted for want of a descriptor can be told nothing. ZeroMQ reports it only to a
  /// monitor, with an event for each attempt of an I/O thread that does not stop trying.
  void detect_shortage(time_point now) {
    if (now < shortage_.look_at) return;
    shortage_.look_at = now + std::chrono::seconds{1};
    if (detail::has_free_descriptor()) return;
    tally_.short_of_descriptors.add();
    if (now < shortage_.say_at) return;
    shortage_.say_at = now + std::chrono::seconds{10};
    say({log_level::warning,
         "the reference server has no descriptor left, so that no other process can connect: raise the limit "
         "of open files (ulimit -n); each process with workers takes one",
         {}});
  }

  /// Messages wait, perhaps of workers that seem silent. Under a flood some always do: ZeroMQ takes a message
  /// of each connection in turn, so that after so long everybody was heard, and silence is judged again.
  [[nodiscard]] bool is_behind(time_point now) const {
    return now - drained_ <= options_.catalog.worker_timeout;
  }

  /// Hands what has come to the catalog, message by message; `step` sends the answers together. True: there
  /// may be more.
  bool receive_some() {
    constexpr int batch = 64;  // bounded, so that a flood does not starve the timers
    for (int taken = 0; taken < batch; ++taken) {
      std::size_t bytes = 0;
      bool is_whole = true;
      try {
        if (!socket_.recv(identity_, zmq::recv_flags::dontwait)) {
          drained_ = clock_.now();
          return taken > 0;
        }
        if (!identity_.more()) {
          count_bad();
          continue;
        }
        const auto receive_part = [&] {
          return detail::uninterrupted([&] { return socket_.recv(frame_, zmq::recv_flags::none); });
        };
        static_cast<void>(receive_part());
        bytes = frame_.size();
        is_whole = !frame_.more();
        for (; frame_.more(); bytes += frame_.size()) static_cast<void>(receive_part());
      } catch (const zmq::error_t&) {
        return false;
      }
      if (!is_whole)
        count_bad();
      else if (may_serve())
        accept();
      close_if_flooding(bytes);
    }
    return true;
  }

  /// Called after the message was accepted: an honest client with much to say gets it through, though slowly.
  void close_if_flooding(std::size_t bytes) {
    const bool is_large = bytes > large_message_bytes;
    if (!is_large && !guard_) return;
    if (guard_ && !sends_few_messages()) return close_connection("more messages than its workers need");
    if (is_large && !sends_few_bytes(bytes))
      close_connection("more than " + std::to_string(detail::heard_bytes_per_second >> 20) +
                       " MiB a second in large messages");
  }
  /// With keys: each worker that was admitted over a connection has a share. (One that updates 64 KiB without
  /// a pause sends some 6,000 messages a second.)
  [[nodiscard]] bool sends_few_messages() {
    std::string& connection = budgets_.connection;
    connection.assign(identity_.to_string_view());
    const time_point now = clock_.now();
    const auto known = speakers_.find(connection);
    const std::size_t workers = known == speakers_.end() ? 0 : count_admitted(known->second, now);
    return budgets_.messages.admits(connection,
                                    limits::workers_of_connection / std::max<std::size_t>(workers, 1), now);
  }
  /// Not for every message: there may be many.
  [[nodiscard]] std::size_t count_admitted(speakers& some, time_point now) const {
    if (now < some.count_at) return some.admitted;
    some.count_at = now + std::chrono::milliseconds{100};
    const auto is_admitted = [this](incarnation each) { return catalog_.knows(each); };
    some.admitted = static_cast<std::size_t>(detail::count_if(some.all, is_admitted));
    return some.admitted;
  }
  [[nodiscard]] bool sends_few_bytes(std::size_t bytes) {
    // A client with a key can open many connections: those of one key at one address share an account.
    const std::string sender =
        guard_ ? std::string{property("User-Id")} + "@" + std::string{property("Peer-Address")}
               : identity_.to_string();
    return budgets_.large_bytes.admits(sender, bytes, clock_.now());
  }
  void close_connection(const std::string& why) {
    const std::string address{property("Peer-Address")};
    if (!detail::close_connection_of(frame_)) return;
    tally_.flooding.add();
    const std::string key = guard_ ? " with the key " + std::string{property("User-Id")} : std::string{};
    say_limited({log_level::warning, "closed a connection from " + address + key + ": it sends " + why, {}});
    if (guard_) guard_->offended(address);
  }

  void accept() {
    const decode_result decoded =
        decoder_.decode({static_cast<const std::byte*>(frame_.data()), frame_.size()});
    const std::string_view from = identity_.to_string_view();
    if (!decoded.ok()) {
      count_bad();
      if (decoded.fault == decode_fault::other_protocol) explain_protocol(from, decoded.protocol);
      return;
    }
    if (decoded.message.sender == 0) return count_bad();
    tally_.messages.add();
    const bool joins = get_if<messages::join_request>(&decoded.message.body) != nullptr;
    if (guard_) review_rights();
    if (guard_ && joins && !proves_itself(decoded.message, from)) return;
    const route* const known = remember(incarnation{decoded.message.sender}, from, joins);
    if (known == nullptr) return;
    const time_point now = clock_.now();
    const bool is_charged = messages::is_question(decoded.message.body);  // the answer may be large
    if (is_charged && !budgets_.sent.may_ask(from, now)) {
      tally_.unread.add();
      return;
    }
    catalog_.receive(now, decoded.message, known->client, true);
    if (is_charged) flush();  // before the next question is asked, and its answer made
  }

  /// A join shows that the incarnation belongs to the connection's key. False: it does not, and the message
  /// must be dropped.
  bool proves_itself(const messages::envelope& said, std::string_view from) {
    const std::string key{property("User-Id")};
    const incarnation sender{said.sender};
    if (sender == incarnation_of(key, get_if<messages::join_request>(&said.body)->proof)) return true;
    tally_.forged.add();
    guard_->note(detail::curve_guard::matter::rights, "refused a join of the client with the key " + key +
                                                          " at " + std::string{property("Peer-Address")} +
                                                          ": worker " + to_hex(sender) +
                                                          " is not one of that key");
    messages::join_reply reply;
    reply.epoch = epoch_;
    reply.result = {errc::refused, "this incarnation is not proved to be one of the connection's key"};
    messages::envelope answer{epoch_.value, said.sequence, {}, std::move(reply), {}, said.sender};
    send(from, answer);
    return false;
  }

  /// A join of this worker was carried out, or will be: its key is proved.
  [[nodiscard]] bool is_proved(incarnation worker) const {
    return catalog_.knows(worker) || catalog_.is_joining(worker);
  }

  /// Updates the route to the sender. With keys, a worker that has joined, or whose join waits, keeps its
  /// connection, whose ROUTER identity only its process knows (control_connection), until it joins over
  /// another one: workers with the same key cannot speak for each other. Routes of unknown incarnations are
  /// removed from time to time, so that they cannot fill the memory. Null: the message must be dropped.
  const route* remember(incarnation sender, std::string_view from, bool joins) {
    const std::string_view key = guard_ ? property("User-Id") : std::string_view{};
    const auto [entry, fresh] = routes_.try_emplace(sender);
    route& known = entry->second;
    // Before it has joined, whoever speaks as it may be its owner, which the join will prove.
    if (fresh || (known.client.key != key && !is_proved(sender))) {
      depart(sender, known.connection);
      known = {{}, {std::string{key}, guard_ ? guard_->rules_of(key) : nullptr}};
    }
    const bool is_bound = guard_ && !joins && !known.connection.empty() && is_proved(sender);
    if (known.client.key != key || (is_bound && known.connection != from)) {
      tally_.forged.add();
      guard_->note(detail::curve_guard::matter::rights,
                   "dropped a message of the client with the key " + std::string{key} + " at " +
                       std::string{property("Peer-Address")} + ": it says that it is worker " +
                       to_hex(sender) + ", which has another connection, and the key " + known.client.key);
      return nullptr;
    }
    if (guard_ && known.client.rules == nullptr) {
      tally_.revoked.add();
      if (fresh || !known.connection.empty()) say_revoked(sender, from, key);
      depart(sender, known.connection);
      known.connection.clear();
      if (fresh) routes_.erase(entry);
      return nullptr;
    }
    if (known.connection != from && !arrive(known, sender, from)) {
      if (fresh) routes_.erase(entry);
      return nullptr;
    }
    if (routes_.size() > budgets_.routes) {
      std::erase_if(routes_, [&](const auto& other) {
        const bool stranger = other.first != sender && !is_proved(other.first);
        if (stranger) depart(other.first, other.second.connection);
        return stranger;
      });
      budgets_.routes = 2 * routes_.size() + 1024;  // so that a look costs each message little
    }
    return &known;
  }

  /// If the list of keys has changed, everybody has the rights of now.
  void review_rights() {
    if (!guard_->take_change()) return;
    try {
      const auto rules_of = [this](const std::string& key) { return guard_->rules_of(key); };
      for (auto& [sender, known] : routes_) known.client.rules = rules_of(known.client.key);
      catalog_.review(clock_.now(), rules_of);
    } catch (...) {  // no memory: again, before the next message
      guard_->give_change_back();
      throw;
    }
  }

  /// Assigns a worker to this connection. False: the connection already has too many workers. (A real worker
  /// has its own connection; a client that invents workers uses one for many.)
  bool arrive(route& known, incarnation sender, std::string_view from) {
    std::unordered_set<incarnation>& present = speakers_[std::string{from}].all;
    if (present.size() >= limits::workers_of_connection) forget_strangers(present);
    if (present.size() >= limits::workers_of_connection) {
      tally_.crowded.add();
      const std::uint64_t dropped = tally_.crowded.value();
      if (std::has_single_bit(
              dropped))  // logged at powers of two only, so that a flood does not fill the log
        say({log_level::warning,
             "dropped a message of worker " + to_hex(sender) + " from " +
                 std::string{property("Peer-Address")} + ": its connection speaks for " +
                 std::to_string(present.size()) + " other workers already (" + std::to_string(dropped) +
                 " such messages so far)",
             {}});
      return false;
    }
    present.insert(sender);
    depart(sender, known.connection);
    known.connection.assign(from);
    return true;
  }
  void depart(incarnation worker, const std::string& connection) {
    const auto found = speakers_.find(connection);
    if (found == speakers_.end()) return;
    found->second.all.erase(worker);
    if (found->second.all.empty()) speakers_.erase(found);
  }
  /// A process may have had many workers one after the other: those that have left need no route any more.
  void forget_strangers(std::unordered_set<incarnation>& present) {
    std::erase_if(present, [this](incarnation each) {
      if (is_proved(each)) return false;
      routes_.erase(each);
      return true;
    });
  }

  /// A property of the connection on which the frame arrived.
  [[nodiscard]] std::string_view property(const char* name) const noexcept {
    const char* const value = ::zmq_msg_gets(frame_.handle(), name);
    return value == nullptr ? std::string_view{} : std::string_view{value};
  }

  void say_revoked(incarnation worker, std::string_view to, std::string_view key) {
    guard_->note(
        detail::curve_guard::matter::rights,
        "worker " + to_hex(worker) + " is now ignored: its key " + std::string{key} + " was revoked");
    say_goodbye(to, {errc::refused, "the key of this process was revoked at the reference server"}, worker);
  }

  void explain_protocol(std::string_view to, std::uint16_t theirs) {
    say_goodbye(to, {errc::protocol_mismatch, "this reference server speaks control protocol " +
                                                  std::to_string(control_protocol) + ", the worker speaks " +
                                                  std::to_string(theirs)});
  }

  void say_goodbye(std::string_view to, messages::status reason, incarnation worker = {}) {
    send(to, messages::envelope{.sender = epoch_.value,
                                .body = messages::goodbye_push{.epoch = epoch_, .reason = std::move(reason)},
                                .recipient = worker.value});
  }

  void flush() {
    for (auto output = catalog_.take_output(); !output.empty(); output = catalog_.take_output()) {
      std::vector<outgoing*> order;
      order.reserve(output.size());
      for (outgoing& message : output) order.push_back(&message);
      // ZeroMQ writes what waits for a connection with one call of the kernel.
      std::stable_sort(order.begin(), order.end(),
                       [](const outgoing* a, const outgoing* b) { return a->to < b->to; });
      for (outgoing* const each : order) {
        outgoing& message = *each;
        const auto to = routes_.find(message.to);
        if (to == routes_.end() || to->second.connection.empty()) continue;
        message.message.recipient = message.to.value;
        if (!send(to->second.connection, message.message)) catalog_.unreachable(clock_.now(), message.to);
      }
    }
    for (log_line& line : catalog_.take_log()) say_limited(std::move(line));
    if (!guard_) return;
    for (const log_line& line : guard_->take_log()) say(line);
  }

  [[nodiscard]] bool may_serve() const { return !options_.may_serve || options_.may_serve(); }

  /// False: the connection is gone. Other losses (a peer that does not read) are only counted; the worker
  /// repeats its request.
  bool send(std::string_view to, const messages::envelope& message) {
    if (!may_serve()) return true;
    try {
      auto frame = budgets_.sent.admit(to, encoder_.encode(message), clock_.now());
      const auto send_name = [&] {
        return socket_.send(zmq::const_buffer{to.data(), to.size()},
                            zmq::send_flags::sndmore | zmq::send_flags::dontwait);
      };
      if (frame && detail::uninterrupted(send_name)) {
        static_cast<void>(
            detail::uninterrupted([&] { return socket_.send(*frame, zmq::send_flags::dontwait); }));
      } else {
        tally_.unread.add();
      }
    } catch (const zmq::error_t& e) {
      return e.num() != EHOSTUNREACH;
    } catch (const error& e) {
      say({log_level::error, std::string{"a message could not be encoded: "} + e.what()});
    }
    return true;
  }

  void count_bad() noexcept { tally_.bad_frames.add(); }

  /// Most of what the catalog says is about a message of a worker, which can be repeated.
  void say_limited(log_line line) {
    if (!options_.log || line.level > options_.level) return;
    if (line.level == log_level::debug) return say(line);  // an operator has asked for each of them
    detail::log_limiter& limiter = line.level == log_level::info ? limiters_.news : limiters_.warnings;
    if (const auto passed = limiter.pass(std::move(line), detail::log_limiter::clock::now())) say(*passed);
  }
  void say(const log_line& line) const {
    if (options_.log && line.level <= options_.level) options_.log(line);
  }

  /// What any thread is told, beside the catalog's counts.
  struct message_counts {
    std::atomic<std::int64_t> round_at = 0;  ///< when the thread's last round began
    detail::counter messages;
    detail::counter bad_frames;
    detail::counter crowded;
    detail::counter flooding;
    detail::counter unread;
    detail::counter short_of_descriptors;
    detail::counter forged;
    detail::counter revoked;
  };

  options options_;
  server_epoch epoch_;
  steady_clock clock_;
  catalog catalog_;
  std::shared_ptr<zmq::context_t> context_;
  zmq::socket_t socket_;
  std::string address_;
  zmq::message_t identity_;
  zmq::message_t frame_;
  static constexpr std::size_t large_message_bytes = 64u << 10;
  /// A message costs its connection its worker's share of `workers_of_connection`.
  static constexpr std::size_t most_messages = 10'000;
  static constexpr std::size_t messages_per_second = 15'000;
  struct {
    detail::heard_budget large_bytes{8 * detail::most_heard_bytes, detail::heard_bytes_per_second};
    detail::heard_budget messages{most_messages * limits::workers_of_connection,
                                  messages_per_second* limits::workers_of_connection};
    detail::send_budget sent;
    std::string connection{};   ///< scratch
    std::size_t routes = 1024;  ///< before strangers are looked for among them
  } budgets_;
  struct {
    detail::log_limiter warnings{200, 2};
    detail::log_limiter news{20'000, 20};  ///< who joins and leaves: a fleet may do so at once
  } limiters_;
  encoder encoder_;
  decoder decoder_;
  std::unordered_map<incarnation, route> routes_;
  std::unordered_map<std::string, speakers> speakers_;  ///< by connection
  message_counts tally_;
  struct {
    detail::mirrored<catalog_statistics> statistics{};
    mutable std::mutex mutex{};
    std::vector<model_versions> versions{};  ///< guarded by mutex
    time_point next_versions{};              ///< of the server's thread
  } shown_;
  time_point back_by_ = time_point::never();  ///< when the thread expects to read the clock again
  time_point timers_from_{};                  ///< timers are suspended until then
  time_point drained_{};                      ///< when no message waited
  struct {
    time_point look_at{};
    time_point say_at{};  ///< again at the earliest
  } shortage_;            ///< of descriptors
  detail::wake_event signal_;
  std::optional<detail::curve_guard> guard_;  ///< with security
  std::jthread thread_;                       ///< last member: uses all members above
};

TENSORHUB_DECL catalog_server::catalog_server(options how, any_scheduler scheduler,
                                              any_consistency consistency)
    : loop_{detail::with_sockets("the reference server", detail::descriptors_of_server, [&] {
        return std::make_unique<loop>(std::move(how), std::move(scheduler), std::move(consistency));
      })} {}
TENSORHUB_DECL catalog_server::~catalog_server() = default;
TENSORHUB_DECL const std::string& catalog_server::address() const noexcept {
  return loop_->address();
}
TENSORHUB_DECL duration catalog_server::hangs_for() const noexcept {
  return loop_->hangs_for();
}
TENSORHUB_DECL server_epoch catalog_server::epoch() const noexcept {
  return loop_->epoch();
}
TENSORHUB_DECL reference_server_statistics catalog_server::statistics() const noexcept {
  return loop_->statistics();
}
TENSORHUB_DECL std::vector<model_versions> catalog_server::versions() const {
  return loop_->versions();
}
TENSORHUB_DECL void catalog_server::allow(const std::string& key, client_rules rules) {
  loop_->allow(key, std::move(rules));
}
TENSORHUB_DECL bool catalog_server::revoke(const std::string& key) {
  return loop_->revoke(key);
}

}  // namespace tensorhub::inline TENSORHUB_MODE
