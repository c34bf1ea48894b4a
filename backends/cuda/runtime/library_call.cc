#include "backends/cuda/runtime/library_call.h"

#include "backends/cuda/runtime/loaded_plan.h"
#include "backends/cuda/runtime/loaded_product.h"

namespace kiln::cuda {

Expected<std::unique_ptr<LibraryCall>> load_library_call(std::shared_ptr<const DeviceContext> context,
                                                         const LaunchRecord& record, std::span<const uint8_t> code) {
  for (const PlanRecord& plan : record.plans) {
    KILN_RETURN_IF_ERROR(Cudnn::of_process().status());
    return LoadedPlan::load(std::move(context), *Cudnn::of_process(), plan,
                            code.subspan(plan.text_offset, plan.text_bytes));
  }
  for (const ProductRecord& product : record.products) {
    KILN_RETURN_IF_ERROR(Cublaslt::of_process().status());
    return LoadedProduct::load(std::move(context), *Cublaslt::of_process(), product);
  }
  return std::unique_ptr<LibraryCall>();
}

}  // namespace kiln::cuda
