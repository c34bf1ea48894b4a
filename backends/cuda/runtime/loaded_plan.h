#pragma once

#include <memory>
#include <mutex>
#include <span>

#include "backends/cuda/cudnn/object.h"
#include "backends/cuda/launch_record.h"
#include "backends/cuda/runtime/device.h"

namespace kiln::cuda {

/// A plan of cuDNN on a device.
///
/// Threading: any thread at once; launches come one after another.
/// Errors: of load, failed_precondition where this host's cuDNN, driver or device cannot take the plan, not_found without cuDNN.
class LoadedPlan {
 public:
  /// `text`: the plan's, in the code that the record is of.
  static Expected<std::unique_ptr<LoadedPlan>> load(std::shared_ptr<const DeviceContext> context, const Cudnn& cudnn,
                                                    const PlanRecord& record, std::span<const uint8_t> text);
  ~LoadedPlan();
  LoadedPlan(const LoadedPlan&) = delete;
  LoadedPlan& operator=(const LoadedPlan&) = delete;

  /// Whether it takes such addresses.
  bool takes(void* const* buffers) const;
  Status launch(Stream stream, void* const* buffers, void* workspace) const;

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
