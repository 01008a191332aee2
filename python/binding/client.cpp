/// \file client.cpp
/// `tensorhub._core.ServerClient`.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <tensorhub/server_client.hpp>

#include "calls.hpp"
#include "doors.hpp"

namespace tensorhub_python {

namespace {

class server_client {
 public:
  explicit server_client(const nb::dict& given)
      : client_{"ServerClient", made<tensorhub::server_client>(client_options_of(given))} {}

  template <typename Call>
  auto call(Call&& body) {
    const auto client = client_.use();
    return waited([&] { client->interrupt(); }, [&] { return body(*client); });
  }
  void interrupt() {
    if (!client_.is_closed()) client_.use()->interrupt();
  }
  void close() {
    interrupt();
    client_.drop();
  }
  [[nodiscard]] bool is_closed() const { return client_.is_closed(); }

 private:
  owned<tensorhub::server_client> client_;
};

nb::dict told(const tensorhub::drain_report& report) {
  nb::dict out;
  out["workers"] = report.workers;
  out["readers"] = report.readers;
  return out;
}

}  // namespace

void bind_client(nb::module_& module) {
  using client = server_client;
  using text = std::string;
  nb::class_<client> bound{module, "ServerClient"};
  bound.def(nb::init<const nb::dict&>());
  bound.def("models", [](client& self, const text& model, double timeout) {
    nb::list out;
    for (const auto& each : self.call([&](auto& asked) { return asked.list(model, time_of(timeout)); }))
      out.append(tensorhub_python::told(each));
    return out;
  });
  bound.def(
      "why", [](client& self, const text& model, const text& replica, std::uint32_t shard, double timeout) {
        return self.call([&](auto& asked) { return asked.why(model, replica, shard, time_of(timeout)); });
      });
  bound.def("stuck", [](client& self, const text& model, double older_than, double timeout) {
    const auto report =
        self.call([&](auto& asked) { return asked.stuck(model, time_of(older_than), time_of(timeout)); });
    nb::list out;
    for (const auto& each : report.entries) out.append(tensorhub_python::told(each));
    return out;
  });
  bound.def("retain", [](client& self, const text& model, std::uint32_t versions, double timeout) {
    self.call([&](auto& asked) { asked.retain(model, versions, time_of(timeout)); });
  });
  bound.def("pin", [](client& self, const text& model, std::uint64_t version, double timeout) {
    self.call([&](auto& asked) { asked.pin(model, version, time_of(timeout)); });
  });
  bound.def("release", [](client& self, const text& model, std::uint64_t version, double timeout) {
    self.call([&](auto& asked) { asked.release(model, version, time_of(timeout)); });
  });
  bound.def("roll_back_to", [](client& self, const text& model, std::uint64_t version, double timeout) {
    self.call([&](auto& asked) { asked.roll_back_to(model, version, time_of(timeout)); });
  });
  bound.def("evict", [](client& self, const text& model, const text& replica, double timeout) {
    return self.call([&](auto& asked) { return asked.evict(model, replica, time_of(timeout)); });
  });
  bound.def("drain", [](client& self, const text& model, const text& replica, double timeout) {
    return told(self.call([&](auto& asked) { return asked.drain(model, replica, time_of(timeout)); }));
  });
  bound.def("resume", [](client& self, const text& model, const text& replica, double timeout) {
    self.call([&](auto& asked) { asked.resume(model, replica, time_of(timeout)); });
  });
  bound.def("interrupt", &client::interrupt);
  bound.def("close", &client::close);
  bound.def_prop_ro("is_closed", &client::is_closed);
}

}  // namespace tensorhub_python
