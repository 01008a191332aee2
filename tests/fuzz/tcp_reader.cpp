/// \file tcp_reader.cpp
/// The reader's end of a TCP data connection, whose source says anything: every posted read ends exactly
/// once, a read that ends well has the bytes that the source sent for it, and no other byte is ever touched.
///
/// Input: a row of steps; each posts a read, lets the source say something, right or wrong, or polls.

#include <array>
#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "input.hpp"
#include "tensorhub/transports/tcp/queue.hpp"

namespace {

using namespace tensorhub;
using namespace tensorhub::transports::tcp_detail;

/// What the source has said, and how much of it a call may bring.
struct wire {
  std::vector<std::byte> said;
  std::size_t taken = 0;
  std::size_t most_per_call = SIZE_MAX;
  bool is_closed = false;
  bool takes_requests = true;
};

class memory_channel {
 public:
  static constexpr std::string_view name = "memory";
  explicit memory_channel(wire& line) noexcept : line_{&line} {}
  [[nodiscard]] static constexpr int socket() noexcept { return -1; }
  [[nodiscard]] static constexpr bool may_have_more() noexcept { return false; }
  static constexpr void expect(std::uint64_t) noexcept {}

  [[nodiscard]] ssize_t send(const void*, std::size_t bytes) noexcept {
    errno = line_->is_closed ? EPIPE : EAGAIN;
    if (line_->is_closed || !line_->takes_requests) return -1;
    return static_cast<ssize_t>(std::min(bytes, line_->most_per_call));
  }
  [[nodiscard]] ssize_t receive(std::span<iovec> pieces) noexcept {
    std::size_t got = 0;
    for (const iovec& each : pieces) {
      const std::size_t part =
          std::min({each.iov_len, line_->said.size() - line_->taken, line_->most_per_call - got});
      if (part != 0) std::memcpy(each.iov_base, line_->said.data() + line_->taken, part);
      line_->taken += part;
      got += part;
    }
    errno = EAGAIN;
    return got == 0 && !line_->is_closed ? -1 : static_cast<ssize_t>(got);
  }

 private:
  wire* line_;
};

/// A device whose copies are done when the input says so, or fail.
class late_device final : public device_access {
 public:
  class lane final : public device_lane {
   public:
    explicit lane(late_device& owner) noexcept : owner_{&owner} {}
    [[nodiscard]] lane_ticket copy(void* to, const void* from, std::uint64_t bytes) noexcept override {
      left_.push_back({static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes});
      return ++given_;
    }
    [[nodiscard]] lane_ticket copy_all(std::span<const copy_run>) noexcept override { return 0; }
    [[nodiscard]] lane_ticket digest(std::span<const digest_job>, digest128*) noexcept override { return 0; }
    [[nodiscard]] lane_ticket keyed_digest(std::span<const keyed_digest_job>, digest128*) noexcept override {
      return 0;
    }
    [[nodiscard]] lane_state state(lane_ticket ticket) noexcept override {
      if (owner_->is_broken) return lane_state::failed;
      while (ticket > done_ && owner_->budget > 0) work();
      return ticket > done_ ? lane_state::pending : lane_state::done;
    }
    [[nodiscard]] lane_state wait(lane_ticket ticket, duration) noexcept override {
      if (owner_->is_broken) return lane_state::failed;
      while (ticket > done_) work();
      return lane_state::done;
    }
    [[nodiscard]] std::string trouble() const override { return {}; }

   private:
    void work() noexcept {
      const copy_run& next = left_[done_++];
      std::memcpy(next.to, next.from, next.bytes);
      if (owner_->budget > 0) --owner_->budget;
    }
    late_device* owner_;
    std::vector<copy_run> left_;
    lane_ticket given_ = 0;
    lane_ticket done_ = 0;
  };

