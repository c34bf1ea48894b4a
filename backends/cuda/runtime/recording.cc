#include "backends/cuda/runtime/recording.h"

namespace kiln::cuda {
namespace {

// CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: what cannot be captured is an error for this thread, others are not disturbed.
constexpr int k_thread_local_capture = 1;

class GraphRecording final : public Recording {
 public:
  GraphRecording(std::shared_ptr<const DeviceContext> context, ExecutableGraph graph)
      : m_context(std::move(context)), m_graph(graph) {}
  ~GraphRecording() override {
    const ContextScope scope(m_context->driver(), m_context->handle());
    m_context->api().destroy_executable_graph(m_graph);
  }

  Status replay(Queue& queue) override {
    const ContextScope scope(m_context->driver(), m_context->handle());
    KILN_RETURN_IF_ERROR(scope.status());
    return m_context->driver().status_of(m_context->api().launch_graph(m_graph, stream_of(queue)), "cuGraphLaunch");
  }

 private:
  const std::shared_ptr<const DeviceContext> m_context;
  const ExecutableGraph m_graph;
};

}  // namespace

Expected<std::unique_ptr<Recording>> record_graph(std::shared_ptr<const DeviceContext> context, Queue& queue,
                                                  const std::function<Status(Queue&)>& put) {
  const Driver& driver = context->driver();
  const DriverFunctions& api = context->api();
  const ContextScope scope(driver, context->handle());
  KILN_RETURN_IF_ERROR(scope.status());
  const Stream stream = stream_of(queue);
  KILN_RETURN_IF_ERROR(driver.status_of(api.begin_capture(stream, k_thread_local_capture), "cuStreamBeginCapture"));
  Status status = put(queue);
  Graph captured = nullptr;
  const Result ended = api.end_capture(stream, &captured);  // whatever came of it
  if (status.ok()) status = driver.status_of(ended, "cuStreamEndCapture");
  ExecutableGraph graph = nullptr;
  if (status.ok()) status = driver.status_of(api.instantiate(&graph, captured, 0), "cuGraphInstantiateWithFlags");
  if (captured != nullptr) api.destroy_graph(captured);
  KILN_RETURN_IF_ERROR(status);
  return std::unique_ptr<Recording>(std::make_unique<GraphRecording>(std::move(context), graph));
}

}  // namespace kiln::cuda
