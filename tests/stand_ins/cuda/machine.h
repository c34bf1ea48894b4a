#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/stand_ins/cuda/fiber.h"
#include "tests/stand_ins/cuda/knowledge.h"
#include "tests/stand_ins/cuda/shadow.h"

/// A CUDA device on the host, for tests: threads are fibers, run one at a time in an order drawn from a seed;
/// asynchronous operations happen as early or as late as they may; every access to shared and global memory is held
/// against what orders it. One launch at a time, on one host thread.
namespace kiln::cuda_emulator {

class Machine;
struct Block;
struct Thread;

/// An asynchronous operation: it happens when perform() is called, at any time after it was issued; what it reads and
/// writes in shared memory is taken until it is retired.
struct Operation {
  struct Range {
    Block* block;
    uint32_t first, size;
  };
  std::function<void()> act;
  std::shared_ptr<Operation> after;  // happens before this one
  std::vector<Range> reads, writes;
  std::array<const uint8_t*, 32> computes{}, factors{};  // wgmma: registers of each lane
  bool performed = false;

  void perform();
};
using OperationRef = std::shared_ptr<Operation>;

/// Commit groups: operations that are waited for together.
struct Groups {
  std::vector<OperationRef> open;
  std::deque<std::vector<OperationRef>> closed;  // oldest first
  void commit() {
    closed.push_back(std::move(open));
    open.clear();
  }
  bool empty() const;
};

/// Registers that wgmma computes into, or has a factor in.
struct ProductRegisters {
  const uint8_t* first = nullptr;
  size_t size = 0;
  bool is_factor = false;  // wgmma only reads it
  uint32_t pending = 0;    // unfinished wgmma that use it
  bool touched_since_fence = false;
};

struct Warp {
  struct Collective {
    const char* name = nullptr;
    uint32_t arrived = 0;
    void* arguments[32] = {};
  };
  Agent agent = 0;
  uint32_t moment = 0;
  Thread* lanes[32] = {};
  Collective collective;
  Groups products;
  OperationRef last_product;
  bool fenced = false;
};

struct Thread {
  Fiber fiber;
  Agent agent = 0;
  uint32_t index = 0;  // in the block
  Block* block = nullptr;
  Warp* warp = nullptr;
  bool done = false;
  Knowledge knowledge;
  Groups copies, stores;
  std::vector<ProductRegisters> product_registers;
  const char* waits_for = nullptr;
  uint32_t waits_at = 0;

  uint32_t lane() const { return index % 32; }
  Toucher toucher(Proxy proxy = Proxy::generic) const;
  /// What this thread knows goes into `target`; what it does from now on does not.
  void release_to(Knowledge& target);
};

/// Where threads meet.
struct Barrier {
  uint32_t expected = 0, arrived = 0;
  std::vector<Thread*> waiting;
  Knowledge gathered;
};

struct TransactionBarrier {
  uint32_t arrivals = 0;  // of each phase
  uint32_t missing = 0;   // in this phase
  int64_t bytes = 0;      // announced and not come
  uint32_t phase = 0;
  Agent agent = 0;  // stands for the bulk copies that report here
  uint32_t moment = 0;
  Knowledge gathered, completed;  // of this phase; of all before
  std::vector<Thread*> waiting;
};

struct Block {
  uint32_t index = 0, rank = 0;
  uint32_t alive = 0;         // threads
  uint8_t* shared = nullptr;  // address 0 of the shared window
  std::optional<Shadow> shadow;
  std::vector<Warp> warps;
  std::map<uint32_t, Barrier> barriers;
  std::map<uint32_t, TransactionBarrier> transaction_barriers;
};

/// A buffer that the kernel may use: all else in global memory is out of bounds.
struct GlobalBuffer {
  std::string name;
  uint8_t* data = nullptr;
  size_t size_bytes = 0;
  bool readable = true;  // before the kernel wrote it
  bool writable = true;
  bool is_watched = true;  // else no access to it is held against what orders it
};

struct LaunchShape {
  uint32_t blocks = 1, threads = 1, cluster = 1;
  uint32_t shared_bytes = 0;           // dynamic
  std::span<const uint8_t> constants;  // of the kernel's own module: it may read them
};

class Machine {
 public:
  using Kernel = std::function<void()>;

