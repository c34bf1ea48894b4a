#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/stand_ins/cuda/knowledge.h"

namespace kiln::cuda_emulator {

/// Through which proxy memory is touched: loads and stores of threads and cp.async, or TMA and wgmma.
enum class Proxy : uint8_t { generic, async };

/// Who touches memory and what he knows. `era` numbers the blocks that share no synchronisation (clusters).
struct Toucher {
  Agent agent = 0;
  uint32_t moment = 0;
  uint32_t era = 0;
  const Knowledge* knowledge = nullptr;
  Proxy proxy = Proxy::generic;
};

/// For each byte of a memory: who wrote it last, some of those who read it since, and which asynchronous operations
/// still use it. Answers whether an access is ordered after all that conflict with it.
///
/// Of several concurrent readers two are kept, drawn at random: a race with one of many readers of a byte is found with
/// some probability, and nearly always over the many bytes of a tile.
class Shadow {
 public:
  enum class Kind : uint8_t { shared, global };

  Shadow(size_t size_bytes, Kind kind) : m_cells(size_bytes), m_kind(kind) {}
  size_t size() const { return m_cells.size(); }

  /// Checks, then records. The answer is null, or says what is wrong.
  const char* read(size_t first, size_t size, const Toucher& toucher);
  const char* write(size_t first, size_t size, const Toucher& toucher);

  /// An asynchronous operation begins: checked as an access of `toucher`, and until it ends nobody may write (read)
  /// what it reads (anything it writes).
  const char* begin_read(size_t first, size_t size, const Toucher& toucher);
  const char* begin_write(size_t first, size_t size, const Toucher& toucher);
  /// It ends, as far as `toucher` can know: what it did counts as done by him now.
  void end_read(size_t first, size_t size, const Toucher& toucher);
  void end_write(size_t first, size_t size, const Toucher& toucher);

  /// Contents from before the launch: written by nobody.
  void initialise(size_t first, size_t size);

 private:
  struct Moment {
    uint32_t era = 0;  // 0: never
    uint32_t agent = 0;
    uint32_t moment = 0;
    bool operator==(const Moment&) const = default;
  };
  struct Cell {
    Moment written;
    std::array<Moment, 2> read;
    Proxy written_by = Proxy::generic;
    bool initial = false;
    uint16_t reads_in_flight = 0;
    uint16_t writes_in_flight = 0;
    bool operator==(const Cell&) const = default;
  };

  using Conflict = const char* (Shadow::*)(const Cell&, const Toucher&) const;

  /// The first conflict, or null. Bytes of a number are mostly alike: one that is as the byte before needs no look.
  const char* conflict_among(Conflict conflict_of, size_t first, size_t size, const Toucher& toucher) const;
  bool ordered(const Moment& earlier, const Toucher& toucher, bool through_fence) const;
  const char* conflict_of_read(const Cell& cell, const Toucher& toucher) const;
  const char* conflict_of_write(const Cell& cell, const Toucher& toucher) const;
  void record_read(Cell& cell, const Toucher& toucher);
  static void record_write(Cell& cell, const Toucher& toucher);

  std::vector<Cell> m_cells;
  Kind m_kind;
  uint32_t m_draw = 1;
};

}  // namespace kiln::cuda_emulator
