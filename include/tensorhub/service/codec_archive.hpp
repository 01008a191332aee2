#pragma once
/// \file codec_archive.hpp
/// A pair of cereal archives over memory, for control messages (service/codec.hpp).
///
/// `output_archive` writes exactly the bytes of `cereal::PortableBinaryOutputArchive` with little-endian
/// options, into a buffer that is reused from message to message. `input_archive` reads them from a span that
/// nobody trusts:
///
///  - It never throws on what it reads. The first fault sticks, the rest of the message is skipped, and
///    `fault()` says what was wrong.
///  - It allocates no more than the input pays for: a count is compared with the bytes that are left, and
///    with the limit of its field, before anything is reserved.
///  - Every value has one encoding only: a flag is 0 or 1, an enumerator is a known one.
///
/// Text and lists go through `bounded_text` and `bounded_list`, which carry the limit. A plain std::string or
/// std::vector does not compile with `input_archive` (it has no loader for sizes), so none can be forgotten.
///
/// Thread safety: none.

#include <algorithm>
#include <bit>
#include <cereal/cereal.hpp>
#include <cereal/types/optional.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/vector.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/tensor.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Why a frame was not accepted.
enum class decode_fault : std::uint8_t {
  none,
  frame_too_short,
  frame_too_long,
  wrong_magic,     ///< not TensorHub at all
  other_protocol,  ///< TensorHub, but another control protocol number
  unknown_type,
  reserved_bits,
  length_mismatch,  ///< the header promises another number of bytes than there are
  byte_order,
  truncated,  ///< the message ends inside a field
  trailing_bytes,
  bad_flag,
  bad_enumerator,
  text_too_long,
  list_too_long,
  key_too_long,
  out_of_memory,
};

[[nodiscard]] constexpr std::string_view to_string(decode_fault fault) noexcept {
  switch (fault) {
    case decode_fault::none:
      return "none";
    case decode_fault::frame_too_short:
      return "the frame is shorter than its header";
    case decode_fault::frame_too_long:
      return "the frame is longer than the limit for control messages";
    case decode_fault::wrong_magic:
      return "the frame is not a TensorHub control message";
    case decode_fault::other_protocol:
      return "the frame has another control protocol number";
    case decode_fault::unknown_type:
      return "the message type is unknown";
    case decode_fault::reserved_bits:
      return "reserved bits of the header are set";
    case decode_fault::length_mismatch:
      return "the frame's length is not what its header says";
    case decode_fault::byte_order:
      return "the message is not in little-endian byte order";
    case decode_fault::truncated:
      return "the message ends inside a field";
    case decode_fault::trailing_bytes:
      return "bytes follow the end of the message";
    case decode_fault::bad_flag:
      return "a flag is neither 0 nor 1";
    case decode_fault::bad_enumerator:
      return "an enumeration has an unknown value";
    case decode_fault::text_too_long:
      return "a name, sentence or address is longer than its limit";
    case decode_fault::list_too_long:
      return "a list is longer than its limit";
    case decode_fault::key_too_long:
      return "a remote key is longer than its limit";
    case decode_fault::out_of_memory:
      return "there was no memory for the message";
  }
  return "unknown";
}

namespace codec_detail {

static_assert(std::endian::native == std::endian::little,
              "the codec stores numbers as they are in memory, which must be little-endian");

/// Text with a limit. Too long: `name` is refused by the writer (so is `secret`, which no sentence may
/// quote), `sentence` is cut short by it.
enum class text_kind : std::uint8_t { name, sentence, secret };
template <std::size_t LimitBytes, text_kind Kind>
struct bounded_text {
  std::string& value;
};
/// `MinimumBytes`: what the smallest element takes on the wire.
template <std::size_t LimitCount, std::size_t MinimumBytes, typename T>
struct bounded_list {
  std::vector<T>& value;
};

/// Highest enumerator of each enumeration on the wire; all of them count from zero without gaps.
[[nodiscard]] constexpr errc last_of(errc) noexcept {
  return errc::refused;
}
[[nodiscard]] constexpr dtype last_of(dtype) noexcept {
  return dtype::f8_e5m2;
}
[[nodiscard]] constexpr version_selector::kind_type last_of(version_selector::kind_type) noexcept {
  return version_selector::kind_type::at_least;
}
[[nodiscard]] constexpr messages::update_reach last_of(messages::update_reach) noexcept {
  return messages::update_reach::prefer_local;
}
[[nodiscard]] constexpr messages::stuck_kind last_of(messages::stuck_kind) noexcept {
  return messages::stuck_kind::silent_worker;
}

class output_archive : public cereal::OutputArchive<output_archive, cereal::AllowEmptyClassElision> {
 public:
  output_archive() : cereal::OutputArchive<output_archive, cereal::AllowEmptyClassElision>{this} {}

