#pragma once
/// \file client.hpp
/// A session's end of a control connection: a pure core, its mutex, and what it has to send.
///
/// `Core` is `session`, or in tests any type with the same `receive`, `advance`, `next_deadline` and
/// `take_output`, with or without `self` and `move_to_server`.
///
/// Thread safety: `with` may be called from any thread; the core runs under one mutex. `after_step` also runs
/// under that mutex, in the thread that stepped the core: it must be short, and must not call `with`.

#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/exception_text.hpp"
#include "tensorhub/policy/steady_clock.hpp"
#include "tensorhub/service/control_connection.hpp"
#include "tensorhub/service/messages.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// The control connection to these servers that all workers and clients of one process share.
/// `Options`: `worker_options` or `server_client_options`.
template <typename Options>
[[nodiscard]] std::shared_ptr<control_connection> shared_connection(const Options& options) {
  return options.process.template share<control_connection>(
      [&](control_connection& present) { return present.fits(options.server, options.security); },
      [&] { return std::make_shared<control_connection>(options.server, options.security); });
}

template <typename Core>
class client_shell final : private control_end {
 public:
  /// The core decides when a missing server is an error. `after_step` runs after every step of the core and
  /// before its messages are sent, `after_unlock` when the core is free again: a thread that it wakes can use
  /// the core at once. It does not throw.
  client_shell(std::shared_ptr<control_connection> connection, Core core,
               std::function<void(Core&)> after_step, std::function<void()> after_unlock = {})
      : connection_{std::move(connection)},
        core_{std::move(core)},
        after_step_{std::move(after_step)},
        after_unlock_{std::move(after_unlock)} {
    connection_->add(*this);
  }
  ~client_shell() { connection_->remove(*this); }
  client_shell(const client_shell&) = delete;
  client_shell& operator=(const client_shell&) = delete;

  /// Runs `call(core, now)` and returns what it returns.
  template <typename Call>
  auto with(Call&& call) {
    const turn taken{*this};
    if (failure_) settle();
    const time_point now = clock_.now();
    if constexpr (std::is_void_v<std::invoke_result_t<Call, Core&, time_point>>) {
      std::forward<Call>(call)(core_, now);
      settle();
      wake_if_due();
    } else {
      auto value = std::forward<Call>(call)(core_, now);
      settle();
      wake_if_due();
      return value;
    }
  }

  /// The caller cannot tell the core what it waits for: as if a step had thrown. Pre-condition: an exception
  /// is being handled.
  void fail() noexcept {
    const turn taken{*this};
    end_session();
    wake_if_due();
  }

  /// As at `control_connection`.
  void use_server(std::size_t index) { connection_->use_server(index); }
  [[nodiscard]] messages::status trouble() const { return connection_->trouble(); }

 private:
  /// The core's lock.
  class turn {
   public:
    explicit turn(client_shell& shell) : shell_{&shell} { shell_->mutex_.lock(); }
    ~turn() {
      shell_->mutex_.unlock();
      if (shell_->after_unlock_) shell_->after_unlock_();
    }
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;

   private:
    client_shell* shell_;
  };

  // ---- what the connection calls

  bool receive(time_point now, const messages::envelope& message) noexcept override {
    const turn taken{*this};
    if constexpr (requires { core_.self(); }) {
      if (message.recipient != 0 && message.recipient != core_.self().value) return false;
    }
    step_core([&] { core_.receive(now, message); });
    return true;
  }
  time_point step(time_point now, std::vector<messages::envelope>& out) noexcept override {
    static constexpr std::chrono::milliseconds pause_after_failure{10};
    const turn taken{*this};
    step_core([&] {
      if (now >= core_.next_deadline()) core_.advance(now);
    });
    try {
      out.insert(out.end(), std::make_move_iterator(outbox_.begin()), std::make_move_iterator(outbox_.end()));
      outbox_.clear();
      sleeps_until_ = failure_ ? now + pause_after_failure : core_.next_deadline();
    } catch (...) {  // no memory
      sleeps_until_ = now + pause_after_failure;
    }
    return sleeps_until_;
  }
  void move_to_server(time_point now, std::size_t index) noexcept override {
    const turn taken{*this};
    step_core([&] {
      if constexpr (requires { core_.move_to_server(now, index); }) core_.move_to_server(now, index);
    });
  }

  // ---- steps; pre-condition: mutex_ is held

  /// Nothing that is thrown in a step ends the process: it ends the session, and with it every call, with the
  /// reason.
  template <typename Step>
  void step_core(Step&& step) noexcept {
    try {
      if (failure_) std::rethrow_exception(failure_);
      step();
      settle_step();
    } catch (...) {
      end_session();
    }
  }
  void settle() noexcept {
    step_core([] {});
  }
  /// Pre-condition: an exception is being handled.
  void end_session() noexcept {
    failure_ = std::current_exception();
    try {
      core_.receive(clock_.now(),
                    messages::goodbye_of_shell(
                        {errc::system_failed, "this worker's control connection has failed: " +
                                                  detail::exception_text() + "; construct a new worker"}));
      settle_step();
      failure_ = nullptr;
    } catch (...) {  // no memory: the next step tries again
    }
  }
  void settle_step() {
    after_step_(core_);
    auto output = core_.take_output();
    if (outbox_.empty())
      outbox_ = std::move(output);
    else
      for (auto& message : output) outbox_.push_back(std::move(message));
  }
  void wake_if_due() {
    if (failure_ || !outbox_.empty() || core_.next_deadline() < sleeps_until_) connection_->wake();
  }

  const std::shared_ptr<control_connection> connection_;
  steady_clock clock_;
  std::mutex mutex_;
  Core core_;  ///< guarded by mutex_, as all below
  const std::function<void(Core&)> after_step_;
  const std::function<void()> after_unlock_;
  std::vector<messages::envelope> outbox_;         ///< not taken by the connection yet
  std::exception_ptr failure_;                     ///< the session has to end with it
  time_point sleeps_until_ = time_point::never();  ///< when the connection steps this end at the latest
};

}  // namespace tensorhub::inline TENSORHUB_MODE
