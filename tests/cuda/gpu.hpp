#pragma once
/// \file gpu.hpp
/// Whether tests on a real device can run here.

#include <iostream>
#include <string>
#include <tensorhub/memory/cuda/driver.hpp>

namespace gpu {

/// False, with the reason printed, if there is no device.
inline bool is_here(const std::string& test_case) {
  try {
    static_cast<void>(tensorhub::cuda_driver::functions());
    return true;
  } catch (const tensorhub::error& e) {
    std::cout << "SKIPPED: cuda.on_gpu: " << test_case << ": " << e.sentence() << std::endl;
    return false;
  }
}

}  // namespace gpu
