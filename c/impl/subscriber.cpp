/// \file subscriber.cpp
/// The functions of subscribers, in all modes, and of seeders.

#include <tensorhub/double_buffered_subscriber.hpp>
#include <tensorhub/seeder.hpp>
#include <tensorhub/staged_subscriber.hpp>
#include <tensorhub/subscriber.hpp>
#include <utility>
#include <variant>

#include "calls.hpp"

namespace tensorhub_c {

namespace {

struct in_place final : tensorhub::any_subscriber {
  explicit in_place(const tensorhub_worker_options& given)
      : any_subscriber{options_of(given), policies_of(given)} {}
};
struct staged final : tensorhub::any_staged_subscriber {
  explicit staged(const tensorhub_worker_options& given)
      : any_staged_subscriber{options_of(given), policies_of(given), {}} {}
};
struct double_buffered final : tensorhub::any_double_buffered_subscriber {
  explicit double_buffered(const tensorhub_worker_options& given)
      : any_double_buffered_subscriber{options_of(given), policies_of(given)} {}
};

[[noreturn]] void refuse(const char* call, const char* modes) {
  throw error(errc::invalid_argument, std::string{call} + " is for subscribers in mode " + modes);
}

}  // namespace

}  // namespace tensorhub_c

struct tensorhub_subscriber {
  std::variant<std::monostate, tensorhub_c::in_place, tensorhub_c::staged, tensorhub_c::double_buffered>
      worker{};

  tensorhub_subscriber(const tensorhub_worker_options& given, tensorhub_mode mode) {
    switch (mode) {
      case TENSORHUB_IN_PLACE:
        worker.emplace<tensorhub_c::in_place>(given);
        return;
      case TENSORHUB_STAGED:
        worker.emplace<tensorhub_c::staged>(given);
        return;
      case TENSORHUB_DOUBLE_BUFFERED:
        worker.emplace<tensorhub_c::double_buffered>(given);
        return;
    }
    throw tensorhub_c::error(
        tensorhub_c::errc::invalid_argument,
        "the mode is " + std::to_string(static_cast<int>(mode)) + ": take one of tensorhub_mode");
  }
};

struct tensorhub_seeder final : tensorhub::any_seeder {
  explicit tensorhub_seeder(const tensorhub_worker_options& given)
      : any_seeder{tensorhub_c::options_of(given), tensorhub_c::policies_of(given)} {}
};

using namespace tensorhub_c;
namespace defaults = tensorhub::defaults;

namespace {

/// Calls it with the worker, which has one of the modes' types.
template <typename Call>
decltype(auto) with(tensorhub_subscriber* subscriber, Call&& call) {
  using result = decltype(call(std::declval<in_place&>()));
  return std::visit(
      [&](auto& worker) -> result {
        if constexpr (std::is_same_v<std::decay_t<decltype(worker)>, std::monostate>)
          throw tensorhub_c::error(errc::invalid_argument, "the subscriber was not constructed");
        else
          return call(worker);
      },
      required(subscriber, "subscriber").worker);
}

}  // namespace

