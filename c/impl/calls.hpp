#pragma once
/// \file calls.hpp
/// What all functions of the C interface share: errors instead of exceptions, structures of any age, options.

#include <tensorhub/tensorhub.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <tensorhub/tensorhub.hpp>
#include <utility>

struct tensorhub_error {
  tensorhub_status status = TENSORHUB_OK;
  std::string text{};
};

namespace tensorhub_c {

using tensorhub::errc;
using tensorhub::error;

[[nodiscard]] inline tensorhub_status report(tensorhub_error** out, errc code, const char* text) noexcept {
  const auto status = static_cast<tensorhub_status>(code);
  if (out != nullptr) {
    try {
      *out = new tensorhub_error{status, text};
    } catch (...) {  // no memory: the status says it
      *out = nullptr;
    }
  }
  return status;
}

/// Runs the call; what it throws becomes a status and an error.
template <typename Call>
[[nodiscard]] tensorhub_status guarded(tensorhub_error** out, Call&& call) noexcept {
  if (out != nullptr) *out = nullptr;
  try {
    call();
    return TENSORHUB_OK;
  } catch (const error& e) {
    return report(out, e.code(), e.what());
  } catch (const std::exception& e) {
    return report(out, errc::system_failed, e.what());
  }
}

template <typename Object>
[[nodiscard]] Object& required(Object* given, const char* name) {
  if (given == nullptr) throw error(errc::invalid_argument, std::string{name} + " is NULL");
  return *given;
}
[[nodiscard]] inline std::string text_of(const char* given) {
  return given == nullptr ? std::string{} : std::string{given};
}

/// The structure as this library knows it: fields that an older caller does not have are zero.
template <typename Structure>
[[nodiscard]] Structure taken(const Structure* given, const char* name) {
  constexpr std::size_t longest = 4096;
  const std::size_t bytes = required(given, name).struct_bytes;
  if (bytes < sizeof(std::size_t) || bytes > longest) {
    throw error(errc::invalid_argument, std::string{name} + " begins with struct_bytes = " +
                                            std::to_string(bytes) + ": set it to the structure's size");
  }
  Structure out{};
  std::memcpy(&out, given, std::min(bytes, sizeof out));
  return out;
}
/// Runs the call, and fills in what the caller has of the report, which may be nothing. A wrong report is
/// refused before the call does anything.
template <typename Report, typename Call>
void reported(Report* into, Call&& call) {
  const std::size_t bytes = into == nullptr ? 0 : taken(into, "report").struct_bytes;
  Report values = call();
  values.struct_bytes = bytes;
  if (into != nullptr) std::memcpy(into, &values, std::min(bytes, sizeof values));
}

/// The time-out that the caller has given, or the default.
[[nodiscard]] inline std::chrono::milliseconds time_of(std::int64_t given_ms,
                                                       std::chrono::milliseconds usual) {
  constexpr std::chrono::milliseconds longest = std::chrono::hours{24 * 365};
  return given_ms < 0 ? usual : std::min(std::chrono::milliseconds{given_ms}, longest);
}
[[nodiscard]] inline std::chrono::milliseconds time_of(std::uint64_t given_ms,
                                                       std::chrono::milliseconds usual) {
  return given_ms == 0
             ? usual
             : time_of(static_cast<std::int64_t>(std::min<std::uint64_t>(given_ms, INT64_MAX)), usual);
}

/// The keys of options that have them, all three or none.
template <typename Options>
[[nodiscard]] std::optional<tensorhub::client_security> security_of(const Options& given) {
  if (given.server_key == nullptr && given.public_key == nullptr && given.secret_key == nullptr) return {};
  return tensorhub::client_security{
      &required(given.server_key, "options.server_key"),
      {&required(given.public_key, "options.public_key"), &required(given.secret_key, "options.secret_key")}};
}

[[nodiscard]] tensorhub::version_selector selector_of(tensorhub_selector kind, std::uint64_t version);
[[nodiscard]] tensorhub::worker_options options_of(const tensorhub_worker_options& given);
/// Of the transport that the options name.
[[nodiscard]] tensorhub::worker_policies policies_of(const tensorhub_worker_options& given);

/// Adds the tensor by `add(name, data, dimensions, dtype)`.
template <typename Add>
void add_tensor(const tensorhub_tensor* given, Add&& add) {
  const tensorhub_tensor tensor = taken(given, "tensor");
  if (tensor.dimension_count > 0) static_cast<void>(required(tensor.dimensions, "tensor.dimensions"));
  const auto type = static_cast<tensorhub::dtype>(tensor.type);
  const bool is_cut = static_cast<std::uint64_t>(tensor.type) != static_cast<std::uint64_t>(type);
  if (is_cut || tensorhub::size_bytes(type) == 0)
    throw error(errc::invalid_argument,
                "tensor.type is " + std::to_string(tensor.type) + ": take one of tensorhub_dtype");
  add(std::string{&required(tensor.name, "tensor.name")}, tensor.data,
      std::span<const std::uint64_t>{tensor.dimensions, tensor.dimension_count}, type);
}

[[nodiscard]] tensorhub_publish_report told(const tensorhub::publish_report& done);
[[nodiscard]] tensorhub_publish_report told(const tensorhub::snapshot_report& done);
[[nodiscard]] tensorhub_publish_report told(const tensorhub::unpublish_report& done);
[[nodiscard]] tensorhub_update_report told(const tensorhub::update_report& done);
[[nodiscard]] tensorhub_update_report told(const tensorhub::install_report& done);

/// A log callback of C as one of C++; empty: none.
[[nodiscard]] std::function<void(const tensorhub::log_line&)> log_of(void (*log)(void*, std::int32_t,
                                                                                 const char*),
                                                                     void* context);

}  // namespace tensorhub_c
