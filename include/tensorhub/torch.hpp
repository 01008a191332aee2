#pragma once
/// \file torch.hpp
/// Tensors of libtorch, in place: an optional component, `TensorHub::torch`.
///
///     hub::publisher trainer{...};
///     const auto weights = tensorhub::torch::add(trainer, model->named_parameters());
///     const auto buffers = tensorhub::torch::add(trainer, model->named_buffers());
///     weights.check();                 // where something may have given a parameter other memory
///     trainer.publish(step);
///
/// The worker keeps the memory of the tensors as long as it lives. It does not notice when a tensor is given
/// other memory later (`module->to(...)`, `set_data`), and goes on with what it was told of: `check` does. An
/// update writes as under `NoGradGuard`, and raises no version counter of autograd.
///
/// The same tensors may be on the CPU or, if the hub's memory space is `cuda_memory`, on CUDA devices; calls
/// then take a stream as always, such as `c10::cuda::getCurrentCUDAStream().stream()`. (No test has CUDA
/// tensors of libtorch yet.)
///
/// Includes no more of libtorch than tensors need; <torch/torch.h> is for the user to include. After `using
/// namespace tensorhub` the name `torch` would be ambiguous. Thread safety: as `add` of the worker; `check`
/// for any thread, while nobody changes the tensors.

#include <ATen/core/TensorBase.h>
#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/util/StringUtil.h>

#include <array>
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
#include "tensorhub/concepts/integrity.hpp"
#include "tensorhub/concepts/memory_space.hpp"
#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/tensor.hpp"

namespace tensorhub::inline TENSORHUB_MODE::torch {

/// An element type by the name of libtorch's ScalarType; empty: the library does not know it. By name,
/// because older releases lack some of them.
[[nodiscard]] constexpr std::optional<dtype> dtype_named(std::string_view scalar_type) noexcept {
  using known_type = std::pair<std::string_view, dtype>;
  constexpr std::array known_types{
      known_type{"Byte", dtype::u8},
      known_type{"Char", dtype::i8},
      known_type{"Short", dtype::i16},
      known_type{"UInt16", dtype::u16},
      known_type{"Half", dtype::f16},
      known_type{"BFloat16", dtype::bf16},
      known_type{"Int", dtype::i32},
      known_type{"UInt32", dtype::u32},
      known_type{"Float", dtype::f32},
      known_type{"Long", dtype::i64},
      known_type{"UInt64", dtype::u64},
      known_type{"Double", dtype::f64},
      known_type{"Bool", dtype::boolean},
      known_type{"Float8_e4m3fn", dtype::f8_e4m3},
      known_type{"Float8_e5m2", dtype::f8_e5m2},
      known_type{"Float8_e8m0fnu", dtype::f8_e8m0},
      known_type{"Float8_e4m3fnuz", dtype::f8_e4m3fnuz},
      known_type{"Float8_e5m2fnuz", dtype::f8_e5m2fnuz},
      known_type{"Float4_e2m1fn_x2", dtype::f4_e2m1_x2},
      known_type{"ComplexFloat", dtype::c64},
      known_type{"ComplexDouble", dtype::c128},
  };
  const auto* const found = detail::find(known_types, scalar_type, &known_type::first);
  return found == known_types.end() ? std::nullopt : std::optional{found->second};
}

namespace detail {

/// Whether a worker of this type takes tensors on a device.
template <typename Worker>
inline constexpr bool takes_devices = false;
template <template <transport, consistency, integrity, memory_space> class Door, transport Transport,
          consistency Consistency, integrity Integrity, memory_space Memory>
inline constexpr bool takes_devices<Door<Transport, Consistency, Integrity, Memory>> =
    streaming_memory_space<Memory>;

/// Why a tensor's elements do not lie one after the other in memory of its own; empty: they do.
[[nodiscard]] inline std::string why_not_in_place(const at::TensorBase& tensor) {
  if (!tensor.defined()) return "is undefined: register it once its module has made it";
  if (tensor.is_meta()) return "is on the meta device and has no bytes: materialize it first";
  if (tensor.layout() != c10::kStrided)
    return "has layout " + c10::str(tensor.layout()) + ", expected Strided: give its to_dense() copy";
  if (tensor.is_quantized())
    return "is quantized, and its scale would be left behind: give int_repr() and the scale as tensors";
  if (tensor.is_conj()) return "is a conjugate view: call resolve_conj()";
  if (tensor.is_neg()) return "is a negated view: call resolve_neg()";
  if (!tensor.is_contiguous())
    return "is not contiguous: give its contiguous copy, or the tensor that it is a view of";
  const std::size_t bytes = tensor.has_storage() ? tensor.storage().nbytes() : 0;
  const std::size_t first = static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize();
  if (!tensor.has_storage() || (tensor.numel() > 0 && bytes < first + tensor.nbytes()))
    return "has a storage of " + std::to_string(bytes) + " bytes, expected at least " +
           std::to_string(first + tensor.nbytes()) +
           ": somebody (such as FSDP) has released its memory; add it while it is there, and keep it";
  return {};
}

/// A tensor, and where it was when it was added. The storage is held by itself: a tensor can change its own.
struct added_tensor {
  std::string name;
  at::TensorBase tensor;
  c10::Storage memory;
  void* address;
};

[[noreturn]] inline void refuse(const std::string& name, const std::string& why) {
  throw error(errc::invalid_argument, "tensor '" + name + "' " + why);
}

[[nodiscard]] inline added_tensor checked(std::string name, const at::TensorBase& tensor,
                                          bool may_be_on_a_device) {
  if (const std::string why = why_not_in_place(tensor); !why.empty()) refuse(name, why);
  if (!tensor.is_cpu() && !(may_be_on_a_device && tensor.is_cuda()))
    refuse(name, "is on device " + tensor.device().str() +
                     (may_be_on_a_device ? ", expected cpu or cuda: give a copy there"
                                         : ", and this hub moves host memory only: give a copy on the cpu, "
                                           "or use a hub of cuda_memory"));
  if (!dtype_named(c10::toString(tensor.scalar_type())))
    refuse(name, "has elements of type " + std::string{c10::toString(tensor.scalar_type())} +
                     ", which the library does not know: view it as uint8, in all processes alike");
  return {std::move(name), tensor, tensor.storage(), tensor.data_ptr()};
}

template <typename Item>
concept keyed = requires(const Item& item) {
  { item.key() } -> std::convertible_to<std::string>;
  { item.value() } -> std::convertible_to<const at::TensorBase&>;
};
template <typename Item>
concept paired = requires(const Item& item) {
  { item.first } -> std::convertible_to<std::string>;
  { item.second } -> std::convertible_to<const at::TensorBase&>;
};

}  // namespace detail

/// Names and tensors: `torch::OrderedDict<std::string, at::Tensor>`, a map, a vector of pairs.
template <typename Range>
concept named_tensors = requires(const Range& tensors) {
  tensors.begin() != tensors.end();
  requires detail::keyed<decltype(*tensors.begin())> || detail::paired<decltype(*tensors.begin())>;
};

/// What a worker was told of by one `add`. Copies share it.
class added_tensors {
 public:
  explicit added_tensors(std::shared_ptr<const std::vector<detail::added_tensor>> tensors)
      : tensors_{std::move(tensors)} {}

