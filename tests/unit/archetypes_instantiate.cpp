/// \file archetypes_instantiate.cpp
/// The library's templates compile with the archetypes: they ask for nothing that a concept does not name.

#include <doctest/doctest.h>

#include <string>
#include <variant>

#include "support/archetypes.hpp"
#include "tensorhub/hub.hpp"
#include "tensorhub/memory/host.hpp"
#include "tensorhub/policy/consistency/group_consistent.hpp"
#include "tensorhub/server.hpp"
#include "tensorhub/service/catalog.hpp"
#include "tensorhub/transfer/shard_memory.hpp"
#include "tensorhub/transfer/transport_pull.hpp"
#include "tensorhub/worker/policy_data_plane.hpp"

namespace tensorhub {

template class transport_pull<testing::transport_archetype, testing::integrity_archetype>;
template class reference_server<testing::scheduler_archetype, testing::consistency_archetype>;
template data_plane_maker data_plane_maker_of<testing::transport_archetype, testing::integrity_archetype,
                                              host_memory>(testing::transport_archetype::options);
template class publisher<testing::transport_archetype, testing::consistency_archetype,
                         testing::integrity_archetype>;
template class subscriber<testing::transport_archetype, testing::consistency_archetype,
                          testing::integrity_archetype>;
template class seeder<testing::transport_archetype, testing::consistency_archetype,
                      testing::integrity_archetype>;
template struct hub<testing::transport_archetype, testing::scheduler_archetype,
                    testing::consistency_archetype, testing::integrity_archetype>;
template class shard_memory<testing::transport_archetype, host_memory>;

}  // namespace tensorhub

using namespace tensorhub;

TEST_CASE("a catalog of archetypes works: it refuses a worker of another consistency policy by name") {
  catalog core{{},
               server_epoch{1},
               testing::scheduler_archetype{testing::scheduler_archetype::options{}},
               testing::consistency_archetype{testing::consistency_archetype::options{}}};
  messages::join_request join;
  join.model = "policy";
  join.replica = "rollout-0";
  join.form.consistency = group_consistent::name;
  messages::envelope envelope;
  envelope.sender = 42;
  envelope.sequence = request_sequence{1};
  envelope.body = join;
  core.receive(time_point{0}, envelope);

  const auto output = core.take_output();
  REQUIRE(output.size() == 1);
  const auto* reply = get_if<messages::join_reply>(&output[0].message.body);
  REQUIRE(reply != nullptr);
  CHECK(reply->result.code == errc::policy_mismatch);
  CHECK(reply->result.sentence.find("'archetype'") != std::string::npos);
}
