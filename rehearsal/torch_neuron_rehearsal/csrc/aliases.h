// The tensors of a call, as the core and as the host see them: the same bytes, never copied.
#pragma once

#include <ATen/EmptyTensor.h>

#include "runtime.h"

namespace rehearsal {

class Aliases {
 public:
  std::optional<Device> device;
  bool empty() const { return tensors_.empty(); }

  Tensor to_host(const Tensor& there) {
    if (!there.defined() || there.device().type() != kNeuron) return there;
    if (!device) device = there.device();
    TORCH_CHECK(*device == there.device() || there.dim() == 0,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                *device, " and ", there.device(), "!");
    for (auto& [known, here] : tensors_) {
      if (known.is_same(there)) return here;
    }
    TORCH_CHECK(there.layout() == at::kStrided, "the rehearsal device has strided tensors only");
    auto here = made(storage_of(there.storage()), c10::DispatchKey::CPU, there);
    tensors_.emplace_back(there, here);
    return here;
  }

  Tensor to_core(const Tensor& here) {
    if (!here.defined() || !here.is_cpu() || !here.has_storage()) return here;
    // The very tensor, where it was written to; the same storage, where it is a view.
    for (auto& [there, known] : tensors_) {
      if (known.is_same(here)) return there;
    }
    for (auto& [there, known] : tensors_) {
      if (known.storage().unsafeGetStorageImpl() == here.storage().unsafeGetStorageImpl()) {
        return made(there.storage(), c10::DispatchKey::PrivateUse1, here);
      }
    }
    Storage fresh(c10::make_intrusive<StorageImpl>(
        StorageImpl::use_byte_size_t(), here.storage().nbytes(),
        as_core_memory(here.storage(), device->index()), &allocator, true));
    return made(fresh, c10::DispatchKey::PrivateUse1, here);
  }

  // A kernel may have resized what it wrote to.
  void follow() {
    for (auto& [there, here] : storages_) {
      if (here.data() == there->data() && here.nbytes() == there->nbytes()) continue;
      there->set_data_ptr_noswap(as_core_memory(here, there->device().index()));
      there->set_nbytes(here.nbytes());
    }
    for (auto& [there, here] : tensors_) {
      if (there.sizes() == here.sizes() && there.strides() == here.strides() &&
          there.storage_offset() == here.storage_offset()) {
        continue;
      }
      there.unsafeGetTensorImpl()->set_sizes_and_strides(here.sizes(), here.strides(),
                                                         here.storage_offset());
    }
  }

 private:
  c10::SmallVector<std::pair<StorageImpl*, Storage>, 4> storages_;
  c10::SmallVector<std::pair<Tensor, Tensor>, 8> tensors_;

  Storage storage_of(const Storage& there) {
    for (auto& [known, here] : storages_) {
      if (known == there.unsafeGetStorageImpl()) return here;
    }
    auto* kept = new Storage(there);
    c10::DataPtr data(there.mutable_data(), kept, [](void* p) { delete static_cast<Storage*>(p); },
                      Device(c10::kCPU));
    Storage here(c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(), there.nbytes(),
                                                  std::move(data), c10::GetCPUAllocator(), true));
    storages_.emplace_back(there.unsafeGetStorageImpl(), here);
    return here;
  }

  static Tensor made(const Storage& storage, c10::DispatchKey key, const Tensor& like) {
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(
        Storage(storage), c10::DispatchKeySet(key), like.dtype());
    auto* impl = tensor.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    if (like.is_conj()) tensor._set_conj(true);
    if (like.is_neg()) tensor._set_neg(true);
    return tensor;
  }
};

}  // namespace rehearsal
