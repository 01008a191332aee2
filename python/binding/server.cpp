/// \file server.cpp
/// `tensorhub._core.ReferenceServer`, and keys.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <tensorhub/key_files.hpp>
#include <tensorhub/server.hpp>

#include "calls.hpp"

namespace tensorhub_python {

namespace {

class server {
 public:
  explicit server(const nb::dict& given)
      : server_{"ReferenceServer", made<tensorhub::reference_server<>>(server_options_of(given))} {}

  [[nodiscard]] std::string address() const { return server_.use()->address(); }
  void allow(const std::string& key, const std::string& name) const {
    server_.use()->allow(key, tensorhub::client_rules_of(name));
  }
  [[nodiscard]] bool revoke(const std::string& key) const { return server_.use()->revoke(key); }
  [[nodiscard]] nb::dict statistics() const { return told(server_.use()->statistics()); }
  void close() { server_.drop(); }
  [[nodiscard]] bool is_closed() const { return server_.is_closed(); }

 private:
  owned<tensorhub::reference_server<>> server_;
};

nb::tuple told(const tensorhub::curve_key_pair& keys) {
  return nb::make_tuple(keys.public_key, keys.secret_key);
}

}  // namespace

void bind_server(nb::module_& module) {
  nb::class_<server> bound{module, "ReferenceServer"};
  bound.def(nb::init<const nb::dict&>(), "options"_a);
  bound.def("allow", &server::allow, "key"_a, "rules"_a);
  bound.def("revoke", &server::revoke, "key"_a);
  bound.def("statistics", &server::statistics);
  bound.def("close", &server::close);
  bound.def_prop_ro("address", &server::address);
  bound.def("interrupt", [](server&) {});  // no call of it waits
  bound.def_prop_ro("is_closed", &server::is_closed);

  module.def(
      "is_local_address", [](const std::string& address) { return tensorhub::is_local_address(address); },
      "address"_a);
  module.def("make_keys", [] { return told(tensorhub::make_curve_keys()); });
  module.def(
      "write_keys",
      [](const std::string& folder, const std::string& name, const std::string& public_key,
         const std::string& secret_key) {
        tensorhub::write_curve_keys(folder, name, {public_key, secret_key});
      },
      "folder"_a, "name"_a, "public_key"_a, "secret_key"_a);
  module.def(
      "read_keys", [](const std::string& file) { return told(tensorhub::read_curve_keys(file)); }, "file"_a);
  module.def("read_public_key", &tensorhub::read_public_key, "file"_a);
  module.def(
      "read_allow_list",
      [](const std::string& file) {
        std::map<std::string, std::string> out;
        for (const auto& [key, rules] : tensorhub::read_allow_list(file)) out.emplace(key, to_string(rules));
        return out;
      },
      "file"_a);
}

}  // namespace tensorhub_python
