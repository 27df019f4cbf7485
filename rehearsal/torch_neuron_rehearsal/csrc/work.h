// Work of a process group, and the short names of what its collectives take.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "operations.h"

namespace rehearsal {

template <class T>
using Pointer = c10::intrusive_ptr<T>;
using Tensors = std::vector<Tensor>;
using Lists = std::vector<Tensors>;
using Sizes = std::vector<int64_t>;
using c10d::Work;
using Milliseconds = std::chrono::milliseconds;

// Work of gloo, whose results are tensors of a core.
struct CoreWork final : Work {
  Pointer<Work> inner;
  Tensors results;
  Device device;
  bool done;

  CoreWork(Pointer<Work> work, Tensors tensors, Device where, bool ended)
      : Work(-1, c10d::OpType::UNKNOWN),
        inner(std::move(work)),
        results(std::move(tensors)),
        device(where),
        done(ended) {}
  bool isCompleted() override { return done || inner->isCompleted(); }
  bool isSuccess() const override { return done || inner->isSuccess(); }
  std::exception_ptr exception() const override { return inner->exception(); }
  int sourceRank() const override { return inner->sourceRank(); }
  Tensors result() override { return results; }
  bool wait(Milliseconds timeout) override {
    // Once: gloo's reduce_scatter copies its result again at every wait.
    if (!done) inner->wait(timeout);
    done = true;
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  void abort() override { inner->abort(); }

  Pointer<c10::ivalue::Future> getFuture() override {
    using c10::ivalue::Future;
    auto future = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()),
                                              std::vector<Device>{device});
    Pointer<Future> waited;
    if (!done) {
      try {
        waited = inner->getFuture();
      } catch (const std::exception&) {  // not every work of gloo has one
        wait(kNoTimeout);
      }
    }
    if (!waited) {
      future->markCompleted(c10::IValue(results));
      return future;
    }
    waited->addCallback([future, kept = results](Future& ended) {
      if (ended.hasError()) {
        future->setError(ended.exception_ptr());
      } else {
        future->markCompleted(c10::IValue(kept));
      }
    });
    return future;
  }
};

}  // namespace rehearsal
