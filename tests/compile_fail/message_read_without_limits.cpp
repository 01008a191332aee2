// expect: only input_archive may read
#include <cereal/archives/portable_binary.hpp>
#include <istream>

#include "tensorhub/service/codec.hpp"

#ifdef TENSORHUB_TWIN
using archive_type = tensorhub::codec_detail::input_archive;
#else
using archive_type = cereal::PortableBinaryInputArchive;
#endif

void read(archive_type& archive, tensorhub::messages::join_request& into) {
  archive(into);
}
