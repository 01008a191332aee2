/// \file tensors.cpp
/// Definitions of tensors.hpp.

#include "tensors.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <tensorhub/error.hpp>
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

constexpr auto how_to_copy =
    "is not contiguous: give its contiguous copy, or the tensor that it is a view of";

void* torch_address(nb::handle tensor) {
  return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(tensor.attr("data_ptr")()));
}

tensor_place torch_place(const std::string& name, nb::handle tensor) {
  const auto device = text_of(tensor.attr("device").attr("type"));
  if (device == "meta") refuse(name, "is on the meta device and has no bytes: materialize it first");
  if (device != "cpu")
    refuse(name,
           "is on device " + device + ", and this module moves host memory only: give a copy in host memory");
  if (!nb::cast<bool>(tensor.attr("is_contiguous")())) refuse(name, how_to_copy);
  constexpr std::string_view prefix = "torch.";
  const auto type = text_of(tensor.attr("dtype"));
  const bool is_named_so = type.starts_with(prefix);
  tensor_place out{torch_address(tensor),
                   framework_type(name, is_named_so ? type.substr(prefix.size()) : type),
                   shape_of(tensor.attr("shape"))};
  const bool is_complex = out.type == dtype::c64 || out.type == dtype::c128;
  if (is_complex && nb::cast<bool>(tensor.attr("is_conj")()))
    refuse(name, "is a conjugate view: call resolve_conj()");
  return out;
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

tensor_place array_place(const std::string& name, nb::handle tensor, bool written) {
  constexpr int is_contiguous = 0x1;
  constexpr int is_native = 0x200;
  constexpr int is_writable = 0x400;
  const nb::object capsule = tensor.attr("__array_struct__");
  const auto* const seen = static_cast<const array_struct*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (seen == nullptr) throw nb::python_error();
  const dtype type = framework_type(name, text_of(tensor.attr("dtype").attr("name")));
  if ((seen->flags & is_contiguous) == 0) refuse(name, how_to_copy);
  if ((seen->flags & is_native) == 0) refuse(name, "has the other byte order: convert it first");
  if (written && (seen->flags & is_writable) == 0)
    refuse(name, "is read-only, and would be written: give a writable one");
  std::vector<std::uint64_t> shape;
  for (int i = 0; i < seen->dimensions; ++i) shape.push_back(static_cast<std::uint64_t>(seen->shape[i]));
  return {seen->data, type, std::move(shape)};
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

tensor_place dlpack_place(const std::string& name, const nb::object& tensor, bool written, any_array& array) {
  if (!nb::try_cast(tensor, array, false)) {
    if (nb::hasattr(tensor, "__cuda_array_interface__"))
      refuse(name,
             "lies on a CUDA device, and this module moves host memory only: give a copy in host memory");
    refuse(name, "is of type " + text_of(tensor.type().attr("__name__")) +
                     ": give a tensor of torch, an array of numpy, or anything with __dlpack__ or a buffer");
  }
  nb::ndarray<> writable;
  if (written && !nb::try_cast(tensor, writable, false))
    refuse(name, "is read-only, and would be written: give a writable one");
  if (array.device_type() != nb::device::cpu::value)
    refuse(name, "lies on a device, and this module moves host memory only: give a copy in host memory");
  if (!is_contiguous(array)) refuse(name, how_to_copy);
  const auto found = std::ranges::find(known_types, array.dtype(), &type_names::dlpack);
  if (found == known_types.end())
    refuse(name, "has elements of DLPack type " + std::to_string(array.dtype().code) + " with " +
                     std::to_string(array.dtype().bits) + " bits, which the library does not know");
  tensor_place out{const_cast<void*>(array.data()), found->type, {}};
  for (std::size_t i = 0; i < array.ndim(); ++i) out.shape.push_back(array.shape(i));
  return out;
}

}  // namespace

kept_tensor::kept_tensor(std::string name, nb::object tensor, bool written)
    : name_{std::move(name)}, tensor_{std::move(tensor)} {
  try {
    if (nb::hasattr(tensor_, "data_ptr") && nb::hasattr(tensor_, "is_contiguous")) {
      protocol_ = protocol::torch;
      place_ = torch_place(name_, tensor_);
    } else if (nb::hasattr(tensor_, "__array_struct__") && nb::hasattr(tensor_, "dtype")) {
      protocol_ = protocol::array;
      place_ = array_place(name_, tensor_, written);
    } else {
      place_ = dlpack_place(name_, tensor_, written, exported_);
    }
  } catch (const nb::python_error& e) {
    refuse(name_, std::string{"cannot be read: "} + e.what());
  } catch (const nb::cast_error&) {
    refuse(name_, "has a shape, an address or a type that is not understood");
  }
}

void kept_tensor::check_unmoved() const {
  if (protocol_ == protocol::dlpack) return;
  const void* const now = protocol_ == protocol::torch ? torch_address(tensor_) : array_address(tensor_);
  if (now != place_.data)
    refuse(name_,
           "has moved since it was added (something has resized or replaced its memory): make a new "
           "worker, or write into the tensor in place");
}

dtype dtype_of(const std::string& name) {
  for (const type_names& each : known_types) {
    if (to_string(each.type) == name || each.framework == name) return each.type;
  }
  throw error(errc::invalid_argument, "'" + name + "' is no element type: take f32, bf16, f8_e4m3, ...");
}

nb::object view_of(const void* data, const std::vector<std::uint64_t>& shape, dtype type, nb::handle owner) {
  const auto found = std::ranges::find(known_types, type, &type_names::type);
  const std::vector<std::size_t> extents{shape.begin(), shape.end()};
  return nb::cast(any_array{data, extents.size(), extents.data(), owner, nullptr, found->dlpack},
                  nb::rv_policy::reference);
}

}  // namespace tensorhub_python
