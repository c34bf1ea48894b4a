// libcudnn_graph.so.9 whose convolutions and gradients of filters are loops on the host, put on the emulated driver's streams; other
// graphs it does not support. It plans without a device, as the real one does. Of its engines two are admissible for f32: one
// sums one by one, the other every second element apart, in the workspace. Another one rounds f32 to TF32 and says so, and one that
// calls itself nondeterministic gives NaN. Stricter than the real one, it refuses tensors that lie outside of the device's
// memory or off 16 bytes, attributes that it does not know or of another type, and descriptors that do not fit each other.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/stand_ins/cuda/cudnn_work.h"
#include "tests/stand_ins/cuda/driver_beside.h"

#define KILN_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace kiln::stand_in;

// cudnnStatus_t.
enum Result : int {
  k_success = 0,
  k_not_initialised = 1001,
  k_bad_parameter = 2000,
  k_not_supported = 3000,
  k_mismatch = 3007
};

// cudnnBackendDescriptorType_t.
enum Kind : int {
  k_pointwise = 0,
  k_convolution = 1,
  k_engine = 2,
  k_choice = 3,
  k_heuristic = 4,
  k_plan = 5,
  k_forward = 10,
  k_filter_gradient = 11,
  k_pointwise_operation = 13,
  k_graph = 15,
  k_pack = 16,
  k_tensor = 17,
  k_device = 38,
};

// cudnnBackendAttributeType_t.
enum Type : int {
  k_data_type = 1,
  k_boolean = 2,
  k_int64 = 3,
  k_f32 = 4,
  k_pointer = 6,
  k_descriptor = 15,
  k_text = 24
};

size_t bytes_of(int type) {
  switch (type) {
    case k_boolean:
    case k_text:
      return 1;
    case 0:
    case k_int64:
    case k_pointer:
    case k_descriptor:
      return 8;
    default:
      return 4;
  }
}

struct Descriptor {
  struct Attribute {
    int type = 0;
    int64_t count = 0;
    std::vector<uint8_t> bytes;
  };
  int kind = 0;
  bool is_final = false;
  std::map<int, Attribute> attributes;
  std::optional<Work> work;  // of graphs, choices, engines and plans
  std::string text;          // of plans

  template <typename T>
  std::vector<T> all(int attribute) const {
    const auto found = attributes.find(attribute);
    if (found == attributes.end()) return {};
    std::vector<T> values(static_cast<size_t>(found->second.count));
    std::memcpy(static_cast<void*>(values.data()), found->second.bytes.data(), found->second.bytes.size());
    return values;
  }
  template <typename T>
  T one(int attribute) const {
    const std::vector<T> values = all<T>(attribute);
    return values.size() == 1 ? values.front() : T{};
  }
  const Descriptor* of(int attribute, int wanted_kind) const {
    const auto* found = one<const Descriptor*>(attribute);
    return found != nullptr && found->is_final && found->kind == wanted_kind ? found : nullptr;
  }
};

thread_local std::string t_why;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

int refuse(int result, std::string why) {
  t_why = std::move(why);
  return result;
}

void run_launch(void* pointer) {
  const std::unique_ptr<Launch> launch(static_cast<Launch*>(pointer));
  launch->run();
}

constexpr std::array<int64_t, 4> k_engines{k_atomic, k_tensor_cores, k_serial, k_parted};

// --- descriptors -------------------------------------------------------------------------------------------------------------

std::optional<Tensor> tensor_of(const Descriptor& operation, int attribute) {
  const Descriptor* found = operation.of(attribute, k_tensor);
  if (found == nullptr) return std::nullopt;
  return Tensor{found->one<int64_t>(906), found->one<int>(901), found->one<uint8_t>(907), found->all<int64_t>(902),
                found->all<int64_t>(903)};
}

int64_t product(const Integers& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{1}, std::multiplies<>());
}

