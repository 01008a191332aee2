#pragma once
/// \file process.hpp
/// What the workers of one process share: one transport with its listening port and its threads, and one
/// control connection with its thread, however many publishers, subscribers, stages, snapshots, offloaded
/// copies and seeds the process has.
///
/// Nothing has to be done for that. Workers share a transport if they name the same transport with equal
/// options and the same location, and the transport can be shared (concepts/shared_transport.hpp); workers
/// with tensors on devices and those without have one each. They share a control connection if they name the
/// same servers and the same keys. Workers that are to be as separate as two processes are each given a
/// `process` of their own:
///
///     hub::publisher one{{.server = ..., .model = "policy", .replica = "a",
///                         .process = tensorhub::process::separate()}};
///
/// A part ends with its last worker. Thread safety: all members may be called from any thread.

#include <functional>
#include <memory>
#include <typeindex>
#include <typeinfo>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class process {
 public:
  /// Shared by all workers of this operating-system process that have none of their own.
  process() = default;
  /// Shares with no other. A forked child that uses its parent's uses its own `process{}` instead.
  [[nodiscard]] TENSORHUB_DECL static process separate();

  /// The part of this type that `fits`, or what `make` makes. One part is made at a time.
  template <typename Part>
  [[nodiscard]] std::shared_ptr<Part> share(const std::function<bool(Part&)>& fits,
                                            const std::function<std::shared_ptr<Part>()>& make) const {
    return std::static_pointer_cast<Part>(find_or_make(
        typeid(Part), [&fits](void* part) { return fits(*static_cast<Part*>(part)); },
        [&make]() -> std::shared_ptr<void> { return make(); }));
  }

 private:
  struct parts;
  explicit process(std::shared_ptr<parts> of) : parts_{std::move(of)} {}
  [[nodiscard]] TENSORHUB_DECL std::shared_ptr<void> find_or_make(
      std::type_index kind, const std::function<bool(void*)>& fits,
      const std::function<std::shared_ptr<void>()>& make) const;

  std::shared_ptr<parts> parts_;  ///< null: those of the present operating-system process
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/process.ipp"
#endif
