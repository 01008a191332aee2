#pragma once
/// \file codec_archive.ipp
/// The two archives of the codec (service/codec.hpp): `frame_writer` makes the bytes of a message,
/// `frame_reader` takes them apart.
///
/// Both are a `field_archive`, so that one list of fields per message (codec_fields.ipp) serves both
/// directions. The bytes are those of `cereal::PortableBinaryOutputArchive` with little-endian options:
/// numbers as they are in memory, a count of 8 bytes before a text or a list, a flag "there is none" before
/// an optional value. A unit test compares every message with what cereal itself writes.
///
/// Text and lists go through `bounded_text` and `bounded_list`, which carry the limit. The field list of a
/// plain std::string or std::vector does not compile, so no limit can be forgotten.
///
/// Thread safety: none.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/service/decode_fault.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/types/tensor.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE::codec_detail {

static_assert(std::endian::native == std::endian::little,
              "the codec stores numbers as they are in memory, which must be little-endian");

/// The treatment of a text that exceeds its limit: the writer refuses a `name` and a `secret` (which no
/// sentence may quote), and truncates a `sentence`. The reader refuses all three.
enum class text_kind : std::uint8_t { name, sentence, secret };
struct bounded_text {
  std::string& value;
  std::size_t limit_bytes;
  text_kind kind;
};
/// `minimum_bytes`: the size of the smallest element on the wire.
template <typename T>
struct bounded_list {
  std::vector<T>& value;
  std::size_t limit_count;
  std::size_t minimum_bytes;
};

/// One direction of the codec. Each function moves one field: a writer copies the field to the frame and
/// does not change it, a reader sets it. `archive(a, b, c)` moves the fields a, b and c, in that order.
class field_archive {
 public:
  field_archive(const field_archive&) = delete;
  field_archive& operator=(const field_archive&) = delete;

  [[nodiscard]] bool reads() const noexcept { return reads_; }
  /// False after the first fault of a reader.
  [[nodiscard]] virtual bool good() const noexcept = 0;
  /// Plain bytes: a number, or the bytes of a key.
  virtual void raw(void* bytes, std::size_t count) = 0;
  virtual void flag(bool& value) = 0;
  /// A number of `bytes` bytes that is at most `last`.
  virtual void enumerator(void* number, std::size_t bytes, unsigned last) = 0;
  virtual void text(bounded_text& text) = 0;
  /// The number of elements that follow: a writer's `present`, or what a reader finds; zero after a fault.
  [[nodiscard]] virtual std::size_t count(std::size_t present, std::size_t limit,
                                          std::size_t minimum_bytes) = 0;
  /// Reports a remote key that exceeds its limit.
  virtual void refuse_key() = 0;

  template <typename... Field>
  void operator()(Field&&... fields) {
    (move_field(*this, fields), ...);
  }

 protected:
  explicit field_archive(bool reads) noexcept : reads_{reads} {}
  ~field_archive() = default;

 private:
  const bool reads_;
};

/// The longest prefix of `text` that has at most `limit_bytes` bytes and does not end inside a UTF-8
/// character.
[[nodiscard]] inline std::size_t cut_bytes(std::string_view text, std::size_t limit_bytes) noexcept {
  if (text.size() <= limit_bytes) return text.size();
  std::size_t end = limit_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;
  return end;
}

class frame_writer final : public field_archive {
 public:
  /// Starts a frame with `start_bytes` bytes for its header, which is filled in later. The memory of the
  /// previous frame is reused, unless that frame was very large.
  frame_writer(std::vector<std::byte>& buffer, std::size_t start_bytes)
      : field_archive{false}, buffer_{buffer} {
    if (buffer_.size() > kept_bytes) buffer_ = std::vector<std::byte>{};
    reserve(start_bytes);
    used_ = start_bytes;
  }
  [[nodiscard]] std::span<std::byte> frame() noexcept { return {buffer_.data(), used_}; }

  [[nodiscard]] bool good() const noexcept override { return true; }
  /// Throws `error(limit_exceeded)` if the frame gets longer than `limits::frame_bytes`.
  void raw(void* bytes, std::size_t count) override { put(bytes, count); }
  void flag(bool& value) override { put(&value, 1); }
  void enumerator(void* number, std::size_t bytes, unsigned) override { put(number, bytes); }
  void text(bounded_text& text) override {
    std::uint64_t bytes = text.value.size();
    if (bytes > text.limit_bytes) {
      if (text.kind != text_kind::sentence) refuse(text);
      bytes = cut_bytes(text.value, text.limit_bytes);
    }
    put(&bytes, sizeof bytes);
    put(text.value.data(), bytes);
  }
  [[nodiscard]] std::size_t count(std::size_t present, std::size_t limit, std::size_t) override {
    if (present > limit) {
      throw error(errc::limit_exceeded, "a list in a control message has " + std::to_string(present) +
                                            " entries, the limit is " + std::to_string(limit));
    }
    const std::uint64_t number = present;
    put(&number, sizeof number);
    return present;
  }
  void refuse_key() override { throw error(errc::limit_exceeded, "a remote key is longer than its limit"); }

 private:
  static constexpr std::size_t kept_bytes = std::size_t{1} << 20;

