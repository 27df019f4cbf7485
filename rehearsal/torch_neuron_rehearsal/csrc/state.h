// What the device knows of itself: cores, their memory, and what was executed on them.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>

namespace rehearsal {

using at::Tensor;
using c10::Device, c10::DeviceIndex, c10::Storage, c10::StorageImpl;

constexpr auto kNeuron = c10::DeviceType::PrivateUse1;
constexpr int kMostCores = 128;

struct Core {
  std::atomic<int64_t> executed{0};     // operations, copies and collectives that came to their end
  std::atomic<int64_t> in_use{0};       // bytes
  std::atomic<int64_t> peak{0};         // bytes
  std::atomic<int64_t> allocated{0};    // bytes, ever
  std::atomic<int64_t> allocations{0};
  std::atomic<int64_t> refusals{0};     // allocations that did not fit
};

inline Core cores[kMostCores];
inline int core_count = 1;
inline int64_t memory_limit = 0;        // bytes of one core
inline std::atomic<bool> initialized{false};
inline bool forked_after_use = false;
inline thread_local DeviceIndex current = 0;

// The runtime starts with the first allocation or the first process group.
inline void initialize() {
  TORCH_CHECK(!forked_after_use,
              "Cannot re-initialize Neuron runtime in forked subprocess. "
              "To use Neuron with multiprocessing, use the 'spawn' start method");
  initialized = true;
}

inline void require_core(int64_t index) {
  TORCH_CHECK(index >= 0 && index < core_count, "neuron device index ", index,
              " is out of range, device count is ", core_count);
}

inline Device whole(Device device) {
  return {kNeuron, device.has_index() ? device.index() : current};
}

inline Core& core_of(DeviceIndex index) { return cores[index < 0 ? current : index]; }

// ---- what was asked of it, and how it misbehaves

// From the first-th call on, an operation or a collective does `how`:
// raise, zero, nan, scale (results times 1.01), fallback, skip (collectives), hang, segv.
struct Fault {
  std::string how;
  int64_t first = 1;
};

inline std::mutex lock;                 // of the four below
inline std::unordered_map<std::string, int64_t> calls;
inline std::unordered_map<std::string, Fault> faults;
inline std::set<std::string> fell_back;
inline std::set<std::string> limits;

// Counts a call; gives the fault that it is to have, or nothing.
inline std::string noted(const std::string& name) {
  std::lock_guard<std::mutex> guard(lock);
  const int64_t number = ++calls[name];
  const auto fault = faults.find(name);
  return fault != faults.end() && number >= fault->second.first ? fault->second.how : "";
}

inline bool limited(const char* limit) { return limits.count(limit) > 0; }

// Carries out a fault that needs no result.
void misbehave(const std::string& name, const std::string& how);
// Carries out one that spoils a result.
void spoil(const Tensor& result, const std::string& how);

}  // namespace rehearsal
