#pragma once
/// \file tensors.hpp
/// The memory of Python's tensors: of torch (without its library), of numpy and its extensions, of everything
/// that speaks DLPack, and of buffers.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <tensorhub/types/tensor.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tensorhub_python {

namespace nb = nanobind;

using any_array = nb::ndarray<nb::ro, nb::array_api>;  // in Python: DLPack and buffer

/// Where a tensor's bytes lie, and what they are.
struct tensor_place {
  void* data = nullptr;
  tensorhub::dtype type = tensorhub::dtype::u8;
  std::vector<std::uint64_t> shape{};
  bool on_device = false;  ///< of CUDA
};

/// What a worker does with a tensor.
struct tensor_use {
  bool written = false;
  bool may_be_on_device = false;
};

/// A tensor that a worker was told of, kept alive for it.
class kept_tensor {
 public:
  /// Throws `invalid_argument`, with the tensor's name: it is no tensor, has no bytes (meta), lies on a
  /// device and may not, is not contiguous, has an element type that the library does not know, or is
  /// read-only and will be written.
  kept_tensor(std::string name, nb::object tensor, tensor_use use);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const tensor_place& place() const noexcept { return place_; }
  [[nodiscard]] const nb::object& given() const noexcept { return tensor_; }
  [[nodiscard]] bool is_of_torch() const noexcept { return protocol_ == protocol::torch; }
  /// Host memory of torch that devices copy to and from in a stream.
  [[nodiscard]] bool is_pinned() const noexcept { return is_pinned_; }
  /// Throws `invalid_argument` if the bytes lie elsewhere now, or are shown as another tensor's.
  void check_unmoved() const;
  /// For Python's collector, as `tp_traverse`. What was exported by DLPack keeps its owner unseen.
  int show_to(visitproc visit, void* arg) const {
    Py_VISIT(tensor_.ptr());
    Py_VISIT(storage_.ptr());
    return 0;
  }

 private:
  enum class protocol { torch, array, cuda_array, dlpack };
  /// Of now; throws as the constructor. Not of protocol dlpack.
  [[nodiscard]] tensor_place place_now() const;
  [[nodiscard]] void* address_now() const;
  std::string name_;
  nb::object tensor_;
  tensor_use use_;
  nb::object storage_;  ///< of torch, by itself: a tensor can change its own (`param.data = ...`)
  protocol protocol_ = protocol::dlpack;
  tensor_place place_;
  bool is_pinned_ = false;
  any_array exported_;  // of protocol dlpack: the memory cannot move while this lives
};

/// As they are given to a worker at once.
using named_tensors = std::vector<std::pair<std::string, nb::object>>;

/// Those of one worker: a base before that of the worker, because they outlive it.
struct kept_tensors {
  std::vector<kept_tensor> tensors;

  /// The worker is in use, so that its `close` keeps the tensors.
  void check_tensors() const {
    for (const kept_tensor& each : tensors) each.check_unmoved();
  }
  template <typename Worker>
  void keep(Worker& worker, kept_tensor seen) {
    tensors.push_back(std::move(seen));
    const kept_tensor& kept = tensors.back();
    try {
      names_.insert(kept.name());
      worker.add(kept.name(), kept.place().data, kept.place().shape, kept.place().type);
    } catch (...) {
      names_.erase(kept.name());
      tensors.pop_back();
      throw;
    }
  }
  /// Of a worker that has ended, and that no call uses.
  void let_go() {
    names_.clear();
    const std::vector<kept_tensor> gone = std::exchange(tensors, {});
  }
  [[nodiscard]] bool keeps_tensors() const noexcept { return !tensors.empty(); }
  /// After an error none of them is kept.
  template <typename Worker>
  void keep_all(Worker& worker, const named_tensors& given, tensor_use use) {
    for (kept_tensor& each : seen_all(given, use)) keep(worker, std::move(each));
  }

 private:
  /// Throws `invalid_argument` for a name that is there already, too.
  [[nodiscard]] std::vector<kept_tensor> seen_all(const named_tensors& given, tensor_use use) const;

  std::unordered_set<std::string> names_;
};

/// For Python's collector of cycles: a worker's tensors may lead back to it, by an attribute or a hook.
template <typename Worker>
struct collected {
  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;  // its constructor runs
    for (const kept_tensor& each : nb::inst_ptr<Worker>(self)->tensors) {
      if (const int found = each.show_to(visit, arg); found != 0) return found;
    }
    return 0;
  }
  static int clear(PyObject* self) {
    if (!nb::inst_ready(self)) return 0;
    Worker& worker = *nb::inst_ptr<Worker>(self);
    try {
      worker.close();                  // before its tensors go, which it may be serving
    } catch (const std::exception&) {  // as of a parent process, where its threads run
    }
    if (!worker.is_closed()) return 0;
    worker.let_go();
    return 0;
  }
  static inline PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
                                       {Py_tp_clear, reinterpret_cast<void*>(&clear)},
                                       {0, nullptr}};
};

/// "f32" and its like; throws `invalid_argument` for other names.
[[nodiscard]] tensorhub::dtype dtype_of(const std::string& name);

/// A read-only view for Python: buffer and DLPack. `owner` lives as long as the view.
[[nodiscard]] nb::object view_of(const void* data, const std::vector<std::uint64_t>& shape,
                                 tensorhub::dtype type, nb::handle owner);
/// The same, to be written.
[[nodiscard]] nb::object writable_view_of(void* data, const std::vector<std::uint64_t>& shape,
                                          tensorhub::dtype type, nb::handle owner);
/// What owns a view of memory that `kept` keeps.
template <typename Kept>
[[nodiscard]] nb::capsule owner_of(Kept kept) {
  auto held = std::make_unique<Kept>(std::move(kept));
  nb::capsule owner{held.get(), [](void* each) noexcept { delete static_cast<Kept*>(each); }};
  static_cast<void>(held.release());
  return owner;
}

}  // namespace tensorhub_python
