#include "backends/cuda/cudnn/plan.h"

namespace kiln::cuda {
namespace {

template <typename On>
Expected<CudnnObject> load(const Cudnn& cudnn, const std::string& text, On set_where) {
  CudnnObject plan(cudnn, CudnnKind::plan);
  plan.set_text(CudnnAttribute::plan_text, text);
  set_where(plan);
  KILN_RETURN_IF_ERROR(plan.finalise("a stored plan"));
  return plan;
}

}  // namespace

Expected<CudnnObject> load_plan(const Cudnn& cudnn, CudnnHandle handle, const std::string& text, int driver) {
  const auto on_handle = [&](CudnnObject& plan) { plan.set(CudnnAttribute::plan_handle, CudnnValue::handle, handle); };
  auto plan = load(cudnn, text, on_handle);
  if (plan.ok() || plan.status().code() != StatusCode::failed_precondition) return plan;
  const std::string renamed = with_driver(text, driver);
  return renamed.empty() ? std::move(plan) : load(cudnn, renamed, on_handle);
}

Expected<CudnnObject> load_plan(const Cudnn& cudnn, const CudnnObject& device, const std::string& text) {
  return load(cudnn, text,
              [&](CudnnObject& plan) { plan.set(CudnnAttribute::plan_device, CudnnValue::descriptor, device.get()); });
}

Expected<CudnnObject> described_device(const Cudnn& cudnn, std::string_view text) {
  CudnnObject device(cudnn, CudnnKind::device);
  device.set_text(CudnnAttribute::device_text, text);
  KILN_RETURN_IF_ERROR(device.finalise("a device's description"));
  return device;
}

std::string with_driver(const std::string& plan, int driver) {
  constexpr std::string_view k_name = "\"driverVer\":";
  const size_t name = plan.find(k_name);
  if (name == std::string::npos) return "";
  const size_t begin = plan.find_first_not_of(' ', name + k_name.size());
  if (begin == std::string::npos) return "";
  const size_t end = plan.find_first_not_of("0123456789", begin);
  return end == std::string::npos ? "" : plan.substr(0, begin) + std::to_string(driver) + plan.substr(end);
}

}  // namespace kiln::cuda