  /// Runs the kernel once in every thread. The answer is empty, or the first thing found wrong, after which the launch
  /// was given up.
  static std::string launch(const LaunchShape& shape, std::vector<GlobalBuffer> buffers, uint64_t seed,
                            const Kernel& kernel);

  /// The machine whose kernel is running.
  static Machine& current();

  Thread& self() { return *m_running; }
  const LaunchShape& shape() const { return m_shape; }
  Block& block_of_rank(uint32_t rank);

  /// Gives the launch up: reports and never comes back.
  [[noreturn]] void fail(const std::string& what);
  /// Suspends the running thread until wake() is called for it.
  void wait(const char* what, uint32_t at);
  void wake(Thread& thread) { m_ready.push_back(&thread); }
  /// Lets others go first, now and then.
  void perhaps_yield();
  void meet(Barrier& barrier, uint32_t expected, const char* name, uint32_t id);
  /// Counts for the others' meeting.
  void arrive(Barrier& barrier, uint32_t expected, const char* name, uint32_t id);
  void cluster_barrier() { meet(m_cluster_barrier, static_cast<uint32_t>(m_threads.size()), "a cluster barrier", 0); }
  /// Lanes that name the same `mask` meet at the same `name`; the last to come acts for all of them: `act(warp, mine)`
  /// with the arguments of every lane in warp.collective.
  void converge(const char* name, uint32_t mask, void* arguments, const std::function<void(Warp&)>& act);

  // Asynchronous operations.
  void issue(const OperationRef& operation);
  void retire(Operation& operation, const Toucher& toucher);

  // Memory. Each fails the launch when something is wrong.
  uint8_t* shared(uint32_t address, size_t size, Block* block = nullptr);
  void touch_shared(Block& block, uint32_t address, size_t size, bool write, const Toucher& toucher);
  void begin(Operation& operation, Block& block, uint32_t address, uint32_t size, bool write, const Toucher& toucher);
  void touch_global(const void* address, size_t size, bool write, Proxy proxy = Proxy::generic);
  /// A plain load or store of the kernel's body, wherever it goes.
  void touch(const void* address, size_t size, bool write);
  /// For an operation that is atomic over the device: in bounds, and a race with nobody.
  uint32_t* atomic(uint32_t* word);

  TransactionBarrier& transaction_barrier(uint32_t address, Block& block, Proxy proxy = Proxy::generic);
  void advance(TransactionBarrier& barrier);
  Agent new_agent() { return m_next_agent++; }
  bool draw(uint32_t one_in) { return m_random() % one_in == 0; }

 private:
  enum class Temper : uint8_t { eager, random, late };

  Machine(const LaunchShape& shape, std::vector<GlobalBuffer> buffers, uint64_t seed, const Kernel& kernel);
  void run_cluster(uint32_t first_block);
  void prepare_cluster(uint32_t first_block);
  void schedule();
  void finish_thread();
  Thread* choose();
  bool perform_one();
  void run_kernel();
  std::string describe(const Thread& thread) const;
  std::string who_waits() const;

  struct Buffer {
    GlobalBuffer what;
    Shadow shadow;
  };

  LaunchShape m_shape;
  std::span<const uint8_t> m_constants;
  const Kernel& m_kernel;
  std::mt19937_64 m_random;
  uint64_t m_seed;
  Temper m_temper;
  std::vector<Buffer> m_buffers;
  FiberStacks m_stacks;
  std::vector<std::unique_ptr<uint8_t[]>> m_shared_memory;
  std::vector<Block> m_blocks;
  std::vector<Thread> m_threads;
  std::vector<Thread*> m_ready;
  std::vector<OperationRef> m_operations;
  Barrier m_cluster_barrier;
  Agent m_next_agent = 0;
  uint32_t m_era = 0;
  uint64_t m_slow_warps = 0;
  uint32_t m_alive = 0;
  Thread* m_running = nullptr;
  std::string m_problem;
};

/// Where dynamic shared memory starts in the window: not where a kernel that forgot to align would be lucky.
inline constexpr uint32_t k_shared_start = 1040;

}  // namespace kiln::cuda_emulator
