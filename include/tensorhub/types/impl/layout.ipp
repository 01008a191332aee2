#pragma once
/// \file layout.ipp
/// Checks of tensors, their assignment to segments, and the comparison of layouts: definitions of
/// types/layout.hpp.

#include "tensorhub/types/layout.hpp"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tensorhub/error.hpp"
#include "tensorhub/types/plain_text.hpp"
#include "tensorhub/types/xxh3.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL layout::layout(std::vector<tensor_spec> tensors, std::uint64_t chunk_bytes)
    : tensors_{std::move(tensors)}, chunk_bytes_{chunk_bytes} {
  if (chunk_bytes_ == 0) throw error(errc::invalid_argument, "chunk_bytes must not be zero");
  if (tensors_.size() > limits::tensors) throw error(errc::limit_exceeded, "too many tensors in one shard");
  check_tensors();
  packed_below_bytes_ = choose_packed_below();
  place_tensors();
  digest_ = make_digest();
}

TENSORHUB_DECL chunk_slice layout::slice(chunk_index chunk) const noexcept {
  const auto after =
      std::upper_bound(segments_.begin(), segments_.end(), chunk,
                       [](chunk_index c, const layout_segment& s) { return c < s.first_chunk; });
  const auto& segment = *std::prev(after);
  const std::uint64_t offset = (chunk - segment.first_chunk) * chunk_bytes_;
  return {static_cast<std::uint32_t>(std::prev(after) - segments_.begin()), offset,
          std::min(chunk_bytes_, segment.bytes - offset)};
}

TENSORHUB_DECL std::string layout::text_of(chunk_index chunk) const {
  const auto tensor = segments_[slice(chunk).segment].tensor;
  return "chunk " + std::to_string(chunk) +
         (tensor ? " of tensor '" + tensors_[*tensor].name + "'" : std::string{" of the small tensors"});
}

TENSORHUB_DECL chunk_run layout::chunks_of(std::size_t tensor) const noexcept {
  if (const auto offset = packed_offsets_[tensor]) {
    const std::uint64_t bytes = *tensors_[tensor].bytes();
    if (bytes == 0) return {};
    const chunk_index first = *offset / chunk_bytes_;
    return {first, (*offset + bytes - 1) / chunk_bytes_ - first + 1};
  }
  const auto large = segments_.begin() + (packed_bytes() > 0 ? 1 : 0);
  const auto found =
      std::lower_bound(large, segments_.end(), tensor,
                       [](const layout_segment& each, std::size_t wanted) { return *each.tensor < wanted; });
  return {found->first_chunk, found->chunk_count};
}

TENSORHUB_DECL std::uint64_t layout::checked_bytes(const tensor_spec& tensor) {
  const std::string& name = tensor.name;
  if (name.empty()) throw error(errc::invalid_argument, "a tensor has no name");
  const auto refuse = [&](errc code, const std::string& why) {
    throw error(code, "tensor '" + escaped_text(name.substr(0, limits::name_bytes)) + "' " + why);
  };
  if (name.size() > limits::name_bytes) {
    refuse(errc::limit_exceeded, "has a name of " + std::to_string(name.size()) + " bytes: take at most " +
                                     std::to_string(limits::name_bytes));
  }
  if (!is_plain_text(name))
    refuse(errc::invalid_argument, "has control characters in its name, or bytes that are not UTF-8");
  if (size_bytes(tensor.type) == 0) {
    refuse(errc::invalid_argument,
           "has element type " + std::to_string(static_cast<int>(tensor.type)) + ", which is no dtype");
  }
  if (tensor.shape.size() > limits::tensor_dimensions) {
    refuse(errc::limit_exceeded, "has " + std::to_string(tensor.shape.size()) + " dimensions: take at most " +
                                     std::to_string(limits::tensor_dimensions));
  }
  const auto bytes = tensor.bytes();
  if (!bytes || *bytes > limits::shard_bytes)
    refuse(errc::limit_exceeded, "is too large: " + describe(tensor));
  return *bytes;
}

TENSORHUB_DECL void layout::check_tensors() const {
  std::unordered_set<std::string_view> names;
  for (const auto& tensor : tensors_) {
    static_cast<void>(checked_bytes(tensor));
    if (!names.insert(tensor.name).second)
      throw error(errc::invalid_argument, "tensor '" + tensor.name + "' was added twice");
  }
}

TENSORHUB_DECL std::uint64_t layout::choose_packed_below() const {
  const std::uint64_t most = most_packed_chunks * std::min(chunk_bytes_, limits::shard_bytes);
  std::uint64_t below_chunk = 0;
  for (const tensor_spec& tensor : tensors_) {
    const std::uint64_t bytes = *tensor.bytes();
    if (bytes < chunk_bytes_) below_chunk += std::min(bytes, most);
    if (below_chunk > most) return std::max<std::uint64_t>(1, chunk_bytes_ / 4);
  }
  return chunk_bytes_;
}

TENSORHUB_DECL void layout::place_tensors() {
  packed_offsets_.resize(tensors_.size());
  std::uint64_t packed = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const std::uint64_t bytes = *tensors_[i].bytes();
    if (bytes >= packed_below_bytes_) continue;
    packed_offsets_[i] = packed;
    packed += (bytes + packed_alignment_bytes - 1) / packed_alignment_bytes * packed_alignment_bytes;
    if (packed > limits::shard_bytes) refuse_size();  // refuses before the sum can wrap
  }
  if (packed != 0) append_segment(packed, std::nullopt);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!packed_offsets_[i]) append_segment(*tensors_[i].bytes(), static_cast<std::uint32_t>(i));
  }
}