  void put(const void* data, std::size_t bytes) {
    reserve(bytes);
    if (bytes != 0) std::memcpy(buffer_.data() + used_, data, bytes);
    used_ += bytes;
  }
  void reserve(std::size_t bytes) {
    if (bytes > buffer_.size() - used_) grow(bytes);
  }
  void grow(std::size_t bytes) {
    if (bytes > limits::frame_bytes - used_) {
      throw error(errc::limit_exceeded, "a control message would be longer than " +
                                            std::to_string(limits::frame_bytes) +
                                            " bytes: use fewer tensors or shorter names");
    }
    const std::size_t wanted = 2 * (used_ + bytes);
    buffer_.resize(wanted < 512 ? 512 : wanted > limits::frame_bytes ? limits::frame_bytes : wanted);
  }
  [[noreturn]] static void refuse(const bounded_text& text) {
    const std::string limit = std::to_string(text.limit_bytes);
    if (text.kind == text_kind::secret)
      throw error(errc::limit_exceeded, "a capability has more than " + limit + " bytes");
    throw error(errc::limit_exceeded, "a name or address has more than " + limit +
                                          " bytes: " + text.value.substr(0, cut_bytes(text.value, 64)));
  }

  std::vector<std::byte>& buffer_;
  std::size_t used_ = 0;
};

class frame_reader final : public field_archive {
 public:
  explicit frame_reader(std::span<const std::byte> payload) noexcept : field_archive{true}, left_{payload} {}
  [[nodiscard]] decode_fault fault() const noexcept { return fault_; }
  [[nodiscard]] std::size_t left_bytes() const noexcept { return left_.size(); }

  [[nodiscard]] bool good() const noexcept override { return fault_ == decode_fault::none; }
  /// After a fault, the target keeps its value.
  void raw(void* bytes, std::size_t count) noexcept override {
    if (count > left_.size()) return fail(decode_fault::truncated);
    if (count != 0) std::memcpy(bytes, left_.data(), count);
    left_ = left_.subspan(count);
  }
  void flag(bool& value) noexcept override {
    std::uint8_t number = 0;
    raw(&number, 1);
    if (number > 1) fail(decode_fault::bad_flag);
    value = number == 1;
  }
  void enumerator(void* number, std::size_t bytes, unsigned last) noexcept override {
    unsigned found = 0;
    raw(&found, bytes);
    if (found > last) return fail(decode_fault::bad_enumerator);
    if (good()) std::memcpy(number, &found, bytes);
  }
  void text(bounded_text& text) override {
    const std::size_t bytes = take_count(text.limit_bytes, 1, decode_fault::text_too_long);
    text.value.resize(bytes);
    raw(text.value.data(), bytes);
  }
  [[nodiscard]] std::size_t count(std::size_t, std::size_t limit,
                                  std::size_t minimum_bytes) noexcept override {
    return take_count(limit, minimum_bytes, decode_fault::list_too_long);
  }
  void refuse_key() noexcept override { fail(decode_fault::key_too_long); }

 private:
  /// The first fault counts; nothing can be read after it.
  void fail(decode_fault fault) noexcept {
    if (good()) fault_ = fault;
    left_ = {};
  }
  /// Number of elements that follow; zero after a fault.
  [[nodiscard]] std::size_t take_count(std::size_t limit, std::size_t minimum_bytes,
                                       decode_fault over) noexcept {
    std::uint64_t count = 0;
    raw(&count, sizeof count);
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

  std::span<const std::byte> left_;
  decode_fault fault_ = decode_fault::none;
};

/// Highest enumerator of each enumeration on the wire; all of them count from zero without gaps.
[[nodiscard]] constexpr errc last_of(errc) noexcept {
  return errc::still_published;
}
[[nodiscard]] constexpr dtype last_of(dtype) noexcept {
  return dtype::c128;
}
[[nodiscard]] constexpr version_selector::kind_type last_of(version_selector::kind_type) noexcept {
  return version_selector::kind_type::at_least;
}
[[nodiscard]] constexpr messages::update_reach last_of(messages::update_reach) noexcept {
  return messages::update_reach::prefer_local;
}
[[nodiscard]] constexpr messages::sources_wanted last_of(messages::sources_wanted) noexcept {
  return messages::sources_wanted::short_of_chunks;
}
[[nodiscard]] constexpr messages::manage_kind last_of(messages::manage_kind) noexcept {
  return messages::manage_kind::resume;
}
[[nodiscard]] constexpr messages::stuck_kind last_of(messages::stuck_kind) noexcept {
  return messages::stuck_kind::silent_worker;
}

// How each kind of field is moved. The overloads for structs are in codec_fields.ipp.

/// Chosen only if no other overload fits.
template <typename T>
void move_field(field_archive&, T&) {
  static_assert(sizeof(T) == 0,
                "this type has no field list in codec_fields.ipp; text and lists need a limit: as_name, "
                "as_sentence, as_secret, as_list");
}
inline void move_field(field_archive& archive, bool& value) {
  archive.flag(value);
}
inline void move_field(field_archive& archive, std::uint8_t& value) {
  archive.raw(&value, sizeof value);
}
inline void move_field(field_archive& archive, std::uint32_t& value) {
  archive.raw(&value, sizeof value);
}
inline void move_field(field_archive& archive, std::uint64_t& value) {
  archive.raw(&value, sizeof value);
}
inline void move_field(field_archive& archive, bounded_text& text) {
  archive.text(text);
}
template <typename T>
requires std::is_enum_v<T>
void move_field(field_archive& archive, T& value) {
  archive.enumerator(&value, sizeof value, static_cast<unsigned>(last_of(value)));
}
template <typename T>
void move_field(field_archive& archive, std::optional<T>& value) {
  bool none = !value.has_value();
  archive.flag(none);
  if (archive.reads()) {
    value.reset();
    if (!none && archive.good()) value.emplace();
  }
  if (value) move_field(archive, *value);
}
template <typename T>
void move_field(field_archive& archive, bounded_list<T>& list) {
  const std::size_t count = archive.count(list.value.size(), list.limit_count, list.minimum_bytes);
  if (archive.reads()) list.value = std::vector<T>(count);
  for (T& element : list.value) {
    if (!archive.good()) return;
    move_field(archive, element);
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE::codec_detail
