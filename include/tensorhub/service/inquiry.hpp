#pragma once
/// \file inquiry.hpp
/// What a process that is no worker asks its reference servers, and orders of them: a pure state machine, as
/// `session` is for a worker. It never joins; each call is one request and its answer.
///
/// Thread safety: none; the shell serialises.

#include <cstddef>
#include <cstdint>
#include <string>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/envelope.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/service/session/actions.hpp"
#include "tensorhub/service/session/questions.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class inquiry : public session_detail::questions {
 public:
  /// Of `options` it uses the servers and the time-outs. `self`: a random number of its own.
  inquiry(session_options options, incarnation self);

  session_ticket describe(time_point now, std::string model, std::uint32_t shard, time_point deadline) {
    return ask(now, messages::describe_request{std::move(model), shard}, deadline);
  }
  session_ticket why(time_point now, std::string model, std::string replica, std::uint32_t shard,
                     time_point deadline) {
    return ask(now, messages::why_request{std::move(model), std::move(replica), shard}, deadline);
  }
  session_ticket manage(time_point now, messages::manage_request order, time_point deadline) {
    return ask(now, std::move(order), deadline);
  }

  /// Every call that runs ends now, as `cancelled`.
  void interrupt(time_point now);

  void receive(time_point now, const messages::envelope& envelope);
  void advance(time_point now);
  [[nodiscard]] time_point next_deadline() const noexcept;
  /// The shell's connection uses this server of the list from now on.
  void move_to_server(time_point now, std::size_t index);

 private:
  using pending_request = session_detail::pending_request;
  using questions::handle;

  void handle(time_point, const pending_request& pending, const messages::manage_reply& reply) {
    answer(pending, reply.result).managed = reply;
  }
  void handle(time_point, const pending_request& pending, const messages::status_reply& reply) {
    static_cast<void>(answer(pending, reply.result));
  }
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/inquiry.ipp"
#endif
