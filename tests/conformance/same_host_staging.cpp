// How long the same-host transport waits for a device that does not copy a staged piece, nor says that it has
// failed: as long as the device may touch the memory.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tensorhub/testing/fake_device.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "support/bare_device.hpp"
#include "support/short_files.hpp"

namespace {

using namespace std::chrono_literals;
using namespace tensorhub;
namespace wire = transports::same_host_detail;
using clock = std::chrono::steady_clock;

/// Its copies never end; a lane that is given up ends after some time, or when the device is told to let go.
class hanging_device final : public tensorhub::testing::bare_device {
 public:
  explicit hanging_device(duration until_lane_ends) : until_lane_ends_{until_lane_ends} {}

  [[nodiscard]] bool is_copying() const noexcept { return copying_; }
  void let_go() {
    const std::lock_guard lock{mutex_};
    lets_go_ = true;
    changed_.notify_all();
  }

  [[nodiscard]] std::string description() const override { return "a device that hangs"; }
  [[nodiscard]] std::unique_ptr<device_lane> open_lane() override { return std::make_unique<lane>(*this); }

 private:
  class lane final : public device_lane {
   public:
    explicit lane(hanging_device& owner) : owner_{&owner} {}
    ~lane() override {
      static_cast<void>(owner_->wait(owner_->until_lane_ends_));
      owner_->copying_ = false;
    }
    [[nodiscard]] lane_ticket copy(void*, const void*, std::uint64_t) noexcept override {
      owner_->copying_ = true;
      return 1;
    }
    [[nodiscard]] lane_ticket copy_all(std::span<const copy_run>) noexcept override { return 0; }
    [[nodiscard]] lane_ticket digest(std::span<const digest_job>, digest128*) noexcept override { return 0; }
    [[nodiscard]] lane_ticket keyed_digest(std::span<const keyed_digest_job>, digest128*) noexcept override {
      return 0;
    }
    [[nodiscard]] lane_state state(lane_ticket) noexcept override { return lane_state::pending; }
    [[nodiscard]] lane_state wait(lane_ticket, duration timeout) noexcept override {
      static_cast<void>(owner_->wait(timeout));
      return lane_state::pending;
    }
    [[nodiscard]] std::string trouble() const override { return {}; }

   private:
    hanging_device* owner_;
  };

  [[nodiscard]] bool wait(duration timeout) {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, timeout, [this] { return lets_go_; });
  }

  const duration until_lane_ends_;
  std::atomic<bool> copying_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool lets_go_ = false;
};

/// A piece of a region in device memory, on its way into a reader's staging file.
struct staged_piece {
  hanging_device device;
  testing::fake_device_memory::allocation memory{4096};
  wire::grant_page grants{};
  wire::region_table regions;
  std::uint64_t region = 0;
  std::shared_ptr<wire::stage_file> file = std::make_shared<wire::stage_file>();
  std::atomic<int> granted = 0;
  wire::stage_desk desk;

  staged_piece(duration until_lane_ends, wire::stage_limits limits)
      : device{until_lane_ends},
        regions{grants, transports::same_host_options::for_tenants(), limits},
        desk{regions,
             [this](const auto&, wire::answer_status status) {
               granted += status == wire::answer_status::granted ? 1 : 0;
             },
             limits} {
    memory_range range = memory.range();
    range.device = &device;
    region = add(range);
    until([this] { return device.is_copying(); });
  }
  /// A region, a piece of which is asked for.
  std::uint64_t add(const memory_range& range) {
    const std::uint64_t added = regions.insert(range, region_access::remote_read);
    wire::region_request request;
    request.number = 1;
    request.wants = wire::request_kind::staged_piece;
    request.bytes = 8;
    request.key = regions.key_of(added);
    desk.add({1, request, file});
    return added;
  }
  template <typename Condition>
  static void until(Condition&& is_so) {
    const auto end = clock::now() + 20s;
    while (!is_so() && clock::now() < end) std::this_thread::sleep_for(1ms);
    REQUIRE(is_so());
  }
  ~staged_piece() { device.let_go(); }
};

}  // namespace

TEST_CASE("same_host: memory is neither freed nor revoked, nor a reader cut off, while a device may copy") {
  constexpr wire::stage_limits limits{.copy = 100ms, .lane_end = 1s, .margin = 20s};
  const auto ends_after_the_copy = [&](auto&& end) {
    staged_piece piece{limits.lane_end, limits};
    end(piece);
    return !piece.device.is_copying();
  };
  CHECK(ends_after_the_copy([](staged_piece& piece) { piece.regions.erase(piece.region); }));
  CHECK(ends_after_the_copy([](staged_piece& piece) { piece.regions.renew(piece.region); }));
  CHECK(ends_after_the_copy([](staged_piece& piece) {
    piece.file->close();
    piece.desk.settle();
  }));
}

TEST_CASE("same_host: a device that never ends a copy holds up nobody for ever") {
  constexpr wire::stage_limits limits{.copy = 10ms, .lane_end = 10ms, .margin = 10ms};
  staged_piece piece{60s, limits};
  const auto begun = clock::now();
  piece.regions.erase(piece.region);
  piece.file->close();
  piece.desk.settle();
  CHECK(piece.device.is_copying());
  CHECK(clock::now() - begun < 30s);
}

TEST_CASE("same_host: a device that never ends a copy does not hold up pieces of other memory") {
  constexpr wire::stage_limits limits{.copy = 10s, .lane_end = 60s, .margin = 60s};
  staged_piece piece{60s, limits};
  const auto begun = clock::now();
  std::vector<std::byte> host(4096);
  memory_range range;
  range.data = host.data();
  range.bytes = host.size();
  const testing::fake_device_memory::allocation of_another{4096};
  const std::uint64_t on_host = piece.add(range);
  const std::uint64_t on_device = piece.add(of_another.range());
  piece.until([&] { return piece.granted == 2; });
  piece.regions.erase(on_host);
  piece.regions.erase(on_device);
  CHECK(piece.device.is_copying());
  CHECK(clock::now() - begun < 30s);
}

TEST_CASE("same_host: shared memory that may not be so long (ulimit -f) is an error, and ends no process") {
  std::string of_grants, of_stage;
  const auto told = [](std::string& sentence, auto&& make) {
    const short_files limit{4096};
    try {
      make();
      return errc::ok;
    } catch (const error& e) {
      sentence = e.what();
      return e.code();
    }
  };
  CHECK(told(of_grants, [] { const transports::same_host source{{}, {1}}; }) == errc::transport_failed);
  CHECK_MESSAGE(of_grants.find("ulimit -f") != std::string::npos, of_grants);
  CHECK(told(of_stage, [] { const wire::stage_file stage; }) == errc::system_failed);
  CHECK_MESSAGE(of_stage.find("ulimit -f") != std::string::npos, of_stage);
}
