/// \file driver.cpp
/// Machines without a driver, with an old one, or without a device.

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <iostream>
#include <string>
#include <string_view>
#include <tensorhub/memory/cuda.hpp>

#include "fake_cuda_driver.hpp"

using tensorhub::errc;
using tensorhub::error;

namespace {

/// The sentence of loading a table from the fake driver, without one of its functions.
std::string trouble_without(std::string_view missing) {
  try {
    static_cast<void>(tensorhub::load_cuda_functions([missing](const char* name) -> void* {
      return name == missing ? nullptr : fake_cuda::driver::instance().lookup(name);
    }));
  } catch (const error& e) {
    CHECK(e.code() == errc::system_failed);
    return e.sentence();
  }
  return {};
}
bool says(const std::string& sentence, std::string_view words) {
  INFO(sentence);
  const bool found = sentence.find(words) != std::string::npos;
  CHECK(found);
  return found;
}

}  // namespace

TEST_CASE("cuda driver: all there is nothing to complain of") {
  CHECK(trouble_without("").empty());
}

TEST_CASE("cuda driver: too old, and the sentence says what is there and what is needed") {
  auto& set = fake_cuda::driver::instance().set;
  set.version = 11040;
  const std::string sentence = trouble_without("");
  set.version = tensorhub::needed_cuda_version;
  says(sentence, "CUDA 11.4");
  says(sentence, "CUDA " + std::to_string(tensorhub::needed_cuda_version / 1000) + ".0 or newer is needed");
  says(sentence, "Install a newer driver");
}

TEST_CASE("cuda driver: a function that is not there is named, unless it can be done without") {
  says(trouble_without("cuIpcOpenMemHandle_v2"), "cuIpcOpenMemHandle_v2");
  says(trouble_without("cuDriverGetVersion"), "cuDriverGetVersion");
  CHECK(trouble_without("cuMemGetHandleForAddressRange").empty());
  CHECK(trouble_without("cuMemcpyPeerAsync").empty());
  CHECK(trouble_without("cuFlushGPUDirectRDMAWrites").empty());
}

TEST_CASE("cuda driver: there, but no device") {
  auto& set = fake_cuda::driver::instance().set;
  set.devices = 0;
  const std::string none = trouble_without("");
  set.devices = 2;
  says(none, "no device that this process may use");
  says(none, "CUDA_VISIBLE_DEVICES");
  set.init = CUDA_ERROR_NO_DEVICE;
  says(trouble_without(""), "no device that this process may use");
  set.init = CUDA_ERROR_SYSTEM_NOT_READY;
  says(trouble_without(""), "cuInit: CUDA_ERROR_SYSTEM_NOT_READY");
  set.init = CUDA_SUCCESS;
}

TEST_CASE("cuda driver: none at all is a clear error, and host memory stays usable") {
  if (void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY)) {
    ::dlclose(library);
    std::cout << "SKIPPED: cuda.driver: no driver at all: this machine has one\n";
    return;
  }
  tensorhub::cuda_memory memory;
  for (int again = 0; again < 2; ++again) {
    try {
      static_cast<void>(memory.allocate(16));
      FAIL("allocated without a driver");
    } catch (const error& e) {
      CHECK(e.code() == errc::system_failed);
      says(e.sentence(), "there is no NVIDIA driver here");
    }
  }
  float given[4] = {1, 2, 3, 4};
  float taken[4] = {};
  CHECK(memory.describe(given, sizeof given).kind == tensorhub::memory_kind::host);
  CHECK(memory.describe(given, sizeof given).device == nullptr);
  memory.copy(taken, given, sizeof given);
  CHECK(taken[3] == 4);
  CHECK(memory.trouble().empty());
  CHECK_THROWS_AS(static_cast<void>(memory.mark(nullptr)), error);
  CHECK_THROWS_AS(static_cast<void>(tensorhub::cuda_pinned_memory{}.allocate(16)), error);
}
