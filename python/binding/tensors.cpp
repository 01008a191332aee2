/// \file tensors.cpp
/// Definitions of tensors.hpp.

#include "tensors.hpp"

#include <linux/futex.h>
#include <nanobind/stl/string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tensorhub/error.hpp>
#include <tensorhub/types/layout.hpp>
#include <unordered_set>
#include <utility>

namespace tensorhub_python {

namespace {

using nb::dlpack::dtype_code;
using tensorhub::dtype;
using tensorhub::errc;
using tensorhub::error;

/// An element type: our name, torch's and numpy's, DLPack's.
struct type_names {
  dtype type;
  std::string_view framework;  ///< of torch and of numpy with ml_dtypes; empty: they have none
  nb::dlpack::dtype dlpack;
};

constexpr nb::dlpack::dtype of(dtype_code code, std::uint8_t bits, std::uint16_t lanes = 1) {
  return {static_cast<std::uint8_t>(code), bits, lanes};
}

constexpr std::array known_types{
    type_names{dtype::u8, "uint8", of(dtype_code::UInt, 8)},
    type_names{dtype::i8, "int8", of(dtype_code::Int, 8)},
    type_names{dtype::i16, "int16", of(dtype_code::Int, 16)},
    type_names{dtype::u16, "uint16", of(dtype_code::UInt, 16)},
    type_names{dtype::f16, "float16", of(dtype_code::Float, 16)},
    type_names{dtype::bf16, "bfloat16", of(dtype_code::Bfloat, 16)},
    type_names{dtype::i32, "int32", of(dtype_code::Int, 32)},
    type_names{dtype::u32, "uint32", of(dtype_code::UInt, 32)},
    type_names{dtype::f32, "float32", of(dtype_code::Float, 32)},
    type_names{dtype::i64, "int64", of(dtype_code::Int, 64)},
    type_names{dtype::u64, "uint64", of(dtype_code::UInt, 64)},
    type_names{dtype::f64, "float64", of(dtype_code::Float, 64)},
    type_names{dtype::boolean, "bool", of(dtype_code::Bool, 8)},
    type_names{dtype::f8_e4m3, "float8_e4m3fn", of(dtype_code::Float8_E4M3FN, 8)},
    type_names{dtype::f8_e5m2, "float8_e5m2", of(dtype_code::Float8_E5M2, 8)},
    type_names{dtype::f8_e8m0, "float8_e8m0fnu", of(dtype_code::Float8_E8M0FNU, 8)},
    type_names{dtype::f8_e4m3fnuz, "float8_e4m3fnuz", of(dtype_code::Float8_E4M3FNUZ, 8)},
    type_names{dtype::f8_e5m2fnuz, "float8_e5m2fnuz", of(dtype_code::Float8_E5M2FNUZ, 8)},
    type_names{dtype::f4_e2m1_x2, "float4_e2m1fn_x2", of(dtype_code::Float4_E2M1FN, 4, 2)},
    type_names{dtype::c64, "complex64", of(dtype_code::Complex, 64)},
    type_names{dtype::c128, "complex128", of(dtype_code::Complex, 128)},
};

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  throw error(errc::invalid_argument, "tensor '" + name + "' " + why);
}

dtype framework_type(const std::string& tensor, std::string_view name) {
  const auto found = std::ranges::find(known_types, name, &type_names::framework);
  if (found == known_types.end())
    refuse(tensor, "has elements of type " + std::string{name} +
                       ", which the library does not know: view it as uint8, in all processes alike");
  return found->type;
}

/// What `str` says.
std::string text_of(const nb::object& object) {
  const auto text = nb::steal<nb::object>(PyObject_Str(object.ptr()));
  if (!text.is_valid()) throw nb::python_error();
  return nb::cast<std::string>(text);
}

std::vector<std::uint64_t> shape_of(nb::handle dimensions) {
  std::vector<std::uint64_t> out;
  for (const nb::handle each : dimensions) out.push_back(nb::cast<std::uint64_t>(each));
  return out;
}

/// Of an exception of Python's: without the traceback, which `what` has.
std::string sentence_of(const nb::python_error& raised) {
  return text_of(raised.type().attr("__name__")) + ": " + text_of(nb::borrow(raised.value()));
}

[[noreturn]] void refuse_gaps(const std::string& name, tensor_use use) {
  refuse(name, use.written
                   ? "is not contiguous: give the tensor that it is a view of, or give it contiguous memory "
                     "first (in torch p.data = p.data.contiguous()); a copy would be updated in its place"
                   : "is not contiguous: give the tensor that it is a view of, or its contiguous copy, which "
                     "has to be made anew for each version");
}

constexpr auto how_to_write = "is read-only, and would be written: give a writable one";

/// Whether host memory may be written, which torch does not know of memory that it was given; true if nobody
/// can tell. Changes nothing, whatever other threads do: the kernel adds no bit to a word, in one step.
bool may_be_written(const void* data) {
  constexpr std::uintptr_t word_bytes = sizeof(std::uint32_t);
  const auto address = reinterpret_cast<std::uintptr_t>(data) / word_bytes * word_bytes;
  std::uint32_t unused = 0;
  constexpr auto add_no_bit = FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0);
  return ::syscall(SYS_futex, &unused, FUTEX_WAKE_OP_PRIVATE, 0, nullptr, address, add_no_bit) >= 0 ||
         errno != EFAULT;
}

