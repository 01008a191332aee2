#pragma once
/// \file driver.hpp
/// The NVIDIA driver of this machine, loaded on first use.
///
/// What the component needs of a `Driver` (tests have a driver that runs on the CPU):
///
/// | expression          | type                  | means                                                  |
/// |---------------------|-----------------------|--------------------------------------------------------|
/// | Driver::functions() | const cuda_functions& | the table, for the rest of the process; throws         |
/// |                     |                       | `system_failed`, the same each time: no driver, too    |
/// |                     |                       | old, no device                                         |
///
/// Thread safety: any thread.

#include <dlfcn.h>

#include <optional>
#include <string>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/memory/cuda/functions.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class cuda_driver {
 public:
  [[nodiscard]] static const cuda_functions& functions() {
    static const cuda_driver driver;
    if (driver.trouble_) throw *driver.trouble_;
    return driver.functions_;
  }

 private:
  /// The library is never unloaded, because it has threads and exit handlers of its own.
  cuda_driver() {
    try {
      void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) {
        const char* const why = ::dlerror();
        throw error(errc::system_failed,
                    std::string{"there is no NVIDIA driver here ("} +
                        (why != nullptr ? why : "libcuda.so.1 was not found") +
                        "): install it, in a container run with NVIDIA's container runtime, or keep the "
                        "tensors in host memory");
      }
      functions_ = load_cuda_functions([library](const char* name) { return ::dlsym(library, name); });
    } catch (const error& e) {
      trouble_ = e;
    }
  }

  cuda_functions functions_;
  std::optional<error> trouble_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
