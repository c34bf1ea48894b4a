#include "backends/cuda/launch_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace kiln::cuda {
namespace {

LaunchRecord sample() {
  LaunchRecord record{.buffers = 3, .least_driver = 13000};
  KernelRecord fast{.entry = "fast", .blocks = 132, .is_persistent = true, .threads = 384, .cluster = 2};
  fast.shared_bytes = 230464;
  fast.aligned_buffers = {0, 1};
  fast.maps = {{.buffer = 1,
                .dtype = DType::bf16,
                .extents = {64, 100, 3, 2},
                .stride_bytes = {128, 12800, 38400},
                .box = {64, 128, 1, 1}}};
  fast.resources = {.registers = 168};
  record.kernels = {fast, {.entry = "any", .blocks = 7, .threads = 256}};
  return record;
}

TEST(LaunchRecord, comes_back_as_it_was_with_its_cubins) {
  const std::vector<std::vector<uint8_t>> cubins{{1, 2, 3}, std::vector<uint8_t>(100, 9)};
  const auto code = pack(sample(), cubins);
  const auto record = unpack(code);
  ASSERT_TRUE(record.ok()) << record.status().to_string();
  LaunchRecord expected = sample();
  for (size_t i = 0; i < cubins.size(); ++i) {
    const KernelRecord& kernel = record->kernels[i];
    ASSERT_EQ(kernel.cubin_bytes, cubins[i].size());
    EXPECT_EQ(std::memcmp(code.data() + kernel.cubin_offset, cubins[i].data(), cubins[i].size()), 0);
    expected.kernels[i].cubin_offset = kernel.cubin_offset;
    expected.kernels[i].cubin_bytes = kernel.cubin_bytes;
  }
  EXPECT_EQ(*record, expected);
}

/// The same with a plan before the kernels.
LaunchRecord with_plan() {
  LaunchRecord record = sample();
  record.plans = {{.version = 91900, .workspace_bytes = 1024}};
  record.plans[0].tensors = {{.number = 1, .buffer = 2, .offset_bytes = 16},
                             {.number = 2, .place = PlanTensor::Place::workspace, .offset_bytes = 512},
                             {.number = 3, .place = PlanTensor::Place::number, .value = 0.125F}};
  return record;
}

TEST(LaunchRecord, a_plan_comes_back_with_its_text) {
  const std::string text = "{\"engine\": 2}";
  const auto code = pack(with_plan(), {{1, 2, 3}, {4}}, {text});
  const auto record = unpack(code);
  ASSERT_TRUE(record.ok()) << record.status().to_string();
  ASSERT_EQ(record->plans.size(), 1u);
  const PlanRecord& plan = record->plans[0];
  ASSERT_EQ(plan.text_bytes, text.size());
  EXPECT_EQ(std::memcmp(code.data() + plan.text_offset, text.data(), text.size()), 0);
  PlanRecord expected = with_plan().plans[0];
  expected.text_offset = plan.text_offset;
  expected.text_bytes = plan.text_bytes;
  EXPECT_EQ(plan, expected);
}

TEST(LaunchRecord, a_plan_that_names_what_is_not_there_is_data_loss) {
  const auto refused = [](const auto& change) {
    LaunchRecord record = with_plan();
    change(record.plans);
    const auto unpacked = unpack(pack(record, {{1, 2, 3}, {4}}, std::vector<std::string>(record.plans.size(), "text")));
    return !unpacked.ok() && unpacked.status().code() == StatusCode::data_loss;
  };
  EXPECT_FALSE(refused([](auto&) {}));
  EXPECT_TRUE(refused([](auto& plans) { plans[0].tensors[0].buffer = 3; }));
  EXPECT_TRUE(refused([](auto& plans) { plans[0].tensors[1].offset_bytes = 1024; }));
  EXPECT_TRUE(refused([](auto& plans) { plans[0].tensors[0].place = static_cast<PlanTensor::Place>(3); }));
  EXPECT_TRUE(refused([](auto& plans) { plans.push_back(plans[0]); }));
  const auto code = pack(with_plan(), {{1, 2, 3}, {4}}, {std::string(100, 'x')});
  EXPECT_EQ(unpack(std::span(code).first(code.size() - 64)).status().code(), StatusCode::data_loss);
}

/// The same with a product before the kernels.
LaunchRecord with_product() {
  LaunchRecord record = sample();
  ProductRecord product{.version = 131000, .place = 2, .workspace_bytes = 1024, .batches = 3};
  product.left = {
      .buffer = 1, .offset_bytes = 64, .rows = 16, .columns = 24, .column_stride = 20, .is_transposed = true};
  product.right = {.buffer = 0, .rows = 16, .columns = 40, .column_stride = 16, .batch_stride = 640};
  product.result = {
      .buffer = 2, .dtype = DType::f32, .rows = 24, .columns = 40, .column_stride = 24, .batch_stride = 960};
  product.biases = {{.buffer = 1, .offset_bytes = 8, .batch_stride = 24}};
  product.activation = ProductRecord::Activation::gelu;
  product.factor = 0.5;
  product.addends = {{product.result, 2}};
  product.addends[0].matrix.column_stride = 32;
  product.gelu_inputs = {product.result};
  product.gelu_inputs[0].buffer = 1;
  record.products = {product};
  return record;
}

TEST(LaunchRecord, a_product_comes_back_as_it_was) {
  const auto record = unpack(pack(with_product(), {{1, 2, 3}, {4}}));
  ASSERT_TRUE(record.ok()) << record.status().to_string();
  EXPECT_EQ(record->products, with_product().products);
  EXPECT_EQ(workspace_bytes(*record), 1024u);
}

TEST(LaunchRecord, a_product_that_no_library_computes_is_data_loss) {
  const auto refused = [](const auto& change) {
    LaunchRecord record = with_product();
    change(record.products[0]);
    const auto unpacked = unpack(pack(record, {{1, 2, 3}, {4}}));
    return !unpacked.ok() && unpacked.status().code() == StatusCode::data_loss;
  };
  EXPECT_FALSE(refused([](ProductRecord&) {}));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.left.buffer = 3; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.left.dtype = DType::i32; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.left.dtype = static_cast<DType>(200); }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.left.rows = 0; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.right.columns = uint64_t{1} << 31; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.right.column_stride = 15; })) << "columns overlap";
  EXPECT_TRUE(refused([](ProductRecord& p) { p.right.column_stride = -16; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.right.batch_stride = -1; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.result.is_transposed = true; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.batches = 0; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.workspace_bytes = uint64_t{3} << 30; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.biases[0].buffer = 3; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.biases.push_back(p.biases[0]); }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.activation = static_cast<ProductRecord::Activation>(3); }));
}

