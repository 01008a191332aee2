#pragma once
/// \file policy_data_plane.hpp
/// The data plane of a worker of given policies (worker/data_plane.hpp), and the one function that makes it.
///
/// This is where the pull driver, the transport and the memory space meet: a file that names a transport
/// instantiates `data_plane_maker_of` and nothing else that is large. Whoever has it instantiated elsewhere
/// declares so:
///
///     extern template tensorhub::data_plane_maker
///     tensorhub::data_plane_maker_of<my_transport, tensorhub::xxh3_128, tensorhub::host_memory>(
///         my_transport::options);
///
/// Thread safety: as worker/data_plane.hpp says.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/concepts/consistency.hpp"
#include "tensorhub/concepts/guarded_transport.hpp"
#include "tensorhub/concepts/integrity.hpp"
#include "tensorhub/concepts/memory_space.hpp"
#include "tensorhub/concepts/shared_transport.hpp"
#include "tensorhub/concepts/telling_transport.hpp"
#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/local_host.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/memory/host.hpp"
#include "tensorhub/policy/consistency/group_consistent.hpp"
#include "tensorhub/policy/integrity/xxh3_128.hpp"
#include "tensorhub/service/guarding.hpp"
#include "tensorhub/transfer/digest_table.hpp"
#include "tensorhub/transfer/lane_pool.hpp"
#include "tensorhub/transfer/parallel_copy.hpp"
#include "tensorhub/transfer/pull_driver.hpp"
#include "tensorhub/transfer/tensor_memory.hpp"
#include "tensorhub/transfer/transport_pull.hpp"
#include "tensorhub/types/location.hpp"
#include "tensorhub/types/transport_options.hpp"
#include "tensorhub/worker/data_plane.hpp"
#include "tensorhub/worker/memory.hpp"
#include "tensorhub/worker/stream_order.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// The library's own tensors in `Memory`.
template <memory_space Memory>
class policy_tensors final : public owned_tensors {
 public:
  explicit policy_tensors(std::span<const tensor_spec> tensors) : memory_{tensors} {}
  [[nodiscard]] std::byte* data(std::size_t tensor) const noexcept override { return memory_.data(tensor); }
  [[nodiscard]] memory_range range() const noexcept override { return memory_.range(); }

 private:
  tensor_memory<Memory> memory_;
};

/// The same options of a transport, with hosts that other machines can use (`make_reachable`). Those that
/// have a member `has_hosts()` may say that they need none. `chosen`: where those are appended that peers are
/// told, and that the user has not set.
template <typename Options>
[[nodiscard]] Options reachable(Options through, const worker_options& options,
                                std::vector<std::string>& chosen) {
  visit_options(through, [&](auto& each) {
    if constexpr (requires { each.has_hosts(); }) {
      if (!each.has_hosts()) return;
    }
    if constexpr (requires { each.listen_host.empty() && each.advertised_host.empty(); }) {
      const auto told = [&each] {
        return each.advertised_host.empty() ? each.listen_host : each.advertised_host;
      };
      const std::string asked = told();
      make_reachable(options, each.listen_host, each.advertised_host);
      if (told() != asked && detail::is_own_address(told())) chosen.push_back(told());
    }
  });
  return through;
}

/// A transport, and what the workers that use it have in common. `OfDevices`: they have tensors on devices; a
/// transport may serve these and no host memory, or the other way round (transfer/first_of.hpp).
template <transport Transport, bool OfDevices>
class process_transport {
 public:
  using options = typename Transport::options;

  process_transport(options how, incarnation first, std::vector<std::string> chosen_hosts)
      : options_{std::move(how)},
        through_{options_, first},
        capability_key_{guard_by_capability(through_)},
        watch_{std::move(chosen_hosts)} {}

  [[nodiscard]] Transport& through() noexcept { return through_; }
  /// One for all workers: a capability is of one of them all the same, since its incarnation is in it.
  [[nodiscard]] const std::string& capability_key() const noexcept { return capability_key_; }
  [[nodiscard]] transport_watch& watch() noexcept { return watch_; }

  /// The transport of a worker: one of its process if it has equal options.
  [[nodiscard]] static std::shared_ptr<process_transport> of(const worker_options& worker, options how,
                                                             incarnation self, const worker_role& role) {
    std::vector<std::string> chosen;
    how = in_domain_of(
        reachable(with_location(std::move(how), without_device(worker.location)), worker, chosen),
        worker.model);
    if constexpr (shared_transport<Transport> && std::equality_comparable<options>) {
      return worker.process.template share<process_transport>(
          [&](process_transport& present) { return present.admit(how, self); },
          [&] { return std::make_shared<process_transport>(how, self, std::move(chosen)); });
    } else {
      if (role.added) how = on_any_port(std::move(how));
      return std::make_shared<process_transport>(std::move(how), self, std::move(chosen));
    }
  }

