/// TLS and what it must not take: certificates that do not fit, peers that do not speak it, handshakes that
/// never end. Each gets a sentence or an alert, is counted, and costs nobody else anything.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tensorhub/transports/tcp.hpp>
#include <tensorhub/transports/tls.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "support/calls.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/transports/tls/socket_bio.hpp"
#include "tls_certificates.hpp"

namespace {

using namespace std::chrono_literals;
using namespace tensorhub;
using calls::comes_true;
using calls::contains;
using tls_tests::authority;
using tls_tests::identity;
using transports::tcp;
using transports::tls;
namespace parts = transports::tcp_detail;
namespace tls_parts = transports::tls_detail;

constexpr incarnation source_id{1};

std::string sentence_of(const std::function<void()>& what, errc code = errc::transport_failed) {
  try {
    what();
  } catch (const error& e) {
    CHECK(e.code() == code);
    return e.what();
  }
  return "(no error)";
}

/// A source with one region, and a reader of it that was there before.
template <typename T>
struct scene {
  T source;
  T reader;
  std::vector<std::byte> bytes = std::vector<std::byte>(300'000, std::byte{7});
  std::vector<std::byte> target = std::vector<std::byte>(300'000);
  std::vector<typename T::memory_region> given, taken;
  typename T::queue queue;
  std::optional<typename T::endpoint> endpoint{};

  scene(const typename T::options& source_options, const typename T::options& reader_options)
      : source{source_options, source_id},
        reader{reader_options, incarnation{2}},
        queue{reader.make_queue(4)} {
    const memory_range from{bytes.data(), bytes.size()}, into{target.data(), target.size()};
    given = source.register_memory(std::span{&from, 1}, region_access::remote_read);
    taken = reader.register_memory(std::span{&into, 1}, region_access::local_write);
  }
  void connect() { endpoint.emplace(reader.connect(queue, source.address(), source_id, 5s)); }
  [[nodiscard]] bool can_read() {
    std::ranges::fill(target, std::byte{0});
    const remote_region from = source.describe(given.front());
    if (queue.post_read(*endpoint, taken.front(), 0, {&from, 0, bytes.size()}, 1) != post_result::posted)
      return false;
    completion done;
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (queue.poll({&done, 1}) == 0 && std::chrono::steady_clock::now() < until) queue.wait(100ms);
    return done.id == 1 && done.status == completion_status::ok && target == bytes;
  }
  [[nodiscard]] std::string connect_sentence() {
    return sentence_of([&] { connect(); });
  }
};
using tls_scene = scene<tls>;

/// A client by OpenSSL's own means, which does what our readers would not.
struct stranger {
  std::optional<identity> shows{};
  int version = TLS1_3_VERSION;

  [[nodiscard]] static detail::unique_socket socket_to(const std::string& address) {
    const auto where = parts::parse_address(address, "tls://");
    REQUIRE(where);
    return parts::connect_to(parts::make_address(*where), {}, std::chrono::steady_clock::now() + 10s);
  }
  [[nodiscard]] tls_parts::context_pointer context() const {
    tls_parts::context_pointer made{::SSL_CTX_new(::TLS_client_method())};
    static_cast<void>(SSL_CTX_set_min_proto_version(made.get(), version));
    static_cast<void>(SSL_CTX_set_max_proto_version(made.get(), version));
    if (shows) {
      REQUIRE(::SSL_CTX_use_certificate_file(made.get(), shows->certificate_file.c_str(), SSL_FILETYPE_PEM) ==
              1);
      REQUIRE(::SSL_CTX_use_PrivateKey_file(made.get(), shows->key_file.c_str(), SSL_FILETYPE_PEM) == 1);
    }
    return made;
  }

  /// OpenSSL's reason for which it could not come in; zero: it could.
  [[nodiscard]] int come_in(const std::string& address) const {
    const detail::unique_socket socket = socket_to(address);
    const auto made = context();
    const tls_parts::session_pointer session{::SSL_new(made.get())};
    ::SSL_set_bio(session.get(), ::BIO_new_socket(socket.get(), BIO_NOCLOSE), nullptr);
    BIO_up_ref(::SSL_get_rbio(session.get()));
    ::SSL_set0_wbio(session.get(), ::SSL_get_rbio(session.get()));
    ::ERR_clear_error();
    // Refused by TLS 1.3, one is told only when one goes on.
    const auto step = [&](auto&& call) {
      for (;;) {
        const int done = call();
        if (done == 1) return true;
        const int need = ::SSL_get_error(session.get(), done);
        if (need != SSL_ERROR_WANT_READ && need != SSL_ERROR_WANT_WRITE) return false;
        REQUIRE(parts::wait_ready(socket.get(), need == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT,
                                  std::chrono::steady_clock::now() + 10s));
      }
    };
    char byte = 0;
    const parts::hello greeting{.reader = 9, .source = source_id.value};
    std::size_t count = 0;
    const bool in = step([&] { return ::SSL_connect(session.get()); }) &&
                    step([&] { return ::SSL_write_ex(session.get(), &greeting, sizeof greeting, &count); }) &&
                    step([&] { return ::SSL_read_ex(session.get(), &byte, 1, &count); });
    return in ? 0 : ERR_GET_REASON(::ERR_peek_last_error());
  }
};

/// What a source says of a stranger, beside whom a reader goes on undisturbed.
struct refusal {
  int alert = 0;
  std::string sentence;
};
refusal refused(const authority& ours, const stranger& who, tls::options options) {
  tls_scene here{options, ours.options()};
  here.connect();
  REQUIRE(here.can_read());
  refusal out;
  out.alert = who.come_in(here.source.address().text);
  CHECK(comes_true([&] { return here.source.refused_connections() == 1; }));
  out.sentence = here.source.report().last_refusal;
  CHECK(contains(out.sentence, "127.0.0.1:"));
  CHECK(here.can_read());
  CHECK(here.source.report().opened_connections == 1);
  return out;
}

/// A server by OpenSSL's own means, for one connection: shows a certificate that no source would start with.
struct false_source {
  detail::unique_socket listener{};
  std::string address;
  std::jthread thread;

  explicit false_source(const identity& shows) {
    auto door = parts::listen_at({}, "tls");
    listener = std::move(door.socket);
    address = "tls://127.0.0.1:" + std::to_string(door.port);
    thread = std::jthread{[this, shows] {
      if (!parts::wait_ready(listener.get(), POLLIN, std::chrono::steady_clock::now() + 20s)) return;
      const detail::unique_fd socket{::accept(listener.get(), nullptr, nullptr)};
      const tls_parts::context_pointer made{::SSL_CTX_new(::TLS_server_method())};
      ::SSL_CTX_use_certificate_file(made.get(), shows.certificate_file.c_str(), SSL_FILETYPE_PEM);
      ::SSL_CTX_use_PrivateKey_file(made.get(), shows.key_file.c_str(), SSL_FILETYPE_PEM);
      const tls_parts::session_pointer session{::SSL_new(made.get())};
      timeval limit{20, 0};
      ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
      auto bio = tls_parts::make_socket_bio(socket.get());
      ::SSL_set_bio(session.get(), bio.get(), bio.get());
      static_cast<void>(bio.release());
      static_cast<void>(::SSL_accept(session.get()));
    }};
  }
  using tcp_options = transports::tcp_options;
};

std::string disbelieved(const authority& ours, const identity& shown) {
  const false_source there{shown};
  tls reader{ours.options(), incarnation{2}};
  auto queue = reader.make_queue(1);
  return sentence_of([&] { static_cast<void>(reader.connect(queue, {there.address}, source_id, 10s)); });
}

/// Stands between a reader and a source, with a certificate that both accept: passes the hello on and the
/// welcome back, or answers the reader by itself.
struct man_in_the_middle {
  detail::unique_socket listener{};
  std::string address;
  std::jthread thread;

  man_in_the_middle(const identity& shows, std::string source_address, bool answers_itself) {
    auto door = parts::listen_at({}, "tls");
    listener = std::move(door.socket);
    address = "tls://127.0.0.1:" + std::to_string(door.port);
    thread = std::jthread{[this, shows, source_address, answers_itself] {
      if (!parts::wait_ready(listener.get(), POLLIN, std::chrono::steady_clock::now() + 20s)) return;
      const detail::unique_fd from_reader{::accept(listener.get(), nullptr, nullptr)};
      const auto reader = session_over(from_reader.get(), shows, ::TLS_server_method());
      if (::SSL_accept(reader.get()) != 1) return;
      parts::hello greeting;
      parts::welcome answer;
      std::size_t count = 0;
      static_cast<void>(::SSL_read_ex(reader.get(), &greeting, sizeof greeting, &count));
      answer.source = greeting.source;
      if (answers_itself) {
        static_cast<void>(::SSL_write_ex(reader.get(), &answer, sizeof answer, &count));
        static_cast<void>(::SSL_read_ex(reader.get(), &greeting, sizeof greeting, &count));
        return;
      }
      const detail::unique_socket to_source = stranger::socket_to(source_address);
      static_cast<void>(::fcntl(to_source.get(), F_SETFL, 0));
      const auto source = session_over(to_source.get(), shows, ::TLS_client_method());
      if (::SSL_connect(source.get()) != 1) return;
      static_cast<void>(::SSL_write_ex(source.get(), &greeting, sizeof greeting, &count));
      static_cast<void>(::SSL_read_ex(source.get(), &answer, sizeof answer, &count));
      static_cast<void>(::SSL_write_ex(reader.get(), &answer, sizeof answer, &count));
      static_cast<void>(::SSL_read_ex(reader.get(), &greeting, sizeof greeting, &count));
    }};
  }

 private:
  [[nodiscard]] static tls_parts::session_pointer session_over(int socket, const identity& shows,
                                                               const SSL_METHOD* method) {
    const tls_parts::context_pointer made{::SSL_CTX_new(method)};
    ::SSL_CTX_use_certificate_file(made.get(), shows.certificate_file.c_str(), SSL_FILETYPE_PEM);
    ::SSL_CTX_use_PrivateKey_file(made.get(), shows.key_file.c_str(), SSL_FILETYPE_PEM);
    tls_parts::session_pointer session{::SSL_new(made.get())};
    timeval limit{20, 0};
    ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    auto bio = tls_parts::make_socket_bio(socket);
    ::SSL_set_bio(session.get(), bio.get(), bio.get());
    static_cast<void>(bio.release());
    return session;
  }
};

/// On the wire between a reader and a source: passes everything on, looks for the source's bytes, and can
/// change one of them.
class wire_tap {
 public:
  wire_tap(const std::string& source_address, const std::string& scheme, bool changes)
      : source_{*parts::parse_address(source_address, scheme)}, changes_{changes} {
    auto door = parts::listen_at({}, "tls");
    listener_ = std::move(door.socket);
    address_ = scheme + "127.0.0.1:" + std::to_string(door.port);
    thread_ = std::jthread{[this](const std::stop_token& stop) { run(stop); }};
  }
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  [[nodiscard]] bool saw_bytes() const noexcept { return saw_bytes_; }

 private:
  static constexpr std::size_t changed_at = 200'000;  // within the 300,000 bytes that are read

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::vector<pollfd> watched{{listener_.get(), POLLIN, 0}};
      for (const auto& socket : ends_) watched.push_back({socket.get(), POLLIN, 0});
      if (::poll(watched.data(), watched.size(), 50) <= 0) continue;
      for (std::size_t i = 1; i < watched.size(); ++i) {
        if (watched[i].revents != 0) pass_on(i - 1);
      }
      if (watched[0].revents == 0) continue;
      ends_.emplace_back(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      ends_.push_back(
          parts::connect_to(parts::make_address(source_), {}, std::chrono::steady_clock::now() + 10s));
    }
  }
  /// The reader's end of a connection has an even number, the source's the next one.
  void pass_on(std::size_t from) {
    std::vector<char> bytes(1u << 16);
    const ssize_t count = ::recv(ends_[from].get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count <= 0) {
      ::shutdown(ends_[from ^ 1].get(), SHUT_RDWR);
      return;
    }
    bytes.resize(static_cast<std::size_t>(count));
    if (from % 2 == 1) look_at(bytes);
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t sent = ::send(ends_[from ^ 1].get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent > 0) at += static_cast<std::size_t>(sent);
      if (sent < 0 && errno != EAGAIN) return;
    }
  }
  void look_at(std::vector<char>& bytes) {
    if (contains({bytes.begin(), bytes.end()}, std::string(64, '\7'))) saw_bytes_ = true;
    if (changes_ && changed_at - seen_ < bytes.size()) bytes[changed_at - seen_] ^= 1;
    seen_ += bytes.size();
  }