TEST(LaunchRecord, a_product_followed_by_what_no_library_computes_is_data_loss) {
  using Activation = ProductRecord::Activation;
  const auto refused = [](const auto& change) {
    LaunchRecord record = with_product();
    change(record.products[0]);
    return unpack(pack(record, {{1, 2, 3}, {4}})).status().code() == StatusCode::data_loss;
  };
  EXPECT_TRUE(refused([](ProductRecord& p) { p.factor = NAN; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.addends[0].factor = INFINITY; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.addends.push_back(p.addends[0]); }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.addends[0].matrix.buffer = 3; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.addends[0].matrix.dtype = DType::f16; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.addends[0].matrix.rows = 23; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.addends[0].matrix.is_transposed = true; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.gelu_inputs.push_back(p.gelu_inputs[0]); }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.gelu_inputs[0].buffer = 3; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.gelu_inputs[0].columns = 39; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.gelu_inputs[0].column_stride = 28; })) << "no multiple of 8";
  EXPECT_TRUE(refused([](ProductRecord& p) { p.gelu_inputs[0].batch_stride = 964; }));
  EXPECT_TRUE(refused([](ProductRecord& p) { p.activation = Activation::none; })) << "of which there is no input";
  EXPECT_TRUE(refused([](ProductRecord& p) { p.activation = Activation::gelu_gradient; })) << "with terms";
  const auto gradient = [](ProductRecord& p) {
    p.activation = Activation::gelu_gradient;
    p.addends.clear();
    p.biases.clear();
  };
  EXPECT_FALSE(refused(gradient));
  EXPECT_TRUE(refused([&](ProductRecord& p) { gradient(p), p.gelu_inputs.clear(); }));
}

TEST(LaunchRecord, a_product_beside_a_plan_is_data_loss) {
  LaunchRecord both = with_product();
  both.plans = with_plan().plans;
  EXPECT_EQ(unpack(pack(both, {{1, 2, 3}, {4}}, {"text"})).status().code(), StatusCode::data_loss);
}

TEST(LaunchRecord, code_cut_anywhere_is_data_loss) {
  const auto code = pack(sample(), {{1, 2, 3}, {4}});
  const auto whole = unpack(code);
  ASSERT_TRUE(whole.ok());
  const size_t needed = whole->kernels.back().cubin_offset + 1;
  for (size_t bytes = 0; bytes < needed; ++bytes) {
    const auto record = unpack(std::span(code).first(bytes));
    ASSERT_FALSE(record.ok()) << bytes;
    EXPECT_EQ(record.status().code(), StatusCode::data_loss);
  }
}

