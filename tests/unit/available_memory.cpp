/// \file available_memory.cpp
/// What a process can still take: of the machine, and within its control groups.

#include "tensorhub/detail/available_memory.hpp"

#include <doctest/doctest.h>

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

using namespace tensorhub;

namespace {

/// A folder with small files in it, as the kernel shows control groups.
class group_folder {
 public:
  group_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "groups-").string() + std::string(6, 'X');
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root = name;
  }
  ~group_folder() { std::filesystem::remove_all(root); }
  group_folder(const group_folder&) = delete;
  group_folder& operator=(const group_folder&) = delete;
  void put(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = root + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream{path} << text << "\n";
  }
  std::string root;
};

}  // namespace

TEST_CASE("available memory: the limits of the process's control groups leave it so much, version 2") {
  const group_folder here;
  CHECK(detail::room_in_groups(here.root, "0::/pod/box\n") == UINT64_MAX);
  here.put("pod/box/memory.max", "max");
  here.put("pod/box/memory.current", "700");
  CHECK(detail::room_in_groups(here.root, "0::/pod/box\n") == UINT64_MAX);
  here.put("pod/memory.max", "1000");
  here.put("pod/memory.current", "900");
  CHECK(detail::room_in_groups(here.root, "0::/pod/box\n") == 100);
  here.put("pod/memory.stat", "anon 500\ninactive_file 250\nactive_file 40\nslab_reclaimable 3");
  CHECK(detail::room_in_groups(here.root, "0::/pod/box\n") == 373);
  here.put("pod/box/memory.max", "710");
  CHECK(detail::room_in_groups(here.root, "0::/pod/box\n") == 10);
  here.put("pod/box/memory.max", "600");  // lowered under what is used
  CHECK(detail::room_in_groups(here.root, "0::/pod/box\n") == 0);
  here.put("memory.max", "55");  // as a container sees its own group
  here.put("memory.current", "5");
  CHECK(detail::room_in_groups(here.root, "0::/\n") == 50);
}

TEST_CASE("available memory: the limits of the process's control groups leave it so much, version 1") {
  const group_folder here;
  const std::string groups = "9:name=systemd:/\n4:cpu,memory:/pod\n3:cpuset:/other\n0::/\nnonsense\n";
  CHECK(detail::room_in_groups(here.root, groups) == UINT64_MAX);
  here.put("memory/pod/memory.limit_in_bytes", "1000");
  here.put("memory/pod/memory.usage_in_bytes", "900");
  here.put("memory/pod/memory.stat", "inactive_file 1\ntotal_inactive_file 30\ntotal_active_file 20");
  here.put("memory/other/memory.limit_in_bytes", "1");
  here.put("memory/other/memory.usage_in_bytes", "1");
  CHECK(detail::room_in_groups(here.root, groups) == 140);
}

TEST_CASE("available memory: there is some, and less than the machine has") {
  const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
  CHECK(detail::available_memory_bytes() > 0);
  CHECK(detail::available_memory_bytes() < pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));
}
