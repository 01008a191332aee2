#pragma once
/// \file authority.hpp
/// Who may say what to a secured server: one table, message -> rights, and one check before any message is
/// handled. (Design after NATS' permissions in the list of keys.)
///
/// | message                                       | needs one of                     | about              |
/// |-----------------------------------------------|----------------------------------|--------------------|
/// | join                                          | read, publish                    | model and replica  |
/// | publish                                       | publish                          | its worker's       |
/// | update, sources, wait                         | read                             | its worker's       |
/// | holding                                       | read, publish                    | its worker's       |
/// | retain; `manage` of retention                 | retain; to roll back: publish    | its worker's; model|
/// | list, describe, why, stuck                    | read, publish, look              | model              |
/// | evict, drain, resume                          | evict                            | model and replica  |
/// | receiving, and being offered to readers       | serve (else nobody reads it)     | its worker's       |
/// | unpublish, finish, lease_released, cut_off_done, offload_failed, heartbeat, leave | nothing: the end   |
/// |   of what the worker holds, or has begun      |                                  |                    |
///
/// What a worker says that it holds, of a version that the server does not know, is believed if its key may
/// publish, or while the server recovers (`versions::is_trusted`). A version without a root is known when
/// such a worker has had it, or has read it for an earlier server (`version_state::vouched`).
///
/// Rules may change while a worker runs, or while its join waits (the list is read again): it has the new
/// ones at once (`catalog::review`). A worker that may not read any more fails its update; one that may not
/// serve any more is left by its readers.

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/envelope.hpp"
#include "tensorhub/types/client_rules.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

/// One of these rights is needed for the message; none: no right is.
template <typename Message>
inline constexpr rights needed{};
template <>
inline constexpr rights needed<messages::join_request> = right::read | right::publish;
template <>
inline constexpr rights needed<messages::publish_request> = right::publish;
template <>
inline constexpr rights needed<messages::update_request> = right::read;
template <>
inline constexpr rights needed<messages::sources_request> = right::read;
template <>
inline constexpr rights needed<messages::wait_request> = right::read;
template <>
inline constexpr rights needed<messages::holding_request> = right::read | right::publish;
template <>
inline constexpr rights needed<messages::retain_request> = right::retain;
template <>
inline constexpr rights needed<messages::manage_request> = right::evict;
template <>
inline constexpr rights needed<messages::list_request> = right::read | right::publish | right::look;
template <>
inline constexpr rights needed<messages::describe_request> = needed<messages::list_request>;
template <>
inline constexpr rights needed<messages::why_request> = needed<messages::list_request>;
template <>
inline constexpr rights needed<messages::stuck_request> = needed<messages::list_request>;

/// Whether the rules allow this change of what is retained, or valid; a change of both needs both rights.
[[nodiscard]] inline bool may_change(const client_rules& rules, const messages::retain_request& change) {
  const bool retains = change.keep_latest || change.pin || change.release;
  if (change.roll_back_to && !rules.has_any_of(right::publish)) return false;
  return (!retains && change.roll_back_to) || rules.has_any_of(right::retain);
}

class authority {
 public:
  explicit authority(core& core) : core_{core} {}

  /// True: the sender may say this. Else it was answered, with a sentence. `worker`: the sender, if it has
  /// joined.
  [[nodiscard]] bool allows(const client_rules& rules, const messages::envelope& said,
                            worker_state* worker) const {
    return visit([&](const auto& request) { return allows(rules, said, worker, request); }, said.body);
  }

 private:
  template <typename Request>
  [[nodiscard]] bool allows(const client_rules& rules, const messages::envelope& said, worker_state* worker,
                            const Request& request) const {
    if (is_right(rules, request) && is_about_its_own(rules, worker, request)) return true;
    messages::answer_to<Request> reply;
    reply.result = {errc::refused, "the key '" + rules.name + "' may not send " +
                                       subject_of(worker, request) + ": it may " +
                                       to_string(rules.may.value_or(rights_of_unnamed)) +
                                       ", for the models and replicas that the server's allow-list names"};
    const std::uint64_t refused = ++core_.counted.seen.requests_refused;
    if (std::has_single_bit(refused))  // so that a client that repeats it does not fill the log
      core_.log(log_level::warning, "refused: " + reply.result.sentence + " (" + std::to_string(refused) +
                                        " such requests so far)");
    core_.send(incarnation{said.sender}, said.sequence, std::move(reply));
    return false;
  }

  template <typename Request>
  [[nodiscard]] static bool is_right(const client_rules& rules, const Request& request) {
    if constexpr (std::is_same_v<Request, messages::retain_request>)
      return may_change(rules, request);
    else if constexpr (std::is_same_v<Request, messages::manage_request>)
      return request.kind == messages::manage_kind::retention ? may_change(rules, request.change)
                                                              : rules.has_any_of(right::evict);
    else
      return needed<Request>.empty() || rules.has_any_of(needed<Request>);
  }

  /// The model and the replica that the message is about fit the rules' patterns.
  template <typename Request>
  [[nodiscard]] static bool is_about_its_own(const client_rules& rules, const worker_state* worker,
                                             const Request& request) {
    if constexpr (requires { request.model; }) {
      const bool is_of_all = request.model.empty();  // the answer has what the rules name
      if (!is_of_all && !rules.may_speak_of(request.model)) return false;
    } else if (worker != nullptr && !needed<Request>.empty()) {
      if (!rules.may_speak_of(worker->model->name) || !rules.may_be(worker->replica->name)) return false;
    }
    if constexpr (std::is_same_v<Request, messages::join_request>)
      return rules.may_be(request.replica);
    else if constexpr (std::is_same_v<Request, messages::manage_request>)
      return request.kind == messages::manage_kind::retention || rules.may_be(request.replica);
    else
      return true;
  }

  template <typename Request>
  [[nodiscard]] static std::string subject_of(const worker_state* worker, const Request& request) {
    std::string out{name_of<Request>()};
    if constexpr (requires { request.model; })
      out += " about model '" + request.model + "'";
    else if (worker != nullptr)
      out += " as " + who(*worker);
    if constexpr (requires { request.replica; }) out += ", replica '" + request.replica + "'";
    return out;
  }
  template <typename Request>
  [[nodiscard]] static constexpr std::string_view name_of() {
    if constexpr (std::is_same_v<Request, messages::join_request>) return "a join";
    if constexpr (std::is_same_v<Request, messages::publish_request>) return "a publish";
    if constexpr (std::is_same_v<Request, messages::update_request>) return "an update";
    if constexpr (std::is_same_v<Request, messages::retain_request>) return "a change of what is retained";
    if constexpr (std::is_same_v<Request, messages::manage_request>) return "an order";
    if constexpr (std::is_same_v<Request, messages::wait_request>) return "a wait";
    return "a request";
  }

  core& core_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