  parts::host_and_port source_;
  bool changes_;
  detail::unique_socket listener_{};
  std::string address_{};
  std::vector<detail::unique_socket> ends_{};  ///< of the thread
  std::size_t seen_ = 0;                       ///< of the thread: bytes from the source
  std::atomic<bool> saw_bytes_{false};
  std::jthread thread_{};
};

}  // namespace

TEST_CASE("tls: whoever stands between reader and source, with a good certificate, gets no further") {
  const authority ours{"ours"};
  tls_scene here{ours.options(), ours.options()};
  const std::string key = random_capability_key();
  here.source.require_capability(std::as_bytes(std::span{key}));
  const std::string capability = make_capability(key, incarnation{2}, source_id, 5);
  const auto connect_to = [&](const std::string& address) {
    return sentence_of([&] {
      here.endpoint.emplace(here.reader.connect(here.queue, {address, capability}, source_id, 10s));
    });
  };
  SUBCASE("nobody does") {
    CHECK(connect_to(here.source.address().text) == "(no error)");
    CHECK(here.can_read());
  }
  SUBCASE("it passes the reader's capability on") {
    const man_in_the_middle relay{ours.issue({.name = "rollout-9"}), here.source.address().text, false};
    const std::string sentence = connect_to(relay.address);
    CHECK_MESSAGE(contains(sentence, "capability"), sentence);
    CHECK(here.source.refused_connections() == 1);
  }
  SUBCASE("it answers in the source's name") {
    const man_in_the_middle relay{ours.issue({.name = "rollout-9"}), here.source.address().text, true};
    const std::string sentence = connect_to(relay.address);
    CHECK_MESSAGE(contains(sentence, "does not know this reader's capability"), sentence);
  }
}