/// How many positions a kernel has (cudnnGetConvolutionNdForwardOutputDim).
bool fits(const Work& work) {
  const size_t dims = work.strides.size();
  const auto has_dims = [&](const Tensor& tensor) {
    return tensor.extents.size() == dims + 2 && tensor.strides.size() == dims + 2;
  };
  if (dims < 2 || dims > 3 || work.dilations.size() != dims || work.paddings.size() != dims) return false;
  if (!has_dims(work.image) || !has_dims(work.filters) || !has_dims(work.output)) return false;
  const Integers &image = work.image.extents, &filters = work.filters.extents, &output = work.output.extents;
  if (image[0] != output[0] || filters[0] != output[1] || image[1] % filters[1] != 0) return false;
  if (filters[0] % (image[1] / filters[1]) != 0 || work.filters.reach() != product(filters)) return false;
  for (size_t d = 2; d < dims + 2; ++d) {
    const int64_t seen = work.dilations[d - 2] * (filters[d] - 1) + 1;
    if (output[d] != (image[d] + 2 * work.paddings[d - 2] - seen) / work.strides[d - 2] + 1) return false;
  }
  return work.image.type == work.filters.type;
}

std::optional<Work> work_of_operation(const Descriptor& operation) {
  const bool is_of_filters = operation.kind == k_filter_gradient;
  const int first = is_of_filters ? 712 : 700;
  const Descriptor* config = operation.of(first + 2, k_convolution);
  const auto filters = tensor_of(operation, first + 3), image = tensor_of(operation, first + 4),
             output = tensor_of(operation, first + 5);
  if (config == nullptr || !filters || !image || !output) return std::nullopt;
  if (operation.one<float>(first) != 1 || operation.one<float>(first + 1) != 0 ||
      config->all<int>(100) != std::vector{0})
    return std::nullopt;
  const Integers before = config->all<int64_t>(105), behind = config->all<int64_t>(104);
  Work work{.is_of_filters = is_of_filters ? 1 : 0,
            .is_mirrored = config->one<int>(101) == 0 ? 1 : 0,
            .strides = config->all<int64_t>(103),
            .dilations = config->all<int64_t>(102),
            .paddings = before,
            .image = *image,
            .filters = *filters,
            .output = *output};
  const bool has_dims = config->one<int64_t>(106) == static_cast<int64_t>(work.strides.size());
  return before == behind && has_dims && fits(work) ? std::optional(work) : std::nullopt;
}

/// A convolution, and an addition to what it gives.
bool add_bias(Work& work, const Descriptor& operation) {
  const Descriptor* config = operation.of(750, k_pointwise);
  const auto x = tensor_of(operation, 751), bias = tensor_of(operation, 752), sum = tensor_of(operation, 753);
  if (config == nullptr || !x || !bias || !sum || config->one<int>(0) != 0 || config->all<int>(1) != std::vector{0})
    return false;
  Integers extents(work.output.extents.size(), 1);
  extents[1] = work.output.extents[1];
  work.bias_and_sum = {*bias, *sum};
  return work.is_of_filters == 0 && x->number == work.output.number && x->is_virtual != 0 && x->type == 0 &&
         bias->extents == extents && sum->extents == work.output.extents && sum->is_virtual == 0;
}

int finalise_graph(Descriptor& graph) {
  const auto operations = graph.all<const Descriptor*>(801);
  if (operations.empty() || (operations[0]->kind != k_forward && operations[0]->kind != k_filter_gradient))
    return refuse(k_not_supported, "no convolution");
  graph.work = work_of_operation(*operations[0]);
  if (!graph.work) return refuse(k_bad_parameter, "a convolution whose tensors do not fit");
  if (operations.size() == 1) return graph.work->output.is_virtual == 0 ? k_success : k_bad_parameter;
  if (operations.size() != 2 || operations[1]->kind != k_pointwise_operation)
    return refuse(k_not_supported, "more than a bias");
  return add_bias(*graph.work, *operations[1]) ? k_success : refuse(k_bad_parameter, "a bias that does not fit");
}

int finalise_plan(Descriptor& plan) {
  const std::vector<char> given = plan.all<char>(405);
  const bool is_anywhere = plan.of(407, k_device) != nullptr || plan.one<void*>(400) != nullptr;
  if (!is_anywhere) return refuse(k_bad_parameter, "a plan for no device");
  if (!given.empty()) {
    plan.text.assign(given.begin(), given.end());
    plan.work = work_of(plan.text);
    return plan.work ? k_success : refuse(k_mismatch, "a text of another library");
  }
  const Descriptor* choice = plan.of(401, k_choice);
  if (choice == nullptr) return refuse(k_bad_parameter, "a plan of no choice");
  plan.work = choice->work;
  plan.text = text_of(*plan.work);
  return k_success;
}

