/// \file subscriber.cpp
/// The functions of subscribers, in all modes, and of seeders.

#include <tensorhub/seeder.hpp>
#include <tensorhub/subscriber.hpp>
#include <utility>

#include "calls.hpp"

struct tensorhub_subscriber final : tensorhub::any_subscriber {
  tensorhub_subscriber(const tensorhub_worker_options& given, tensorhub::subscriber_mode mode)
      : any_subscriber{tensorhub_c::options_of(given), mode, tensorhub_c::policies_of(given)},
        reach{given.prefer_local != 0 ? tensorhub::prefer_local : tensorhub::update_reach::anywhere} {}
  const tensorhub::update_reach reach;  ///< of its updates and stages
};

struct tensorhub_seeder final : tensorhub::any_seeder {
  explicit tensorhub_seeder(const tensorhub_worker_options& given)
      : any_seeder{tensorhub_c::options_of_other(given), tensorhub_c::policies_of(given)} {}
};

using namespace tensorhub_c;
namespace defaults = tensorhub::defaults;

namespace {

tensorhub::subscriber_mode mode_of(tensorhub_mode mode) {
  switch (mode) {
    case TENSORHUB_IN_PLACE:
      return tensorhub::subscriber_mode::in_place;
    case TENSORHUB_STAGED:
      return tensorhub::subscriber_mode::staged;
    case TENSORHUB_DOUBLE_BUFFERED:
      return tensorhub::subscriber_mode::double_buffered;
  }
  throw tensorhub_c::error(errc::invalid_argument, "the mode is " + std::to_string(static_cast<int>(mode)) +
                                                       ": take one of tensorhub_mode");
}

}  // namespace

extern "C" {

tensorhub_status tensorhub_subscriber_create(const tensorhub_worker_options* options, tensorhub_mode mode,
                                             tensorhub_subscriber** subscriber, tensorhub_error** error) {
  return guarded(error, [&] {
    required(subscriber, "subscriber") = nullptr;
    *subscriber = new tensorhub_subscriber{taken(options, "options"), mode_of(mode)};
  });
}
tensorhub_status tensorhub_subscriber_add(tensorhub_subscriber* subscriber, const tensorhub_tensor* tensor,
                                          tensorhub_error** error) {
  return guarded(error, [&] {
    tensorhub_subscriber& worker = required(subscriber, "subscriber");
    add_tensor(tensor, [&](std::string name, void* data, auto dimensions, tensorhub::dtype type) {
      if (data == nullptr && worker.mode() == tensorhub::subscriber_mode::double_buffered)
        return worker.add(std::move(name), dimensions, type);
      worker.add(std::move(name), data, dimensions, type);
    });
  });
}
tensorhub_status tensorhub_subscriber_update(tensorhub_subscriber* subscriber, tensorhub_selector selector,
                                             uint64_t version, int64_t timeout_ms,
                                             tensorhub_update_report* report, tensorhub_error** error) {
  return guarded(error, [&] {
    const auto which = selector_of(selector, version);
    const auto timeout = time_of(timeout_ms, defaults::update_timeout);
    auto& self = required(subscriber, "subscriber");
    reported(report, [&] { return told(self.update(which, timeout, self.reach)); });
  });
}
tensorhub_status tensorhub_subscriber_stage(tensorhub_subscriber* subscriber, tensorhub_selector selector,
                                            uint64_t version, int64_t timeout_ms,
                                            tensorhub_update_report* report, tensorhub_error** error) {
  return guarded(error, [&] {
    const auto which = selector_of(selector, version);
    const auto timeout = time_of(timeout_ms, defaults::update_timeout);
    auto& self = required(subscriber, "subscriber");
    reported(report, [&] { return told(self.stage(which, timeout, self.reach)); });
  });
}
tensorhub_status tensorhub_subscriber_install(tensorhub_subscriber* subscriber, int64_t timeout_ms,
                                              tensorhub_update_report* report, tensorhub_error** error) {
  return guarded(error, [&] {
    const auto timeout = time_of(timeout_ms, defaults::update_timeout);
    reported(report, [&] { return told(required(subscriber, "subscriber").install(timeout)); });
  });
}
tensorhub_status tensorhub_subscriber_tensor(tensorhub_subscriber* subscriber, const char* name,
                                             const void** data, tensorhub_error** error) {
  return guarded(error, [&] {
    required(data, "data") = nullptr;
    *data = required(subscriber, "subscriber").tensor(&required(name, "name"));
  });
}
uint64_t tensorhub_subscriber_newer(tensorhub_subscriber* subscriber) {
  std::uint64_t found = 0;
  static_cast<void>(guarded(nullptr, [&] {
    found = required(subscriber, "subscriber").newer().value_or(tensorhub::version_number{}).value;
  }));
  return found;
}
tensorhub_status tensorhub_subscriber_wait(tensorhub_subscriber* subscriber, tensorhub_selector selector,
                                           uint64_t version, int64_t timeout_ms, uint64_t* found,
                                           tensorhub_error** error) {
  return guarded(error, [&] {
    const auto which = selector_of(selector, version);
    const auto timeout = time_of(timeout_ms, defaults::update_timeout);
    const auto there = required(subscriber, "subscriber").wait(which, timeout);
    if (found != nullptr) *found = there.value;
  });
}
uint64_t tensorhub_subscriber_held_version(tensorhub_subscriber* subscriber) {
  std::uint64_t held = 0;
  static_cast<void>(
      guarded(nullptr, [&] { held = required(subscriber, "subscriber").held_version().value; }));
  return held;
}
tensorhub_status tensorhub_subscriber_leave(tensorhub_subscriber* subscriber, int64_t grace_ms,
                                            tensorhub_publish_report* report, tensorhub_error** error) {
  return guarded(error, [&] {
    const auto grace = time_of(grace_ms, defaults::drain_timeout);
    reported(report, [&] { return told(required(subscriber, "subscriber").leave(grace)); });
  });
}
void tensorhub_subscriber_interrupt(tensorhub_subscriber* subscriber) {
  interrupt(subscriber);
}
void tensorhub_subscriber_free(tensorhub_subscriber* subscriber) {
  delete subscriber;
}

tensorhub_status tensorhub_seeder_start(const tensorhub_worker_options* options, tensorhub_seeder** seeder,
                                        tensorhub_error** error) {
  return guarded(error, [&] {
    required(seeder, "seeder") = nullptr;
    *seeder = new tensorhub_seeder{taken(options, "options")};
  });
}
tensorhub_status tensorhub_seeder_wait(tensorhub_seeder* seeder, uint64_t version, int64_t timeout_ms,
                                       uint64_t* held, tensorhub_error** error) {
  return guarded(error, [&] {
    const auto there =
        required(seeder, "seeder").wait(version, time_of(timeout_ms, defaults::update_timeout));
    if (held != nullptr) *held = there.value;
  });
}
uint64_t tensorhub_seeder_held_version(const tensorhub_seeder* seeder) {
  return seeder == nullptr ? 0 : seeder->held_version().value;
}
void tensorhub_seeder_interrupt(tensorhub_seeder* seeder) {
  interrupt(seeder);
}
void tensorhub_seeder_stop(tensorhub_seeder* seeder) {
  delete seeder;
}

}  // extern "C"