void* torch_address(nb::handle tensor) {
  return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(tensor.attr("data_ptr")()));
}

/// Of a tensor on a device.
void check_device(const std::string& name, const std::string& device, tensor_use use) {
  if (device != "cuda")
    refuse(name, "is on device " + device + ", expected host memory" +
                     (use.may_be_on_device ? " or a CUDA device" : "") + ": give a copy there");
  if (!use.may_be_on_device)
    refuse(name,
           "is on a CUDA device, and this worker moves host memory only: make it with memory='cuda' (a "
           "Publisher, or a Subscriber that is in_place or staged), or give a copy in host memory");
}

tensor_place torch_place(const std::string& name, nb::handle tensor, tensor_use use) {
  const auto device = text_of(tensor.attr("device").attr("type"));
  if (device == "meta") refuse(name, "is on the meta device and has no bytes: materialize it first");
  if (device != "cpu") check_device(name, device, use);
  if (!nb::cast<bool>(tensor.attr("is_contiguous")())) refuse_gaps(name, use);
  constexpr std::string_view prefix = "torch.";
  const auto type = text_of(tensor.attr("dtype"));
  const bool is_named_so = type.starts_with(prefix);
  tensor_place out{torch_address(tensor),
                   framework_type(name, is_named_so ? type.substr(prefix.size()) : type),
                   shape_of(tensor.attr("shape")), device != "cpu"};
  const bool is_negated = nb::hasattr(tensor, "is_neg") && nb::cast<bool>(tensor.attr("is_neg")());
  if (is_negated) refuse(name, "is a negated view: call resolve_neg()");
  const bool is_complex = out.type == dtype::c64 || out.type == dtype::c128;
  if (is_complex && nb::cast<bool>(tensor.attr("is_conj")()))
    refuse(name, "is a conjugate view: call resolve_conj()");
  return out;
}

/// What holds the memory of a tensor of torch; empty: it is of no torch that tells.
nb::object torch_storage(const std::string& name, nb::handle tensor, const tensor_place& place) {
  if (place.data == nullptr || !nb::hasattr(tensor, "untyped_storage")) return {};
  nb::object storage = tensor.attr("untyped_storage")();
  const auto bytes = nb::cast<std::uint64_t>(storage.attr("nbytes")());
  const auto first = nb::cast<std::uint64_t>(tensor.attr("storage_offset")()) * size_bytes(place.type);
  const auto end = first + tensorhub::tensor_spec{{}, place.type, place.shape}.bytes().value_or(0);
  if (bytes < end)
    refuse(name, "has a storage of " + std::to_string(bytes) + " bytes, expected at least " +
                     std::to_string(end) +
                     ": somebody (such as FSDP) has released its memory; add it while it is there, and keep "
                     "it");
  return storage;
}

/// The C structure behind `__array_struct__` (numpy's array interface, version 3).
struct array_struct {
  int two;
  int dimensions;
  char kind;
  int element_bytes;
  int flags;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  void* data;
};

void* array_address(nb::handle tensor) {
  const nb::object capsule = tensor.attr("__array_struct__");
  const auto* const seen = static_cast<const array_struct*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (seen == nullptr) throw nb::python_error();
  return seen->data;
}

