// expect: text and lists need a limit
#include "tensorhub/service/impl/codec_fields.ipp"

void read(tensorhub::codec_detail::frame_reader& archive, std::string& name) {
#ifdef TENSORHUB_TWIN
  archive(tensorhub::codec_detail::as_name(name));
#else
  archive(name);
#endif
}