/// The attributes of each kind of descriptor, and their types.
const std::map<int, std::map<int, int>>& known_attributes() {
  static const std::map<int, std::map<int, int>> known = {
      {k_pointwise, {{0, 14}, {1, k_data_type}, {9, k_int64}}},
      {k_convolution,
       {{100, k_data_type}, {101, 7}, {102, k_int64}, {103, k_int64}, {104, k_int64}, {105, k_int64}, {106, k_int64}}},
      {k_heuristic, {{200, 8}, {201, k_descriptor}, {204, k_descriptor}}},
      {k_plan, {{400, 0}, {401, k_descriptor}, {405, k_text}, {407, k_descriptor}}},
      {k_forward,
       {{700, k_f32},
        {701, k_f32},
        {702, k_descriptor},
        {703, k_descriptor},
        {704, k_descriptor},
        {705, k_descriptor}}},
      {k_filter_gradient,
       {{712, k_f32},
        {713, k_f32},
        {714, k_descriptor},
        {715, k_descriptor},
        {716, k_descriptor},
        {717, k_descriptor}}},
      {k_pointwise_operation, {{750, k_descriptor}, {751, k_descriptor}, {752, k_descriptor}, {753, k_descriptor}}},
      {k_graph, {{801, k_descriptor}}},
      {k_pack, {{1000, k_int64}, {1001, k_pointer}, {1003, k_pointer}}},
      {k_tensor,
       {{900, k_int64},
        {901, k_data_type},
        {902, k_int64},
        {903, k_int64},
        {906, k_int64},
        {907, k_boolean},
        {908, k_boolean}}},
      {k_device, {{2702, k_text}}},
  };
  return known;
}

/// Fills descriptors that the caller made.
int give(const Descriptor& from, int kind, std::span<const int64_t> engines, int64_t most, int64_t* count, void* to) {
  const auto wanted = std::min(most, static_cast<int64_t>(engines.size()));
  for (int64_t i = 0; i < wanted; ++i) {
    auto* const descriptor = static_cast<Descriptor**>(to)[i];
    if (descriptor->kind != kind) return refuse(k_bad_parameter, "a descriptor of another kind");
    descriptor->work = from.work;
    descriptor->work->engine = engines[static_cast<size_t>(i)];
    descriptor->is_final = true;
  }
  *count = wanted;
  return k_success;
}

template <typename T>
int give_numbers(const std::vector<T>& values, int64_t most, int64_t* count, void* to) {
  *count = static_cast<int64_t>(values.size());
  if (to != nullptr) std::copy_n(values.begin(), std::min<int64_t>(most, *count), static_cast<T*>(to));
  return k_success;
}

std::vector<int> notes_of(int64_t engine) {
  if (engine == k_tensor_cores) return {0};
  return engine == k_atomic ? std::vector{4} : std::vector<int>();
}

// --- the device --------------------------------------------------------------------------------------------------------------

using kiln::cuda_emulator::has_context;

/// As a tensor must be: from a multiple of 16 on.
bool is_in_memory(const void* address, uint64_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0 && kiln::cuda_emulator::is_in_memory(address, bytes);
}

struct Handle {
  void* stream = nullptr;
};

}  // namespace

/// How many plans were put on streams, for tests that ask whether the library was used at all.
KILN_EXPORT std::atomic<uint64_t> stand_in_convolutions;  // NOLINT(readability-identifier-naming)
std::atomic<uint64_t> stand_in_convolutions = 0;

// NOLINTBEGIN(readability-identifier-naming): the vendor's names

KILN_EXPORT size_t cudnnGetVersion() { return 92400; }
KILN_EXPORT const char* cudnnGetErrorString(int status) {
  return status == k_not_initialised ? "CUDNN_STATUS_NOT_INITIALIZED"
         : status == k_bad_parameter ? "CUDNN_STATUS_BAD_PARAM"
         : status == k_mismatch      ? "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH"
                                     : "CUDNN_STATUS_NOT_SUPPORTED";
}
KILN_EXPORT void cudnnGetLastErrorString(char* to, size_t bytes) {
  std::strncpy(to, t_why.c_str(), bytes - 1);
  to[bytes - 1] = '\0';
}
KILN_EXPORT int cudnnCreate(void** handle) {
  if (!has_context()) return refuse(k_not_initialised, "no device");
  *handle = new Handle;
  return k_success;
}
KILN_EXPORT int cudnnDestroy(void* handle) {
  delete static_cast<Handle*>(handle);
  return k_success;
}
KILN_EXPORT int cudnnSetStream(void* handle, void* stream) {
  static_cast<Handle*>(handle)->stream = stream;
  return k_success;
}

