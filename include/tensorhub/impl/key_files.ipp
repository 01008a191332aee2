#pragma once
/// \file key_files.ipp
/// Definitions of key_files.hpp.

#include "tensorhub/key_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace key_files_detail {

[[noreturn]] inline void fail(errc code, const std::string& file, const std::string& why) {
  throw error(code, "'" + file + "' " + why);
}

/// `secret`: refuses a file that users other than its owner can read.
[[nodiscard]] inline std::string read(const std::string& file, std::size_t limit_bytes, bool secret) {
  const detail::unique_fd opened{::open(file.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!opened) fail(errc::system_failed, file, std::string{"cannot be opened: "} + std::strerror(errno));
  struct stat about {};
  if (::fstat(opened.get(), &about) != 0 || !S_ISREG(about.st_mode))
    fail(errc::system_failed, file, "is no regular file");
  if (secret && (about.st_mode & 077u) != 0)
    fail(errc::invalid_argument, file, "can be read by others: keys in it are no secret; chmod 600 it");
  std::string text;
  std::array<char, 4096> piece{};
  for (;;) {
    const auto taken = ::read(opened.get(), piece.data(), piece.size());
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0) fail(errc::system_failed, file, std::string{"cannot be read: "} + std::strerror(errno));
    if (taken == 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(taken));
    if (text.size() > limit_bytes)
      fail(errc::limit_exceeded, file, "has more than " + std::to_string(limit_bytes) + " bytes");
  }
}

inline void write_new(const std::string& file, std::string_view text, mode_t mode) {
  const detail::unique_fd opened{
      ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode)};
  if (!opened && errno == EEXIST)
    fail(errc::system_failed, file, "is there already, and keys are not overwritten: move it away first");
  if (!opened) fail(errc::system_failed, file, std::string{"cannot be made: "} + std::strerror(errno));
  while (!text.empty()) {
    const auto written = ::write(opened.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      fail(errc::system_failed, file, std::string{"cannot be written: "} + std::strerror(errno));
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

/// Removes the first line from `text` and returns it without surrounding blanks.
[[nodiscard]] inline std::string_view take_line(std::string_view& text) noexcept {
  const std::size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  while (!line.empty() && (line.back() == ' ' || line.back() == '\r' || line.back() == '\t'))
    line.remove_suffix(1);
  while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
  return line;
}
[[nodiscard]] inline bool says_nothing(std::string_view line) noexcept {
  return line.empty() || line == "#" || line.starts_with("# ");
}

}  // namespace key_files_detail

TENSORHUB_DECL void write_curve_keys(const std::string& folder, const std::string& name,
                                     const curve_key_pair& keys) {
  security_detail::check_pair(keys, "the keys to write");
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    key_files_detail::fail(errc::system_failed, folder,
                           std::string{"cannot be made: "} + std::strerror(errno));
  const std::string path = folder.ends_with('/') ? folder + name : folder + "/" + name;
  key_files_detail::write_new(path + ".secret",
                              "public " + keys.public_key + "\nsecret " + keys.secret_key + "\n", 0600);
  key_files_detail::write_new(path + ".public", keys.public_key + "\n", 0644);
}

TENSORHUB_DECL curve_key_pair read_curve_keys(const std::string& file) {
  const std::string text = key_files_detail::read(file, limits::key_file_bytes, true);
  curve_key_pair keys;
  for (std::string_view left = text; !left.empty();) {
    const std::string_view line = key_files_detail::take_line(left);
    if (line.starts_with("public "))
      keys.public_key = line.substr(7);
    else if (line.starts_with("secret "))
      keys.secret_key = line.substr(7);
    else if (!key_files_detail::says_nothing(line))
      key_files_detail::fail(errc::invalid_argument, file,
                             "is no file of a key pair (one ends in .secret): it has other lines than "
                             "'public <key>' and 'secret <key>'");
  }
  security_detail::check_pair(keys, "the keys in '" + file + "'");
  return keys;
}

TENSORHUB_DECL std::string read_public_key(const std::string& file) {
  const std::string text = key_files_detail::read(file, limits::key_file_bytes, false);
  for (std::string_view left = text; !left.empty();) {
    std::string line{key_files_detail::take_line(left)};
    if (is_curve_key(line)) return line;
    if (!key_files_detail::says_nothing(line)) break;
  }
  key_files_detail::fail(errc::invalid_argument, file,
                         "has no public key in its first line (such a file ends in .public)");
}

TENSORHUB_DECL client_allow_list read_allow_list(const std::string& file) {
  const std::string text = key_files_detail::read(file, limits::allow_list_bytes, false);
  client_allow_list out;
  std::size_t number = 0;
  for (std::string_view left = text; !left.empty();) {
    const std::string_view line = key_files_detail::take_line(left);
    ++number;
    if (key_files_detail::says_nothing(line)) continue;
    std::string key{line.substr(0, line.find_first_of(" \t"))};
    std::string_view name = line.substr(key.size());
    while (!name.empty() && (name.front() == ' ' || name.front() == '\t')) name.remove_prefix(1);
    if (!is_curve_key(key) || name.size() > limits::client_name_bytes) {
      key_files_detail::fail(errc::invalid_argument, file,
                             "has in line " + std::to_string(number) +
                                 " no public key of 40 characters with a name of at most 128 bytes");
    }
    out.insert_or_assign(std::move(key), std::string{name});
  }
  return out;
}

TENSORHUB_DECL void write_allow_list(const std::string& file, const client_allow_list& allowed) {
  std::string text = "# public key, name\n";
  for (const auto& [key, name] : allowed) {
    if (!is_curve_key(key) || name.find('\n') != std::string::npos || name.size() > limits::client_name_bytes)
      key_files_detail::fail(
          errc::invalid_argument, file,
          "is not written: the entry '" + name.substr(0, 64) + "' has no public key, or a name of two lines");
    text.append(key).append(name.empty() ? "" : " ").append(name).append("\n");
  }
  key_files_detail::write_new(file, text, 0644);
}

}  // namespace tensorhub::inline TENSORHUB_MODE
