// What devices load, under arbitrary bytes and with a few bytes of good code changed: what is taken names nothing outside
// of it.
#include <cstdlib>
#include <vector>

#include "backends/cuda/launch_record.h"
#include "backends/device_code.h"
#include "backends/level_zero/spirv_check.h"
#include "backends/level_zero/target.h"
#include "base/limits.h"

namespace kiln {
namespace {

std::vector<uint8_t> good_record() {
  cuda::LaunchRecord record{.buffers = 3, .workspace_parts = {4096}, .least_driver = 13000};
  cuda::KernelRecord fast{.entry = "fast", .blocks = 132, .is_persistent = true, .threads = 384, .cluster = 2};
  fast.aligned_buffers = {0, 1};
  fast.maps.resize(2);
  record.kernels = {
      {.entry = "before", .threads = 256, .is_followed = true}, fast, {.entry = "any", .blocks = 7, .threads = 256}};
  return cuda::pack(record, {{3}, std::vector<uint8_t>(100, 1), std::vector<uint8_t>(50, 2)});
}

std::vector<uint8_t> good_device_code() {
  const std::vector<uint32_t> words{
      0x07230203,    0x00010200, 0, 9,          0,  // a header, then the entry point kiln_kernel
      6u << 16 | 15, 6,          1, 0x6e6c696b, 0x72656b5f, 0x006c656e};
  const auto* first = reinterpret_cast<const uint8_t*>(words.data());
  return pack_device_code({"7", {1, 2, 3}, {first, first + words.size() * 4}, level_zero::encode({5, 64, 3})});
}

void read_all(std::span<const uint8_t> bytes) {
  volatile uint64_t sum = 0;
  for (const uint8_t byte : bytes) sum = sum + byte;
}

void require(bool holds) {
  if (!holds) std::abort();
}

void look_at(std::span<const uint8_t> code) {
  if (const auto record = cuda::unpack(code); record.ok()) {
    require(!record->kernels.back().is_followed);
    require(cuda::workspace_bytes(*record) <= limits::k_launch_workspace_bytes);
    const size_t buffers = record->buffers + record->workspace_parts.size();
    for (const cuda::KernelRecord& kernel : record->kernels) {
      read_all(code.subspan(kernel.cubin_offset, kernel.cubin_bytes));
      require(cuda::argument_bytes(*record, kernel) >= (buffers + 1) * sizeof(void*));
      for (const uint32_t buffer : kernel.aligned_buffers) require(buffer < buffers);
      for (const cuda::TensorMapRecord& map : kernel.maps) require(map.buffer < buffers);
    }
  }
  if (const auto view = unpack_device_code(code); view.ok()) {
    for (const auto part : {view->native, view->portable, view->launch}) read_all(part);
    (void)level_zero::check_spirv_form(view->portable);
    (void)level_zero::decode_launch_form(view->launch);
  }
}

}  // namespace
}  // namespace kiln

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kiln::look_at({data, size});
  static const std::vector<uint8_t> good[] = {kiln::good_record(), kiln::good_device_code()};
  static const bool is_good = kiln::cuda::unpack(good[0]).ok() &&
                              kiln::level_zero::check_spirv_form(kiln::unpack_device_code(good[1])->portable).ok();
  kiln::require(is_good);
  for (std::vector<uint8_t> code : good) {
    for (size_t i = 0; i + 2 < size; i += 3) code[(data[i] | data[i + 1] << 8) % code.size()] = data[i + 2];
    kiln::look_at(code);
    if (size > 0) kiln::look_at(std::span(code).first(code.size() * data[0] / 256));
  }
  return 0;
}