  [[nodiscard]] std::string description() const override { return "late"; }
  [[nodiscard]] std::unique_ptr<device_lane> open_lane() override { return std::make_unique<lane>(*this); }
  [[nodiscard]] std::byte* allocate_pinned(std::uint64_t bytes) override {
    pinned_.resize(bytes);
    return pinned_.data();
  }
  void free_pinned(std::byte*, std::uint64_t) noexcept override {}
  [[nodiscard]] std::optional<device_export> export_memory(const memory_range&, std::string&) override {
    return std::nullopt;
  }
  [[nodiscard]] std::unique_ptr<device_import> import_memory(const device_export&) override { return {}; }
  [[nodiscard]] int export_dmabuf(const memory_range&, std::uint64_t&, std::string&) override { return -1; }

  std::size_t budget = 0;  ///< copies that are done when somebody asks
  bool is_broken = false;

 private:
  static inline std::vector<std::byte> pinned_;  ///< one stream has one ring of it
};

/// The target of one read at a time, in an allocation of its own.
struct target {
  std::vector<std::byte> memory;
  std::vector<std::byte> expected;
  bool is_posted = false;
  bool is_long = false;  ///< several pieces of the staging ring; allocated when it is first read into

  [[nodiscard]] bool is_as_expected() const noexcept {
    return memory.empty() || std::memcmp(memory.data(), expected.data(), memory.size()) == 0;
  }
};

struct posted {
  target* into = nullptr;
  std::size_t at = 0;
  std::size_t bytes = 0;
  std::size_t order = 0;  ///< among the reads that were sent
};

class scene {
 public:
  scene() : endpoint_{std::make_unique<endpoint_core<memory_channel>>(queue_, incarnation{7}, 0)} {
    for (target& each : targets_) {
      each.is_long = &each == &targets_.back();
      if (!each.is_long) each.expected = each.memory = std::vector<std::byte>(200);
    }
    queue_.attach(*endpoint_);
    queue_.add_stream(*endpoint_, memory_channel{line_}, {});
  }

  void step(fuzz::input& in) {
    switch (in.below(12)) {
      case 0:
      case 1:
      case 2:
        return post(in);
      case 3:
      case 4:
      case 5:
        return answer(in);
      case 6:
        return say(in.text(64));
      case 7:
        line_.most_per_call = in.once_in(2) ? SIZE_MAX : 1 + in.below(40);
        line_.takes_requests = !in.once_in(4);
        return;
      case 8:
        if (in.once_in(4)) line_.is_closed = true;
        if (in.once_in(8)) device_.is_broken = true;
        if (in.once_in(8)) endpoint_.reset();
        return;
      default:
        device_.budget = in.below(4);
        return poll(1 + in.below(4));
    }
  }

  void finish() {
    line_.is_closed = true;
    line_.most_per_call = SIZE_MAX;
    for (int turns = 0; turns < 64 && queue_.outstanding() > 0; ++turns) {
      device_.budget = SIZE_MAX;
      poll(4);
    }
    fuzz::require(posted_.empty() && queue_.outstanding() == 0, "every posted read ends");
    check(true);
  }

 private:
  void post(fuzz::input& in) {
    target& into = targets_[in.below(targets_.size())];
    if (into.is_posted || !endpoint_) return;
    if (into.memory.empty())
      into.expected = into.memory = std::vector<std::byte>(2 * staging_ring::piece_bytes + 100);
    posted made{&into, in.below(64), in.below(128), sent_.size()};
    if (into.is_long) made.bytes = in.once_in(4) ? into.memory.size() - made.at : made.bytes * 1024;
    made.bytes = std::min(made.bytes, into.memory.size() - made.at);
    pending_read read{++last_, into.memory.data() + made.at, made.bytes, nullptr};
    if (into.is_long || in.once_in(2)) read.device = &device_;
    const bool is_sent = endpoint_->usable();
    if (queue_.post(*endpoint_, read, {}) == post_result::queue_full) {
      fuzz::require(posted_.size() == queue_.depth(), "only a full queue is full");
      return;
    }
    into.is_posted = true;
    posted_.emplace(last_, made);
    if (is_sent) sent_.push_back(made.bytes);
  }

