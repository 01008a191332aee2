#pragma once
/// \file capability_checks.hpp
/// What a transport that asks for capabilities must do; the same for all.

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <set>
#include <string>
#include <tensorhub/concepts/guarded_transport.hpp>
#include <tensorhub/types/capability.hpp>
#include <vector>

namespace capability_checks {

using namespace tensorhub;
using namespace std::chrono_literals;

inline constexpr incarnation source_id{10};
inline constexpr incarnation reader_id{20};
inline constexpr incarnation stranger_id{30};

/// A reader with its queue and 64 bytes to read into.
template <typename T>
struct reading {
  reading(incarnation self, typename T::options how = {})
      : through{std::move(how), self}, on{through.make_queue(4)} {
    const memory_range range{reinterpret_cast<std::byte*>(into.data()), into.size()};
    target = through.register_memory(std::span{&range, 1}, region_access::local_write);
  }

  /// Why it is not let in; empty: it is.
  [[nodiscard]] std::string refusal(const transport_address& where, incarnation peer = source_id) {
    try {
      const auto made = through.connect(on, where, peer, 5s);
      return {};
    } catch (const error& e) {
      if (e.code() != errc::transport_failed) throw;  // neither let in nor refused
      return e.what();
    }
  }
  [[nodiscard]] bool reads(typename T::endpoint& from, const remote_region& region,
                           const std::string& expected) {
    into.fill(0);
    const remote_slice all{&region, 0, region.bytes};
    if (on.post_read(from, target.front(), 0, all, 1) != post_result::posted) return false;
    std::array<completion, 1> done{};
    const auto until = std::chrono::steady_clock::now() + 10s;
    while (on.poll(done) == 0) {
      if (std::chrono::steady_clock::now() > until) return false;
      on.wait(10ms);
    }
    return done[0].status == completion_status::ok &&
           std::memcmp(into.data(), expected.data(), expected.size()) == 0;
  }

  T through;
  std::array<char, 64> into{};
  typename T::queue on;
  std::vector<typename T::memory_region> target;
};

using rule_names = std::set<std::string>;
struct guard_findings {
  rule_names tried{};
  rule_names broken{};
};

/// A source that demands capabilities, and what its readers see of it.
template <typename T>
class guard_rules {
 public:
  explicit guard_rules(const typename T::options& how)
      : source_{how, source_id},
        other_source_{how, other_source_id},
        reader_{reader_id, how},
        stranger_{stranger_id, how} {
    const memory_range range{reinterpret_cast<std::byte*>(text_.data()), text_.size()};
    regions_ = source_.register_memory(std::span{&range, 1}, region_access::remote_read);
    source_.require_capability(std::as_bytes(std::span{key_}));
    other_source_.require_capability(std::as_bytes(std::span{other_key_}));
  }

  [[nodiscard]] guard_findings run() {
    expect("a_good_one_lets_in", reader_.refusal(with(good_)).empty());
    if (!found_.broken.empty()) return found_;
    auto present = reader_.through.connect(reader_.on, with(good_), source_id, 5s);
    expect("a_good_one_lets_in", is_read(present) && source_.refused_connections() == 0);
    refuse_others();
    expire();
    expect("connections_outlast_their_capability", is_read(present));
    expect("a_good_one_lets_in", stranger_.refusal(with(made_for(stranger_id, 6))).empty());
    source_.cut_off(stranger_id);
    expect("who_is_cut_off_stays_out", !stranger_.refusal(with(made_for(stranger_id, 6))).empty());
    expect("cut_off_is_for_one_reader", is_read(present));
    return found_;
  }

 private:
  void refuse_others() {
    const std::string without = stranger_.refusal(with({}));
    expect("none_is_refused", !without.empty());
    expect("the_reason_is_said", without.empty() || without.find("capability") != std::string::npos);
    expect("another_readers_is_refused", !stranger_.refusal(with(good_)).empty());
    for (const std::string& wrong :
         {make_capability(other_key_, stranger_id, other_source_id, 1), std::string(capability_bytes, '\0'),
          std::string(capability_bytes, 'x'), std::string(1000, 'x')})
      expect("a_wrong_one_is_refused", !stranger_.refusal(with(wrong)).empty());
    const auto there = [&](const std::string& capability) {
      return transport_address{other_source_.address().text, capability};
    };
    for (const std::string& anothers : {good_, make_capability(other_key_, reader_id, source_id, 1)})
      expect("another_sources_is_refused", !reader_.refusal(there(anothers), other_source_id).empty());
    expect("refusals_are_counted",
           source_.refused_connections() >= 6 && other_source_.refused_connections() >= 2);
  }
  void expire() {
    source_.expire_capabilities(source_id, 5);
    const std::string late = reader_.refusal(with(good_));
    expect("an_expired_one_is_refused", !late.empty());
    expect("an_expired_one_is_refused", !reader_.refusal(with(made_for(reader_id, 4))).empty());
    expect("the_reason_is_said", late.empty() || late.find("taken back") != std::string::npos);
    source_.expire_capabilities(source_id, 3);
    expect("what_has_expired_stays_so", !reader_.refusal(with(made_for(reader_id, 4))).empty());
    // From here on a transport may keep a connection that the reader has closed, for its next lease.
    expect("the_epoch_itself_is_good", reader_.refusal(with(made_for(reader_id, 5))).empty());
    expect("a_later_one_lets_in", reader_.refusal(with(made_for(reader_id, 6))).empty());
    source_.expire_capabilities({12}, 9);
    expect("expiry_is_of_one_source", stranger_.refusal(with(made_for(stranger_id, 6))).empty());
  }
  void expect(const char* rule, bool holds) {
    found_.tried.insert(rule);
    if (!holds) found_.broken.insert(rule);
  }
  [[nodiscard]] transport_address with(std::string capability) const {
    return {source_.address().text, std::move(capability)};
  }
  [[nodiscard]] std::string made_for(incarnation reader, std::uint64_t epoch) const {
    return make_capability(key_, reader, source_id, epoch);
  }
  [[nodiscard]] bool is_read(typename T::endpoint& from) {
    return reader_.reads(from, source_.describe(regions_.front()), text_);
  }

  static constexpr incarnation other_source_id{11};
  T source_;
  T other_source_;
  reading<T> reader_;
  reading<T> stranger_;
  std::string text_ = std::string(64, 'w');
  std::string key_ = random_capability_key();
  std::string other_key_ = random_capability_key();
  std::string good_ = made_for(reader_id, 1);
  std::vector<typename T::memory_region> regions_;
  guard_findings found_;
};

template <typename T>
[[nodiscard]] guard_findings try_guard(const typename T::options& how = {}) {
  static_assert(guarded_transport<T>);
  return guard_rules<T>{how}.run();
}

[[nodiscard]] inline std::string listed(const rule_names& names) {
  std::string text;
  for (const std::string& each : names) text += (text.empty() ? "" : ", ") + each;
  return text;
}

template <typename T>
void check_guard(const typename T::options& how = {}) {
  CHECK(listed(try_guard<T>(how).broken) == "");
}

}  // namespace capability_checks