  void dismiss(incarnation self) noexcept {
    if constexpr (shared_transport<Transport>) through_.dismiss(self);
  }

 private:
  /// False: these are other options.
  [[nodiscard]] bool admit(const options& how, incarnation self) {
    if (!(options_ == how)) return false;
    through_.admit(self);
    return true;
  }
  /// Workers of one process may use different devices.
  [[nodiscard]] static location without_device(location where) {
    where.device.clear();
    return where;
  }

  const options options_;
  Transport through_;
  const std::string capability_key_;
  transport_watch watch_;
};

template <transport Transport, integrity Integrity, memory_space Memory>
class policy_data_plane final : public data_plane {
  using transport_type = process_transport<Transport, !Memory::host_accessible>;

 public:
  policy_data_plane(const worker_options& options, const typename Transport::options& through,
                    incarnation self, const worker_role& role)
      : options_{&options},
        shared_{transport_type::of(options, through, self, role)},
        transport_{shared_->through()},
        self_{self},
        memory_{transport_} {}
  ~policy_data_plane() override { shared_->dismiss(self_); }
  policy_data_plane(const policy_data_plane&) = delete;
  policy_data_plane& operator=(const policy_data_plane&) = delete;

  [[nodiscard]] std::string_view transport_name() const noexcept override { return Transport::name; }
  [[nodiscard]] std::string_view integrity_name() const noexcept override { return Integrity::name; }
  [[nodiscard]] bool resists_forgery() const noexcept override {
    return forgery_resistant_integrity<Integrity>;
  }
  [[nodiscard]] bool copies_cannot_fail() const noexcept override { return Memory::host_accessible; }

  [[nodiscard]] transport_address address() const override {
    if constexpr (composed_transport<Transport>) {
      const auto places = memory_.shard().places();
      const auto regions = memory_.shard().regions();
      if (!places.empty() && !regions.empty()) return transport_.address_of(regions[places.front().region]);
    }
    return transport_.address();
  }
  [[nodiscard]] const std::string& capability_key() const noexcept override {
    return shared_->capability_key();
  }
  [[nodiscard]] std::uint64_t refused_connections() const noexcept override {
    if constexpr (guarded_transport<Transport>)
      return transport_.refused_connections();
    else
      return 0;
  }
  [[nodiscard]] std::vector<log_line> lines_to_log(time_point now) override {
    return shared_->watch().look(transport_, now);
  }
  void cut_off(incarnation reader) noexcept override { transport_.cut_off(reader); }
  [[nodiscard]] bool renewable() const noexcept override { return shared_transport<Transport>; }
  void renew([[maybe_unused]] incarnation self) noexcept override {
    if constexpr (shared_transport<Transport>) {
      transport_.rename(self_, self);
      memory_.renew(self);
      self_ = self;
    }
  }

  void add(tensor_spec tensor, const void* data) override { memory_.shard().add(std::move(tensor), data); }
  [[nodiscard]] std::span<const tensor_spec> tensors() const noexcept override {
    return memory_.shard().tensors();
  }
  [[nodiscard]] std::span<const memory_range> ranges() const noexcept override {
    return memory_.shard().ranges();
  }
  [[nodiscard]] layout build_layout(std::uint64_t chunk_bytes, const error_context& context) const override {
    return memory_.shard().build_layout(chunk_bytes, context);
  }
  void register_all(const layout& shape, incarnation holder) override {
    layout_ = &shape;
    forget_digests();
    memory_.register_all(shape, holder);
  }
  [[nodiscard]] registration_cost cost() const noexcept override { return memory_.shard().cost(); }

