#pragma once

#include "cache/store/store.h"

namespace kiln {

/// Builds that raced the same kernel side by side each have a record, as have daemons with caches of their own, and one is
/// published first. A record that a head of the batch leads to and that comes second is replaced by what both say together
/// (TuningRecord::merged), as the key's next generation; where the batch's winner is the better one, its code becomes the next
/// generation of the kernel's key, too. A record that is damaged, or of another version, has nothing to say.
/// Errors: data_loss where the store cannot be read.
Status merge_records(const CacheStore& store, PublishBatch& batch);

}  // namespace kiln
