// Memory of a core: memory of the host, under the name of the core and within its limit.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "state.h"

namespace rehearsal {

inline void account(Core& core, int64_t bytes) {
  const int64_t now = (core.in_use += bytes);
  if (bytes <= 0) return;
  core.allocated += bytes;
  core.allocations++;
  for (int64_t peak = core.peak; now > peak && !core.peak.compare_exchange_weak(peak, now);) {
  }
}

struct Held {
  Storage host;
  DeviceIndex core;
};

inline void release(void* context) {
  auto* held = static_cast<Held*>(context);
  account(cores[held->core], -static_cast<int64_t>(held->host.nbytes()));
  delete held;
}

// The same bytes as memory of a core. The storage lives as long as what is given back.
inline c10::DataPtr as_core_memory(Storage host, DeviceIndex index) {
  initialize();
  const auto bytes = static_cast<int64_t>(host.nbytes());
  auto& core = cores[index];
  if (memory_limit && core.in_use + bytes > memory_limit) {
    core.refusals++;
    // The end of it is what users of the real runtime read (aws-neuron-sdk issue 1014).
    TORCH_CHECK_WITH(OutOfMemoryError, false, "neuron out of memory. Tried to allocate ", bytes,
                     " bytes; ", core.in_use.load(), " in use, limit ", memory_limit,
                     " (nrt_tensor_allocate status=4 message=\"Allocation Failure\")");
  }
  account(core, bytes);
  void* data = host.mutable_data();
  return {data, new Held{std::move(host), index}, release, Device(kNeuron, index)};
}

inline Storage host_storage(size_t bytes) {
  auto* host = c10::GetCPUAllocator();
  return Storage(c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(), bytes,
                                                  host->allocate(bytes), host, true));
}

// A DeviceAllocator, so that torch.accelerator.memory_* answer too.
struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    return as_core_memory(host_storage(bytes), current);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex index) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    const auto& core = core_of(index);
    for (auto* bytes : {&stats.allocated_bytes, &stats.active_bytes, &stats.reserved_bytes,
                        &stats.requested_bytes}) {
      auto& all = (*bytes)[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
      all.current = core.in_use;
      all.peak = core.peak;
      all.allocated = core.allocated;
      all.freed = core.allocated - core.in_use;
    }
    stats.num_ooms = core.refusals;
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex index) override {
    auto& core = core_of(index);
    core.allocated = core.in_use.load();
    core.refusals = 0;
  }
  void resetPeakStats(DeviceIndex index) override {
    auto& core = core_of(index);
    core.peak = core.in_use.load();
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex index) override {
    return {memory_limit - core_of(index).in_use, memory_limit};
  }
};

inline Allocator allocator;
REGISTER_ALLOCATOR(kNeuron, &allocator);

}  // namespace rehearsal
