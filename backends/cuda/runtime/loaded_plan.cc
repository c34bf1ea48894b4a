#include "backends/cuda/runtime/loaded_plan.h"

#include <algorithm>
#include <string>
#include <vector>

#include "backends/cuda/cudnn/plan.h"

namespace kiln::cuda {

Expected<std::unique_ptr<LibraryCall>> LoadedPlan::load(std::shared_ptr<const DeviceContext> context,
                                                        const Cudnn& cudnn, const PlanRecord& record,
                                                        std::span<const uint8_t> text) {
  if (record.version != cudnn.version()) {
    return error(StatusCode::failed_precondition, "cudnn: a plan of version {}, this host has {}",
                 version_text(record.version), version_text(cudnn.version()));
  }
  const int driver = context->driver().version();
  const ContextScope scope(context->driver(), context->handle());
  KILN_RETURN_IF_ERROR(scope.status());
  std::unique_ptr<LoadedPlan> loaded(new LoadedPlan(std::move(context), cudnn, record));
  KILN_RETURN_IF_ERROR(cudnn.status_of(cudnn.api().create(&loaded->m_handle), "cudnnCreate"));
  KILN_ASSIGN_OR_RETURN(CudnnObject plan,
                        load_plan(cudnn, loaded->m_handle, std::string(text.begin(), text.end()), driver));
  loaded->m_plan = std::make_unique<const CudnnObject>(std::move(plan));
  return std::unique_ptr<LibraryCall>(std::move(loaded));
}

LoadedPlan::~LoadedPlan() {
  const ContextScope scope(m_context->driver(), m_context->handle());
  m_plan.reset();
  if (m_handle != nullptr) m_cudnn.api().destroy(m_handle);
}

bool LoadedPlan::takes(void* const* buffers) const {
  return std::ranges::all_of(m_record.tensors, [&](const PlanTensor& tensor) {
    return tensor.place != PlanTensor::Place::buffer || is_aligned(buffers[tensor.buffer]);
  });
}

Status LoadedPlan::launch(Stream stream, void* const* buffers, void* workspace) const {
  std::vector<int64_t> numbers;
  std::vector<const void*> pointers;
  for (const PlanTensor& tensor : m_record.tensors) {
    const bool is_buffer = tensor.place == PlanTensor::Place::buffer;
    const auto* memory = static_cast<const uint8_t*>(is_buffer ? buffers[tensor.buffer] : workspace);
    numbers.push_back(tensor.number);
    pointers.push_back(tensor.place == PlanTensor::Place::number ? static_cast<const void*>(&tensor.value)
                                                                 : memory + tensor.offset_bytes);
  }
  CudnnObject pack(m_cudnn, CudnnKind::variant_pack);
  pack.set(CudnnAttribute::pack_numbers, CudnnValue::int64, std::span<const int64_t>(numbers));
  pack.set(CudnnAttribute::pack_pointers, CudnnValue::pointer, std::span<const void* const>(pointers));
  pack.set(CudnnAttribute::pack_workspace, CudnnValue::pointer, workspace);
  KILN_RETURN_IF_ERROR(pack.finalise("what a plan is launched with"));
  const std::scoped_lock lock(m_mutex);
  KILN_RETURN_IF_ERROR(m_cudnn.status_of(m_cudnn.api().set_stream(m_handle, stream), "cudnnSetStream"));
  return m_cudnn.status_of(m_cudnn.api().execute(m_handle, m_plan->get(), pack.get()), "launching a plan");
}

}  // namespace kiln::cuda
