#pragma once
// A real etcd on the loopback interface, for the tests of the component etcd.

#include <arpa/inet.h>
#include <curl/curl.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <tensorhub/detail/unique_fd.hpp>
#include <tensorhub/etcd.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "support/child_process.hpp"

namespace system_tests {

/// A port of 127.0.0.1 that nobody else gets while this process lives: a socket stays bound to it that does
/// not listen, and a server that sets SO_REUSEADDR (etcd, ZeroMQ) may still listen there, the next
/// free_port() of any process not. It is below the range that the kernel takes the ports of outgoing
/// connections from.
[[nodiscard]] inline std::uint16_t free_port() {
  static std::mt19937 random{std::random_device{}()};
  static std::vector<tensorhub::detail::unique_fd> kept;
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const auto port = static_cast<std::uint16_t>(15'000 + random() % 17'000);
    tensorhub::detail::unique_fd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(port);
    if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) continue;
    const int yes = 1;  // only now: the bind above must fail where another such socket is
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    kept.push_back(std::move(socket));
    return port;
  }
  throw std::runtime_error("no free port");
}

using curl_request = std::unique_ptr<CURL, void (*)(CURL*)>;

/// A request over HTTP, not sent yet. Borrows `answer`, to which its answer is appended.
[[nodiscard]] inline curl_request request_to(const std::string& url, std::string& answer) {
  curl_request curl{curl_easy_init(), &curl_easy_cleanup};
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_PROXY, "");
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT_MS, 20'000L);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &answer);
  curl_easy_setopt(
      curl.get(), CURLOPT_WRITEFUNCTION,
      +[](char* bytes, std::size_t size, std::size_t count, void* to) -> std::size_t {
        static_cast<std::string*>(to)->append(bytes, size * count);
        return size * count;
      });
  return curl;
}

/// What is there, over HTTP; empty if nobody answers.
[[nodiscard]] inline std::string got_from(const std::string& url) {
  std::string answer;
  const curl_request curl = request_to(url, answer);
  return curl_easy_perform(curl.get()) == CURLE_OK ? answer : std::string{};
}

/// Path of the program; empty, with a line that says so, if this machine has none.
[[nodiscard]] inline std::string etcd_program() {
  for (const std::string folder : {"/usr/bin/", "/usr/local/bin/"}) {
    if (::access((folder + "etcd").c_str(), X_OK) == 0) return folder + "etcd";
  }
  std::cout << "SKIPPED: system.etcd: there is no etcd program here (Debian: etcd-server)" << std::endl;
  return {};
}

/// One member, with its data in a temporary folder. It can be killed and started again.
class etcd_member {
 public:
  explicit etcd_member(const std::string& scheme = "http") {
    std::string name =
        (std::filesystem::temp_directory_path() / "tensorhub-etcd-").string() + std::string(6, 'X');
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = name;
    url_ = scheme + "://127.0.0.1:" + std::to_string(free_port());
    peer_url_ = "http://127.0.0.1:" + std::to_string(free_port());
  }
  ~etcd_member() {
    kill();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  etcd_member(const etcd_member&) = delete;
  etcd_member& operator=(const etcd_member&) = delete;

  [[nodiscard]] const std::string& url() const { return url_; }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

  /// With `more` options; returns when it answers to whom `how` says.
  void start(const std::vector<std::string>& more = {}, tensorhub::etcd_options how = {}) {
    std::vector<std::string> command{etcd_program(),
                                     "--data-dir=" + (folder_ / "data").string(),
                                     "--listen-client-urls=" + url_,
                                     "--advertise-client-urls=" + url_,
                                     "--listen-peer-urls=" + peer_url_,
                                     "--initial-advertise-peer-urls=" + peer_url_,
                                     "--initial-cluster=default=" + peer_url_};
    command.insert(command.end(), more.begin(), more.end());
    const std::string log = (folder_ / "log").string();
    program_ = std::make_unique<processes::child_process>([&] {
      const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      ::dup2(file, STDERR_FILENO);
      ::dup2(file, STDOUT_FILENO);
      std::vector<char*> words;
      for (const auto& word : command) words.push_back(const_cast<char*>(word.c_str()));
      words.push_back(nullptr);
      ::execv(words.front(), words.data());
      return 127;
    });
    how.endpoints = url_;
    tensorhub::etcd_client client{how};
    const tensorhub::etcd_request look{1, {}, tensorhub::etcd_requests::look{}};
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{60};
    for (;;) {
      const auto answer = client.ask("is anybody there", look, std::chrono::milliseconds{1000});
      if (std::holds_alternative<tensorhub::etcd_answers::situation>(answer)) return;
      if (std::chrono::steady_clock::now() > until) {
        std::ifstream file{log};
        throw std::runtime_error(
            "etcd does not start: " + std::string{std::istreambuf_iterator<char>{file}, {}} + "; " +
            std::get<tensorhub::etcd_answers::no_answer>(answer).why);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{20});
    }
  }
  void kill() { program_.reset(); }

  /// One request of an administrator, and its answer; throws unless etcd has carried it out. `token`: once
  /// passwords are asked for.
  std::string order(const std::string& path, const std::string& body, const std::string& token = {}) const {
    std::string answer;
    const curl_request curl = request_to(url_ + path, answer);
    const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers{
        curl_slist_append(nullptr, ("Authorization: " + token).c_str()), &curl_slist_free_all};
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, body.c_str());
    if (!token.empty()) curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
    long status = 0;
    const CURLcode done = curl_easy_perform(curl.get());
    curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
    if (done != CURLE_OK || status != 200) throw std::runtime_error(path + ": " + answer);
    return answer;
  }

 private:
  std::filesystem::path folder_;
  std::string url_;
  std::string peer_url_;
  std::unique_ptr<processes::child_process> program_;
};

}  // namespace system_tests
