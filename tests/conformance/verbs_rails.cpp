/// \file verbs_rails.cpp
/// Which network adapter is near a GPU, in trees of /sys as machines have them.

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <tensorhub/transports/verbs/device.hpp>

namespace {

namespace fs = std::filesystem;

class sys_tree {
 public:
  sys_tree() {
    fs::remove_all(root_);  // of a killed process that had the same number
    fs::create_directories(root_ / "bus/pci/devices");
  }
  ~sys_tree() { fs::remove_all(root_); }
  sys_tree(const sys_tree&) = delete;
  sys_tree& operator=(const sys_tree&) = delete;

  /// `way`: from the root of the PCI tree to the device. `name`: of an RDMA device; empty: another one.
  void add(const std::string& way, int node, const std::string& name = {}) const {
    const fs::path device = root_ / "devices" / way;
    fs::create_directories(device);
    std::ofstream{device / "numa_node"} << node << "\n";
    fs::create_directory_symlink(device, root_ / "bus/pci/devices" / device.filename());
    if (name.empty()) return;
    const fs::path rdma = root_ / "class/infiniband" / name;
    fs::create_directories(rdma);
    fs::create_directory_symlink(device, rdma / "device");
  }
  [[nodiscard]] int distance(const std::string& name, const std::string& address) const {
    return tensorhub::transports::verbs_detail::distance_between(name, address, root_.string());
  }

 private:
  fs::path root_ = fs::temp_directory_path() / ("tensorhub-sys-" + std::to_string(::getpid()));
};

}  // namespace

TEST_CASE("verbs rails: an adapter below the GPU's switch is the nearest, one of another node the farthest") {
  const sys_tree sys;
  sys.add("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", 0);
  sys.add("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:1b:00.0", 0, "below_the_switch");
  sys.add("pci0000:15/0000:15:02.0/0000:1c:00.0", 0, "below_the_root");
  sys.add("pci0000:37/0000:37:01.0/0000:38:00.0", 0, "of_the_node");
  sys.add("pci0000:97/0000:97:01.0/0000:98:00.0", 1, "elsewhere");
  sys.add("pci0000:a7/0000:a7:01.0/0000:a8:00.0", -1, "nowhere");
  const std::string gpu = "0000:18:00.0";
  CHECK(sys.distance("below_the_switch", gpu) == 5);
  CHECK(sys.distance("below_the_root", gpu) == 7);
  CHECK(sys.distance("of_the_node", gpu) == 8);
  CHECK(sys.distance("elsewhere", gpu) == 9);
  CHECK(sys.distance("nowhere", gpu) == 9);
  CHECK(sys.distance("gone", gpu) == 9);
  CHECK(sys.distance("below_the_switch", "0000:99:00.0") == 0);
  CHECK(sys.distance("below_the_switch", "") == 0);
}
