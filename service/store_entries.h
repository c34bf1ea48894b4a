#pragma once

#include <memory>

#include "base/config/config.h"
#include "service/entry_store.h"

namespace kiln {

/// The real EntryStore: RocksDB and the mapped index of config.cache_directory (cache/store/store.h).
Expected<std::unique_ptr<EntryStore>> open_entry_store(const Config& config);

}  // namespace kiln
