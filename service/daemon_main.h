#pragma once

#include <functional>
#include <memory>

#include "base/config/config.h"
#include "base/expected.h"
#include "service/entry_store.h"

namespace kiln {

/// Opens the store of config.cache_directory; called once the instance lock is held.
using StoreFactory = std::function<Expected<std::unique_ptr<EntryStore>>(const Config& config)>;

/// kilnd's main: reads the configuration, detaches when asked to, becomes the one daemon of its cache
/// directory, serves, leaves. Returns the exit status: 0 also when another daemon serves already.
int daemon_main(int argc, char** argv, const StoreFactory& open_store);

}  // namespace kiln
