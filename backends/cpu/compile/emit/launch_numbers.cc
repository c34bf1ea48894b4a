#include "backends/cpu/compile/emit/launch_numbers.h"

#include <cassert>
#include <cstdlib>
#include <utility>

#include "base/limits.h"

namespace kiln::cpu {

namespace {

constexpr int64_t k_opened = INT64_MIN;  // no spec has it

}  // namespace

LaunchNumbers::Place LaunchNumbers::open(int64_t& number, int64_t least) {
  const bool is_negative = number < 0;
  const int64_t carried = number == INT64_MIN ? 0 : std::abs(number);
  if (carried < least || carried > int64_t{limits::k_tensor_elements}) return 0;
  m_carried.push_back(carried);
  number = is_negative ? k_opened + 1 : k_opened;
  const auto place = static_cast<Place>(m_carried.size());
  return is_negative ? -place : place;
}

LaunchNumbers::Place LaunchNumbers::carry_tasks(int64_t tasks) {
  assert(m_carried.empty());
  m_carries_tasks = true;
  m_carried.push_back(tasks);
  return static_cast<Place>(m_carried.size());
}

llvm::Value* LaunchNumbers::value(Emitter& e, Place place, int64_t constant) const {
  if (place == 0) return e.index(constant);
  assert(m_loaded.size() == m_carried.size());
  llvm::Value* carried = m_loaded[static_cast<size_t>(std::abs(place)) - 1];
  return place < 0 ? e.ir.CreateNeg(carried) : carried;
}

void LaunchNumbers::load(Emitter& e, llvm::Value* extents) {
  for (size_t i = 0; i < m_carried.size(); ++i) {
    m_loaded.push_back(e.load(e.i64(), e.advance(extents, static_cast<int64_t>(i) * 8)));
  }
}

SizedSpec sized_spec(const KernelSpec& spec, decltype(KernelSpec::kernel) opened, const LaunchNumbers& launch,
                     Schedule schedule) {
  KernelSpec form{spec.buffers, std::move(opened)};
  for (BufferSpec& buffer : form.buffers) buffer.elements = 0;
  std::vector<uint8_t> bytes = canonical_bytes(form);
  bytes.insert(bytes.end(), schedule.bytes.begin(), schedule.bytes.end());
  return {digest_of(bytes), launch.carried(), {std::move(schedule)}, launch.carries_tasks()};
}

uint64_t emit_pieces(Emitter& e, const Emitter::Entry& entry, llvm::Value* pieces,
                     const std::function<void(llvm::Value*)>& body) {
  constexpr uint64_t k_shares = 256;  // as many as threads of a large machine, some times
  const auto* known = llvm::dyn_cast<llvm::ConstantInt>(pieces);
  const auto start_of = [&](llvm::Value* task) {
    return known != nullptr ? task : e.even_start(task, pieces, e.index(k_shares));
  };
  e.loop(start_of(entry.first_task), start_of(entry.last_task), 1, body);
  return known != nullptr ? known->getZExtValue() : k_shares;
}

BodyNumbers BodyNumbers::open(Body& body, int lane_dim, LaunchNumbers& launch) {
  BodyNumbers numbers{&launch, {}, {}};
  for (Access& access : body.accesses) {
    OfAccess& of_access = numbers.accesses.emplace_back();
    of_access.offset = launch.open(access.offset);
    for (size_t d = 0; d < access.strides.size(); ++d) {
      const bool is_known = static_cast<int>(d) == lane_dim && access.strides[d] <= k_most_interleaved;
      of_access.strides.push_back(is_known ? 0 : launch.open(access.strides[d]));
    }
  }
  for (ScalarNode& node : body.exprs) {
    const bool is_number = node.op == ScalarOp::constant && node.dtype == DType::i64;
    numbers.constants.push_back(is_number ? launch.open(node.immediate_int) : 0);
  }
  return numbers;
}

BodyNumbers BodyNumbers::closed(const Body& body) {
  BodyNumbers numbers;
  for (const Access& access : body.accesses) {
    numbers.accesses.push_back({0, std::vector<LaunchNumbers::Place>(access.strides.size(), 0)});
  }
  numbers.constants.resize(body.exprs.size(), 0);
  return numbers;
}

}  // namespace kiln::cpu
