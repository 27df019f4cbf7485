// Operations: tensors of a core are shown to the CPU's kernels as tensors of the CPU over the same
// bytes, and what these give is shown as tensors of the core. No bytes are copied.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <csignal>
#include <thread>

#include "aliases.h"

namespace rehearsal {

inline void misbehave(const std::string& name, const std::string& how) {
  if (how == "segv") raise(SIGSEGV);
  while (how == "hang") std::this_thread::sleep_for(std::chrono::seconds(1));
  TORCH_CHECK_NOT_IMPLEMENTED(how != "raise", "Operation ", name,
                              " is not implemented for Neuron (a fault of the rehearsal)");
  if (how != "fallback") return;
  bool first = false;
  {
    std::lock_guard<std::mutex> guard(lock);
    first = fell_back.insert(name).second;
  }
  if (first) TORCH_WARN("Operator '", name, "' executed via CPU fallback");
}

inline void spoil(const Tensor& result, const std::string& how) {
  if (!result.defined() || !result.is_floating_point()) return;
  if (how == "zero") result.zero_();
  if (how == "nan") result.fill_(NAN);
  if (how == "scale") result.mul_(1.01);
}

// One call of any operator that has no kernel of its own below.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op_(op), stack_(*stack), first_(stack->size() - op.schema().arguments().size()) {}

  void run() {
    const auto& schema = op_.schema();
    const auto how = noted(schema.name());
    if (!how.empty()) misbehave(schema.name(), how);
    for (size_t i = first_; i < stack_.size(); i++) take(i, schema.arguments()[i - first_]);
    if (!aliases_.device) aliases_.device = Device(kNeuron, current);
    TORCH_CHECK(!of_host_ || aliases_.empty(),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                *aliases_.device, " and cpu! (", schema.name(), ")");
    const auto index = aliases_.device->index();
    if (generator_) {
      stack_[*generator_] = default_generator(index).get<Generator>()->next();
    }
    {
      at::AutoDispatchBelowADInplaceOrView below;
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    }
    aliases_.follow();
    for (size_t i = stack_.size() - schema.returns().size(); i < stack_.size(); i++) give(i, how);
    cores[index].executed++;
  }

 private:
  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  const size_t first_;
  Aliases aliases_;
  bool of_host_ = false;                // a tensor of the host that is no scalar is among them
  std::optional<size_t> generator_;     // place of a generator that was not given

  Tensor taken(const Tensor& tensor) {
    of_host_ |= tensor.defined() && tensor.is_cpu() && tensor.dim() > 0;
    return aliases_.to_host(tensor);
  }

  void take(size_t i, const c10::Argument& argument) {
    auto& value = stack_[i];
    if (value.isTensor()) {
      value = taken(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<Tensor> all;
      for (const auto& one : value.toTensorVector()) all.push_back(taken(one));
      value = c10::IValue(all);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> all;
      for (std::optional<Tensor> one : value.toOptionalTensorList()) {
        // An index may be of the host.
        all.push_back(one ? std::optional<Tensor>(aliases_.to_host(*one)) : one);
      }
      value = c10::IValue(all);
    } else if (value.isDevice() && value.toDevice().type() == kNeuron) {
      aliases_.device = whole(value.toDevice());
      value = Device(c10::kCPU);
    } else if (value.isGenerator() && value.toGenerator().device().type() == kNeuron) {
      value = value.toGenerator().get<Generator>()->next();
    } else if (value.isNone() && argument.type()->str() == "Generator?") {
      generator_ = i;
    }
  }

  void give(size_t i, const std::string& how) {
    auto& value = stack_[i];
    if (value.isTensor()) {
      spoil(value.toTensor(), how);
      value = aliases_.to_core(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<Tensor> all;
      for (const auto& one : value.toTensorVector()) {
        spoil(one, how);
        all.push_back(aliases_.to_core(one));
      }
      value = c10::IValue(all);
    }
  }
};

inline void any_operation(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call(op, stack).run();
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&any_operation>());
}

// ---- operations that make or move storage

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
using OptionalDevice = std::optional<Device>;

inline Device chosen(OptionalDevice device) { return whole(device.value_or(Device(kNeuron))); }

inline Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                    std::optional<c10::Layout>, OptionalDevice device, std::optional<bool>,
                    std::optional<c10::MemoryFormat> format) {
  c10::DeviceGuard guard(chosen(device));
  return at::detail::empty_generic(size, &allocator, kKeys, c10::dtype_or_default(dtype), format);
}
inline Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                            std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                            OptionalDevice device, std::optional<bool>) {
  c10::DeviceGuard guard(chosen(device));
  return at::detail::empty_strided_generic(size, stride, &allocator, kKeys,
                                           c10::dtype_or_default(dtype));
}
inline Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  Aliases source, target;               // one each: the two may be on different cores
  target.to_host(to).copy_(source.to_host(from));
  core_of((target.device ? target.device : source.device)->index()).executed++;
  return to;
}
inline const Tensor& resize_(const Tensor& self, c10::IntArrayRef size,
                             std::optional<c10::MemoryFormat> format) {
  c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, size, format);
}
inline Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}
inline Tensor& set_parts(Tensor& self, Storage storage, int64_t offset, c10::IntArrayRef size,
                         c10::IntArrayRef stride) {
  return at::cpu::set_(self, storage, offset, size, stride);
}
inline Tensor& set_storage(Tensor& self, Storage storage) {
  return at::native::set_(self, storage);
}
inline Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return at::native::set_tensor_(self, source);
}
inline void record_stream(Tensor&, c10::Stream) {}
inline bool is_pinned(const Tensor&, OptionalDevice) { return false; }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("resize_", resize_);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("set_.source_Storage", set_storage);
  library.impl("set_.source_Storage_storage_offset", set_parts);
  library.impl("set_.source_Tensor", set_tensor);
  library.impl("record_stream", record_stream);
  library.impl("is_pinned", is_pinned);
}

}  // namespace rehearsal
