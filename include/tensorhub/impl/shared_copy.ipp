#pragma once
/// \file shared_copy.ipp
/// What shared_copy.hpp declares.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "tensorhub/detail/file_limit.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/service/codec.hpp"
#include "tensorhub/shared_copy.hpp"
#include "tensorhub/types/memory.hpp"
#include "tensorhub/worker/copy_desk.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace shared_copy_detail {

/// The same file, open for reading only.
[[nodiscard]] inline detail::unique_socket reopened(int descriptor) {
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  detail::unique_socket out{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (out) return out;
  throw error(errc::system_failed,
              std::string{"a file cannot be opened for others: "} + std::strerror(errno));
}

/// A sealed file with these bytes.
[[nodiscard]] inline offered_file file_of(std::span<const std::byte> first,
                                          std::span<const std::byte> second) {
  const detail::unique_socket file{::memfd_create("tensorhub-table", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  bool is_whole = file && detail::may_make_file_of(first.size() + second.size());
  for (auto part : {first, second}) {
    while (is_whole && !part.empty()) {
      const ssize_t written = ::write(file.get(), part.data(), part.size());
      if (written < 0 && errno == EINTR) continue;
      is_whole = written > 0;
      if (is_whole) part = part.subspan(static_cast<std::size_t>(written));
    }
  }
  constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
  if (!is_whole || ::fcntl(file.get(), F_ADD_SEALS, seals) != 0)
    throw error(errc::system_failed, "no file for the table of tensors: " + detail::file_trouble(errno));
  return {reopened(file.get()), first.size() + second.size()};
}

/// The file in which a side's memory lies.
[[nodiscard]] inline memory_range file_of_side(const owned_tensors& side) {
  const memory_range all = side.range();
  if (all.backing_fd >= 0 && all.backing_offset == 0) return all;
  throw error(errc::invalid_argument,
              "the memory lies in no file, so that no other process can map it: this kernel has no memfd, or "
              "this process may make no file of that "
              "length (ulimit -f)");
}

}  // namespace shared_copy_detail

TENSORHUB_DECL any_shared_copy::any_shared_copy(worker_options options, const worker_policies& policies,
                                                std::string name)
    : any_subscriber{std::move(options), subscriber_mode::double_buffered, policies}, name_{std::move(name)} {
  if (!shared_copy_detail::is_copy_name(name_))
    throw failure(errc::invalid_argument, shared_copy_detail::why_no_copy_name());
}
TENSORHUB_DECL any_shared_copy::~any_shared_copy() = default;

TENSORHUB_DECL void any_shared_copy::join() {
  join_by(std::chrono::steady_clock::time_point::max());
}
TENSORHUB_DECL void any_shared_copy::join_by(std::chrono::steady_clock::time_point until) {
  using namespace shared_copy_detail;
  any_subscriber::join_by(until);
  const std::lock_guard lock{mutex_};
  if (desk_) return;
  const std::span<const tensor_spec> specs = tensors();
  if (memory_of(0).range().bytes == 0)
    throw failure(errc::invalid_argument, "no tensor has bytes: there is nothing to share");
  offered_copy what;
  std::vector<std::uint64_t> offsets(specs.size());
  for (std::size_t side = 0; side < what.memories.size(); ++side) {
    const memory_range all = file_of_side(memory_of(side));
    what.memories[side] = {reopened(all.backing_fd), all.bytes};
    for (std::size_t i = 0; i < specs.size(); ++i) {  // the same for both sides: both were allocated alike
      const std::byte* const data = memory_of(side).data(i);
      offsets[i] = data == nullptr ? 0 : static_cast<std::uint64_t>(data - all.data);
    }
  }
  encoder writer;
  messages::describe_reply shape;
  shape.tensors.assign(specs.begin(), specs.end());
  const auto encoded = writer.encode({0, {}, {}, std::move(shape), {}});
  what.table = file_of(encoded, std::as_bytes(std::span{offsets}));
  what.encoded_bytes = encoded.size();
  desk_ = std::make_shared<copy_desk>(name_, std::move(what));
}

TENSORHUB_DECL update_report any_shared_copy::update(version_selector selector,
                                                     std::chrono::milliseconds timeout, update_reach reach) {
  using shared_copy_detail::side_wait;
  const auto until = detail::end_of(timeout);
  const held_turn turn{updating_};  // nobody else flips between the choice of a side and `show`
  if (!turn) throw failure(errc::busy, "another update of this shared copy is running");
  join_by(until);
  if (auto kept = kept_report(selector, detail::time_left(until))) return *std::move(kept);
  const std::size_t side = side_to_stage();
  switch (desk_->wait_until_free(side, until)) {
    case side_wait::free:
      break;
    case side_wait::interrupted:
      throw failure(errc::cancelled, "the caller interrupted the update");
    case side_wait::timed_out:
      throw failure(errc::timed_out, "update() needs the memory of the version before the live one, which " +
                                         holders_of(side) + " still hold: they must let go of it");
  }
  update_report report = stage(selector, detail::time_left(until), reach);
  desk_->show(side, install().version);
  return report;
}

TENSORHUB_DECL std::vector<attached_process> any_shared_copy::attached() const {
  const std::lock_guard lock{mutex_};
  std::vector<attached_process> out;
  if (!desk_) return out;
  const std::size_t idle = side_to_stage();
  for (const auto& each : desk_->attached())
    out.push_back({each.process, each.holds[1 - idle], each.holds[idle]});
  return out;
}

TENSORHUB_DECL void any_shared_copy::interrupt() {
  any_subscriber::interrupt();
  const std::lock_guard lock{mutex_};
  if (desk_) desk_->interrupt();
}

TENSORHUB_DECL std::string any_shared_copy::holders_of(std::size_t side) const {
  std::string out;
  std::size_t others = 0;
  for (const auto& each : desk_->attached()) {
    if (!each.holds[side]) continue;
    if (out.size() > 200)
      ++others;
    else
      out += (out.empty() ? "processes " : ", ") + std::to_string(each.process);
  }
  return others > 0 ? out + " and " + std::to_string(others) + " others" : out;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
