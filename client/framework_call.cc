#include "client/framework_call.h"

namespace kiln {

Status FrameworkCall::run(Client& client, void* queue, std::span<const void* const> inputs,
                          std::span<void* const> outputs, void* scratch) {
  KILN_ASSIGN_OR_RETURN(const auto stream, client.stream_over(queue));
  KILN_ASSIGN_OR_RETURN(const bool is_recorded, stream->is_recorded());
  const bool asserts = stream->device().asserts();
  if (is_recorded) {
    if (m_program->checks_indices() && !asserts) {
      return error(StatusCode::failed_precondition, "an index of a program that is recorded cannot be checked here");
    }
    client.keep(m_program);
    return m_program->launch(*stream, inputs, outputs, scratch, IndexErrors::asserted);
  }
  const bool is_first = !m_was_called.exchange(true, std::memory_order_relaxed);
  const bool waits =
      m_program->checks_indices() && (is_first || !asserts || client.config().device_index_errors == "report");
  const IndexErrors errors = waits ? IndexErrors::reported : IndexErrors::asserted;
  KILN_RETURN_IF_ERROR(m_program->launch(*stream, inputs, outputs, scratch, errors, client.config().device_recordings));
  return waits ? stream->finish() : Status();
}

}  // namespace kiln
