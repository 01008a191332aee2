/// A queue's ledger: never more outstanding than its depth, ended reads given out once, in their order.

#include "tensorhub/types/read_ledger.hpp"

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/bare_device.hpp"

using namespace tensorhub;

namespace {

std::vector<request_id> taken_from(read_ledger& ledger, std::size_t at_most) {
  std::vector<completion> out(at_most);
  out.resize(ledger.take(out));
  std::vector<request_id> ids;
  for (const completion& each : out) ids.push_back(each.id);
  return ids;
}

}  // namespace

TEST_CASE("read_ledger: a read is outstanding until it is taken, not until it has ended") {
  read_ledger ledger{2};
  CHECK(ledger.depth() == 2);
  ledger.begin();
  ledger.begin();
  CHECK(ledger.full());
  CHECK_FALSE(ledger.any_ended());
  ledger.end({7, completion_status::ok});
  CHECK(ledger.full());
  CHECK(ledger.any_ended());
  CHECK(ledger.begin_and_end({9, completion_status::ok}) == post_result::queue_full);
  CHECK(taken_from(ledger, 8) == std::vector<request_id>{7});
  CHECK(ledger.outstanding() == 1);
  CHECK(ledger.begin_and_end({9, completion_status::peer_lost}) == post_result::posted);
  ledger.end({8, completion_status::ok});
  CHECK(taken_from(ledger, 8) == std::vector<request_id>{9, 8});
  CHECK(ledger.outstanding() == 0);
}

TEST_CASE("read_ledger: many times round the ring, in any portions") {
  constexpr std::size_t depth = 5;
  read_ledger ledger{depth};
  request_id begun = 0, ended = 0, seen = 0;
  for (std::size_t step = 0; step < 1000; ++step) {
    while (!ledger.full() && begun - ended < 1 + step % depth) {
      ledger.begin();
      ++begun;
    }
    while (ended < begun - step % 2) ledger.end({ended++, completion_status::ok});
    for (const request_id id : taken_from(ledger, 1 + step % 3)) CHECK(id == seen++);
    CHECK(ledger.outstanding() == begun - seen);
  }
  CHECK(seen > depth * 100);
}

TEST_CASE("read_ledger: nothing into nothing, and a depth of zero is one") {
  read_ledger ledger{0};
  CHECK(ledger.depth() == 1);
  CHECK(ledger.take({}) == 0);
  CHECK(ledger.begin_and_end({1, completion_status::cancelled}) == post_result::posted);
  CHECK(ledger.take({}) == 0);
  std::array<completion, 1> one{};
  CHECK(ledger.take(one) == 1);
  CHECK(one[0].status == completion_status::cancelled);
}

TEST_CASE(
    "read_ledger: what was written to a device is flushed before it is told, once for all reads; or is an "
    "error") {
  struct counting_device final : testing::bare_device {
    int flushes = 0;
    bool flush_arrived() noexcept override { return ++flushes != 3; }
  } one, other;
  const auto in = [](device_access& device, memory_kind kind) {
    memory_range range{nullptr, 8, kind};
    range.device = &device;
    return range;
  };
  read_ledger ledger{8};
  for (request_id id = 0; id < 8; ++id) ledger.begin();
  ledger.end_written({0, completion_status::ok}, in(one, memory_kind::cuda_pinned));
  ledger.end_written({1, completion_status::peer_lost}, in(one, memory_kind::cuda_device));
  CHECK(taken_from(ledger, 8) == std::vector<request_id>{0, 1});
  CHECK(one.flushes == 0);
  ledger.end_written({2, completion_status::ok}, in(one, memory_kind::cuda_device));
  ledger.end_written({3, completion_status::ok}, in(one, memory_kind::cuda_device));
  CHECK(one.flushes == 0);
  CHECK(taken_from(ledger, 1) == std::vector<request_id>{2});
  CHECK(one.flushes == 1);
  CHECK(taken_from(ledger, 1) == std::vector<request_id>{3});
  CHECK(one.flushes == 1);
  ledger.end_written({4, completion_status::ok}, in(one, memory_kind::cuda_device));
  ledger.end_written({5, completion_status::ok}, in(other, memory_kind::cuda_device));
  CHECK(taken_from(ledger, 8) == std::vector<request_id>{4, 5});
  CHECK(one.flushes == 2);
  CHECK(other.flushes == 1);
  // The third flush of `one` fails.
  for (request_id id = 0; id < 4; ++id) ledger.begin();
  ledger.end_written({0, completion_status::ok}, in(one, memory_kind::cuda_device));
  ledger.end_written({1, completion_status::ok}, in(one, memory_kind::cuda_pinned));
  ledger.end_written({2, completion_status::peer_lost}, in(one, memory_kind::cuda_device));
  ledger.end_written({3, completion_status::ok}, in(other, memory_kind::cuda_device));
  std::array<completion, 4> last{};
  CHECK(ledger.take(last) == 4);
  CHECK(one.flushes == 3);
  CHECK(last[0].status == completion_status::local_error);
  CHECK(last[1].status == completion_status::ok);
  CHECK(last[2].status == completion_status::peer_lost);
  CHECK(last[3].status == completion_status::ok);
}