  /// Throws `invalid_argument` with the name of a tensor that has other memory now.
  void check() const {
    for (const detail::added_tensor& each : *tensors_)
      if (each.tensor.data_ptr() != each.address)
        detail::refuse(each.name,
                       "has moved since it was added (something has resized or replaced its memory): make a "
                       "new worker, or copy into the old memory");
  }
  [[nodiscard]] std::size_t size() const noexcept { return tensors_->size(); }

 private:
  std::shared_ptr<const std::vector<detail::added_tensor>> tensors_;
};

/// Adds all of them to a publisher or subscriber, as `prefix` + name, in their order. Throws
/// `invalid_argument` with the name of the first tensor that cannot be read or written in place; then none
/// was added.
template <typename Worker, named_tensors Range>
added_tensors add(Worker& worker, const Range& tensors, const std::string& prefix = {}) {
  std::vector<detail::added_tensor> all;
  for (const auto& each : tensors) {
    constexpr bool may_be_on_a_device = detail::takes_devices<Worker>;
    if constexpr (detail::keyed<decltype(each)>)
      all.push_back(detail::checked(prefix + each.key(), each.value(), may_be_on_a_device));
    else
      all.push_back(detail::checked(prefix + each.first, each.second, may_be_on_a_device));
  }
  auto kept = std::make_shared<const std::vector<detail::added_tensor>>(std::move(all));
  worker.keep_alive(kept);
  for (const detail::added_tensor& each : *kept) {
    const auto sizes = each.tensor.sizes();
    const std::vector<std::uint64_t> shape(sizes.begin(), sizes.end());
    worker.add(each.name, each.address, std::span{shape},
               *dtype_named(c10::toString(each.tensor.scalar_type())));
  }
  return added_tensors{std::move(kept)};
}

}  // namespace tensorhub::inline TENSORHUB_MODE::torch