tensor_place array_place(const std::string& name, nb::handle tensor, tensor_use use) {
  constexpr int is_contiguous = 0x1;
  constexpr int is_native = 0x200;
  constexpr int is_writable = 0x400;
  const nb::object capsule = tensor.attr("__array_struct__");
  const auto* const seen = static_cast<const array_struct*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (seen == nullptr) throw nb::python_error();
  // A scalar has no memory of its own: each time it shows another copy.
  if (array_address(tensor) != seen->data)
    refuse(name, "is a scalar, and no array: give an array of no dimensions");
  const dtype type = framework_type(name, text_of(tensor.attr("dtype").attr("name")));
  if ((seen->flags & is_contiguous) == 0) refuse_gaps(name, use);
  if ((seen->flags & is_native) == 0) refuse(name, "has the other byte order: convert it first");
  if (use.written && (seen->flags & is_writable) == 0) refuse(name, how_to_write);
  std::vector<std::uint64_t> shape;
  for (int i = 0; i < seen->dimensions; ++i) shape.push_back(static_cast<std::uint64_t>(seen->shape[i]));
  return {seen->data, type, std::move(shape)};
}

/// The dictionary of `__cuda_array_interface__` (version 3): CuPy, Numba, JAX.
void* cuda_array_address(nb::handle tensor) {
  return reinterpret_cast<void*>(
      nb::cast<std::uintptr_t>(tensor.attr("__cuda_array_interface__")["data"][nb::int_{0}]));
}

/// Of elements that lie one after the other, in bytes.
bool are_contiguous(nb::handle strides, const std::vector<std::uint64_t>& shape, std::uint64_t element) {
  std::uint64_t expected = element;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && nb::cast<std::int64_t>(strides[nb::int_{i}]) != static_cast<std::int64_t>(expected))
      return false;
    expected *= shape[i];
  }
  return true;
}

tensor_place cuda_array_place(const std::string& name, nb::handle tensor, tensor_use use) {
  check_device(name, "cuda", use);
  const nb::dict told = nb::cast<nb::dict>(tensor.attr("__cuda_array_interface__"));
  const auto code = nb::cast<std::string>(told["typestr"]);
  // The codes have no name for what numpy has none for: those types come with `dtype`.
  const bool is_named = nb::hasattr(tensor, "dtype") && nb::hasattr(tensor.attr("dtype"), "name");
  const auto type_name = is_named ? text_of(tensor.attr("dtype").attr("name"))
                                  : text_of(nb::module_::import_("numpy").attr("dtype")(code).attr("name"));
  const dtype type = framework_type(name, type_name);
  tensor_place out{cuda_array_address(tensor), type, shape_of(told["shape"]), true};
  const bool has_strides = told.contains("strides") && !told["strides"].is_none();
  if (has_strides && !are_contiguous(told["strides"], out.shape, tensorhub::size_bytes(type)))
    refuse_gaps(name, use);
  if (use.written && nb::cast<bool>(told["data"][nb::int_{1}])) refuse(name, how_to_write);
  return out;
}

bool is_contiguous(const any_array& array) {
  std::int64_t expected = 1;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) == 0) return true;
    if (array.shape(i) != 1 && array.stride(i) != expected) return false;
    expected *= static_cast<std::int64_t>(array.shape(i));
  }
  return true;
}

/// The device of a DLPack tensor in torch's words.
std::string device_of(const any_array& array) {
  switch (array.device_type()) {
    case nb::device::cpu::value:
    case nb::device::cuda_host::value:
      return "cpu";
    case nb::device::cuda::value:
    case nb::device::cuda_managed::value:
      return "cuda";
    default:
      return "number " + std::to_string(array.device_type()) + " of DLPack";
  }
}

tensor_place dlpack_place(const std::string& name, const nb::object& tensor, tensor_use use,
                          any_array& array) {
  if (!nb::try_cast(tensor, array, false)) {
    refuse(name, "is of type " + text_of(tensor.type().attr("__name__")) +
                     ": give a tensor of torch, an array of numpy, or anything with __dlpack__ or a buffer");
  }
  nb::ndarray<> writable;
  if (use.written && !nb::try_cast(tensor, writable, false)) refuse(name, how_to_write);
  const std::string device = device_of(array);
  if (device != "cpu") check_device(name, device, use);
  if (!is_contiguous(array)) refuse_gaps(name, use);
  const auto found = std::ranges::find(known_types, array.dtype(), &type_names::dlpack);
  if (found == known_types.end())
    refuse(name, "has elements of DLPack type " + std::to_string(array.dtype().code) + " with " +
                     std::to_string(array.dtype().bits) + " bits, which the library does not know");
  tensor_place out{const_cast<void*>(array.data()), found->type, {}, device != "cpu"};
  for (std::size_t i = 0; i < array.ndim(); ++i) out.shape.push_back(array.shape(i));
  return out;
}

}  // namespace

