/// \file same_host_reader.cpp
/// The reader's end of a same_host connection, whose source says anything: only granted bytes of a file that
/// holds them are copied, every file that comes is closed, and no question is asked again and again.
///
/// Input: the welcome, then a row of steps; each asks, answers, copies, or takes a grant back. The memory of
/// processes is not read (options::attach).

#include <fcntl.h>
#include <sys/mman.h>

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "input.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/same_host/link.hpp"

namespace {

using namespace tensorhub;
using namespace tensorhub::transports::same_host_detail;

constexpr incarnation reader{8};
constexpr incarnation source{7};
constexpr std::uint64_t file_length = 8192;
constexpr std::uint64_t grant_words = 16;

/// A file in memory, whose byte at `i` is `i * 7` if it is a region's.
detail::unique_fd made_file(std::uint64_t bytes, bool is_sealed, bool is_filled) {
  detail::unique_fd out{::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  fuzz::require(out && ::ftruncate(out.get(), static_cast<off_t>(bytes)) == 0, "a file in memory");
  std::vector<std::uint8_t> content(is_filled ? bytes : 0);
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::uint8_t>(i * 7);
  const auto written = ::pwrite(out.get(), content.data(), content.size(), 0);
  fuzz::require(written == static_cast<ssize_t>(content.size()), "a file in memory is written");
  if (is_sealed) static_cast<void>(::fcntl(out.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
  return out;
}

/// What all inputs share.
struct stage_set {
  std::string name = "tensorhub-fuzz-" + std::to_string(::getpid());
  detail::unique_socket door = listen_at(name);
  detail::unique_fd grants = made_file(grant_words * 8, true, false);
  detail::unique_fd sealed = made_file(file_length, true, true);
  detail::unique_fd open = made_file(file_length, false, true);
  detail::unique_fd stage = made_file(stage_slots * stage_piece_bytes, true, false);
  std::atomic<std::uint64_t>* words = static_cast<std::atomic<std::uint64_t>*>(
      ::mmap(nullptr, grant_words * 8, PROT_READ | PROT_WRITE, MAP_SHARED, grants.get(), 0));

  [[nodiscard]] int file(std::size_t which) const noexcept {
    const std::array<int, 6> all{-1, sealed.get(), open.get(), stage.get(), grants.get(), sealed.get()};
    return all[which % all.size()];
  }
  [[nodiscard]] static stage_set& instance() {
    static stage_set out;
    return out;
  }
};

[[nodiscard]] int next_descriptor() {
  const detail::unique_fd probe{::dup(0)};
  return probe.get();
}

class scene {
 public:
  explicit scene(fuzz::input& in) {
    for (std::uint64_t i = 0; i < grant_words; ++i) set_.words[i] = first_grant + i;
    welcome said;
    said.source = in.once_in(16) ? in.number() : source.value;
    said.grant_slot = static_cast<std::uint32_t>(in.once_in(8) ? in.number() : 1);
    said.grant = in.once_in(8) ? in.number() : first_grant + 1;
    if (in.once_in(16)) said.status = static_cast<welcome_status>(in.number());
    if (in.once_in(16)) said.protocol = static_cast<std::uint32_t>(in.number());
    const int page = in.once_in(8) ? set_.file(in.byte()) : set_.grants.get();
    const bool says_nothing = in.once_in(16);
    std::thread other{[&] {
      pollfd knock{set_.door.get(), POLLIN, 0};
      static_cast<void>(::poll(&knock, 1, 10'000));
      source_ = detail::unique_fd{::accept4(set_.door.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
      if (says_nothing)
        source_.reset();
      else
        static_cast<void>(send_packet(source_.get(), said, page));
    }};
    transports::same_host_options options;
    options.attach = transports::memory_attach::never;
    const machine_identity machine{"fuzz", "0"};
    try {
      transport_address where;
      where.text = host_address{machine, set_.name}.text();
      link_.emplace(where, options, machine, reader, source, std::make_shared<import_table>(),
                    clock::now() + std::chrono::seconds{10});
    } catch (const error& e) {
      fuzz::require(e.code() == errc::transport_failed, "a connection is made, or refused at once");
    }
    other.join();
    if (!link_) return;
    fuzz::require(said.status == welcome_status::accepted && said.source == source.value,
                  "only the expected process is welcome");
    hello greeting;
    detail::unique_fd file;
    static_cast<void>(receive_packet(source_.get(), greeting, file));
  }

  [[nodiscard]] bool is_open() const noexcept { return link_.has_value() && source_; }

  void step(fuzz::input& in) {
    hear();
    switch (in.below(10)) {
      case 0:
      case 1:
        return ask(in);
      case 2:
      case 3:
      case 4:
        return answer(in);
      case 5: {
        const std::string packet = in.text(255);
        if (!packet.empty())
          static_cast<void>(::send(source_.get(), packet.data(), packet.size(), MSG_NOSIGNAL));
        return;
      }
      case 6:
        return copy(in);
      case 7:
        return stage(in);
      case 8:
        set_.words[in.below(grant_words)] = in.number();
        if (in.once_in(8)) source_.reset();
        return;
      default:
        if (link_->take_answers() == answer_outcome::lost) link_.reset();
    }
  }

 private:
  /// The source reads what it is asked.
  void hear() {
    region_request request;
    detail::unique_fd file;
    while (receive_packet(source_.get(), request, file) == packet_outcome::taken) {
      heard_.push_back(request);
      if (request.wants != request_kind::staged_piece) ++questions_;
    }
    fuzz::require(questions_ <= 2 * regions_.size(), "a question is asked again once, for the file");
  }

  void ask(fuzz::input& in) {
    region_key key;
    key.region = in.below(4);
    const auto known = link_->region(key);
    if (std::ranges::find(regions_, known) == regions_.end()) regions_.push_back(known);
    link_->ask();
  }

  void answer(fuzz::input& in) {
    region_answer said;
    said.number = in.number();
    if (!heard_.empty() && !in.once_in(16)) {
      const std::size_t which = in.once_in(4) ? in.below(heard_.size() % 255 + 1) % heard_.size() : 0;
      said.number = heard_[which].number;
      if (!in.once_in(16)) heard_.erase(heard_.begin() + static_cast<std::ptrdiff_t>(which));
    }
    said.status = in.once_in(8) ? static_cast<answer_status>(in.number()) : answer_status::granted;
    said.bytes = in.once_in(4) ? in.number() : 1024;
    said.address = in.once_in(4) ? in.number() : 4096;
    said.grant_slot = static_cast<std::uint32_t>(in.once_in(8) ? in.number() : 2 + in.below(8));
    said.grant = in.once_in(8) ? in.number() : first_grant + said.grant_slot;
    said.file = in.once_in(4) ? in.number() : in.below(3);
    said.file_offset = in.once_in(4) ? in.number() : in.below(200);
    said.brings_file = static_cast<std::uint32_t>(in.below(2));
    if (in.once_in(4)) said.memory = static_cast<region_memory>(in.below(4));
    said.exported.allocation_bytes = in.number();
    said.exported.offset = in.number();
    const std::string why = in.text(8);
    std::memcpy(said.why.data(), why.data(), why.size());
    static_cast<void>(send_packet(source_.get(), said, in.once_in(3) ? -1 : set_.file(in.below(6))));
  }

  [[nodiscard]] std::shared_ptr<const region_view> granted(fuzz::input& in) const {
    if (regions_.empty()) return nullptr;
    const auto& chosen = regions_[in.below(regions_.size() % 255 + 1) % regions_.size()];
    return chosen->state == region_state::granted ? chosen : nullptr;
  }

  void copy(fuzz::input& in) {
    const auto region = granted(in);
    if (!region) return;
    const std::uint64_t offset = std::min(in.number(), region->bytes);
    const std::uint64_t bytes = std::min<std::uint64_t>({region->bytes - offset, 2000, in.number() + 1});
    std::vector<std::byte> into(std::max<std::uint64_t>(1, bytes));
    const bool is_held = set_.words[region->given.slot] == region->given.number;
    const completion_status status = link_->copy(*region, offset, into.data(), bytes, in.once_in(2));
    if (status != completion_status::ok) return;
    fuzz::require(is_held, "only granted bytes are copied");
    fuzz::require(region->file != nullptr, "only bytes of files are copied");
    fuzz::require(region->file_offset + offset + bytes <= region->file->bytes(), "a copy stays in its file");
    if (region->file->bytes() != file_length) return;
    for (std::uint64_t i = 0; i < bytes; ++i)
      fuzz::require(into[i] == static_cast<std::byte>((region->file_offset + offset + i) * 7),
                    "the bytes are those of the file");
  }

  void stage(fuzz::input& in) {
    for (const stage_slot& slot : link_->slots()) {
      if (slot.state != stage_slot::state_type::ready) continue;
      const volatile std::byte last = link_->staged(slot)[slot.bytes - 1];
      static_cast<void>(last);
    }
    if (in.once_in(2)) return link_->forget(this);
    const auto region = granted(in);
    if (region && region->bytes > 0)
      static_cast<void>(link_->stage(*region, this, 0, 0, std::min(region->bytes, stage_piece_bytes)));
  }

  stage_set& set_ = stage_set::instance();
  detail::unique_fd source_;
  std::optional<transports::same_host_detail::link> link_;
  std::vector<std::shared_ptr<const region_view>> regions_;
  std::vector<region_request> heard_;
  std::size_t questions_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  static_cast<void>(stage_set::instance());
  fuzz::input in{data, bytes};
  const int before = next_descriptor();
  {
    scene made{in};
    for (int steps = 0; steps < 64 && !in.empty() && made.is_open(); ++steps) made.step(in);
  }
  fuzz::require(next_descriptor() == before, "every file that comes is closed");
  return 0;
}