TEST_CASE("on the wire: bytes of tcp can be read and changed, those of tls cannot") {
  const authority ours;
  const auto tapped = [](auto& here, const std::string& scheme, bool changes) {
    const wire_tap tap{here.source.address().text, scheme, changes};
    here.endpoint.emplace(here.reader.connect(here.queue, {tap.address()}, source_id, 10s));
    const bool arrived = here.can_read();
    return std::pair{arrived, tap.saw_bytes()};
  };
  for (const bool changes : {false, true}) {
    CAPTURE(changes);
    scene<tcp> in_the_clear{{}, {}};
    CHECK(tapped(in_the_clear, "tcp://", changes) == std::pair{!changes, true});
    const bool is_changed = std::ranges::count(in_the_clear.target, std::byte{6}) == 1;
    CHECK(is_changed == changes);  // a digest is what would tell
    tls_scene encrypted{ours.options(), ours.options()};
    CHECK(tapped(encrypted, "tls://", changes) == std::pair{!changes, false});
    CHECK(std::ranges::count(encrypted.target, std::byte{6}) == 0);
  }
}

TEST_CASE("tls: an expired certificate, of a reader and of a source") {
  const authority ours;
  const identity late = ours.issue({.name = "late", .valid_from_s = -7200, .valid_until_s = -3600});
  const refusal seen = refused(ours, {.shows = late}, ours.options());
  CHECK(seen.alert == SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED);
  CHECK_MESSAGE(contains(seen.sentence, "the certificate CN=late expired on 20"), seen.sentence);
  const std::string reader = disbelieved(ours, late);
  CHECK_MESSAGE(contains(reader, "is not trusted: the certificate CN=late expired on 20"), reader);
}

