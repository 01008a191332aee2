#pragma once
/// \file wrapped_transport.hpp
/// The common base of `faulty<T>`, `gated<T>` and `throttled<T>`: a transport with another transport inside.
/// The wrapper uses the protocol and the name of the inner transport, so peers may use that transport itself.
/// Memory, keys and cut-offs are the inner transport's; a wrapper adds `options`, `queue`, `endpoint`,
/// `make_queue` and `connect`.
///
///     template <transport Inner>
///     class slow : public wrapped_transport<Inner> {
///      explicit slow(options chosen = {}, incarnation self = {})
///          : wrapped_transport<Inner>{std::move(chosen.inner), self} {}
///
/// Thread safety: as concept `transport` requires.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/concepts/guarded_transport.hpp"
#include "tensorhub/concepts/shared_transport.hpp"
#include "tensorhub/concepts/telling_transport.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

template <transport Inner>
class wrapped_transport {
 public:
  using concept_tag = transport_tag;
  static constexpr std::string_view name = Inner::name;
  static constexpr transport_capabilities capabilities = Inner::capabilities;
  using memory_region = typename Inner::memory_region;

  [[nodiscard]] Inner& inner() noexcept { return inner_; }
  [[nodiscard]] transport_address address() const { return inner_.address(); }
  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const memory_range> ranges,
                                                           region_access access) {
    return inner_.register_memory(ranges, access);
  }
  [[nodiscard]] std::uint64_t registered_bytes() const noexcept { return inner_.registered_bytes(); }
  [[nodiscard]] remote_region describe(const memory_region& region) const { return inner_.describe(region); }
  void revoke(memory_region& region) noexcept { inner_.revoke(region); }
  void cut_off(incarnation peer) noexcept { inner_.cut_off(peer); }
  void admit(incarnation self) requires shared_transport<Inner> { inner_.admit(self); }
  void rename(incarnation self, incarnation next) noexcept requires shared_transport<Inner> {
    inner_.rename(self, next);
  }
  void dismiss(incarnation self) noexcept requires shared_transport<Inner> { inner_.dismiss(self); }
  void require_capability(std::span<const std::byte> key) requires guarded_transport<Inner> {
    inner_.require_capability(key);
  }
  void expire_capabilities(incarnation self, std::uint64_t epoch) noexcept requires guarded_transport<Inner> {
    inner_.expire_capabilities(self, epoch);
  }
  [[nodiscard]] std::uint64_t refused_connections() const noexcept requires guarded_transport<Inner> {
    return inner_.refused_connections();
  }
  [[nodiscard]] transport_refusal refusal_told() const requires telling_transport<Inner> {
    return inner_.refusal_told();
  }
  [[nodiscard]] transport_renewal renewal_told() const requires telling_transport<Inner> {
    return inner_.renewal_told();
  }
  [[nodiscard]] transport_unused unused_told() const requires composed_transport<Inner> {
    return inner_.unused_told();
  }
  [[nodiscard]] transport_shortage shortage_told() const requires shortage_telling_transport<Inner> {
    return inner_.shortage_told();
  }

 protected:
  wrapped_transport(typename Inner::options chosen, incarnation self) : inner_{std::move(chosen), self} {}
  ~wrapped_transport() = default;

 private:
  Inner inner_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
