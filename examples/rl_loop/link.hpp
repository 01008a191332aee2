#pragma once
/// \file link.hpp
/// The line between the launcher and one of its processes: reports up, commands down, one packet each.
///
/// A report is a word and `name=value` fields, as text without blanks in the values. A process whose launcher
/// is gone notices it here and ends.

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "descriptor.hpp"

namespace rl_loop {

class report {
 public:
  explicit report(std::string word) : word_{std::move(word)} {}

  template <typename T>
  [[nodiscard]] report with(const std::string& name, const T& value) && {
    std::ostringstream text;
    text.precision(9);
    text << value;
    fields_[name] = text.str();
    return std::move(*this);
  }

  [[nodiscard]] const std::string& word() const { return word_; }
  /// Empty if there is no such field.
  [[nodiscard]] std::string text(const std::string& name) const {
    const auto found = fields_.find(name);
    return found == fields_.end() ? std::string{} : found->second;
  }
  [[nodiscard]] double number(const std::string& name) const {
    return std::strtod(text(name).c_str(), nullptr);
  }
  [[nodiscard]] std::uint64_t count(const std::string& name) const {
    return std::strtoull(text(name).c_str(), nullptr, 10);
  }

  [[nodiscard]] std::string to_line() const {
    std::string line = word_;
    for (const auto& [name, value] : fields_) line += " " + name + "=" + value;
    return line;
  }
  [[nodiscard]] static report from_line(const std::string& line) {
    std::istringstream words{line};
    std::string word;
    words >> word;
    report result{word};
    while (words >> word) {
      const auto equals = word.find('=');
      if (equals != std::string::npos) result.fields_[word.substr(0, equals)] = word.substr(equals + 1);
    }
    return result;
  }

 private:
  std::string word_;
  std::map<std::string, std::string> fields_;
};

/// One end; both ends are alike. Not thread-safe.
class link {
 public:
  explicit link(descriptor packets) : packets_{std::move(packets)} {}

  [[nodiscard]] int fd() const { return packets_.get(); }

  void say(const report& what) {
    const std::string line = what.to_line();
    const deadline until{std::chrono::seconds{20}};
    while (::send(packets_.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
      if (errno != EAGAIN && errno != EINTR) fail("the other end of the launcher's line is gone");
      if (wait_ready(packets_.get(), POLLOUT, until) == 0) {
        throw std::runtime_error("the launcher's line has been full for too long");
      }
    }
  }

  /// The next packet, if one arrives within `patience`. Throws `runtime_error` when the other end is gone.
  [[nodiscard]] std::optional<report> hear(std::chrono::milliseconds patience = {}) {
    if (wait_ready(packets_.get(), POLLIN, deadline{patience}) == 0) return std::nullopt;
    char line[4096];
    const auto got = ::recv(packets_.get(), line, sizeof line, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
    if (got < 0 && errno != ECONNRESET) fail("the launcher's line");
    if (got <= 0) throw std::runtime_error("the other end of the launcher's line is gone");
    return report::from_line(std::string(line, static_cast<std::size_t>(got)));
  }

 private:
  descriptor packets_;
};

}  // namespace rl_loop
