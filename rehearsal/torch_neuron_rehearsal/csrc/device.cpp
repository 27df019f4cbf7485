// The rehearsal device: a PrivateUse1 backend that computes on the CPU, and what Python sees of it.
// One translation unit, since reading torch's headers is most of a build.
#include <ATen/autocast_mode.h>
#include <torch/csrc/utils/pybind.h>

#include <numeric>

#include "collectives.h"

namespace rehearsal {

using Faults = std::unordered_map<std::string, std::pair<std::string, int64_t>>;

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("set_up", [](int count, int64_t bytes, const Faults& given, std::set<std::string> known) {
    core_count = count;
    memory_limit = bytes;
    for (const auto& [name, fault] : given) faults[name] = {fault.first, fault.second};
    limits = std::move(known);
    at::RegisterPrivateUse1HooksInterface(new Hooks);
  });
  module.def("set_core_count", [](int count) { core_count = count; });
  module.def("core_count", [] { return core_count; });
  module.def("initialize", initialize);
  module.def("initialized", [] { return initialized.load(); });
  module.def("forked", [] { forked_after_use = initialized; });
  module.def("forked_after_use", [] { return forked_after_use; });
  module.def("executed", [] {
    std::vector<int64_t> all;
    for (int core = 0; core < core_count; core++) all.push_back(cores[core].executed);
    return all;
  });
  module.def("memory", [](int index) {
    const auto& core = core_of(static_cast<DeviceIndex>(index));
    return std::vector<int64_t>{core.in_use, core.peak, core.allocated, core.allocations,
                                core.refusals};
  });
  module.def("reset_peak", [](int index) {
    allocator.resetPeakStats(static_cast<DeviceIndex>(index));
  });
  module.def("calls", [] {
    std::lock_guard<std::mutex> guard(lock);
    return calls;
  });
  module.def("clear_calls", [] {
    std::lock_guard<std::mutex> guard(lock);
    calls.clear();
    fell_back.clear();
  });
  module.def("fell_back", [] {
    std::lock_guard<std::mutex> guard(lock);
    return fell_back;
  });
  module.def("default_generator", [](int index) {
    return default_generator(static_cast<DeviceIndex>(index));
  });
  module.def("group_over", [](Pointer<c10d::Backend> gloo, std::string name) {
    return Pointer<c10d::Backend>(c10::make_intrusive<Group>(std::move(gloo), std::move(name)));
  });
}

}  // namespace rehearsal

namespace at::autocast {

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}
#define NEURON_LOW(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define NEURON_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(NEURON_LOW)
  AT_FORALL_FP32(NEURON_FP32)
}

}  // namespace at::autocast
