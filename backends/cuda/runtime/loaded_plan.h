#pragma once

#include <memory>
#include <mutex>
#include <span>

#include "backends/cuda/cudnn/object.h"
#include "backends/cuda/runtime/library_call.h"

namespace kiln::cuda {

/// A plan of cuDNN on a device.
class LoadedPlan final : public LibraryCall {
 public:
  /// `text`: the plan's, in the code that the record is of.
  /// Errors: failed_precondition where this host's cuDNN, driver or device cannot take the plan.
  static Expected<std::unique_ptr<LibraryCall>> load(std::shared_ptr<const DeviceContext> context, const Cudnn& cudnn,
                                                     const PlanRecord& record, std::span<const uint8_t> text);
  ~LoadedPlan() override;
  LoadedPlan(const LoadedPlan&) = delete;
  LoadedPlan& operator=(const LoadedPlan&) = delete;

  bool takes(void* const* buffers) const override;
  Status launch(Stream stream, void* const* buffers, void* workspace) const override;

 private:
  LoadedPlan(std::shared_ptr<const DeviceContext> context, const Cudnn& cudnn, const PlanRecord& record)
      : m_context(std::move(context)), m_cudnn(cudnn), m_record(record) {}

  const std::shared_ptr<const DeviceContext> m_context;
  const Cudnn& m_cudnn;
  const PlanRecord m_record;
  CudnnHandle m_handle = nullptr;
  std::unique_ptr<const CudnnObject> m_plan;
  mutable std::mutex m_mutex;  // of the handle's stream
};

}  // namespace kiln::cuda
