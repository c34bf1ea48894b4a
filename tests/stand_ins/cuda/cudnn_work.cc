#include "tests/stand_ins/cuda/cudnn_work.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <sstream>

#include "backends/reference/body_runner.h"
#include "backends/reference/number.h"

namespace kiln::stand_in {
namespace {

// --- texts: all numbers, one after another -------------------------------------------------------------------------------------

class Writer {
 public:
  void add(int64_t number) { m_text << number << ' '; }
  void add(const Integers& numbers) {
    add(static_cast<int64_t>(numbers.size()));
    for (const int64_t number : numbers) add(number);
  }
  std::string text() const { return R"({"driverVer":13000,"deviceVer":900,"numbers":")" + m_text.str() + "\"}"; }

 private:
  std::ostringstream m_text;
};

class Reader {
 public:
  explicit Reader(const std::string& text) : m_text(text.substr(std::min(text.size(), text.rfind(':') + 2))) {}
  void add(int64_t& number) { m_text >> number; }
  void add(Integers& numbers) {
    int64_t count = 0;
    add(count);
    numbers.resize(static_cast<size_t>(std::clamp<int64_t>(count, 0, 8)));
    for (int64_t& number : numbers) add(number);
  }
  bool is_whole() const { return !m_text.fail(); }

 private:
  std::istringstream m_text;
};

template <typename To, typename Of>
void visit(To& to, Of& tensor) {
  to.add(tensor.number);
  to.add(tensor.type);
  to.add(tensor.is_virtual);
  to.add(tensor.extents);
  to.add(tensor.strides);
}
template <typename To, typename Of>
void visit_work(To& to, Of& work) {
  to.add(work.engine);
  to.add(work.is_of_filters);
  to.add(work.is_mirrored);
  to.add(work.strides);
  to.add(work.dilations);
  to.add(work.paddings);
  for (auto* tensor : {&work.image, &work.filters, &work.output}) visit(to, *tensor);
}

// --- what is computed --------------------------------------------------------------------------------------------------------

class Computation {
 public:
  explicit Computation(const Launch& launch)
      : m_work(launch.work), m_memory(launch.memory), m_workspace(launch.workspace) {}

  void run() const {
    Integers point(m_work.result().extents.size(), 0);
    do {
      const float sum = m_work.is_of_filters != 0 ? filter_at(point) : output_at(point);
      const double value = m_work.engine == k_atomic ? std::nan("") : static_cast<double>(finished(sum, point));
      store_number(m_work.result().dtype(), m_memory.at(m_work.result().number), place(m_work.result(), point),
                   {value, 0});
    } while (next_point(point, m_work.result().extents));
  }

 private:
  static int64_t place(const Tensor& tensor, const Integers& point) {
    return std::inner_product(point.begin(), point.end(), tensor.strides.begin(), int64_t{0});
  }
  float at(const Tensor& tensor, const Integers& point) const {
    const double value = load_number(tensor.dtype(), m_memory.at(tensor.number), place(tensor, point)).real;
    auto narrow = static_cast<float>(value);
    if (m_work.engine != k_tensor_cores || tensor.type != 0) return narrow;
    uint32_t bits = 0;  // TF32 has 10 bits of fraction
    std::memcpy(&bits, &narrow, sizeof bits);
    bits &= 0xffffe000U;
    std::memcpy(&narrow, &bits, sizeof bits);
    return narrow;
  }

  /// The pixel that an element of the kernel meets at a position; nothing in the padding.
  std::optional<float> pixel(int64_t image, int64_t channel, std::span<const int64_t> position,
                             std::span<const int64_t> element) const {
    Integers point{image, channel};
    for (size_t d = 0; d < position.size(); ++d) {
      const int64_t along = position[d] * m_work.strides[d] + element[d] * m_work.dilations[d] - m_work.paddings[d];
      if (along < 0 || along >= m_work.image.extents[2 + d]) return std::nullopt;
      point.push_back(along);
    }
    return at(m_work.image, point);
  }
  int64_t first_channel(int64_t filter) const {
    const int64_t groups = m_work.image.extents[1] / m_work.filters.extents[1];
    return filter / (m_work.filters.extents[0] / groups) * m_work.filters.extents[1];
  }
  void mirror(Integers& element) const {
    for (size_t d = 0; d < element.size() && m_work.is_mirrored != 0; ++d)
      element[d] = m_work.filters.extents[2 + d] - 1 - element[d];
  }

  float output_at(const Integers& point) const {
    Integers extents(m_work.filters.extents.begin() + 1, m_work.filters.extents.end()), window(extents.size(), 0);
    Sum sum(*this);
    do {
      Integers element(window.begin() + 1, window.end()), filter{point[1], window[0]};
      const auto seen = pixel(point[0], first_channel(point[1]) + window[0], std::span(point).subspan(2), element);
      mirror(element);
      filter.insert(filter.end(), element.begin(), element.end());
      if (seen) sum.add(at(m_work.filters, filter), *seen);
    } while (next_point(window, extents));
    return sum.total();
  }
  float filter_at(const Integers& point) const {
    Integers extents = m_work.output.extents, output(extents.size(), 0);
    extents[1] = 1;
    Integers element(point.begin() + 2, point.end());
    mirror(element);
    Sum sum(*this);
    do {
      Integers there = output;
      there[1] = point[0];
      const auto seen = pixel(output[0], first_channel(point[0]) + point[1], std::span(output).subspan(2), element);
      if (seen) sum.add(at(m_work.output, there), *seen);
    } while (next_point(output, extents));
    return sum.total();
  }
  float finished(float sum, const Integers& point) const {
    if (m_work.bias_and_sum.empty()) return sum;
    Integers place(point.size(), 0);
    place[1] = point[1];
    return sum + at(m_work.bias_and_sum[0], place);
  }

  class Sum {
   public:
    explicit Sum(const Computation& all)
        : m_parts(all.m_work.engine == k_parted ? 2 : 1),
          m_sums(all.m_work.engine == k_parted ? static_cast<float*>(all.m_workspace) : &m_own) {
      std::fill_n(m_sums, m_parts, 0.0F);
    }
    void add(float x, float y) {
      m_sums[m_next] = std::fma(x, y, m_sums[m_next]);
      m_next = (m_next + 1) % m_parts;
    }
    float total() const { return m_parts == 1 ? m_sums[0] : m_sums[0] + m_sums[1]; }

   private:
    size_t m_parts, m_next = 0;
    float m_own = 0;
    float* m_sums;
  };

  const Work& m_work;
  const std::map<int64_t, void*>& m_memory;
  void* const m_workspace;
};

}  // namespace

int64_t Tensor::reach() const {
  int64_t last = 0;
  for (size_t d = 0; d < extents.size(); ++d) last += (extents[d] - 1) * strides[d];
  return last + 1;
}

std::string text_of(const Work& work) {
  Writer writer;
  visit_work(writer, work);
  writer.add(static_cast<int64_t>(work.bias_and_sum.size()));
  for (const Tensor& tensor : work.bias_and_sum) visit(writer, tensor);
  return writer.text();
}
std::optional<Work> work_of(const std::string& text) {
  Work work;
  Reader reader(text);
  visit_work(reader, work);
  int64_t more = 0;
  reader.add(more);
  work.bias_and_sum.resize(more == 2 ? 2 : 0);
  for (Tensor& tensor : work.bias_and_sum) visit(reader, tensor);
  return reader.is_whole() ? std::optional(work) : std::nullopt;
}

void Launch::run() const { Computation(*this).run(); }

}  // namespace kiln::stand_in