  /// Starts a frame of `header_bytes` bytes to be filled in later. Memory of an earlier frame is used again,
  /// unless that was a very large one.
  void begin(std::size_t header_bytes) {
    if (buffer_.size() > kept_bytes) buffer_ = std::vector<std::byte>{};
    used_ = 0;
    reserve(header_bytes);
    used_ = header_bytes;
  }
  [[nodiscard]] std::span<std::byte> frame() noexcept { return {buffer_.data(), used_}; }

  /// Throws `error(limit_exceeded)` if the frame gets longer than `limits::frame_bytes`.
  void put(const void* data, std::size_t bytes) {
    reserve(bytes);
    if (bytes != 0) std::memcpy(buffer_.data() + used_, data, bytes);
    used_ += bytes;
  }

 private:
  static constexpr std::size_t kept_bytes = std::size_t{1} << 20;

  void reserve(std::size_t bytes) {
    if (bytes <= buffer_.size() - used_) return;
    if (bytes > limits::frame_bytes - used_) {
      throw error(errc::limit_exceeded, "a control message would be longer than " +
                                            std::to_string(limits::frame_bytes) +
                                            " bytes: use fewer tensors or shorter names");
    }
    buffer_.resize(std::min(limits::frame_bytes, std::max<std::size_t>(512, 2 * (used_ + bytes))));
  }

  std::vector<std::byte> buffer_;
  std::size_t used_ = 0;
};

class input_archive : public cereal::InputArchive<input_archive, cereal::AllowEmptyClassElision> {
 public:
  input_archive() : cereal::InputArchive<input_archive, cereal::AllowEmptyClassElision>{this} {}

  void begin(std::span<const std::byte> payload) noexcept {
    left_ = payload;
    fault_ = decode_fault::none;
  }
  [[nodiscard]] decode_fault fault() const noexcept { return fault_; }
  [[nodiscard]] std::size_t left_bytes() const noexcept { return left_.size(); }

  /// The first fault counts; nothing can be read after it.
  void fail(decode_fault fault) noexcept {
    if (fault_ == decode_fault::none) fault_ = fault;
    left_ = {};
  }

  /// After a fault the target keeps its value.
  void take(void* into, std::size_t bytes) noexcept {
    if (bytes > left_.size()) return fail(decode_fault::truncated);
    if (bytes != 0) std::memcpy(into, left_.data(), bytes);
    left_ = left_.subspan(bytes);
  }

  /// Number of elements that follow; zero after a fault.
  [[nodiscard]] std::size_t take_count(std::size_t limit, std::size_t minimum_bytes,
                                       decode_fault over) noexcept {
    cereal::size_type count = 0;
    take(&count, sizeof count);
    if (fault_ != decode_fault::none) return 0;
    if (count > limit) {
      fail(over);
      return 0;
    }
    if (count > left_.size() / minimum_bytes) {
      fail(decode_fault::truncated);
      return 0;
    }
    return static_cast<std::size_t>(count);
  }