  template <typename Bytes>
  void say(const Bytes& bytes) {
    const auto raw = std::as_bytes(std::span{bytes});
    line_.said.insert(line_.said.end(), raw.begin(), raw.end());
  }

  /// To the oldest read without an answer, or to none.
  void answer(fuzz::input& in) {
    read_answer head;
    const std::size_t asked = answered_ < sent_.size() ? sent_[answered_] : in.below(128);
    ++answered_;
    head.bytes = asked;
    switch (in.below(16)) {
      case 0:
        head.bytes = in.number();
        break;
      case 1:
        head.status = in.number();
        break;
      case 2:
      case 3:
        head.status = static_cast<std::uint64_t>(completion_status::access_denied);
        head.bytes = 0;
        break;
      default:
        break;
    }
    say(std::span{&head, 1});
    const std::uint64_t body = head.status == 0 ? std::min<std::size_t>(head.bytes, asked) : 0;
    const auto first = static_cast<unsigned>(in.byte());
    const std::size_t before = line_.said.size();
    line_.said.resize(before + body);
    for (std::size_t i = 0; i < body; ++i) line_.said[before + i] = static_cast<std::byte>(first + i * 7 + 1);
  }

  void poll(std::size_t most) {
    std::array<completion, 4> ended{};
    const std::size_t count = queue_.poll(std::span{ended}.first(most));
    for (const completion& each : std::span{ended}.first(count)) {
      const auto found = posted_.find(each.id);
      fuzz::require(found != posted_.end(), "a read ends once");
      const posted& read = found->second;
      check_ended(read, each.status);
      std::memcpy(read.into->expected.data() + read.at, read.into->memory.data() + read.at, read.bytes);
      fuzz::require(read.into->is_as_expected(), "only bytes of a read are written");
      read.into->is_posted = false;
      posted_.erase(found);
    }
    check(false);
  }

  /// Whether the source has said that, in the answer of this read's turn.
  void check_ended(const posted& read, completion_status status) const {
    if (status == completion_status::ok || status == completion_status::access_denied) {
      std::size_t at = 0;
      read_answer head;
      for (std::size_t turn = 0;; ++turn) {
        fuzz::require(line_.said.size() - at >= sizeof head, "a read that ends well has an answer");
        std::memcpy(&head, line_.said.data() + at, sizeof head);
        at += sizeof head;
        fuzz::require(head.bytes <= line_.said.size() - at, "all bytes of an answer are there");
        if (turn == read.order) break;
        at += head.bytes;
      }
      const bool is_ok = status == completion_status::ok;
      fuzz::require(head.status == static_cast<std::uint64_t>(status), "a read ends as its answer says");
      fuzz::require(head.bytes == (is_ok ? read.bytes : 0), "an answer has all bytes, or none");
      fuzz::require(head.bytes == 0 || std::memcmp(read.into->memory.data() + read.at, line_.said.data() + at,
                                                   head.bytes) == 0,
                    "a read has the bytes that were sent for it");
    }
  }

  /// Nothing is written where nobody reads to. (Long targets are looked at in the end only.)
  void check(bool all) const {
    for (const target& each : targets_)
      if (!each.is_posted && (all || !each.is_long))
        fuzz::require(each.is_as_expected(), "nothing is written after a read has ended");
  }

  late_device device_;
  wire line_;
  std::array<target, 6> targets_;
  std::size_t answered_ = 0;
  std::vector<std::size_t> sent_;
  request_id last_ = 0;
  std::map<request_id, posted> posted_;
  queue_core<memory_channel> queue_{4, std::chrono::hours{1}, std::make_shared<staging_pool>()};
  std::unique_ptr<endpoint_core<memory_channel>> endpoint_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  fuzz::input in{data, bytes};
  scene made;
  for (int steps = 0; steps < 64 && !in.empty(); ++steps) made.step(in);
  made.finish();
  return 0;
}
