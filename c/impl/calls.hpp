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

/// Where a structure's last field ends: at the structure's end, because a field that is appended later would
/// be read from the padding of an older program, which may be any bytes.
template <typename Structure>
inline constexpr std::size_t end_of_fields = 0;
#define TENSORHUB_C_LAST_FIELD(structure, field)          \
  template <>                                             \
  inline constexpr std::size_t end_of_fields<structure> = \
      offsetof(structure, field) + sizeof(structure::field)
TENSORHUB_C_LAST_FIELD(tensorhub_server_options, log_context);
TENSORHUB_C_LAST_FIELD(tensorhub_worker_options, reserved);
TENSORHUB_C_LAST_FIELD(tensorhub_tensor, reserved);
TENSORHUB_C_LAST_FIELD(tensorhub_publish_report, changed);
TENSORHUB_C_LAST_FIELD(tensorhub_update_report, unchanged_bytes);
TENSORHUB_C_LAST_FIELD(tensorhub_client_options, server_timeout_ms);
TENSORHUB_C_LAST_FIELD(tensorhub_model_report, replica_count);
TENSORHUB_C_LAST_FIELD(tensorhub_replica_report, reserved);
TENSORHUB_C_LAST_FIELD(tensorhub_stuck_report, advice);
#undef TENSORHUB_C_LAST_FIELD

/// How much of the structure the caller has: less than this library if its header is older, more if newer.
template <typename Structure>
[[nodiscard]] std::size_t bytes_of(const Structure* given, const char* name) {
  static_assert(end_of_fields<Structure> == sizeof(Structure), "end it with a field `reserved`");
  constexpr std::size_t longest = 4096;
  const std::size_t bytes = required(given, name).struct_bytes;
  if (bytes < sizeof(std::size_t) || bytes > longest) {
    throw error(errc::invalid_argument, std::string{name} + " begins with struct_bytes = " +
                                            std::to_string(bytes) + ": set it to the structure's size");
  }
  return bytes;
}
/// The structure as this library knows it: fields that an older caller does not have are zero. Fields that
/// only a newer one has must be zero: a security option would be off silently.
template <typename Structure>
[[nodiscard]] Structure taken(const Structure* given, const char* name) {
  const std::size_t bytes = bytes_of(given, name);
  Structure out{};
  std::memcpy(&out, given, std::min(bytes, sizeof out));
  const auto* const first = reinterpret_cast<const unsigned char*>(given);
  bool is_newer = std::any_of(first + std::min(bytes, sizeof out), first + bytes,
                              [](unsigned char byte) { return byte != 0; });
  if constexpr (requires { out.reserved; }) is_newer = is_newer || out.reserved != 0;
  if (is_newer)
    throw error(errc::invalid_argument, std::string{name} + " has a field set that this library, version " +
                                            tensorhub_version() + ", does not know: update the library");
  return out;
}
/// Runs the call, and fills in what the caller has of the report, which may be nothing; what only a newer
/// caller has is zero. A wrong report is refused before the call does anything.
template <typename Report, typename Call>
void reported(Report* into, Call&& call) {
  const std::size_t bytes = into == nullptr ? 0 : bytes_of(into, "report");
  Report values = call();
  if (into == nullptr) return;
  values.struct_bytes = bytes;
  const std::size_t known = std::min(bytes, sizeof values);
  std::memcpy(into, &values, known);
  std::memset(reinterpret_cast<unsigned char*>(into) + known, 0, bytes - known);
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
/// Of a worker that is no subscriber: `prefer_local` would not be used.
[[nodiscard]] tensorhub::worker_options options_of_other(const tensorhub_worker_options& given);
/// Of the transport that the options name.
[[nodiscard]] tensorhub::worker_policies policies_of(const tensorhub_worker_options& given);

/// The calls of this object that run in other threads end soon; NULL: nothing is done.
template <typename Object>
void interrupt(Object* given) noexcept {
  if (given != nullptr) static_cast<void>(guarded(nullptr, [&] { given->interrupt(); }));
}

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
