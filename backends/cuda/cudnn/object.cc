#include "backends/cuda/cudnn/object.h"

#include <fmt/format.h>

#include <algorithm>

namespace kiln::cuda {

CudnnObject::CudnnObject(const Cudnn& cudnn, CudnnKind kind) : m_cudnn(&cudnn) {
  const CudnnResult result = cudnn.api().create_descriptor(static_cast<int>(kind), &m_descriptor);
  if (result != 0) m_descriptor = nullptr;
  m_status = cudnn.status_of(result, fmt::format("making a descriptor of kind {}", static_cast<int>(kind)));
}

CudnnObject::~CudnnObject() {
  if (m_descriptor != nullptr) m_cudnn->api().destroy_descriptor(m_descriptor);
}

CudnnObject& CudnnObject::operator=(CudnnObject&& other) noexcept {
  std::swap(m_cudnn, other.m_cudnn);
  std::swap(m_descriptor, other.m_descriptor);
  std::swap(m_status, other.m_status);
  return *this;
}

void CudnnObject::set(CudnnAttribute attribute, CudnnValue type, int64_t count, const void* values) {
  if (!m_status.ok()) return;
  const CudnnResult result =
      m_cudnn->api().set_attribute(m_descriptor, static_cast<int>(attribute), static_cast<int>(type), count, values);
  if (result != 0) m_status = m_cudnn->status_of(result, fmt::format("attribute {}", static_cast<int>(attribute)));
}

Status CudnnObject::finalise(std::string_view what) {
  if (m_status.ok()) m_status = m_cudnn->status_of(m_cudnn->api().finalise(m_descriptor), "finalising");
  return m_status.with_context(what);
}

Expected<int64_t> CudnnObject::number(CudnnAttribute attribute) const {
  int64_t value = 0, count = 0;
  const CudnnResult result = m_cudnn->api().get_attribute(m_descriptor, static_cast<int>(attribute),
                                                          static_cast<int>(CudnnValue::int64), 1, &count, &value);
  KILN_RETURN_IF_ERROR(m_cudnn->status_of(result, fmt::format("attribute {}", static_cast<int>(attribute))));
  return value;
}

Expected<std::string> CudnnObject::text(CudnnAttribute attribute) const {
  const auto get = [&](int64_t bytes, int64_t& count, void* to) {
    const CudnnResult result = m_cudnn->api().get_attribute(m_descriptor, static_cast<int>(attribute),
                                                            static_cast<int>(CudnnValue::text), bytes, &count, to);
    return m_cudnn->status_of(result, fmt::format("text {}", static_cast<int>(attribute)));
  };
  int64_t bytes = 0;
  KILN_RETURN_IF_ERROR(get(0, bytes, nullptr));
  std::string text(static_cast<size_t>(bytes), '\0');
  KILN_RETURN_IF_ERROR(get(bytes, bytes, text.data()));
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

std::vector<int> CudnnObject::numbers(CudnnAttribute attribute, CudnnValue type, size_t most) const {
  std::vector<int> values(most);
  int64_t count = 0;
  const CudnnResult result =
      m_cudnn->api().get_attribute(m_descriptor, static_cast<int>(attribute), static_cast<int>(type),
                                   static_cast<int64_t>(most), &count, values.data());
  values.resize(result == 0 ? std::min(static_cast<size_t>(count), most) : 0);
  return values;
}

Expected<size_t> CudnnObject::read_into(CudnnAttribute attribute, std::span<CudnnObject> objects) const {
  std::vector<CudnnDescriptor> descriptors;
  for (const CudnnObject& object : objects) descriptors.push_back(object.get());
  int64_t count = 0;
  const CudnnResult result = m_cudnn->api().get_attribute(
      m_descriptor, static_cast<int>(attribute), static_cast<int>(CudnnValue::descriptor),
      static_cast<int64_t>(descriptors.size()), &count, static_cast<void*>(descriptors.data()));
  KILN_RETURN_IF_ERROR(m_cudnn->status_of(result, fmt::format("attribute {}", static_cast<int>(attribute))));
  return std::min(static_cast<size_t>(count), objects.size());
}

}  // namespace kiln::cuda
