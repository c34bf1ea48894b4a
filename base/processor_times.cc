#include "base/processor_times.h"

#include <sched.h>

#include <charconv>
#include <fstream>
#include <sstream>
#include <utility>

namespace kiln {

namespace {

/// The number of the processor that the row is of; nothing for any other row.
std::optional<size_t> processor_named(const std::string& name) {
  size_t number = 0;
  const char* end = name.data() + name.size();
  if (!name.starts_with("cpu")) return std::nullopt;
  const auto read = std::from_chars(name.data() + 3, end, number);
  return read.ec == std::errc() && read.ptr == end ? std::optional(number) : std::nullopt;
}

}  // namespace

std::optional<ProcessorTimes> ProcessorTimes::read(const std::string& path) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return std::nullopt;
  std::ifstream file(path);
  ProcessorTimes times;
  for (std::string line; std::getline(file, line);) {
    std::istringstream row(line);
    std::string name;
    row >> name;
    const auto processor = processor_named(name);
    if (!processor || *processor >= CPU_SETSIZE || !CPU_ISSET(*processor, &allowed)) continue;
    uint64_t user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft_irq = 0, stolen = 0;
    if (!(row >> user >> nice >> system >> idle >> wait >> irq >> soft_irq >> stolen)) return std::nullopt;
    ++times.processors;
    times.user += user;
    times.nice += nice;
    times.other += system + idle + wait + irq + soft_irq;
    times.stolen += stolen;
  }
  return times.all() > 0 ? std::optional(times) : std::nullopt;
}

std::optional<double> ProcessorWatch::busy_processors() {
  const auto now = ProcessorTimes::read();
  const auto before = std::exchange(m_last, now);
  if (!now || !before || now->all() <= before->all() || now->user < before->user) return std::nullopt;
  const double share = static_cast<double>(now->user - before->user) / static_cast<double>(now->all() - before->all());
  return share * now->processors;
}

}  // namespace kiln