TEST(LaunchRecord, a_flipped_byte_never_names_bytes_outside_of_the_code) {
  const auto code = pack(with_product(), {{1, 2, 3}, {4}});
  for (size_t at = 0; at < code.size(); ++at) {
    auto damaged = code;
    damaged[at] ^= 0xff;
    const auto record = unpack(damaged);
    if (!record.ok()) continue;
    for (const KernelRecord& kernel : record->kernels) {
      EXPECT_LE(kernel.cubin_offset, code.size());
      EXPECT_LE(kernel.cubin_bytes, code.size() - kernel.cubin_offset);
    }
  }
}

TEST(LaunchRecord, what_no_device_launches_is_data_loss) {
  const auto refused = [](const auto& change) {
    LaunchRecord record = sample();
    change(record);
    const auto unpacked = unpack(pack(record, {{1, 2, 3}, {4}}));
    return !unpacked.ok() && unpacked.status().code() == StatusCode::data_loss;
  };
  EXPECT_FALSE(refused([](LaunchRecord&) {}));
  EXPECT_TRUE(refused([](LaunchRecord& r) { r.kernels[1].blocks = uint64_t{1} << 31; })) << "a longer grid";
  EXPECT_TRUE(refused([](LaunchRecord& r) { r.kernels[1].blocks = (uint64_t{1} << 32) + 7; })) << "7 when cut off";
  EXPECT_TRUE(refused([](LaunchRecord& r) { r.kernels[0].blocks = 131; })) << "half a cluster";
  EXPECT_TRUE(refused([](LaunchRecord& r) { r.kernels[1].threads = 1025; }));
  EXPECT_TRUE(refused([](LaunchRecord& r) { r.buffers = 1u << 30; })) << "more buffers than a kernel has";
  EXPECT_TRUE(refused([](LaunchRecord& r) { r.kernels[0].aligned_buffers = {3}; }));
  EXPECT_TRUE(refused([](LaunchRecord& r) { r.kernels[0].maps[0].buffer = 3; }));
  EXPECT_FALSE(refused([](LaunchRecord& r) { r.kernels[0].maps[0].buffer = 3, r.workspace_parts = {64}; }));
  EXPECT_TRUE(refused([](LaunchRecord& r) { r.workspace_parts = {uint64_t{3} << 30}; }))
      << "more workspace than a launch has";
  EXPECT_TRUE(refused([](LaunchRecord& r) { r.workspace_parts = {UINT64_MAX - 63, 128}; }))
      << "64 in all, when cut off";
  EXPECT_TRUE(refused([](LaunchRecord& r) { r.kernels[1].is_followed = true; })) << "by no kernel";
  EXPECT_FALSE(unpack(pack(sample(), {{1, 2, 3}, {}})).ok()) << "a kernel without code";
}

TEST(LaunchRecord, the_first_alternative_that_takes_all_addresses_is_launched_whole) {
  LaunchRecord record{.buffers = 1, .workspace_parts = {64}};
  record.kernels = {{.entry = "a", .is_followed = true}, {.entry = "b", .aligned_buffers = {0, 1}}, {.entry = "c"}};
  const auto names_for = [&](uintptr_t buffer, uintptr_t part) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): nobody follows them
    void* const pointers[] = {reinterpret_cast<void*>(buffer), reinterpret_cast<void*>(part)};
    std::string names;
    for (const KernelRecord& kernel : alternative_for(record, pointers)) names += kernel.entry;
    return names;
  };
  EXPECT_EQ(names_for(32, 64), "ab");
  EXPECT_EQ(names_for(34, 64), "c");
  EXPECT_EQ(names_for(32, 72), "c");
}

TEST(LaunchRecord, maps_lie_behind_the_pointers_at_a_multiple_of_64) {
  const LaunchRecord record = sample();
  EXPECT_EQ(maps_offset(record), 64u);  // three buffers and the status: 32 bytes
  EXPECT_EQ(argument_bytes(record, record.kernels[0]), 64u + 128u);
  EXPECT_EQ(argument_bytes(record, record.kernels[1]), 32u);
  LaunchRecord with_workspace = record;
  with_workspace.workspace_parts = {64, 64};
  EXPECT_EQ(argument_bytes(with_workspace, record.kernels[1]), 48u);
}

}  // namespace
}  // namespace kiln::cuda
