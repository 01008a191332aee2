// expect: this type has no field list
#include "tensorhub/service/impl/codec_fields.ipp"

namespace tensorhub::messages {
struct note {
  std::uint64_t number = 0;
};
}  // namespace tensorhub::messages

#ifdef TENSORHUB_TWIN
namespace tensorhub::codec_detail {
inline void move_field(field_archive& archive, messages::note& written) {
  auto& [number] = written;
  archive(number);
}
}  // namespace tensorhub::codec_detail
#endif

void write(tensorhub::codec_detail::frame_writer& archive, tensorhub::messages::note& note) {
  archive(note);
}
