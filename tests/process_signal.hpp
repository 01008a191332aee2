#pragma once
/// \file process_signal.hpp
/// Signals to child processes, for tests.

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>

/// `child` is one of this process. After SIGSTOP it has stopped when this returns: a process stops only when
/// one of its threads has taken the signal in, and the others run until then.
inline void signal_process(pid_t child, int number) {
  ::kill(child, number);
  int status = 0;
  if (number == SIGSTOP) ::waitpid(child, &status, WUNTRACED);
}