  [[nodiscard]] version_digests pack(
      version_number version, [[maybe_unused]] std::optional<std::span<const std::size_t>> changed) override {
    [[maybe_unused]] const std::uint64_t written = written_;
    memory_.shard().register_again();
    memory_.shard().pack();
    version_digests made;
    if constexpr (Integrity::enabled) {
      const digest_seeds bound_to = seeds_of(version);
      const auto places = memory_.shard().places();
      if (changed && kept_at_ == written) {
        const std::vector<chunk_index> chunks = chunks_of(*layout_, *changed);
        made.table = kept_;
        made.digested_chunks = chunks.size();
        digest_again<Integrity>(made.table, chunks, *layout_, places, bound_to.chunks, options_->lanes);
        check_left_out<Integrity>(kept_, chunks, *layout_, places, bound_to.chunks, options_->lanes, random_);
      } else {
        made.table = digest_table<Integrity>(*layout_, places, bound_to.chunks, options_->lanes);
        made.digested_chunks = made.table.size();
      }
      made.root = Integrity::root(bound_to.root, made.table);
      kept_ = made.table;
      kept_at_ = written;
    }
    return made;
  }
  [[nodiscard]] bool has_its_digest([[maybe_unused]] version_number version,
                                    chunk_index chunk) const override {
    const std::span<const digest128> table = memory_.digests();
    if (!Integrity::enabled || chunk >= table.size()) return true;
    const placed_chunk placed = place_of(*layout_, memory_.shard().places(), chunk);
    digest128 made{};
    if constexpr (Integrity::enabled)
      chunk_digests<Integrity>{}.make(seeds_of(version).chunks, std::span{&placed, 1}, std::span{&made, 1});
    return made == table[chunk];
  }
  void forget_digests() noexcept override { ++written_; }
  void unpack() override { memory_.shard().unpack(); }
  [[nodiscard]] std::uint64_t transfers() const noexcept override { return memory_.shard().transfers(); }
  [[nodiscard]] bool unpack(std::size_t tensor, std::uint64_t transfer) override {
    forget_digests();
    return memory_.shard().unpack(tensor, transfer);
  }
  void copy_from(const data_plane& neighbour) override {
    const auto* const same = dynamic_cast<const policy_data_plane*>(&neighbour);
    if (same == nullptr)
      throw error(errc::invalid_argument, "the worker to copy from has other policies than this one");
    forget_digests();
    memory_.shard().register_again();
    memory_.shard().copy_segments(same->memory_.shard(), options_->lanes);
    unpack();
  }

  [[nodiscard]] std::unique_ptr<pull_driver> begin(pull_order order, transfer_events events) override {
    forget_digests();
    memory_.shard().register_again();
    pull_driver_options how{options_->lanes, window_chunks(), {options_->connect_timeout}};
    how.time_left = order.time_left;
    if (options_->window_chunks == 0) how.rules.cautious_window_chunks = usual_window_chunks;
    how.rules.far_window_chunks = options_->far_window_chunks;
    how.rules.open = order.open;
    how.reader = self_;
    const pull_memory<typename Transport::memory_region> into{layout_, memory_.shard().regions(),
                                                              memory_.shard().places()};
    auto begun = std::make_unique<transport_pull<Transport, Integrity>>(
        lanes_, into, seeds_of(order.version), first_chunk_of(order.ordinal, layout_->chunk_count()), how,
        wired(order, std::move(events)));
    begun->assume(kept_);
    for (pull_target& source : order.sources) begun->add_source(std::move(source));
    memory_.shard().expect();
    return begun;
  }

  void show_open(version_number version, std::uint64_t epoch) override {
    forget_digests();
    fill_seeds_ = seeds_of(version);
    filled_.assign(Integrity::enabled ? layout_->chunk_count() : 0, {});
    memory_.show_receiving(version, epoch, {});
  }
  void seal(chunk_run chunks) override {
    std::vector<placed_chunk> placed;
    for (chunk_index i = chunks.first; i < chunks.first + chunks.count; ++i)
      placed.push_back(place_of(*layout_, memory_.shard().places(), i));
    std::vector<digest128> made(placed.size());
    if constexpr (Integrity::enabled) chunk_digests<Integrity>{}.make(fill_seeds_.chunks, placed, made);
    for (std::size_t i = 0; i < placed.size(); ++i) {
      if constexpr (Integrity::enabled) filled_[placed[i].chunk] = made[i];
      memory_.add_chunk(placed[i].chunk, made[i]);
    }
  }
  void pack_one(std::size_t tensor) override { memory_.shard().pack(tensor); }
  [[nodiscard]] version_digests sealed() const override {
    version_digests out{filled_, {}, filled_.size()};
    if constexpr (Integrity::enabled) out.root = Integrity::root(fill_seeds_.root, filled_);
    return out;
  }

  [[nodiscard]] remote_region control() const override { return memory_.control(); }
  [[nodiscard]] readable_memory readable() const override { return memory_.readable(); }
  [[nodiscard]] std::span<const digest128> digests() const noexcept override { return memory_.digests(); }
  void show(version_number version, std::uint64_t epoch, std::span<const digest128> table) override {
    kept_.assign(table.begin(), table.end());
    memory_.show(version, epoch, table);
  }
  [[nodiscard]] readable_memory describe_held() override { return memory_.describe_held(); }
  void show_again(version_number version, std::uint64_t epoch) noexcept override {
    memory_.show_again(version, epoch);
  }
  void raise_epoch(std::uint64_t epoch) noexcept override {
    memory_.raise_epoch(epoch);
    if constexpr (guarded_transport<Transport>) transport_.expire_capabilities(self_, epoch);
  }
  void revoke_all() noexcept override { memory_.revoke_all(); }
  [[nodiscard]] bool revokes_cheaply() const noexcept override {
    return Transport::capabilities.revokes_cheaply;
  }

