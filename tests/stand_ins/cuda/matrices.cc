#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "backends/reference/number.h"
#include "tests/stand_ins/cuda/device.h"
#include "tests/stand_ins/cuda/machine.h"
#include "tests/stand_ins/cuda/tensor_map.h"

/// Fragments of matrices and the tensor cores' products, of a warp and of a warpgroup.
using namespace kiln::cuda_emulator;

namespace {

constexpr uint32_t k_all_lanes = 0xFFFFFFFF;

Machine& machine() { return Machine::current(); }

float real_of(uint16_t bits, bool is_bf16) {
  return static_cast<float>(kiln::load_number(is_bf16 ? kiln::DType::bf16 : kiln::DType::f16, &bits, 0).real);
}

float half_of(uint32_t word, uint32_t which, bool is_bf16) {
  return real_of(static_cast<uint16_t>(word >> (16 * which)), is_bf16);
}

struct MatrixAccess {
  uint32_t shared;
  uint32_t* loaded;        // to, when loading
  const uint32_t* stored;  // from, when storing
};

/// Rows of four 8 x 8 matrices: lane 8 i + r names row r of matrix i.
uint8_t* row_of(Warp& warp, uint32_t matrix, uint32_t row, bool write) {
  Thread& lane = *warp.lanes[8 * matrix + row];
  const uint32_t address = static_cast<MatrixAccess*>(warp.collective.arguments[lane.lane()])->shared;
  if (address % 16 != 0) machine().fail(fmt::format("names a row of a matrix at {}, not 16-byte aligned", address));
  machine().touch_shared(*lane.block, address, 16, write, lane.toucher());
  return lane.block->shared + address;
}

/// Where element (row, k) of an operand lies: canonical layouts of wgmma's descriptors.
/// Source: PTX ISA, "Strides" and "Matrix Descriptor" of asynchronous warpgroup level matrix instructions.
struct OperandLayout {
  uint32_t start, leading, stride;  // bytes
  Swizzle swizzle;
  bool mn_major;

  OperandLayout(uint64_t descriptor, bool is_mn_major)
      : start(static_cast<uint32_t>(descriptor & 0x3FFF) << 4),
        leading(static_cast<uint32_t>(descriptor >> 16 & 0x3FFF) << 4),
        stride(static_cast<uint32_t>(descriptor >> 32 & 0x3FFF) << 4),
        swizzle(Swizzle::none),
        mn_major(is_mn_major) {
    constexpr Swizzle k_modes[] = {Swizzle::none, Swizzle::bytes_128, Swizzle::bytes_64, Swizzle::bytes_32};
    swizzle = k_modes[descriptor >> 62];
  }

  /// Of the 16 bytes that hold element (mn, k), its chunk's address; `within` is its index there.
  uint32_t chunk(uint32_t mn, uint32_t k, uint32_t* within) const {
    const uint32_t row_bytes = swizzle == Swizzle::none ? 16 : 16U << static_cast<uint32_t>(swizzle);
    const uint32_t row_elements = row_bytes / 2;
    const uint32_t along = mn_major ? mn : k, across = mn_major ? k : mn;
    *within = along % 8;
    uint32_t next_row, next_group = stride;
    if (swizzle == Swizzle::none) {
      // Without swizzle the roles of the two strides are the other way round for m-major operands.
      next_row = mn_major ? stride : leading;
      next_group = mn_major ? leading : stride;
    } else {
      next_row = leading;
    }
    const uint32_t address = start + along / row_elements * next_row + across / 8 * next_group +
                             across % 8 * row_bytes + along % row_elements / 8 * 16;
    return swizzled(address, swizzle);
  }
};

struct Product {
  float* d;
  uint32_t n;
  const uint32_t* registers;  // of the left factor; null: it is in shared memory
  uint64_t a, b;
  bool accumulate, is_bf16, m_major_a, n_major_b;
  bool operator==(const Product& other) const {
    return n == other.n && a == other.a && b == other.b && accumulate == other.accumulate;
  }
};

/// The chunks of an operand's rows [first, first + rows) x 16, each once.
std::vector<uint32_t> chunks_of(const OperandLayout& layout, uint32_t first, uint32_t rows) {
  std::vector<uint32_t> chunks;
  uint32_t within = 0;
  for (uint32_t mn = first; mn < first + rows; ++mn) {
    for (uint32_t k = 0; k < 16; ++k) {
      const uint32_t chunk = layout.chunk(mn, k, &within);
      if (within == 0) chunks.push_back(chunk);
    }
  }
  return chunks;
}

std::vector<float> elements_of(const Block& block, const OperandLayout& layout, uint32_t first, uint32_t rows,
                               bool is_bf16) {
  std::vector<float> elements;
  uint32_t within = 0;
  for (uint32_t mn = first; mn < first + rows; ++mn) {
    for (uint32_t k = 0; k < 16; ++k) {
      const uint32_t chunk = layout.chunk(mn, k, &within);
      uint16_t bits = 0;
      std::memcpy(&bits, block.shared + chunk + 2 * within, 2);
      elements.push_back(real_of(bits, is_bf16));
    }
  }
  return elements;
}

/// A warp's 16 x 16 elements of a left factor in registers: as mma has them.
std::vector<float> elements_of(const std::array<const uint32_t*, 32>& registers, bool is_bf16) {
  std::vector<float> elements(16 * 16);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t word = i / 2, row = lane / 4 + word % 2 * 8, k = lane % 4 * 2 + i % 2 + word / 2 * 8;
      elements[row * 16 + k] = half_of(registers[lane][word], i % 2, is_bf16);
    }
  }
  return elements;
}

