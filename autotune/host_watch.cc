#include "autotune/host_watch.h"

#include <stdlib.h>

#include "base/usable_processors.h"

namespace kiln {

HostWatch::HostWatch() {
  m_state.processors = static_cast<uint32_t>(usable_processors());
  if (getloadavg(&m_state.load, 1) != 1) m_state.load = 0;
}

HostState HostWatch::state() const {
  HostState state = m_state;
  const auto now = ProcessorTimes::read();
  if (!now || !m_before || now->all() <= m_before->all() || now->stolen < m_before->stolen) return state;
  state.stolen =
      static_cast<double>(now->stolen - m_before->stolen) / static_cast<double>(now->all() - m_before->all());
  return state;
}

}  // namespace kiln