KILN_EXPORT int cudnnBackendCreateDescriptor(int kind, void** descriptor) {
  *descriptor = new Descriptor{.kind = kind};
  return k_success;
}
KILN_EXPORT int cudnnBackendDestroyDescriptor(void* descriptor) {
  delete static_cast<Descriptor*>(descriptor);
  return k_success;
}
KILN_EXPORT int cudnnBackendSetAttribute(void* object, int attribute, int type, int64_t count, const void* values) {
  auto& descriptor = *static_cast<Descriptor*>(object);
  const auto kind = known_attributes().find(descriptor.kind);
  // Graphs of other ops are refused as a whole.
  if (kind == known_attributes().end()) return k_success;
  const auto known = kind->second.find(attribute);
  if (known == kind->second.end() || known->second != type || descriptor.is_final)
    return refuse(k_bad_parameter, "an attribute that there is not");
  const auto* const bytes = static_cast<const uint8_t*>(values);
  descriptor.attributes[attribute] = {type, count, {bytes, bytes + static_cast<size_t>(count) * bytes_of(type)}};
  return k_success;
}
KILN_EXPORT int cudnnBackendFinalize(void* object) {
  auto& descriptor = *static_cast<Descriptor*>(object);
  int result = k_success;
  if (descriptor.kind == k_graph) result = finalise_graph(descriptor);
  if (descriptor.kind == k_plan) result = finalise_plan(descriptor);
  if (descriptor.kind == k_heuristic) {
    const Descriptor* graph = descriptor.of(201, k_graph);
    if (graph == nullptr || descriptor.of(204, k_device) == nullptr || descriptor.one<int>(200) != 3)
      return refuse(k_bad_parameter, "no graph, device or mode");
    descriptor.work = graph->work;
  }
  descriptor.is_final = result == k_success;
  return result;
}
KILN_EXPORT int cudnnBackendGetAttribute(void* object, int attribute, int, int64_t most, int64_t* count, void* to) {
  const auto& descriptor = *static_cast<const Descriptor*>(object);
  if (!descriptor.is_final || !descriptor.work) return refuse(k_bad_parameter, "nothing to be read");
  const Work& work = *descriptor.work;
  switch (attribute) {
    case 202:
      return give(descriptor, k_choice, k_engines, most, count, to);
    case 300:
      return give(descriptor, k_engine, std::array{work.engine}, most, count, to);
    case 402:
      return give_numbers<int64_t>({work.engine == k_parted ? 8 : 0}, most, count, to);
    case 405:
      return give_numbers(std::vector<char>(descriptor.text.begin(), descriptor.text.end()), most, count, to);
    case 1301:
      return give_numbers<int64_t>({work.engine}, most, count, to);
    case 1303:
      return give_numbers(notes_of(work.engine), most, count, to);
    default:
      return refuse(k_bad_parameter, "an attribute that there is not");
  }
}

KILN_EXPORT int cudnnBackendExecute(void* handle, void* plan, void* pack) {
  const auto& made = *static_cast<const Descriptor*>(plan);
  const auto& given = *static_cast<const Descriptor*>(pack);
  if (!has_context() || !made.is_final || !given.is_final) return refuse(k_bad_parameter, "nothing to be run");
  const Integers numbers = given.all<int64_t>(1000);
  const auto pointers = given.all<void*>(1001);
  auto launch = std::make_unique<Launch>(Launch{*made.work, {}, given.one<void*>(1003)});
  for (size_t i = 0; i < numbers.size(); ++i) launch->memory[numbers[i]] = pointers.at(i);
  for (const Tensor* tensor : launch->work.in_memory()) {
    const auto found = launch->memory.find(tensor->number);
    const uint64_t bytes = static_cast<uint64_t>(tensor->reach()) * size_of(tensor->dtype());
    if (found == launch->memory.end() || !is_in_memory(found->second, bytes))
      return refuse(k_bad_parameter, "a tensor outside of the device's memory");
  }
  if (launch->work.engine == k_parted && !is_in_memory(launch->workspace, 8))
    return refuse(k_bad_parameter, "a workspace outside of the device's memory");
  ++stand_in_convolutions;
  return kiln::cuda_emulator::put_on_stream(static_cast<Handle*>(handle)->stream, run_launch, launch.release(),
                                            k_not_initialised);
}

// NOLINTEND(readability-identifier-naming)
