#pragma once
/// \file guarding.hpp
/// A worker's use of capabilities: its transport requires them if it supports them
/// (concepts/guarded_transport.hpp), and refused connections are logged, as is what else a transport says
/// (concepts/telling_transport.hpp). A transport without that support accepts any client that knows its
/// address; reading still needs the key of each region.
///
/// Thread safety: any thread may call `look` of a watch.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/concepts/guarded_transport.hpp"
#include "tensorhub/concepts/telling_transport.hpp"
#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/local_host.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/types/capability.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Makes the transport require capabilities of a new key, and returns that key for the reference server.
/// Empty:
/// this transport does not support capabilities.
template <transport T>
[[nodiscard]] std::string guard_by_capability(T& transport) {
  if constexpr (guarded_transport<T>) {
    std::string key = random_capability_key();
    transport.require_capability(std::as_bytes(std::span{key}));
    return key;
  } else {
    return {};
  }
}

/// Of one transport, whose workers are all of this process: a refused connection is in one log line, and
/// there is at most one a second.
class refusal_watch {
 public:
  /// `count`: connections that the transport has refused since its start; `told_by()`: the latest of them
  /// with a reason. Empty: nothing is to be said now; else whoever asked logs it.
  template <typename Teller>
  [[nodiscard]] std::optional<std::string> look(std::uint64_t count, time_point now, const Teller& told_by) {
    if (count == said_) return std::nullopt;
    const std::lock_guard lock{mutex_};
    if (count <= said_ || now < next_) return std::nullopt;
    next_ = now + std::chrono::seconds{1};
    const transport_refusal told = told_by();
    const bool is_told = told.count > reasons_said_ && !told.why.empty();
    reasons_said_ = told.count;
    return "this process has refused " + std::to_string(count - said_.exchange(count)) +
           " data connections (" + std::to_string(count) + " since the start): " +
           (is_told ? "the latest with a known reason is " + told.why
                    : std::string{"a client without a lease, and so without a capability, knows its address, "
                                  "or the certificate of a worker is not trusted here"});
  }

 private:
  std::atomic<std::uint64_t> said_ = 0;
  std::mutex mutex_;
  time_point next_{};               ///< guarded by mutex_, as the next one
  std::uint64_t reasons_said_ = 0;  ///< refusals with a reason until the last line
};

/// Of one transport: what it does not use is in one log line, and in another one if that changes.
class unused_watch {
 public:
  /// Empty: it was said already, or there is nothing; else whoever asked logs it.
  [[nodiscard]] std::optional<transport_unused> look(transport_unused told) {
    const std::lock_guard lock{mutex_};
    if (told.why == said_) return std::nullopt;
    said_ = told.why;
    return told;
  }

 private:
  std::mutex mutex_;
  std::string said_;  ///< guarded by mutex_
};

/// Of one transport: what has become of its certificate is in one log line per renewal, and a want of what
/// connections take in one per shortage.
template <typename News>
class news_watch {
 public:
  /// Empty: it was said already, or there was none; else whoever asked logs it.
  [[nodiscard]] std::optional<News> look(News told) {
    if (told.count == 0) return std::nullopt;
    const std::lock_guard lock{mutex_};
    if (told.count <= said_) return std::nullopt;
    said_ = told.count;
    return told;
  }

 private:
  std::mutex mutex_;
  std::uint64_t said_ = 0;  ///< guarded by mutex_
};
using renewal_watch = news_watch<transport_renewal>;
using shortage_watch = news_watch<transport_shortage>;

/// Of the addresses that the library has chosen for one transport: that this machine has lost one is in one
/// log line.
class address_watch {
 public:
  explicit address_watch(std::vector<std::string> chosen) : chosen_{std::move(chosen)} {}

  /// Empty: nothing is to be said now; else whoever asked logs it. `has(host)`: this machine has that
  /// address.
  template <typename Has>
  [[nodiscard]] std::optional<std::string> look(time_point now, const Has& has) {
    const std::lock_guard lock{mutex_};
    if (chosen_.empty() || now < next_) return std::nullopt;
    next_ = now + looks_every;
    const auto lost = detail::find_if(chosen_, [&](const std::string& each) { return !has(each); });
    if (lost == chosen_.end()) return std::nullopt;
    const std::string host = *lost;
    std::erase(chosen_, host);
    return "this machine no longer has the address " + host +
           ", which other workers were told: they cannot read from this process unless it comes back: "
           "restart the process, or construct its workers anew";
  }

 private:
  static constexpr duration looks_every = std::chrono::seconds{10};

  std::mutex mutex_;
  time_point next_{};                ///< guarded by mutex_, as the next one
  std::vector<std::string> chosen_;  ///< whose loss was not said
};

/// Of one transport: all that it says, as lines for a worker's log.
class transport_watch {
 public:
  /// `chosen_hosts`: numeric addresses of this machine, which peers are told and the user has not set.
  explicit transport_watch(std::vector<std::string> chosen_hosts) : addresses_{std::move(chosen_hosts)} {}

  /// What no worker of the process has logged yet. The lines name no worker.
  template <transport T>
  [[nodiscard]] std::vector<log_line> look(const T& through, time_point now) {
    std::vector<log_line> lines;
    if constexpr (guarded_transport<T>) {
      const auto refused = refusals_.look(through.refused_connections(), now, [&]() -> transport_refusal {
        if constexpr (telling_transport<T>) return through.refusal_told();
        return {};
      });
      if (refused) add(lines, log_level::warning, errc::refused, *refused);
    }
    if constexpr (telling_transport<T>) {
      if (const auto renewed = renewals_.look(through.renewal_told()))
        add(lines, renewed->failed ? log_level::warning : log_level::info,
            renewed->failed ? errc::transport_failed : errc::ok, renewed->text);
    }
    if constexpr (composed_transport<T>) {
      if (const auto unused = unused_.look(through.unused_told())) add(lines, *unused, T::name);
    }
    if constexpr (shortage_telling_transport<T>) {
      if (const auto missing = shortages_.look(through.shortage_told()))
        add(lines, log_level::warning, errc::system_failed, missing->text);
    }
    if (const auto lost = addresses_.look(now, detail::is_own_address))
      add(lines, log_level::warning, errc::transport_failed, *lost);
    return lines;
  }

 private:
  static void add(std::vector<log_line>& lines, log_level level, errc code, std::string text) {
    lines.push_back({level, std::move(text), {}});
    lines.back().about.code = code;
  }
  static void add(std::vector<log_line>& lines, const transport_unused& unused, std::string_view name) {
    if (unused.is_cut_off)
      add(lines, log_level::warning, errc::transport_failed,
          std::string{name} + ": readers on other machines cannot reach this process: " + unused.why);
    else
      add(lines, log_level::info, errc::ok, std::string{name} + " does without " + unused.why);
  }

  refusal_watch refusals_;
  renewal_watch renewals_;
  unused_watch unused_;
  shortage_watch shortages_;
  address_watch addresses_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