TEST_CASE("tls: a certificate that is not valid yet") {
  const authority ours;
  const identity early = ours.issue({.name = "early", .valid_from_s = 3600});
  CHECK(
      contains(refused(ours, {.shows = early}, ours.options()).sentence, "CN=early is not valid before 20"));
  CHECK(contains(disbelieved(ours, early), "compare the clocks"));
}

TEST_CASE("tls: a certificate of an unknown authority, self-signed, or without permission for this use") {
  const authority ours{"ours"};
  const authority theirs{"theirs"};
  tls::options stranger_options = theirs.options({.name = "stranger"});
  tls::options believer = stranger_options;
  believer.ca_file = ours.file();  // believes us, is not believed by us
  SUBCASE("the reader does not know the source's") {
    tls_scene here{ours.options({.name = "known"}), stranger_options};
    const std::string sentence = here.connect_sentence();
    CHECK_MESSAGE(contains(sentence, "the certificate CN=known is not signed by an authority in"), sentence);
    CHECK(comes_true([&] { return here.source.refused_connections() == 1; }));
    CHECK(contains(here.source.report().last_refusal,
                   "refuses this process's certificate (CN=known, valid from 20"));
  }
  SUBCASE("the source does not know the reader's") {
    tls_scene here{ours.options(), believer};
    const std::string sentence = here.connect_sentence();
    CHECK_MESSAGE(contains(sentence, "refuses this process's certificate (CN=stranger, valid from 20"),
                  sentence);
    CHECK(contains(sentence, "not signed by an authority that the peer knows"));
    CHECK(comes_true([&] { return here.source.refused_connections() == 1; }));
    CHECK(contains(here.source.report().last_refusal,
                   "the certificate CN=stranger is not signed by an authority in"));
  }
  SUBCASE("the authority's name alone is not enough") {
    const authority forged{"ours"};
    const refusal seen = refused(ours, {.shows = forged.issue({.name = "forged"})}, ours.options());
    CHECK(seen.alert != 0);
    CHECK_MESSAGE(contains(seen.sentence, "CN=forged"), seen.sentence);
  }
  SUBCASE("a worker needs both purposes") {
    tls_scene here{ours.options({.name = "a", .purposes = "serverAuth,clientAuth"}),
                   ours.options({.name = "b", .purposes = "serverAuth"})};
    const std::string sentence = here.connect_sentence();
    CHECK_MESSAGE(contains(sentence, "serverAuth and clientAuth"), sentence);
    CHECK(comes_true([&] { return contains(here.source.report().last_refusal, "CN=b may not be used"); }));
  }
}