TENSORHUB_DECL void layout::append_segment(std::uint64_t bytes, std::optional<std::uint32_t> tensor) {
  const std::uint64_t chunks = bytes / chunk_bytes_ + (bytes % chunk_bytes_ != 0 ? 1 : 0);
  segments_.push_back({bytes, chunk_count_, chunks, tensor});
  chunk_count_ += chunks;
  bytes_ += bytes;
  if (bytes_ > limits::shard_bytes || chunk_count_ > limits::chunks) refuse_size();
}

TENSORHUB_DECL void layout::refuse_size() {
  throw error(errc::limit_exceeded, "the shard is too large: raise chunk_bytes or split it into more shards");
}

TENSORHUB_DECL digest128 layout::make_digest() const {
  std::string text;
  const auto put = [&text](std::uint64_t number) {
    char raw[8];
    for (unsigned i = 0; i < 8; ++i) raw[i] = static_cast<char>((number >> (8 * i)) & 255u);
    text.append(raw, 8);
  };
  put(chunk_bytes_);
  put(tensors_.size());
  for (const auto& tensor : tensors_) {
    put(tensor.name.size());
    text += tensor.name;
    put(static_cast<std::uint64_t>(tensor.type));
    put(tensor.shape.size());
    for (const std::uint64_t dimension : tensor.shape) put(dimension);
  }
  if (packed_below_bytes_ != chunk_bytes_) put(packed_below_bytes_);  // releases that pack all do not fit
  return detail::xxh3_128(std::as_bytes(std::span{text}), 0x6c61796f7574ull);
}

TENSORHUB_DECL std::vector<chunk_index> chunks_of(const layout& shape, std::span<const std::size_t> tensors) {
  std::vector<chunk_index> chunks;
  for (const std::size_t tensor : tensors) {
    const chunk_run run = shape.chunks_of(tensor);
    for (std::uint64_t i = 0; i < run.count; ++i) chunks.push_back(run.first + i);
  }
  std::sort(chunks.begin(), chunks.end());
  chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
  return chunks;
}

namespace layout_detail {
/// A hint if two names differ in what a wrapper of a torch module puts before, or between, its parts; else
/// empty.
[[nodiscard]] inline std::string_view hint_of_names(std::string_view one, std::string_view other) {
  for (const std::string_view part : {"_orig_mod.", "module.", "_fsdp_wrapped_module."}) {
    const auto without = [part](std::string_view name) {
      std::string out{name};
      for (auto at = out.find(part); at != std::string::npos; at = out.find(part)) out.erase(at, part.size());
      return out;
    };
    if (one != other && without(one) == without(other))
      return "; one of the two modules is wrapped (torch.compile, DDP, FSDP): "
             "add the module inside, or names of your own";
  }
  return {};
}

/// Two lists that differ may have the same tensors. Not for very many: the server asks for each misfit.
[[nodiscard]] inline std::string_view hint_of_order(std::span<const tensor_spec> one,
                                                    std::span<const tensor_spec> other) {
  constexpr std::size_t most_compared = 50'000;
  const auto sorted = [](std::span<const tensor_spec> list) {
    std::vector<const tensor_spec*> out;
    for (const tensor_spec& each : list) out.push_back(&each);
    std::sort(out.begin(), out.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
    return out;
  };
  if (one.size() != other.size() || one.size() > most_compared) return {};
  const auto ours = sorted(one), theirs = sorted(other);
  const auto is_same = [](const tensor_spec* a, const tensor_spec* b) { return *a == *b; };
  if (!std::equal(ours.begin(), ours.end(), theirs.begin(), is_same)) return {};
  return "; both have the same tensors in another order: add them in one order, for example sorted by name";
}
}  // namespace layout_detail

TENSORHUB_DECL std::string first_difference(const layout& own, const layout& other,
                                            std::string_view the_other) {
  const auto differ = [&](const std::string& ours, const std::string& theirs) {
    return ours + " in this worker, " + theirs + " in " + std::string{the_other};
  };
  if (own.chunk_bytes() != other.chunk_bytes())
    return "chunk_bytes: " + differ(std::to_string(own.chunk_bytes()), std::to_string(other.chunk_bytes()));
  const auto text = [](std::span<const tensor_spec> list, std::size_t i) {
    return i < list.size() ? "'" + list[i].name + "' " + describe(list[i]) : std::string{"nothing"};
  };
  const auto ours = own.tensors(), theirs = other.tensors();
  for (std::size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    const bool is_in_both = i < ours.size() && i < theirs.size();
    if (is_in_both && ours[i] == theirs[i]) continue;
    std::string out = "tensor " + std::to_string(i) + ": " + differ(text(ours, i), text(theirs, i));
    if (is_in_both) out += layout_detail::hint_of_names(ours[i].name, theirs[i].name);
    return out.append(layout_detail::hint_of_order(ours, theirs));
  }
  return {};
}

}  // namespace tensorhub::inline TENSORHUB_MODE
