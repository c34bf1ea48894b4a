#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kiln::testing {

/// Keeps a processor busy, one of those that its maker may run on.
class Neighbour {
 public:
  Neighbour() : m_child(fork()) {
    if (m_child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (volatile bool forever = true; m_child == 0 && forever;) {
    }
  }
  ~Neighbour() {
    kill(m_child, SIGKILL);
    waitpid(m_child, nullptr, 0);
  }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

 private:
  pid_t m_child;
};

}  // namespace kiln::testing