TEST_CASE("tls: no certificate at all") {
  const authority ours;
  const refusal seen = refused(ours, {}, ours.options());
  CHECK(seen.alert == SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED);
  CHECK_MESSAGE(contains(seen.sentence, "shows no certificate"), seen.sentence);
}

TEST_CASE("tls: names: a list at either side, the host, and wildcards") {
  const authority ours;
  const tls::options trainer = ours.options({.name = "t", .alternatives = "DNS:a.trainers.example"});
  const tls::options rollout = ours.options({.name = "r", .alternatives = "DNS:b.rollouts.example"});
  const auto with = [](tls::options options, std::vector<std::string> names, bool verify_host = false) {
    options.allowed_names = std::move(names);
    options.verify_host = verify_host;
    return options;
  };
  SUBCASE("the source's list") {
    tls_scene here{with(trainer, {"c.rollouts.example", "a.trainers.example"}), rollout};
    CHECK(contains(here.connect_sentence(), "refuses this process's certificate (CN=r"));
    CHECK(comes_true([&] { return here.source.refused_connections() == 1; }));
    CHECK(contains(here.source.report().last_refusal, "CN=r has none of the names that are allowed"));
  }
  SUBCASE("the reader's list") {
    tls_scene here{trainer, with(rollout, {"b.rollouts.example"})};
    CHECK(contains(here.connect_sentence(), "the certificate CN=t has none of the names that are allowed"));
  }
  SUBCASE("both content; a common name does not count beside DNS names") {
    tls_scene here{with(trainer, {"b.rollouts.example"}), with(rollout, {"x", "a.trainers.example"})};
    here.connect();
    CHECK(here.can_read());
    tls_scene other{with(trainer, {"r"}), rollout};
    CHECK(contains(other.connect_sentence(), "refuses this process's certificate"));
  }
  SUBCASE("a wildcard") {
    tls_scene here{ours.options({.name = "w", .alternatives = "DNS:*.trainers.example"}),
                   with(rollout, {"z.trainers.example"})};
    here.connect();
    CHECK(here.can_read());
  }
  SUBCASE("a wildcard for a part of a label is none") {
    tls_scene here{ours.options({.name = "p", .alternatives = "DNS:z*.trainers.example"}),
                   with(rollout, {"zz.trainers.example"})};
    CHECK(contains(here.connect_sentence(), "CN=p has none of the names"));
  }
  SUBCASE("the host") {
    tls_scene here{trainer, with(rollout, {}, true)};
    CHECK(contains(here.connect_sentence(), "CN=t has none of the names"));
    tls_scene other{ours.options({.alternatives = "IP:127.0.0.1"}), with(rollout, {}, true)};
    other.connect();
    CHECK(other.can_read());
  }
}

