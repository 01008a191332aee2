/// \file publisher.cpp
/// The publisher's functions.

#include <tensorhub/publisher.hpp>
#include <utility>

#include "calls.hpp"

struct tensorhub_publisher final : tensorhub::any_publisher {
  explicit tensorhub_publisher(const tensorhub_worker_options& given)
      : any_publisher{tensorhub_c::options_of_other(given), tensorhub_c::policies_of(given)} {}
};

using namespace tensorhub_c;
namespace defaults = tensorhub::defaults;

extern "C" {

tensorhub_status tensorhub_publisher_create(const tensorhub_worker_options* options,
                                            tensorhub_publisher** publisher, tensorhub_error** error) {
  return guarded(error, [&] {
    required(publisher, "publisher") = nullptr;
    *publisher = new tensorhub_publisher{taken(options, "options")};
  });
}
tensorhub_status tensorhub_publisher_add(tensorhub_publisher* publisher, const tensorhub_tensor* tensor,
                                         tensorhub_error** error) {
  return guarded(error, [&] {
    auto& self = required(publisher, "publisher");
    add_tensor(tensor, [&](std::string name, const void* data, auto dimensions, tensorhub::dtype type) {
      self.add(std::move(name), data, dimensions, type);
    });
  });
}
tensorhub_status tensorhub_publisher_publish(tensorhub_publisher* publisher, uint64_t version,
                                             int64_t timeout_ms, tensorhub_publish_report* report,
                                             tensorhub_error** error) {
  return guarded(error, [&] {
    auto& self = required(publisher, "publisher");
    const auto timeout = time_of(timeout_ms, defaults::join_timeout);
    reported(report, [&] { return told(self.publish(version, timeout)); });
  });
}
tensorhub_status tensorhub_publisher_publish_changed(tensorhub_publisher* publisher, uint64_t version,
                                                     const char* const* names, size_t name_count,
                                                     int64_t timeout_ms, tensorhub_publish_report* report,
                                                     tensorhub_error** error) {
  return guarded(error, [&] {
    auto& self = required(publisher, "publisher");
    if (name_count > 0) static_cast<void>(required(names, "names"));
    tensorhub::changed_tensors changed;
    for (size_t i = 0; i < name_count; ++i)
      changed.names.emplace_back(&required(names[i], "a name in names"));
    const auto timeout = time_of(timeout_ms, defaults::join_timeout);
    reported(report, [&] { return told(self.publish(version, changed, timeout)); });
  });
}
tensorhub_status tensorhub_publisher_publish_snapshot(tensorhub_publisher* publisher, uint64_t version,
                                                      int64_t timeout_ms, tensorhub_publish_report* report,
                                                      tensorhub_error** error) {
  return guarded(error, [&] {
    auto& self = required(publisher, "publisher");
    const auto timeout = time_of(timeout_ms, defaults::join_timeout);
    reported(report, [&] { return told(self.publish(version, tensorhub::snapshot, timeout)); });
  });
}
tensorhub_status tensorhub_publisher_unpublish(tensorhub_publisher* publisher, int64_t timeout_ms,
                                               tensorhub_publish_report* report, tensorhub_error** error) {
  return guarded(error, [&] {
    auto& self = required(publisher, "publisher");
    reported(report, [&] { return told(self.unpublish(time_of(timeout_ms, defaults::drain_timeout))); });
  });
}
tensorhub_status tensorhub_publisher_roll_back_to(tensorhub_publisher* publisher, uint64_t version,
                                                  int64_t timeout_ms, tensorhub_error** error) {
  return guarded(error, [&] {
    required(publisher, "publisher").roll_back_to(version, time_of(timeout_ms, defaults::join_timeout));
  });
}
tensorhub_status tensorhub_publisher_retain(tensorhub_publisher* publisher, uint32_t versions,
                                            int64_t timeout_ms, tensorhub_error** error) {
  return guarded(error, [&] {
    required(publisher, "publisher").retain(versions, time_of(timeout_ms, defaults::join_timeout));
  });
}
tensorhub_status tensorhub_publisher_pin(tensorhub_publisher* publisher, uint64_t version, int64_t timeout_ms,
                                         tensorhub_error** error) {
  return guarded(error, [&] {
    required(publisher, "publisher").pin(version, time_of(timeout_ms, defaults::join_timeout));
  });
}
tensorhub_status tensorhub_publisher_release(tensorhub_publisher* publisher, uint64_t version,
                                             int64_t timeout_ms, tensorhub_error** error) {
  return guarded(error, [&] {
    required(publisher, "publisher").release(version, time_of(timeout_ms, defaults::join_timeout));
  });
}
uint64_t tensorhub_publisher_held_version(tensorhub_publisher* publisher) {
  std::uint64_t held = 0;
  static_cast<void>(guarded(nullptr, [&] { held = required(publisher, "publisher").held_version().value; }));
  return held;
}
tensorhub_status tensorhub_publisher_leave(tensorhub_publisher* publisher, int64_t grace_ms,
                                           tensorhub_publish_report* report, tensorhub_error** error) {
  return guarded(error, [&] {
    auto& self = required(publisher, "publisher");
    reported(report, [&] { return told(self.leave(time_of(grace_ms, defaults::drain_timeout))); });
  });
}
void tensorhub_publisher_interrupt(tensorhub_publisher* publisher) {
  interrupt(publisher);
}
void tensorhub_publisher_free(tensorhub_publisher* publisher) {
  delete publisher;
}

}  // extern "C"
