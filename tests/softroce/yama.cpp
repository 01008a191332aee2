// same_host where Yama lets only a process's parents attach to it (kernel.yama.ptrace_scope is 1).

#include <doctest/doctest.h>
#include <sys/prctl.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <tensorhub/transports/same_host.hpp>

#include "other_user.hpp"
#include "source_process.hpp"

namespace {

using other_users::nobody;
using source_processes::byte_of_source;
using tensorhub::completion_status;
using tensorhub::errc;
using tensorhub::transports::backing_files;
using tensorhub::transports::same_host;
using source_process = source_processes::source_process<same_host>;
using reading_side = source_processes::reading_side<same_host>;

/// The sysctl, for the time of a test.
class ptrace_scope {
 public:
  explicit ptrace_scope(int now) {
    std::ifstream{path} >> before_;
    if (before_ >= 0) std::ofstream{path} << now;
    int is = -1;
    std::ifstream{path} >> is;
    is_set_ = is == now;
  }
  ~ptrace_scope() {
    if (is_set_) std::ofstream{path} << before_;
  }
  ptrace_scope(const ptrace_scope&) = delete;
  ptrace_scope& operator=(const ptrace_scope&) = delete;

  [[nodiscard]] bool is_set() const { return is_set_; }

 private:
  static constexpr const char* path = "/proc/sys/kernel/yama/ptrace_scope";
  int before_ = -1;
  bool is_set_ = false;
};

/// A process of an ordinary user, whose memory can be read only by attaching to it.
source_process source_of_nobody(bool allows) {
  same_host::options how;
  how.files = backing_files::ignore;
  how.allow_any_tracer = allows;
  return {how, [](same_host::options&) -> std::uint16_t& {
            static std::uint16_t no_port = 0;
            if (!other_users::become(nobody)) std::_Exit(4);
            ::prctl(PR_SET_DUMPABLE, 1);  // the change of user has taken it away
            return no_port;
          }};
}

}  // namespace

TEST_CASE("same_host under Yama: a reader attaches where the source allows any tracer") {
  const ptrace_scope limited{1};
  if (!limited.is_set()) {
    std::cout << "SKIPPED: softroce.one_device: same_host under Yama: this kernel has no Yama\n";
    return;
  }
  for (const bool allows : {false, true}) {
    CAPTURE(allows);
    const source_process source = source_of_nobody(allows);
    const int result = other_users::as_user(nobody, [&] {
      reading_side reader;
      const auto [code, sentence] = reader.try_to_connect(source.address);
      std::cout << "same_host under Yama: " << (code == errc::ok ? "connected" : sentence) << std::endl;
      if (!allows) {
        const bool says_what_to_do = sentence.find("`allow_any_tracer`") != std::string::npos;
        return code == errc::transport_failed && says_what_to_do ? 0 : 1;
      }
      if (code != errc::ok) return 2;
      if (reader.read(source.region) != completion_status::ok) return 3;
      return reader.others_than(byte_of_source, byte_of_source, 0, 4096) == 0 ? 0 : 4;
    });
    CHECK(result == 0);
  }
}