 private:
  std::span<const std::byte> left_;
  decode_fault fault_ = decode_fault::none;
};

// What cereal calls for the leaves. The names are cereal's.

template <typename T>
requires std::is_arithmetic_v<T>
void save(output_archive& archive, const T& value) {
  archive.put(&value, sizeof value);
}
template <typename T>
requires std::is_arithmetic_v<T>
void load(input_archive& archive, T& value) noexcept {
  if constexpr (std::is_same_v<T, bool>) {
    std::uint8_t flag = 0;
    archive.take(&flag, 1);
    if (flag > 1) archive.fail(decode_fault::bad_flag);
    value = flag == 1;
  } else {
    value = T{};
    archive.take(&value, sizeof value);
  }
}

/// Enumerations are written by cereal as their underlying type; read they must be checked.
template <typename T>
requires std::is_enum_v<T>
void load(input_archive& archive, T& value) noexcept {
  std::underlying_type_t<T> number = 0;
  archive.take(&number, sizeof number);
  if (number > static_cast<std::underlying_type_t<T>>(last_of(T{})))
    return archive.fail(decode_fault::bad_enumerator);
  value = static_cast<T>(number);
}

template <typename T>
void serialize(output_archive& archive, cereal::NameValuePair<T>& pair) {
  archive(pair.value);
}
template <typename T>
void serialize(input_archive& archive, cereal::NameValuePair<T>& pair) {
  archive(pair.value);
}
template <typename T>
void serialize(output_archive& archive, cereal::SizeTag<T>& tag) {
  archive(tag.size);
}
template <typename T>
void save(output_archive& archive, const cereal::BinaryData<T>& data) {
  archive.put(data.data, static_cast<std::size_t>(data.size));
}

/// The longest start of `text` that has at most `limit_bytes` bytes and does not end inside a UTF-8
/// character.
[[nodiscard]] inline std::size_t cut_bytes(std::string_view text, std::size_t limit_bytes) noexcept {
  if (text.size() <= limit_bytes) return text.size();
  std::size_t end = limit_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;
  return end;
}

template <typename Archive, std::size_t LimitBytes, text_kind Kind>
void serialize(Archive& archive, bounded_text<LimitBytes, Kind>& text) {
  if constexpr (std::is_same_v<Archive, input_archive>) {
    const std::size_t bytes = archive.take_count(LimitBytes, 1, decode_fault::text_too_long);
    text.value.resize(bytes);
    archive.take(text.value.data(), bytes);
  } else {
    static_assert(!Archive::is_loading::value, "only input_archive may read: others do not check limits");
    if (text.value.size() <= LimitBytes) {
      archive(text.value);
    } else if constexpr (Kind == text_kind::sentence) {
      archive(text.value.substr(0, cut_bytes(text.value, LimitBytes)));
    } else if constexpr (Kind == text_kind::secret) {
      throw error(errc::limit_exceeded,
                  "a capability has more than " + std::to_string(LimitBytes) + " bytes");
    } else {
      throw error(errc::limit_exceeded, "a name or address has more than " + std::to_string(LimitBytes) +
                                            " bytes: " + text.value.substr(0, cut_bytes(text.value, 64)));
    }
  }
}

template <typename Archive, std::size_t LimitCount, std::size_t MinimumBytes, typename T>
void serialize(Archive& archive, bounded_list<LimitCount, MinimumBytes, T>& list) {
  if constexpr (std::is_same_v<Archive, input_archive>) {
    const std::size_t count = archive.take_count(LimitCount, MinimumBytes, decode_fault::list_too_long);
    list.value.clear();
    if constexpr (std::is_arithmetic_v<T>) {
      list.value.resize(count);
      archive.take(list.value.data(), count * sizeof(T));
    } else {
      list.value.reserve(count);
      for (std::size_t i = 0; i < count && archive.fault() == decode_fault::none; ++i) {
        archive(list.value.emplace_back());
      }
    }
  } else {
    static_assert(!Archive::is_loading::value, "only input_archive may read: others do not check limits");
    if (list.value.size() > LimitCount) {
      throw error(errc::limit_exceeded, "a list in a control message has " +
                                            std::to_string(list.value.size()) + " entries, the limit is " +
                                            std::to_string(LimitCount));
    }
    archive(list.value);
  }
}

}  // namespace codec_detail
}  // namespace tensorhub::inline TENSORHUB_MODE

CEREAL_SETUP_ARCHIVE_TRAITS(tensorhub::codec_detail::input_archive, tensorhub::codec_detail::output_archive)

/// Reads enumerations through the checked `load` above instead of cereal's unchecked one.
template <typename T>
requires std::is_enum_v<T>
struct cereal::specialize<tensorhub::codec_detail::input_archive, T,
                          cereal::specialization::non_member_load_save> {
};
