#include "tests/stand_ins/cuda/machine.h"

#include <cassert>
#include <cstring>

#include <fmt/format.h>

namespace kiln::cuda_emulator {
namespace {

Machine* g_current = nullptr;
constexpr int k_poison = 0xCD;

}  // namespace

void Operation::perform() {
  if (performed) return;
  if (after != nullptr) after->perform();
  after.reset();
  performed = true;
  act();
}

bool Groups::empty() const {
  for (const auto& group : closed) {
    if (!group.empty()) return false;
  }
  return open.empty();
}

Toucher Thread::toucher(Proxy proxy) const {
  return {agent, knowledge.happened[agent], 1 + block->index / Machine::current().shape().cluster, &knowledge, proxy};
}

void Thread::release_to(Knowledge& target) {
  target.join(knowledge);
  knowledge.happened.set(agent, knowledge.happened[agent] + 1);
}

Machine& Machine::current() {
  assert(g_current != nullptr && "no kernel is running");
  return *g_current;
}

std::string Machine::launch(const LaunchShape& shape, std::vector<GlobalBuffer> buffers, uint64_t seed,
                            const Kernel& kernel) {
  Machine machine(shape, std::move(buffers), seed, kernel);
  g_current = &machine;
  for (uint32_t block = 0; block < shape.blocks && machine.m_problem.empty(); block += shape.cluster) {
    machine.run_cluster(block);
  }
  g_current = nullptr;
  return machine.m_problem;
}

Machine::Machine(const LaunchShape& shape, std::vector<GlobalBuffer> buffers, uint64_t seed, const Kernel& kernel)
    : m_shape(shape),
      m_constants(shape.constants),
      m_kernel(kernel),
      m_random(seed),
      m_seed(seed),
      m_temper(static_cast<Temper>(seed % 3)),
      m_stacks(size_t{shape.threads} * shape.cluster) {
  for (GlobalBuffer& buffer : buffers) {
    Shadow shadow(buffer.is_watched ? buffer.size_bytes : 0, Shadow::Kind::global);
    if (buffer.readable) shadow.initialise(0, shadow.size());
    m_buffers.push_back({std::move(buffer), std::move(shadow)});
  }
  m_blocks.resize(shape.cluster);
  m_threads.resize(m_stacks.count());
  const size_t window = k_shared_start + shape.shared_bytes;
  for (Block& block : m_blocks) {
    m_shared_memory.push_back(std::make_unique<uint8_t[]>(window + 1024));
    const auto at = reinterpret_cast<uintptr_t>(m_shared_memory.back().get());
    block.shared = m_shared_memory.back().get() + ((at + 1023) / 1024 * 1024 - at);
    block.shadow.emplace(window, Shadow::Kind::shared);
  }
}

Block& Machine::block_of_rank(uint32_t rank) {
  if (rank >= m_blocks.size()) fail(fmt::format("names block {} of a cluster of {}", rank, m_blocks.size()));
  return m_blocks[rank];
}

void Machine::prepare_cluster(uint32_t first_block) {
  const uint32_t warps = (m_shape.threads + 31) / 32;
  m_next_agent = static_cast<Agent>(m_threads.size());
  m_cluster_barrier = {};
  for (uint32_t rank = 0; rank < m_shape.cluster; ++rank) {
    Block& block = m_blocks[rank];
    block.index = first_block + rank;
    block.rank = rank;
    block.alive = m_shape.threads;
    block.barriers.clear();
    block.transaction_barriers.clear();
    block.warps.assign(warps, {});
    for (Warp& warp : block.warps) warp.agent = new_agent();
    std::memset(block.shared, k_poison, block.shadow->size());
  }
  for (uint32_t i = 0; i < m_threads.size(); ++i) {
    Thread& thread = m_threads[i];
    thread = {};
    thread.agent = i;
    thread.index = i % m_shape.threads;
    thread.block = &m_blocks[i / m_shape.threads];
    thread.warp = &thread.block->warps[thread.index / 32];
    thread.warp->lanes[thread.lane()] = &thread;
    thread.knowledge.happened.set(i, 1);
    thread.fiber.prepare(m_stacks.stack(i), [](void* machine) { static_cast<Machine*>(machine)->run_kernel(); }, this);
    m_ready.push_back(&thread);
  }
  m_alive = static_cast<uint32_t>(m_threads.size());
  m_slow_warps = m_random();
}

void Machine::run_cluster(uint32_t first_block) {
  prepare_cluster(first_block);
  schedule();
  if (m_problem.empty() && !m_operations.empty()) {
    bool unfinished = false;
    for (const OperationRef& operation : m_operations) unfinished |= !operation->performed;
    if (unfinished) {
      m_problem = fmt::format("block {} ends while a copy to or from its shared memory is under way", first_block);
    }
  }
  m_operations.clear();
}

void Machine::run_kernel() {
  m_kernel();
  finish_thread();
}

void Machine::finish_thread() {
  Thread& thread = self();
  if (!thread.stores.empty()) fail("ends before its bulk stores have read their shared memory");
  if (!thread.warp->products.empty()) fail("ends with unfinished wgmma");
  thread.done = true;
  --m_alive;
  --thread.block->alive;
  thread.fiber.suspend();
}

void Machine::schedule() {
  while (m_problem.empty() && m_alive > 0) {
    if (m_temper != Temper::late && draw(4)) perform_one();
    Thread* next = choose();
    if (next != nullptr) {
      m_running = next;
      next->waits_for = nullptr;
      next->fiber.resume();
    } else if (!perform_one()) {
      m_problem = "deadlock: " + who_waits();
    }
  }
  if (!m_problem.empty()) m_problem += fmt::format(" (seed {})", m_seed);
}

/// At random, with some warps held back.
Thread* Machine::choose() {
  if (m_ready.empty()) return nullptr;
  size_t at = 0;
  for (int attempt = 0; attempt < 4; ++attempt) {
    at = m_random() % m_ready.size();
    if ((m_slow_warps >> (m_ready[at]->agent / 32 % 64) & 1) == 0) break;
  }
  Thread* chosen = m_ready[at];
  m_ready[at] = m_ready.back();
  m_ready.pop_back();
  return chosen;
}

bool Machine::perform_one() {
  while (!m_operations.empty()) {
    const size_t at = m_random() % m_operations.size();
    const OperationRef operation = m_operations[at];
    m_operations[at] = m_operations.back();
    m_operations.pop_back();
    if (operation->performed) continue;
    operation->perform();
    return true;
  }
  return false;
}

void Machine::fail(const std::string& what) {
  if (m_problem.empty()) m_problem = describe(self()) + " " + what;
  // The scheduler sees the problem and runs nobody any more.
  self().fiber.suspend();
  __builtin_unreachable();
}

std::string Machine::describe(const Thread& thread) const {
  return fmt::format("thread {} of block {}", thread.index, thread.block->index);
}

std::string Machine::who_waits() const {
  std::string text;
  std::map<std::pair<std::string, uint32_t>, std::pair<const Thread*, int>> reasons;
  for (const Thread& thread : m_threads) {
    if (thread.done || thread.waits_for == nullptr) continue;
    auto& [first, count] = reasons[{thread.waits_for, thread.waits_at}];
    if (count++ == 0) first = &thread;
  }
  for (const auto& [reason, who] : reasons) {
    if (!text.empty()) text += "; ";
    text +=
        fmt::format("{} and {} more wait for {} {}", describe(*who.first), who.second - 1, reason.first, reason.second);
  }
  return text;
}

void Machine::wait(const char* what, uint32_t at) {
  self().waits_for = what;
  self().waits_at = at;
  self().fiber.suspend();
}

void Machine::perhaps_yield() {
  if (!draw(16)) return;
  wake(self());
  wait("its turn", 0);
}

void Machine::arrive(Barrier& barrier, uint32_t expected, const char* name, uint32_t id) {
  if (barrier.arrived == 0) barrier.expected = expected;
  if (barrier.expected != expected) {
    fail(fmt::format("comes to {} {} for {} threads, others for {}", name, id, expected, barrier.expected));
  }
  self().release_to(barrier.gathered);
  if (++barrier.arrived < expected) return;
  for (Thread* thread : barrier.waiting) {
    thread->knowledge.join(barrier.gathered);
    wake(*thread);
  }
  barrier = {};
}

void Machine::meet(Barrier& barrier, uint32_t expected, const char* name, uint32_t id) {
  barrier.waiting.push_back(&self());
  arrive(barrier, expected, name, id);
  wait(name, id);
}

void Machine::converge(const char* name, uint32_t mask, void* arguments, const std::function<void(Warp&)>& act) {
  Warp& warp = *self().warp;
  Warp::Collective& meeting = warp.collective;
  if (meeting.arrived != 0 && std::strcmp(meeting.name, name) != 0) {
    fail(fmt::format("comes to {} while other lanes of its warp are at {}", name, meeting.name));
  }
  meeting.name = name;
  meeting.arrived |= 1U << self().lane();
  meeting.arguments[self().lane()] = arguments;
  uint32_t expected = 0;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if (warp.lanes[lane] != nullptr && (mask >> lane & 1) != 0) expected |= 1U << lane;
  }
  if (meeting.arrived == expected) {
    act(warp);
    meeting.arrived = 0;
    for (uint32_t lane = 0; lane < 32; ++lane) {
      if ((expected >> lane & 1) != 0) wake(*warp.lanes[lane]);
    }
  }
  wait(name, self().index / 32);
}

void Machine::issue(const OperationRef& operation) {
  if (m_temper == Temper::eager && !draw(4)) {
    operation->perform();
    return;
  }
  if (m_operations.size() >= 256) std::erase_if(m_operations, [](const auto& old) { return old->performed; });
  m_operations.push_back(operation);
}

void Machine::retire(Operation& operation, const Toucher& toucher) {
  operation.perform();
  for (const auto& [block, first, size] : operation.reads) block->shadow->end_read(first, size, toucher);
  for (const auto& [block, first, size] : operation.writes) block->shadow->end_write(first, size, toucher);
}

}  // namespace kiln::cuda_emulator