kept_tensor::kept_tensor(std::string name, nb::object tensor, tensor_use use)
    : name_{std::move(name)}, tensor_{std::move(tensor)}, use_{use} {
  try {
    if (nb::hasattr(tensor_, "data_ptr") && nb::hasattr(tensor_, "is_contiguous")) {
      protocol_ = protocol::torch;
      place_ = place_now();
      storage_ = torch_storage(name_, tensor_, place_);
      is_pinned_ = use.may_be_on_device && !place_.on_device && nb::hasattr(tensor_, "is_pinned") &&
                   nb::cast<bool>(tensor_.attr("is_pinned")());
    } else if (nb::hasattr(tensor_, "__array_struct__") && nb::hasattr(tensor_, "dtype")) {
      protocol_ = protocol::array;
      place_ = place_now();
    } else if (nb::hasattr(tensor_, "__cuda_array_interface__")) {
      protocol_ = protocol::cuda_array;
      place_ = place_now();
    } else {
      place_ = dlpack_place(name_, tensor_, use, exported_);
    }
    const bool is_empty = std::ranges::find(place_.shape, 0u) != place_.shape.end();
    if (place_.data == nullptr && !is_empty)
      refuse(name_,
             "has no memory of its own (a DTensor, or freed by its framework): give full_tensor() or "
             "to_local()");
    if (use.written && !place_.on_device && !is_empty && !may_be_written(place_.data))
      refuse(name_, how_to_write);
  } catch (const nb::python_error& e) {
    refuse(name_, "cannot be read: " + sentence_of(e));
  } catch (const nb::cast_error&) {
    refuse(name_, "has a shape, an address or a type that is not understood");
  }
}

void kept_tensor::check_unmoved() const {
  if (protocol_ == protocol::dlpack) return;
  if (address_now() != place_.data)
    refuse(name_,
           "has moved since it was added (something has resized or replaced its memory): make a new "
           "worker, or write into the tensor in place");
  const tensor_place now = place_now();
  if (now.type != place_.type || now.shape != place_.shape) {
    refuse(name_, "is " + tensorhub::describe({{}, now.type, now.shape}) + " now, and was added as " +
                      tensorhub::describe({{}, place_.type, place_.shape}) +
                      ": make a new worker, or write into the tensor in place");
  }
}

void* kept_tensor::address_now() const {
  if (protocol_ == protocol::torch) return torch_address(tensor_);
  return protocol_ == protocol::array ? array_address(tensor_) : cuda_array_address(tensor_);
}

tensor_place kept_tensor::place_now() const {
  if (protocol_ == protocol::torch) return torch_place(name_, tensor_, use_);
  return protocol_ == protocol::array ? array_place(name_, tensor_, use_)
                                      : cuda_array_place(name_, tensor_, use_);
}

std::vector<kept_tensor> kept_tensors::seen_all(const named_tensors& given, tensor_use use) const {
  std::unordered_set<std::string_view> names;
  std::vector<kept_tensor> out;
  for (const auto& [name, tensor] : given) {
    if (names_.contains(name) || !names.insert(name).second) refuse(name, "was added twice");
    const tensor_place& place = out.emplace_back(name, tensor, use).place();
    static_cast<void>(tensorhub::layout::checked_bytes({name, place.type, place.shape}));
  }
  return out;
}

dtype dtype_of(const std::string& name) {
  for (const type_names& each : known_types) {
    if (to_string(each.type) == name || each.framework == name) return each.type;
  }
  throw error(errc::invalid_argument, "'" + name + "' is no element type: take f32, bf16, f8_e4m3, ...");
}

namespace {

template <typename Array, typename Data>
nb::object array_of(Data* data, const std::vector<std::uint64_t>& shape, dtype type, nb::handle owner) {
  const auto found = std::ranges::find(known_types, type, &type_names::type);
  const std::vector<std::size_t> extents{shape.begin(), shape.end()};
  return nb::cast(Array{data, extents.size(), extents.data(), owner, nullptr, found->dlpack},
                  nb::rv_policy::reference);
}

}  // namespace

nb::object view_of(const void* data, const std::vector<std::uint64_t>& shape, dtype type, nb::handle owner) {
  return array_of<any_array>(data, shape, type, owner);
}
nb::object writable_view_of(void* data, const std::vector<std::uint64_t>& shape, dtype type,
                            nb::handle owner) {
  return array_of<nb::ndarray<nb::array_api>>(data, shape, type, owner);
}

}  // namespace tensorhub_python
