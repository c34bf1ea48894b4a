#include "backends/cuda/runtime/timed_event.h"

namespace kiln::cuda {

TimedEvent::TimedEvent(std::shared_ptr<const DeviceContext> context) : m_context(std::move(context)) {
  constexpr unsigned k_plain = 0;  // CU_EVENT_DEFAULT: with a time
  const ContextScope scope(m_context->driver(), m_context->handle());
  m_made = m_context->driver().status_of(m_context->api().create_event(&m_event, k_plain), "cuEventCreate");
}

TimedEvent::~TimedEvent() {
  if (!m_made.ok()) return;
  const ContextScope scope(m_context->driver(), m_context->handle());
  m_context->api().destroy_event(m_event);
}

Status TimedEvent::record(Stream stream) {
  KILN_RETURN_IF_ERROR(m_made);
  const ContextScope scope(m_context->driver(), m_context->handle());
  return m_context->driver().status_of(m_context->api().record_event(m_event, stream), "cuEventRecord");
}

Expected<double> TimedEvent::seconds_since(const TimedEvent& begin) const {
  float milliseconds = 0;
  const ContextScope scope(m_context->driver(), m_context->handle());
  KILN_RETURN_IF_ERROR(m_context->driver().status_of(
      m_context->api().milliseconds_between(&milliseconds, begin.m_event, m_event), "cuEventElapsedTime"));
  return 1e-3 * static_cast<double>(milliseconds);
}

}  // namespace kiln::cuda
