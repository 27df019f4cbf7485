// Streams, events, generators and hooks: all work is done when a call returns, so most is empty.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <cstring>

#include "memory.h"

namespace rehearsal {

using Clock = std::chrono::steady_clock;

inline thread_local int64_t current_stream[kMostCores] = {};
inline std::atomic<int64_t> next_stream{1};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kNeuron; }
  Device getDevice() const override { return {kNeuron, current}; }
  Device exchangeDevice(Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(Device device) const override {
    if (device.index() < 0) return;
    require_core(device.index());
    current = device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) current = device.index();
  }
  DeviceIndex deviceCount() const noexcept override {
    return static_cast<DeviceIndex>(core_count);
  }

  static c10::Stream stream(Device device, int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, whole(device), id);
  }
  c10::Stream getStream(Device device) const override {
    return stream(device, current_stream[whole(device).index()]);
  }
  c10::Stream getDefaultStream(Device device) const override { return stream(device, 0); }
  c10::Stream getNewStream(Device device, int) const override {
    return stream(device, next_stream++);
  }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override {
    return stream(device, next_stream++);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const auto before = getStream(next.device());
    current_stream[next.device_index()] = next.id();
    return before;
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

  void record(void** event, const c10::Stream&, DeviceIndex, c10::EventFlag) const override {
    if (!*event) *event = new Clock::time_point;
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* from, void* to, DeviceIndex) const override {
    TORCH_CHECK(from && to, "Both events must be recorded before calculating elapsed time.");
    const auto spent =
        *static_cast<Clock::time_point*>(to) - *static_cast<Clock::time_point*>(from);
    return std::chrono::duration<double, std::milli>(spent).count();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Its state is a seed and an offset, as on accelerators; each operation gets a CPU generator that
// is a function of both.
struct Generator final : c10::GeneratorImpl {
  static constexpr size_t kBytes = 2 * sizeof(uint64_t);
  uint64_t seed_ = c10::default_rng_seed_val, offset_ = 0;

  explicit Generator(DeviceIndex index)
      : GeneratorImpl(Device(kNeuron, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == kBytes && state.device_type() == c10::kCPU && state.itemsize() == 1,
                "RNG state must be a 16-byte CPU ByteTensor");
    const auto* words = static_cast<const uint64_t*>(state.data());
    seed_ = words[0];
    offset_ = words[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    Tensor state = at::empty({kBytes}, at::device(at::kCPU).dtype(at::kByte));
    auto* words = static_cast<uint64_t*>(state.mutable_data_ptr());
    words[0] = seed_;
    words[1] = offset_;
    return state.getIntrusivePtr();
  }
  Generator* clone_impl() const override {
    auto* other = new Generator(device_.index());
    other->seed_ = seed_;
    other->offset_ = offset_;
    return other;
  }
  at::Generator next() {
    std::lock_guard<std::mutex> guard(mutex_);
    constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;  // spreads neighbours over all bits
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed_ ^ (offset_ * kGolden));
    offset_ += 4;  // philox generators advance by fours
    return generator;
  }
};

inline const at::Generator& default_generator(DeviceIndex index) {
  static const auto all = [] {
    std::vector<at::Generator> made;
    for (int core = 0; core < kMostCores; core++) made.push_back(at::make_generator<Generator>(core));
    return made;
  }();
  if (index < 0) index = current;
  require_core(index);
  return all[index];
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return core_count > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(core_count); }
  // It starts nothing: torchtitan sets the device before the process group is made.
  void setCurrentDevice(DeviceIndex index) const override {
    require_core(index);
    current = index;
  }
  DeviceIndex getCurrentDevice() const override { return current; }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    const auto before = current;
    setCurrentDevice(index);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    const auto before = current;
    if (index >= 0 && index < core_count) current = index;
    return before;
  }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? current : index);
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  Device getDeviceFromPtr(void*) const override { return {kNeuron, current}; }
  void resizePrivateUse1Bytes(const Storage& storage, size_t bytes) const override {
    auto* held = storage.unsafeGetStorageImpl();
    auto fresh = host_storage(bytes);
    if (const auto kept = std::min(bytes, held->nbytes())) {
      std::memcpy(fresh.mutable_data(), held->data(), kept);
    }
    held->set_data_ptr_noswap(as_core_memory(fresh, storage.device().index()));
    held->set_nbytes(bytes);
  }
};

}  // namespace rehearsal
