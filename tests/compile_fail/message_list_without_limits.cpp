// expect: text and lists need a limit
#include "tensorhub/service/impl/codec_fields.ipp"

void read(tensorhub::codec_detail::frame_reader& archive, std::vector<std::uint64_t>& numbers) {
#ifdef TENSORHUB_TWIN
  archive(tensorhub::codec_detail::as_list(numbers, 8));
#else
  archive(numbers);
#endif
}