extern "C" {

tensorhub_status tensorhub_subscriber_create(const tensorhub_worker_options* options, tensorhub_mode mode,
                                             tensorhub_subscriber** subscriber, tensorhub_error** error) {
  return guarded(error, [&] {
    required(subscriber, "subscriber") = nullptr;
    *subscriber = new tensorhub_subscriber{taken(options, "options"), mode};
  });
}
tensorhub_status tensorhub_subscriber_add(tensorhub_subscriber* subscriber, const tensorhub_tensor* tensor,
                                          tensorhub_error** error) {
  return guarded(error, [&] {
    with(subscriber, [&](auto& worker) {
      add_tensor(tensor, [&](std::string name, void* data, auto dimensions, tensorhub::dtype type) {
        if constexpr (requires { worker.add(std::move(name), dimensions, type); }) {
          if (data != nullptr)
            throw tensorhub_c::error(
                errc::invalid_argument,
                "tensor.data is not NULL: in mode double_buffered the memory is the library's");
          worker.add(std::move(name), dimensions, type);
        } else {
          worker.add(std::move(name), data, dimensions, type);
        }
      });
    });
  });
}
tensorhub_status tensorhub_subscriber_update(tensorhub_subscriber* subscriber, tensorhub_selector selector,
                                             uint64_t version, int64_t timeout_ms,
                                             tensorhub_update_report* report, tensorhub_error** error) {
  return guarded(error, [&] {
    const auto which = selector_of(selector, version);
    const auto timeout = time_of(timeout_ms, defaults::update_timeout);
    with(subscriber, [&](auto& worker) {
      if constexpr (requires { worker.update(which, timeout); })
        reported(report, [&] { return told(worker.update(which, timeout)); });
      else
        refuse("update", "in_place or staged");
    });
  });
}
tensorhub_status tensorhub_subscriber_stage(tensorhub_subscriber* subscriber, tensorhub_selector selector,
                                            uint64_t version, int64_t timeout_ms,
                                            tensorhub_update_report* report, tensorhub_error** error) {
  return guarded(error, [&] {
    const auto which = selector_of(selector, version);
    const auto timeout = time_of(timeout_ms, defaults::update_timeout);
    with(subscriber, [&](auto& worker) {
      if constexpr (requires { worker.stage(which, timeout); })
        reported(report, [&] { return told(worker.stage(which, timeout)); });
      else
        refuse("stage", "staged or double_buffered");
    });
  });
}
tensorhub_status tensorhub_subscriber_install(tensorhub_subscriber* subscriber, int64_t timeout_ms,
                                              tensorhub_update_report* report, tensorhub_error** error) {
  return guarded(error, [&] {
    const auto timeout = time_of(timeout_ms, defaults::update_timeout);
    with(subscriber, [&](auto& worker) {
      if constexpr (requires { worker.install(timeout); })
        reported(report, [&] { return told(worker.install(timeout)); });
      else if constexpr (requires { worker.install(); })
        reported(report, [&] { return told(worker.install()); });
      else
        refuse("install", "staged or double_buffered");
    });
  });
}
tensorhub_status tensorhub_subscriber_tensor(tensorhub_subscriber* subscriber, const char* name,
                                             const void** data, tensorhub_error** error) {
  return guarded(error, [&] {
    required(data, "data") = nullptr;
    with(subscriber, [&](auto& worker) {
      if constexpr (requires { worker.tensor(name); })
        *data = worker.tensor(&required(name, "name"));
      else
        refuse("tensor", "double_buffered");
    });
  });
}
uint64_t tensorhub_subscriber_newer(tensorhub_subscriber* subscriber) {
  std::uint64_t found = 0;
  static_cast<void>(guarded(nullptr, [&] {
    with(subscriber,
         [&](auto& worker) { found = worker.newer().value_or(tensorhub::version_number{}).value; });
  }));
  return found;
}
tensorhub_status tensorhub_subscriber_wait(tensorhub_subscriber* subscriber, tensorhub_selector selector,
                                           uint64_t version, int64_t timeout_ms, uint64_t* found,
                                           tensorhub_error** error) {
  return guarded(error, [&] {
    const auto which = selector_of(selector, version);
    const auto timeout = time_of(timeout_ms, defaults::update_timeout);
    const auto there = with(subscriber, [&](auto& worker) { return worker.wait(which, timeout); });
    if (found != nullptr) *found = there.value;
  });
}
uint64_t tensorhub_subscriber_held_version(tensorhub_subscriber* subscriber) {
  std::uint64_t held = 0;
  static_cast<void>(guarded(nullptr, [&] {
    with(subscriber, [&](auto& worker) {
      if constexpr (requires { worker.live_version(); })
        held = worker.live_version().value;
      else
        held = worker.held_version().value;
    });
  }));
  return held;
}
tensorhub_status tensorhub_subscriber_leave(tensorhub_subscriber* subscriber, int64_t grace_ms,
                                            tensorhub_publish_report* report, tensorhub_error** error) {
  return guarded(error, [&] {
    const auto grace = time_of(grace_ms, defaults::drain_timeout);
    with(subscriber, [&](auto& worker) { reported(report, [&] { return told(worker.leave(grace)); }); });
  });
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
void tensorhub_seeder_stop(tensorhub_seeder* seeder) {
  delete seeder;
}

}  // extern "C"
