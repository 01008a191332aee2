// transport_bench: one-sided reads over any transport of TensorHub, measured. --help says how it is used.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "results.hpp"
#include "session.hpp"

namespace transport_bench {

namespace {

enum exit_status : int { done = 0, failed = 1, wrong_options = 2, wrong_bytes = 3, not_noticed = 4 };

channel::deadline in_seconds(double seconds) {
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                std::chrono::duration<double>(seconds));
}

void complain(const std::string& sentence) {
  std::fprintf(stderr, "transport_bench: %s\n", sentence.c_str());
}

/// The source in a process of its own; gone with this object. Make it before there are threads or libraries
/// that do not survive a fork.
class forked_source {
 public:
  forked_source(control_listener& listener, const settings& how) {
    const pid_t parent = ::getpid();
    process_ = ::fork();
    if (process_ < 0) throw std::runtime_error("no process for the source can be started");
    if (process_ > 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) std::_Exit(failed);
    int status = done;
    try {
      channel control = listener.accept(in_seconds(how.timeout_seconds));
      serve_reader(control, how);
    } catch (const reader_gave_up&) {  // says it itself
      status = failed;
    } catch (const std::exception& e) {
      complain(std::string{"source: "} + e.what());
      status = failed;
    }
    std::_Exit(status);
  }
  ~forked_source() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  forked_source(const forked_source&) = delete;
  forked_source& operator=(const forked_source&) = delete;

 private:
  pid_t process_ = -1;
};

int listen_for_readers(const settings& how) {
  control_listener listener{how.where};
  std::printf("listening at %s\n", listener.text().c_str());
  std::fflush(stdout);
  for (;;) {
    int status = done;
    try {
      channel control = listener.accept(in_seconds(how.forever ? 1e8 : how.wait_seconds));
      serve_reader(control, how);
      std::printf("%s is done\n", control.peer().c_str());
      std::fflush(stdout);
    } catch (const std::exception& e) {
      complain(e.what());
      status = failed;
    }
    if (!how.forever) return status;
  }
}

int report(const settings& how, const results& found) {
  print_tables(how, found);
  if (!how.json_path.empty()) write_json(how, found);
  if (found.validation.wrong) return wrong_bytes;
  if (how.corrupt == corruption::none) return done;
  complain("a byte was flipped on purpose and the validation did not notice it");
  return not_noticed;
}

int measure(const settings& how) {
  if (how.part == role::connect) {
    channel control = connect_control(how.where, in_seconds(how.timeout_seconds));
    return report(how, run_sweep(control, how));
  }
  control_listener listener{{"127.0.0.1", 0}};
  const forked_source source{listener, how};
  channel control = connect_control({"127.0.0.1", listener.port()}, in_seconds(how.timeout_seconds));
  return report(how, run_sweep(control, how));
}

int run(const std::vector<std::string>& words) {
  ::signal(SIGPIPE, SIG_IGN);
  try {
    const command_line given = parse_command_line(words);
    if (given.what != command::run) {
      std::fputs((given.what == command::help ? help_text() : list_text()).c_str(), stdout);
      return done;
    }
    return given.how.part == role::listen ? listen_for_readers(given.how) : measure(given.how);
  } catch (const usage_error& e) {
    complain(e.what());
    return wrong_options;
  } catch (const std::exception& e) {
    complain(e.what());
    return failed;
  }
}

}  // namespace

}  // namespace transport_bench

int main(int argc, char** argv) {
  return transport_bench::run(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
}
