#pragma once
/// \file other_user.hpp
/// For test cases that need a process of another user: root can make one. An ordinary user's test case runs
/// again in a user namespace, where it is root and has other users; where the kernel or the missing program
/// `newuidmap` forbids that, it is skipped with the reason.

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/child_process.hpp"

namespace other_users {

constexpr uid_t nobody = 65534;

[[nodiscard]] inline bool become(uid_t user) {
  return ::setresgid(nobody, nobody, nobody) == 0 && ::setresuid(user, user, user) == 0 &&
         ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;  // a change of user has taken it away
}

/// Runs the body in a child, which has become another user if one is named; its result is the exit status.
[[nodiscard]] inline int as_user(std::optional<uid_t> user, const std::function<int()>& body) {
  processes::child_process child{[&] {
    if (user && !become(*user)) return 90;
    return body();
  }};
  std::string said;
  try {
    for (;;) said += child.output_line(std::chrono::minutes{1}) + "\n";
  } catch (const std::runtime_error&) {  // it has ended
  }
  std::cout << said;
  return child.wait();
}

struct ended_program {
  int status;
  std::string said;  ///< its standard output
};
[[nodiscard]] inline ended_program run_to_its_end(const std::vector<std::string>& command) {
  processes::child_process program{command};
  std::string said;
  try {
    for (;;) said += program.output_line(std::chrono::minutes{2}) + "\n";
  } catch (const std::runtime_error&) {  // it has ended
  }
  return {program.wait(), said};
}

/// True: this process may become another user, and the test case goes on. False: it has run in a user
/// namespace, with this result, or is skipped with a line that names `test`.
[[nodiscard]] inline bool may_become(const std::string& test) {
  if (::geteuid() == 0) return true;
  const std::string name = doctest::getContextOptions()->currentTest->m_name;
  const std::vector<std::string> namespaced{"/usr/bin/unshare", "--map-root-user", "--map-auto"};
  std::vector<std::string> probe = namespaced;
  probe.push_back("/bin/true");
  if (run_to_its_end(probe).status != 0) {
    std::cout << "SKIPPED: " << test << ": " << name << ": only root may become another user, and unshare"
              << " --map-auto makes no user namespace here (Debian: uidmap, and a line in /etc/subuid)\n";
    return false;
  }
  std::array<char, 4096> self{};
  REQUIRE(::readlink("/proc/self/exe", self.data(), self.size() - 1) > 0);
  std::string filter = name;
  std::ranges::replace(filter, ',', '?');  // doctest separates its filters by commas
  std::vector<std::string> again = namespaced;
  again.insert(again.end(), {self.data(), "--test-case=" + filter, "--no-path-filenames"});
  const ended_program here = run_to_its_end(again);
  CHECK_MESSAGE(here.status == 0, here.said);
  CHECK_MESSAGE(here.said.find("test cases: 1 | 1 passed") != std::string::npos, here.said);
  return false;
}

}  // namespace other_users