/// d's rows 16 w + … of warp w in its warpgroup.
void multiply(const Block& block, uint32_t warp_of_group, const Product& product, const std::array<float*, 32>& d,
              const std::array<const uint32_t*, 32>& registers) {
  const auto a = product.registers != nullptr ? elements_of(registers, product.is_bf16)
                                              : elements_of(block, OperandLayout(product.a, product.m_major_a),
                                                            16 * warp_of_group, 16, product.is_bf16);
  const auto b = elements_of(block, OperandLayout(product.b, product.n_major_b), 0, product.n, product.is_bf16);
  for (uint32_t row = 0; row < 16; ++row) {
    for (uint32_t column = 0; column < product.n; ++column) {
      float sum = 0;
      for (uint32_t k = 0; k < 16; ++k) sum += a[row * 16 + k] * b[column * 16 + k];
      float& place = d[row % 8 * 4 + column % 8 / 2][column / 8 * 4 + row / 8 * 2 + column % 2];
      place = (product.accumulate ? place : 0.0F) + sum;
    }
  }
}

/// A wgmma of the warp has these registers of the thread.
void take(Warp& warp, Thread& thread, const void* start, size_t size, bool is_factor) {
  const auto* first = static_cast<const uint8_t*>(start);
  const auto is_same = [&](const ProductRegisters& r) {
    return r.first == first && r.size == size && r.is_factor == is_factor;
  };
  auto& all = thread.product_registers;
  auto registers = std::find_if(all.begin(), all.end(), is_same);
  if (registers == all.end()) registers = all.insert(all.end(), ProductRegisters{first, size, is_factor});
  if (!warp.fenced || registers->touched_since_fence) {
    machine().fail("starts a wgmma on registers in use, without a wgmma fence between");
  }
  ++registers->pending;
}

}  // namespace

void kiln_emulated_load_matrices(uint32_t* registers, uint32_t shared, bool transposed) {
  machine().perhaps_yield();
  MatrixAccess mine{shared, registers, nullptr};
  machine().converge(transposed ? "load_matrices_transposed" : "load_matrices", k_all_lanes, &mine, [=](Warp& warp) {
    for (uint32_t matrix = 0; matrix < 4; ++matrix) {
      uint16_t elements[8][8];
      for (uint32_t row = 0; row < 8; ++row) std::memcpy(elements[row], row_of(warp, matrix, row, false), 16);
      for (uint32_t lane = 0; lane < 32; ++lane) {
        const uint32_t r = lane / 4, c = lane % 4 * 2;
        const uint32_t low = transposed ? elements[c][r] : elements[r][c];
        const uint32_t high = transposed ? elements[c + 1][r] : elements[r][c + 1];
        static_cast<MatrixAccess*>(warp.collective.arguments[lane])->loaded[matrix] = low | high << 16;
      }
    }
  });
}

void kiln_emulated_store_matrices(uint32_t shared, const uint32_t* registers) {
  MatrixAccess mine{shared, nullptr, registers};
  machine().converge("store_matrices", k_all_lanes, &mine, [](Warp& warp) {
    for (uint32_t matrix = 0; matrix < 4; ++matrix) {
      for (uint32_t row = 0; row < 8; ++row) {
        uint8_t* to = row_of(warp, matrix, row, true);
        for (uint32_t c = 0; c < 4; ++c) {
          const auto* from = static_cast<MatrixAccess*>(warp.collective.arguments[4 * row + c]);
          std::memcpy(to + 4 * c, &from->stored[matrix], 4);
        }
      }
    }
  });
}