TEST_CASE("tls: a reader in the clear, a reader under TLS at a port in the clear, TLS 1.2, garbage") {
  const authority ours;
  SUBCASE("transport tcp") {
    tls_scene here{ours.options(), ours.options()};
    here.connect();
    tcp plain{{}, incarnation{3}};
    auto queue = plain.make_queue(1);
    std::string address = here.source.address().text;
    CHECK(contains(sentence_of([&] { static_cast<void>(plain.connect(queue, {address}, source_id, 5s)); }),
                   "is not an address of this transport"));
    address.replace(0, 3, "tcp");
    const std::string sentence =
        sentence_of([&] { static_cast<void>(plain.connect(queue, {address}, source_id, 5s)); });
    CHECK_MESSAGE(contains(sentence, "encrypts its data connections: use transport tls"), sentence);
    CHECK(comes_true([&] { return here.source.refused_connections() == 1; }));
    CHECK(contains(here.source.report().last_refusal, "is not encrypted: the peer uses transport tcp"));
    CHECK(here.can_read());
  }
  SUBCASE("at a port of transport tcp") {
    scene<tcp> here{{}, {}};
    here.connect();
    tls reader{ours.options(), incarnation{3}};
    auto queue = reader.make_queue(1);
    std::string address = here.source.address().text;
    address.replace(0, 3, "tls");
    const std::string sentence =
        sentence_of([&] { static_cast<void>(reader.connect(queue, {address}, source_id, 5s)); });
    CHECK_MESSAGE(contains(sentence, "is it a data port of transport tls?"), sentence);
    CHECK(here.can_read());
  }
  SUBCASE("TLS 1.2") {
    const refusal seen = refused(ours, {.shows = ours.issue({}), .version = TLS1_2_VERSION}, ours.options());
    CHECK(seen.alert == SSL_R_TLSV1_ALERT_PROTOCOL_VERSION);
    CHECK_MESSAGE(contains(seen.sentence, "does not speak TLS 1.3"), seen.sentence);
  }
  SUBCASE("garbage") {
    tls_scene here{ours.options(), ours.options()};
    here.connect();
    std::uint64_t expected = 0;
    for (const std::string& garbage :
         {std::string(5000, 'x'), std::string("\x16\x03\x01\xff\xff", 5) + std::string(5000, '\0'),
          std::string("\x16", 1) + std::string(5000, '\x16'), std::string("THTHUB"), std::string(1, '\0')}) {
      const auto socket = stranger::socket_to(here.source.address().text);
      CHECK(::send(socket.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL) > 0);
      ++expected;
      CHECK(comes_true([&] { return here.source.refused_connections() == expected; }));
    }
    CHECK(here.can_read());
  }
  SUBCASE("nobody listens, or says nothing") {
    tls reader{ours.options(), incarnation{3}};
    auto queue = reader.make_queue(1);
    auto door = parts::listen_at({}, "tls");
    const transport_address silent{"tls://127.0.0.1:" + std::to_string(door.port)};
    const std::string sentence = sentence_of(
        [&] { static_cast<void>(reader.connect(queue, silent, source_id, 100ms)); }, errc::timed_out);
    CHECK_MESSAGE(contains(sentence, "does not continue the handshake"), sentence);
    door.socket.reset();
    CHECK(contains(sentence_of([&] { static_cast<void>(reader.connect(queue, silent, source_id, 5s)); }),
                   "cannot connect"));
  }
}

