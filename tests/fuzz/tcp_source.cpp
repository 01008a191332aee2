/// \file tcp_source.cpp
/// The source's end of a TCP data connection, whose peer says anything: it greets only who greets rightly,
/// answers only requests with a region's present key, and only with bytes of that region.
///
/// Input: a row of steps; each sends some bytes, right or wrong, lets the source work, or changes a region.

#include <array>
#include <memory>
#include <vector>

#include "input.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/transports/tcp/connection.hpp"

namespace {

using namespace tensorhub;
using namespace tensorhub::transports::tcp_detail;

constexpr incarnation self{77};

/// Two regions, each in an allocation of its own, so that a byte beside it is seen by the address sanitizer.
struct registered_region {
  std::vector<std::byte> memory;
  std::uint64_t number = 0;
  bool is_readable = true;
};

class scene {
 public:
  scene() {
    std::array<int, 2> ends{};
    fuzz::require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0, "a socket pair");
    reader_ = detail::unique_fd{ends[0]};
    source_ =
        std::make_unique<connection>(detail::unique_socket{ends[1]}, false, std::make_shared<staging_pool>(),
                                     std::chrono::steady_clock::time_point{});
    add_region(100, region_access::remote_read);
    add_region(70'000, region_access::both);
    add_region(64, region_access::local_write);
  }

  void step(fuzz::input& in) {
    switch (in.below(8)) {
      case 0:
        return say_hello(in);
      case 1:
      case 2:
      case 3:
        return ask(in);
      case 4:
        return send(in.text(64));
      case 5:
        table_.renew(regions_[in.below(regions_.size())].number);
        [[fallthrough]];  // what is on its way is not checked against what has just changed
      default:
        return work(in);
    }
  }
  void finish() {
    for (int i = 0; i < 4 && is_open_; ++i) turn(1 << 20);
  }

 private:
  void add_region(std::size_t bytes, region_access access) {
    registered_region& made = regions_.emplace_back();
    made.memory.resize(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
      made.memory[i] = static_cast<std::byte>(i * 7 + 13 * regions_.size());
    memory_range range;
    range.data = made.memory.data();
    range.bytes = bytes;
    made.number = table_.insert(range, access);
    made.is_readable = access != region_access::local_write;
  }

  void send(std::string_view bytes) {
    static_cast<void>(::send(reader_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
    garbage_ = garbage_ || !bytes.empty();
  }
  template <typename Packet>
  void send_packet(const Packet& packet) {
    if (::send(reader_.get(), &packet, sizeof packet, MSG_NOSIGNAL) != sizeof packet) garbage_ = true;
  }

  void say_hello(fuzz::input& in) {
    hello greeting;
    greeting.reader = in.number();
    greeting.source = self.value;
    switch (in.below(5)) {
      case 0:
        greeting.source = in.number();
        break;
      case 1:
        greeting.protocol = static_cast<std::uint32_t>(in.number());
        break;
      case 2:
        greeting.magic ^= 1ull << in.below(64);
        break;
      default:
        break;
    }
    garbage_ = garbage_ || greeted_once_;  // a second one is taken for requests
    greeted_once_ = true;
    send_packet(greeting);
  }

  void ask(fuzz::input& in) {
    const registered_region& wanted = regions_[in.below(regions_.size())];
    read_request request;
    request.key = table_.key_of(wanted.number);
    request.offset = in.once_in(4) ? wanted.memory.size() - in.below(3) : in.number();
    request.bytes = in.once_in(4) ? wanted.memory.size() - in.below(2) : in.number();
    if (in.once_in(8)) request.key.secret[in.below(2)] ^= 1ull << in.below(64);
    if (in.once_in(8)) request.key.region = in.number();
    expected_.push_back(request);
    send_packet(request);
  }

  void work(fuzz::input& in) {
    for (std::size_t turns = 1 + in.below(4); turns > 0 && is_open_; --turns)
      turn(in.once_in(2) ? 1 : 1 << 20);
  }

  void turn(std::uint64_t budget_bytes) {
    connection_need need = connection_need::input;
    if (!source_->greeted())
      need = source_->greet(gate_, [](const hello&, const auto&) { return welcome_status::accepted; });
    if (source_->greeted() && need != connection_need::end) need = source_->serve(table_, budget_bytes);
    is_open_ = need != connection_need::end;
    take();
  }

  void take() {
    std::array<std::byte, 4096> buffer{};
    for (;;) {
      const auto taken = ::recv(reader_.get(), buffer.data(), buffer.size(), 0);
      if (taken <= 0) break;
      received_.insert(received_.end(), buffer.begin(), buffer.begin() + taken);
    }
    if (!source_->greeted() || garbage_) return;  // no longer known what was asked
    if (!welcomed_) {
      if (received_.size() < sizeof(welcome)) return;
      welcome answer;
      std::memcpy(&answer, received_.data(), sizeof answer);
      fuzz::require(answer.magic == welcome_magic && answer.status == welcome_status::accepted &&
                        answer.source == self.value,
                    "who is greeted is welcome");
      received_.erase(received_.begin(), received_.begin() + sizeof answer);
      welcomed_ = true;
    }
    while (check_answer()) {
    }
  }

  /// The oldest answer, if all of it is there. Who asked before it said hello was not understood.
  bool check_answer() {
    read_answer answer;
    if (received_.size() < sizeof answer) return false;
    std::memcpy(&answer, received_.data(), sizeof answer);
    fuzz::require(!expected_.empty(), "every answer has its request");
    const read_request& asked = expected_.front();
    const bool is_ok = answer.status == static_cast<std::uint64_t>(completion_status::ok);
    fuzz::require(answer.bytes == (is_ok ? asked.bytes : 0), "an answer is as long as was asked for");
    if (received_.size() < sizeof answer + answer.bytes) return false;
    if (is_ok) check_bytes(asked, received_.data() + sizeof answer);
    received_.erase(received_.begin(),
                    received_.begin() + static_cast<std::ptrdiff_t>(sizeof answer + answer.bytes));
    expected_.erase(expected_.begin());
    return true;
  }
  void check_bytes(const read_request& asked, const std::byte* bytes) const {
    for (const registered_region& each : regions_) {
      if (each.number != asked.key.region) continue;
      fuzz::require(each.is_readable, "a region that peers may not read is not read");
      fuzz::require(asked.offset <= each.memory.size() && asked.bytes <= each.memory.size() - asked.offset,
                    "only bytes of the region are read");
      if (asked.bytes != 0)
        fuzz::require(std::memcmp(bytes, each.memory.data() + asked.offset, asked.bytes) == 0,
                      "the bytes are those that were asked for");
      return;
    }
    fuzz::require(false, "only registered regions are read");
  }

  tensorhub::detail::reader_gate gate_{self};
  region_table table_;
  std::vector<registered_region> regions_;
  detail::unique_fd reader_;
  std::unique_ptr<connection> source_;
  bool is_open_ = true;
  bool greeted_once_ = false;
  bool garbage_ = false;
  bool welcomed_ = false;
  std::vector<read_request> expected_;
  std::vector<std::byte> received_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  fuzz::input in{data, bytes};
  scene made;
  for (int steps = 0; steps < 64 && !in.empty(); ++steps) made.step(in);
  made.finish();
  return 0;
}
