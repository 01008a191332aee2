// expect: cereal could not find any output serialization functions
#include "tensorhub/service/codec.hpp"

namespace tensorhub::messages {
struct note {
  std::uint64_t number = 0;
};
}  // namespace tensorhub::messages

#ifdef TENSORHUB_TWIN
namespace tensorhub::messages {
template <typename Archive>
void serialize(Archive& archive, note& written) {
  auto& [number] = written;
  archive(number);
}
}  // namespace tensorhub::messages
#endif

void write(tensorhub::codec_detail::output_archive& archive, tensorhub::messages::note& note) {
  archive(note);
}