TEST_CASE("tls: handshakes that are begun and never ended hold up nobody, and end") {
  const authority ours;
  tls_scene here{ours.options(), ours.options()};
  const auto context = stranger{}.context();
  std::vector<detail::unique_socket> sockets;
  for (int i = 0; i < 300; ++i) {
    auto socket = stranger::socket_to(here.source.address().text);
    if (i % 3 == 0) CHECK(::send(socket.get(), "\x16", 1, MSG_NOSIGNAL) == 1);
    if (i % 3 == 1) {  // a whole ClientHello, then nothing
      const tls_parts::session_pointer session{::SSL_new(context.get())};
      BIO* const out = ::BIO_new(::BIO_s_mem());
      ::SSL_set_bio(session.get(), ::BIO_new(::BIO_s_mem()), out);
      CHECK(::SSL_connect(session.get()) != 1);
      char hello[2048];
      const int bytes = ::BIO_read(out, hello, sizeof hello);
      REQUIRE(bytes > 100);
      CHECK(::send(socket.get(), hello, static_cast<std::size_t>(bytes), MSG_NOSIGNAL) == bytes);
    }
    sockets.push_back(std::move(socket));
    if (i % 50 == 0) {
      here.connect();
      CHECK(here.can_read());
    }
  }
  here.connect();
  CHECK(here.can_read());
  for (const auto& socket : sockets) {
    CHECK(comes_true([&] {  // what the source had to say first is thrown away
      char bytes[4096];
      const auto taken = ::recv(socket.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      return taken == 0 || (taken < 0 && errno != EAGAIN);
    }));
  }
  CHECK(here.can_read());
}

TEST_CASE("tls: options that cannot work are errors at once") {
  const authority ours;
  const tls::options good = ours.options({.name = "good"});
  const auto sentence_with = [&](auto&& change) {
    tls::options options = good;
    change(options);
    return sentence_of([&] { tls{options, source_id}; });
  };
  CHECK(contains(sentence_of([] { tls{{}, source_id}; }), "option certificate_file is empty"));
  CHECK(contains(sentence_with([](auto& o) { o.ca_file.clear(); }), "option ca_file is empty"));
  const std::string no_file = sentence_with([](auto& o) { o.key_file += ".none"; });
  CHECK(contains(no_file, ".none cannot be used"));
  CHECK_MESSAGE(contains(no_file, "No such file or directory"), no_file);
  const std::string nowhere = "/nonexistent/file.pem";
  CHECK(contains(sentence_with([&](auto& o) { o.certificate_file = nowhere; }), "No such file or directory"));
  CHECK(contains(sentence_with([&](auto& o) { o.ca_file = nowhere; }), "No such file or directory"));
  CHECK(contains(sentence_with([](auto& o) { o.ca_file = o.key_file; }), "ca_file"));
  CHECK(contains(sentence_with([&](auto& o) { o.key_file = ours.issue({}).key_file; }), "key_file"));
  CHECK(contains(sentence_with([](auto& o) { o.ciphersuites = "ROT13"; }), "ROT13"));
  for (const ::mode_t mode : {0640u, 0604u, 0620u, 0602u}) {
    const std::string key = ours.issue({}).key_file;
    REQUIRE(::chmod(key.c_str(), mode) == 0);
    CHECK(contains(sentence_with([&](auto& o) { o.key_file = key; }), "chmod 600"));
  }
  const std::string expired = sentence_with([&](auto& o) {
    const identity late = ours.issue({.name = "late", .valid_until_s = -10});
    o.certificate_file = late.certificate_file;
    o.key_file = late.key_file;
  });
  CHECK_MESSAGE(contains(expired, "the certificate CN=late in"), expired);
  CHECK(contains(expired, "expired on 20"));
  const std::string early = sentence_with([&](auto& o) {
    const identity next = ours.issue({.name = "early", .valid_from_s = 3600});
    o.certificate_file = next.certificate_file;
    o.key_file = next.key_file;
  });
  CHECK_MESSAGE(contains(early, "the certificate CN=early in"), early);
  CHECK(contains(early, "is not valid before 20"));
}

TEST_CASE("tls: what becomes of changed files is told once, whether they can be used or not") {
  const authority ours;
  const identity first = ours.issue({.name = "first"}, "renewed");
  tls::options options = ours.options();
  options.certificate_file = first.certificate_file;
  options.key_file = first.key_file;
  tls_parts::tls_context context{options};
  const auto told_at_a_connection = [&] {
    tls_parts::verdict found;
    static_cast<void>(context.make_session(-1, tls_parts::session_role::reader, found));
    return context.renewal_told();
  };
  CHECK(told_at_a_connection().count == 0);
  static_cast<void>(ours.issue({.name = "early", .valid_from_s = 3600}, "renewed"));
  const transport_renewal early = told_at_a_connection();
  CHECK(early.failed);
  CHECK_MESSAGE(contains(early.text, "CN=early in"), early.text);
  CHECK(contains(early.text, "is not valid before 20"));
  CHECK(contains(early.text, "stays in use: CN=first, valid from 20"));
  CHECK(early.count == 1);
  std::this_thread::sleep_for(1100ms);  // the files are tried again
  CHECK(told_at_a_connection().count == 1);
  static_cast<void>(ours.issue({.name = "second"}, "renewed"));
  const transport_renewal second = told_at_a_connection();
  CHECK(second.count == 2);
  CHECK_FALSE(second.failed);
  CHECK_MESSAGE(contains(second.text, "CN=second, valid from 20"), second.text);
  CHECK(context.report().last_refusal.empty());
}

TEST_CASE("tls: renewed certificates are used by the next connection; files that do not fit are not") {
  const authority ours;
  tls::options options = ours.options();
  const identity first = ours.issue({.name = "first"}, "renewed");
  options.certificate_file = first.certificate_file;
  options.key_file = first.key_file;
  tls::options choosy = ours.options();
  choosy.allowed_names = {"second"};
  tls_scene here{options, choosy};
  CHECK(contains(here.connect_sentence(), "CN=first has none of the names"));
  static_cast<void>(ours.issue({.name = "second"}, "renewed"));
  here.connect();
  CHECK(here.can_read());
  std::ofstream{first.certificate_file} << "nothing";
  here.connect();
  CHECK(here.can_read());
  CHECK(contains(here.source.report().renewal.text, "the changed files are not used"));
}

TEST_CASE("tls: a renewed key that others may read is used once they may not") {
  const authority ours;
  tls::options options = ours.options();
  const identity renewed = ours.issue({.name = "first"}, "renewed");
  options.certificate_file = renewed.certificate_file;
  options.key_file = renewed.key_file;
  tls::options choosy = ours.options();
  choosy.allowed_names = {"second"};
  tls_scene here{options, choosy};
  static_cast<void>(ours.issue({.name = "second"}, "renewed"));
  REQUIRE(::chmod(renewed.key_file.c_str(), 0644) == 0);
  CHECK(contains(here.connect_sentence(), "CN=first has none of the names"));
  std::this_thread::sleep_for(50ms);  // file systems' clocks are coarse
  REQUIRE(::chmod(renewed.key_file.c_str(), 0600) == 0);
  here.connect();
  CHECK(here.can_read());
}

TEST_CASE("tls: renewed certificates that could not be read for want of descriptors are used later") {
  const authority ours;
  const identity renewed = ours.issue({.name = "first"}, "renewed");
  tls::options options = ours.options();
  options.certificate_file = renewed.certificate_file;
  options.key_file = renewed.key_file;
  tls_parts::tls_context context{options};
  const auto name_in_use = [&] {
    tls_parts::verdict found;
    static_cast<void>(context.make_session(-1, tls_parts::session_role::reader, found));
    return context.own_certificate();
  };
  static_cast<void>(ours.issue({.name = "second"}, "renewed"));
  rlimit usual{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const rlimit none{0, usual.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const std::string meanwhile = name_in_use();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
  CHECK(contains(meanwhile, "CN=first"));
  CHECK(comes_true([&] { return contains(name_in_use(), "CN=second"); }));
}

TEST_CASE("tls: the report says who encrypts") {
  const authority ours;
  tls_scene here{ours.options(), ours.options()};
  here.connect();
  CHECK(here.can_read());
  const auto report = here.source.report();
  CHECK(report.opened_connections == 1);
  CHECK(report.refused_connections == 0);
  CHECK(report.kernel_connections <= 1);
  MESSAGE("encrypted by ", std::string{report.kernel_connections == 1 ? "the kernel" : "OpenSSL"});
  tls::options by_hand = ours.options();
  by_hand.kernel_tls = false;
  tls_scene other{by_hand, by_hand};
  other.connect();
  CHECK(other.can_read());
  CHECK(other.source.report().kernel_connections == 0);
}

TEST_CASE("tls: a handshake that keeps its thread busy leaves the reads of readers alone") {
  const authority ours;
  const tls::options of_source = ours.options();
  tls::options of_reader = ours.options();
  of_reader.tcp.streams = 2;  // one for each I/O thread of the source
  tls_scene here{of_source, of_reader};
  here.connect();
  REQUIRE(here.can_read());
  // A changed certificate is read when a handshake begins. This one has no end as long as `writer` is open.
  const std::string pipe = of_source.certificate_file + ".pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::filesystem::rename(pipe, of_source.certificate_file);
  std::vector<detail::unique_socket> strangers;
  for (int i = 0; i < 8; ++i) {
    strangers.push_back(stranger::socket_to(here.source.address().text));
    const unsigned char first_byte_of_a_handshake = 0x16;
    REQUIRE(::send(strangers.back().get(), &first_byte_of_a_handshake, 1, MSG_NOSIGNAL) == 1);
  }
  detail::unique_fd writer;
  REQUIRE(comes_true([&] {  // a pipe that nobody reads cannot be opened so
    writer.reset(::open(of_source.certificate_file.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    return static_cast<bool>(writer);
  }));
  for (int i = 0; i < 8; ++i) CHECK(here.can_read());
  writer.reset();
  here.connect();
  CHECK(here.can_read());
  CHECK(contains(here.source.report().renewal.text, "the changed files are not used"));
}