void kiln_emulated_mma(float* c, const uint32_t* a, uint32_t b0, uint32_t b1, bool is_bf16) {
  struct Fragments {
    float* c;
    const uint32_t* a;
    uint32_t b[2];
  } mine{c, a, {b0, b1}};
  machine().converge("mma", k_all_lanes, &mine, [is_bf16](Warp& warp) {
    const auto of = [&](uint32_t lane) { return static_cast<Fragments*>(warp.collective.arguments[lane]); };
    float left[16][16], right[8][16];
    for (uint32_t lane = 0; lane < 32; ++lane) {
      const uint32_t g = lane / 4, t = lane % 4;
      for (uint32_t i = 0; i < 2; ++i) {
        for (uint32_t half = 0; half < 4; ++half) {
          left[g + half % 2 * 8][2 * t + i + half / 2 * 8] = half_of(of(lane)->a[half], i, is_bf16);
        }
        for (uint32_t half = 0; half < 2; ++half) {
          right[g][2 * t + i + half * 8] = half_of(of(lane)->b[half], i, is_bf16);
        }
      }
    }
    for (uint32_t row = 0; row < 16; ++row) {
      for (uint32_t column = 0; column < 8; ++column) {
        float sum = 0;
        for (uint32_t k = 0; k < 16; ++k) sum += left[row][k] * right[column][k];
        of(row % 8 * 4 + column / 2)->c[row / 8 * 2 + column % 2] += sum;
      }
    }
  });
}

void kiln_emulated_wgmma_fence() {
  machine().converge("wgmma_fence", k_all_lanes, nullptr, [](Warp& warp) {
    warp.fenced = true;
    for (Thread* lane : warp.lanes) {
      for (ProductRegisters& registers : lane->product_registers) registers.touched_since_fence = false;
    }
  });
}

void kiln_emulated_wgmma_commit() {
  machine().converge("wgmma_commit", k_all_lanes, nullptr, [](Warp& warp) { warp.products.commit(); });
}

void kiln_emulated_wgmma_wait(uint32_t pending) {
  machine().perhaps_yield();
  machine().converge("wgmma_wait", k_all_lanes, nullptr, [pending](Warp& warp) {
    ++warp.moment;
    const Toucher toucher{warp.agent, warp.moment, machine().self().toucher().era, nullptr, Proxy::async};
    while (warp.products.closed.size() > pending) {
      for (const OperationRef& operation : warp.products.closed.front()) machine().retire(*operation, toucher);
      warp.products.closed.pop_front();
    }
    for (Thread* lane : warp.lanes) {
      lane->knowledge.happened.set(warp.agent, warp.moment);
      for (ProductRegisters& registers : lane->product_registers) {
        registers.pending = 0;
        const auto count = [&](const std::vector<OperationRef>& group) {
          for (const OperationRef& operation : group) {
            const auto& used = registers.is_factor ? operation->factors : operation->computes;
            registers.pending += used[lane->lane()] == registers.first ? 1 : 0;
          }
        };
        for (const auto& group : warp.products.closed) count(group);
        count(warp.products.open);
      }
    }
  });
}

void kiln_emulated_wgmma(float* d, uint32_t n, const uint32_t* registers, unsigned long long a, unsigned long long b,
                         uint32_t accumulate, bool is_bf16, bool m_major_a, bool n_major_b) {
  Product mine{d, n, registers, a, b, accumulate != 0, is_bf16, m_major_a, n_major_b};
  machine().converge("wgmma", k_all_lanes, &mine, [](Warp& warp) {
    const Product& product = *static_cast<Product*>(warp.collective.arguments[0]);
    auto operation = std::make_shared<Operation>();
    std::array<float*, 32> accumulators{};
    std::array<const uint32_t*, 32> factors{};
    for (uint32_t lane = 0; lane < 32; ++lane) {
      const auto& same = *static_cast<Product*>(warp.collective.arguments[lane]);
      if (!(same == product)) machine().fail("starts a wgmma whose lanes disagree on operands");
      accumulators[lane] = same.d;
      factors[lane] = same.registers;
      operation->computes[lane] = reinterpret_cast<const uint8_t*>(same.d);
      operation->factors[lane] = reinterpret_cast<const uint8_t*>(same.registers);
      take(warp, *warp.lanes[lane], same.d, same.n / 2 * sizeof(float), /*is_factor=*/false);
      if (same.registers != nullptr) take(warp, *warp.lanes[lane], same.registers, 16, /*is_factor=*/true);
    }
    Thread& thread = machine().self();
    Block& block = *thread.block;
    const uint32_t warp_of_group = thread.index / 32 % 4;
    const Toucher toucher = thread.toucher(Proxy::async);
    if (product.registers == nullptr) {
      for (const uint32_t chunk : chunks_of(OperandLayout(product.a, product.m_major_a), 16 * warp_of_group, 16)) {
        machine().begin(*operation, block, chunk, 16, /*write=*/false, toucher);
      }
    }
    for (const uint32_t chunk : chunks_of(OperandLayout(product.b, product.n_major_b), 0, product.n)) {
      machine().begin(*operation, block, chunk, 16, /*write=*/false, toucher);
    }
    operation->act = [=, &block] { multiply(block, warp_of_group, product, accumulators, factors); };
    operation->after = warp.last_product;
    warp.last_product = operation;
    warp.products.open.push_back(operation);
    machine().issue(operation);
  });
}