  [[nodiscard]] std::unique_ptr<owned_tensors> allocate(std::span<const tensor_spec> tensors,
                                                        tensor_place where) const override {
    if (where == tensor_place::offload_space || keeps_on_host())
      return std::make_unique<policy_tensors<offload_space_of<Memory>>>(tensors);
    return std::make_unique<policy_tensors<Memory>>(tensors);
  }
  void copy(std::span<const copy_run> runs) const override { parallel_copy<Memory>(runs, options_->lanes); }
  [[nodiscard]] std::chrono::milliseconds await_stream(
      [[maybe_unused]] const void* stream, std::chrono::milliseconds timeout,
      [[maybe_unused]] const std::function<bool()>& gives_up) override {
    if constexpr (streaming_memory_space<Memory>)
      return await_mark(memory_.shard().space().mark(*static_cast<const stream_of<Memory>*>(stream)), timeout,
                        gives_up);
    else
      return timeout;
  }

 private:
  [[nodiscard]] digest_seeds seeds_of(version_number version) const noexcept {
    return Integrity::bind(options_->model, version, options_->shard);
  }

  static constexpr std::size_t usual_window_chunks = 4;
  /// A device copies and digests tens of chunks in the time that one takes; the CPU has few in its cache.
  [[nodiscard]] std::size_t window_chunks() const {
    if (options_->window_chunks != 0) return options_->window_chunks;
    const bool on_device =
        detail::any_of(memory_.shard().places(), [](const auto& place) { return place.device != nullptr; });
    return on_device ? 64 : usual_window_chunks;
  }

  /// What comes per chunk goes from the driver to the control block, past the worker.
  [[nodiscard]] pull_driver::callbacks wired(const pull_order& order, transfer_events events) {
    pull_driver::callbacks out;
    static_cast<source_events&>(out) = std::move(static_cast<source_events&>(events));
    out.believed = [this, version = order.version, epoch = order.epoch,
                    is_open = order.open](std::span<const digest128> table) {
      // A digest is shown with its chunk, or with all others when they are known to be right.
      memory_.show_receiving(version, epoch, is_open ? std::span<const digest128>{} : table);
    };
    out.confirmed = [this, is_open = order.open, counted = events.chunks_received,
                     arrived = std::move(events.arrived)](std::span<const chunk_index> chunks,
                                                          std::span<const digest128> table) {
      for (const chunk_index chunk : chunks) {
        if (is_open && !table.empty())
          memory_.add_chunk(chunk, table[chunk]);
        else
          memory_.add_chunk(chunk);
      }
      *counted += chunks.size();
      if (arrived) arrived(chunks);
    };
    out.settled = [this](std::span<const digest128> table) { memory_.set_digests(table); };
    out.left = [this](std::span<const digest128> present) { kept_.assign(present.begin(), present.end()); };
    out.traced = options_->trace;
    return out;
  }

  const worker_options* options_;
  const std::shared_ptr<transport_type> shared_;
  Transport& transport_;
  std::atomic<incarnation> self_;
  worker_memory<Transport, Memory> memory_;
  lane_pool<Transport> lanes_{transport_};
  const layout* layout_ = nullptr;
  digest_seeds fill_seeds_{};      ///< of the open version
  std::vector<digest128> filled_;  ///< its digests so far
  std::vector<digest128> kept_;    ///< of the chunks, when they were seen last; zero: not known
  std::uint64_t kept_at_ = 0;      ///< `written_` before the last `pack`
  detail::repeatable_random random_{self_.load().value};
  /// Counts up whenever the library may have written to the tensors.
  std::atomic<std::uint64_t> written_ = 1;
};

/// Makes data planes of these policies; `through` configures each one's transport. (Not inline: a file may
/// leave it to another one by `extern template`.)
template <transport Transport, integrity Integrity, memory_space Memory>
data_plane_maker data_plane_maker_of(typename Transport::options through) {
  if constexpr (requires { Memory{}.pci_address(); }) {
    // Here, since the workers that the library adds are made in threads of its own.
    through = near_to(std::move(through), [] {
      try {
        return Memory{}.pci_address();
      } catch (const error&) {  // no device: host memory can be added all the same
        return std::string{};
      }
    });
  }
  return [through = std::move(through)](const worker_options& options, incarnation self,
                                        const worker_role& role) -> std::unique_ptr<data_plane> {
    return std::make_unique<policy_data_plane<Transport, Integrity, Memory>>(options, through, self, role);
  };
}

/// What the publishers, subscribers and their like hand to their worker.
template <transport Transport, consistency Consistency, integrity Integrity, memory_space Memory>
[[nodiscard]] worker_policies policies_of(typename Transport::options through) {
  return {Consistency::name, data_plane_maker_of<Transport, Integrity, Memory>(std::move(through))};
}

}  // namespace tensorhub::inline TENSORHUB_MODE
