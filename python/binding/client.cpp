/// \file client.cpp
/// `tensorhub._core.ServerClient`.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tensorhub/server_client.hpp>
#include <vector>

#include "calls.hpp"
#include "doors.hpp"

namespace tensorhub_python {

namespace {

class server_client : public door<tensorhub::server_client> {
 public:
  explicit server_client(const nb::dict& given)
      : door{"ServerClient", made<tensorhub::server_client>(client_options_of(given))} {}
};

nb::dict told(const tensorhub::drain_report& report) {
  nb::dict out;
  out["workers"] = report.workers;
  out["readers"] = report.readers;
  return out;
}

using client = server_client;
using text = std::string;

/// About one replica.
void bind_orders(nb::class_<client>& bound) {
  bound.def(
      "evict",
      [](client& self, const text& model, const text& replica, given_seconds timeout) {
        return self.call([&](auto& asked) { return asked.evict(model, replica, time_of(timeout)); });
      },
      "model"_a, "replica"_a, "timeout"_a.none());
  bound.def(
      "drain",
      [](client& self, const text& model, const text& replica, given_seconds timeout) {
        return told(self.call([&](auto& asked) { return asked.drain(model, replica, time_of(timeout)); }));
      },
      "model"_a, "replica"_a, "timeout"_a.none());
  bound.def(
      "resume",
      [](client& self, const text& model, const text& replica, given_seconds timeout) {
        self.call([&](auto& asked) { asked.resume(model, replica, time_of(timeout)); });
      },
      "model"_a, "replica"_a, "timeout"_a.none());
}

}  // namespace

void bind_client(nb::module_& module) {
  nb::class_<client> bound{module, "ServerClient"};
  bound.def(nb::init<const nb::dict&>(), "options"_a);
  bound.def(
      "models",
      [](client& self, const text& model, given_seconds timeout) {
        return all_told(self.call([&](auto& asked) { return asked.list(model, time_of(timeout)); }));
      },
      "model"_a, "timeout"_a.none());
  bound.def(
      "why",
      [](client& self, const text& model, const text& replica, std::uint32_t shard, given_seconds timeout) {
        return self.call([&](auto& asked) { return asked.why(model, replica, shard, time_of(timeout)); });
      },
      "model"_a, "replica"_a, "shard"_a, "timeout"_a.none());
  bound.def(
      "stuck",
      [](client& self, const text& model, given_seconds older_than, given_seconds timeout) {
        return all_told(
            self.call([&](auto& asked) { return asked.stuck(model, time_of(older_than), time_of(timeout)); })
                .entries);
      },
      "model"_a, "older_than"_a.none(), "timeout"_a.none());
  bound.def(
      "wait_held",
      [](client& self, const text& model, std::uint64_t version, const std::vector<text>& replicas,
         given_seconds timeout) {
        return self.call(
            [&](auto& asked) { return asked.wait_held(model, version, replicas, time_of(timeout)); });
      },
      "model"_a, "version"_a, "replicas"_a, "timeout"_a.none());
  bound.def(
      "retain",
      [](client& self, const text& model, std::uint32_t versions, given_seconds timeout) {
        self.call([&](auto& asked) { asked.retain(model, versions, time_of(timeout)); });
      },
      "model"_a, "versions"_a, "timeout"_a.none());
  bound.def(
      "pin",
      [](client& self, const text& model, std::uint64_t version, given_seconds timeout) {
        self.call([&](auto& asked) { asked.pin(model, version, time_of(timeout)); });
      },
      "model"_a, "version"_a, "timeout"_a.none());
  bound.def(
      "release",
      [](client& self, const text& model, std::uint64_t version, given_seconds timeout) {
        self.call([&](auto& asked) { asked.release(model, version, time_of(timeout)); });
      },
      "model"_a, "version"_a, "timeout"_a.none());
  bound.def(
      "roll_back_to",
      [](client& self, const text& model, std::uint64_t version, given_seconds timeout) {
        self.call([&](auto& asked) { asked.roll_back_to(model, version, time_of(timeout)); });
      },
      "model"_a, "version"_a, "timeout"_a.none());
  bind_orders(bound);
  bound.def("interrupt", &client::interrupt);
  bound.def("close", &client::close);
  bound.def_prop_ro("is_closed", &client::is_closed);
}

}  // namespace tensorhub_python
