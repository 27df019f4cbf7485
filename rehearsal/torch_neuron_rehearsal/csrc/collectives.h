// Process group `neuron`: gloo on the same bytes, with what neuron has and gloo has not, and with
// the limits that were reported of neuron where these are asked for.
#pragma once

#include "work.h"

namespace rehearsal {

class Group final : public c10d::Backend {
 public:
  Group(Pointer<c10d::Backend> gloo, std::string name)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), name_(std::move(name)) {}
  const std::string getBackendName() const override { return name_; }

  Pointer<Work> broadcast(Tensors& t, const c10d::BroadcastOptions& options) override {
    auto x = host(t);
    const auto start = [&](Tensors& y) { return gloo_->broadcast(y, options); };
    return run("broadcast", t, [&] { return dense(x, start); });
  }
  Pointer<Work> allreduce(Tensors& t, const c10d::AllreduceOptions& asked) override {
    auto options = asked;
    const auto factor = summed(options);
    auto x = host(t);
    const auto start = [&](Tensors& y) { return gloo_->allreduce(y, options); };
    return run("allreduce", t, [&] { return dense(x, start); }, factor);
  }
  Pointer<Work> allreduce_coalesced(Tensors& t,
                                    const c10d::AllreduceCoalescedOptions& asked) override {
    auto options = asked;
    const auto factor = summed(options);
    auto x = host(t);
    return run(
        "allreduce_coalesced", t, [&] { return gloo_->allreduce_coalesced(x, options); }, factor);
  }
  Pointer<Work> reduce(Tensors& t, const c10d::ReduceOptions& asked) override {
    auto options = asked;
    const auto factor = summed(options);
    auto x = host(t);
    return run("reduce", t, [&] { return gloo_->reduce(x, options); }, factor);
  }
  Pointer<Work> allgather(Lists& out, Tensors& in, const c10d::AllgatherOptions& o) override {
    for (const auto& one : in) require_dims(one);
    auto y = host(out);
    auto x = host(in);
    return run("allgather", flat(out), [&] { return gloo_->allgather(y, x, o); });
  }
  Pointer<Work> _allgather_base(Tensor& out, Tensor& in,
                                const c10d::AllgatherOptions& o) override {
    require_dims(in);
    auto y = host(out), x = host(in.dim() ? in : in.view({1}));
    return run("_allgather_base", {out}, [&] { return gloo_->_allgather_base(y, x, o); });
  }
  Pointer<Work> allgather_coalesced(Lists& out, Tensors& in,
                                    const c10d::AllgatherOptions& o) override {
    auto y = host(out);
    auto x = host(in);
    return run("allgather_coalesced", flat(out),
               [&] { return gloo_->allgather_coalesced(y, x, o); });
  }
  Pointer<Work> allgather_into_tensor_coalesced(Tensors& out, Tensors& in,
                                                const c10d::AllgatherOptions& o) override {
    auto y = host(out), x = host(in);
    return run("allgather_into_tensor_coalesced", out,
               [&] { return gloo_->allgather_into_tensor_coalesced(y, x, o); });
  }
  Pointer<Work> gather(Lists& out, Tensors& in, const c10d::GatherOptions& o) override {
    auto y = host(out);
    auto x = host(in);
    return run("gather", flat(out), [&] { return gloo_->gather(y, x, o); });
  }
  Pointer<Work> scatter(Tensors& out, Lists& in, const c10d::ScatterOptions& o) override {
    auto y = host(out);
    auto x = host(in);
    return run("scatter", out, [&] { return gloo_->scatter(y, x, o); });
  }
  Pointer<Work> reduce_scatter(Tensors& out, Lists& in,
                               const c10d::ReduceScatterOptions& asked) override {
    auto options = asked;
    const auto factor = summed(options);
    auto y = host(out);
    auto x = host(in);
    return run(
        "reduce_scatter", out, [&] { return gloo_->reduce_scatter(y, x, options); }, factor);
  }
  Pointer<Work> _reduce_scatter_base(Tensor& out, Tensor& in,
                                     const c10d::ReduceScatterOptions& asked) override {
    auto options = asked;
    const auto factor = summed(options);
    auto y = host(out), x = host(in);
    return run(
        "_reduce_scatter_base", {out},
        [&] { return gloo_->_reduce_scatter_base(y, x, options); }, factor);
  }
  Pointer<Work> reduce_scatter_tensor_coalesced(Tensors& out, Tensors& in,
                                                const c10d::ReduceScatterOptions& asked) override {
    auto options = asked;
    const auto factor = summed(options);
    auto y = host(out), x = host(in);
    return run(
        "reduce_scatter_tensor_coalesced", out,
        [&] { return gloo_->reduce_scatter_tensor_coalesced(y, x, options); }, factor);
  }
  Pointer<Work> alltoall_base(Tensor& out, Tensor& in, Sizes& taken, Sizes& given,
                              const c10d::AllToAllOptions& o) override {
    TORCH_CHECK(!limited("even_alltoall") || (even(taken) && even(given)),
                "alltoall_base: Only even split sizes are supported. Got ", taken, " and ", given);
    auto y = host(out), x = host(in);
    return run("alltoall_base", {out},
               [&] { return gloo_->alltoall_base(y, x, taken, given, o); });
  }
  // gloo takes one shape for all, and expert parallelism sends different ones: exchanged flat.
  Pointer<Work> alltoall(Tensors& out, Tensors& in, const c10d::AllToAllOptions& o) override {
    auto y = host(out), x = host(in);
    Sizes taken, given;
    for (const auto& one : y) taken.push_back(one.numel());
    for (auto& one : x) {
      given.push_back(one.numel());
      one = one.reshape({-1});
    }
    TORCH_CHECK(!limited("even_alltoall_list") || (even(taken) && even(given)),
                "alltoall: only even sizes are supported. Got ", taken, " and ", given);
    return run("alltoall", out, [&] {
      auto sent = at::cat(x);
      auto received = at::empty({std::accumulate(taken.begin(), taken.end(), int64_t{0})},
                                sent.options());
      const auto parts = received.split_with_sizes(taken);  // before gloo moves the sizes away
      auto work = gloo_->alltoall_base(received, sent, taken, given, o);
      work->wait();
      for (size_t i = 0; i < y.size(); i++) y[i].copy_(parts[i].view(y[i].sizes()));
      return work;
    });
  }
  Pointer<Work> send(Tensors& t, int to, int tag) override {
    auto x = host(t);
    return run("send", t, [&] { return gloo_->send(x, to, tag); });
  }
  Pointer<Work> recv(Tensors& t, int from, int tag) override {
    auto x = host(t);
    return run("recv", t, [&] { return gloo_->recv(x, from, tag); });
  }
  Pointer<Work> recvAnysource(Tensors& t, int tag) override {
    auto x = host(t);
    return run("recvAnysource", t, [&] { return gloo_->recvAnysource(x, tag); });
  }
  Pointer<Work> barrier(const c10d::BarrierOptions& options) override {
    TORCH_CHECK(!limited("default_barrier") || getGroupDesc() == "default_pg",
                "Barrier is implemented only for default group, called barrier on ",
                getGroupDesc());
    return run("barrier", {}, [&] { return gloo_->barrier(options); });
  }

  // The collectives between the two run at once; only that they are done is joined.
  void startCoalescing() override {
    coalescing_ = true;
    pending_.clear();
    joined_.clear();
  }
  Pointer<Work> endCoalescing() override {
    coalescing_ = false;
    for (const auto& work : pending_) work->wait();
    return wrapped(c10::make_intrusive<Work>(), joined_, true);
  }

  void monitoredBarrier(const c10d::BarrierOptions& options, bool all) override {
    gloo_->monitoredBarrier(options, all);
  }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }
  void setTimeout(Milliseconds timeout) override { gloo_->setTimeout(timeout); }
  Pointer<Options> getBackendOptions() override { return gloo_->getBackendOptions(); }
  void abort() override { gloo_->abort(); }
  void shutdown() override {
    gloo_->shutdown();
    misbehave("c10d::shutdown", noted("c10d::shutdown"));
  }

 private:
  Pointer<c10d::Backend> gloo_;
  std::string name_;
  bool coalescing_ = false;
  std::vector<Pointer<Work>> pending_;
  Tensors joined_;

  static Tensor host(const Tensor& tensor) {
    TORCH_CHECK(tensor.device().type() == kNeuron, "neuron process group got a tensor on ",
                tensor.device());
    return Aliases().to_host(tensor);
  }
  static Tensors host(const Tensors& tensors) {
    Tensors all;
    for (const auto& one : tensors) all.push_back(host(one));
    return all;
  }
  static Lists host(const Lists& lists) {
    Lists all;
    for (const auto& one : lists) all.push_back(host(one));
    return all;
  }
  static Tensors flat(const Lists& lists) {
    Tensors all;
    for (const auto& one : lists) all.insert(all.end(), one.begin(), one.end());
    return all;
  }
  static bool even(const Sizes& sizes) {
    return std::adjacent_find(sizes.begin(), sizes.end(), std::not_equal_to<>()) == sizes.end();
  }
  static void require_dims(const Tensor& tensor) {
    TORCH_CHECK_INDEX(!limited("no_0d_allgather") || tensor.dim(), "tuple index out of range");
  }

  // gloo has neither AVG nor PREMUL_SUM, neuron has both: summed, and then multiplied.
  template <class Asked>
  double summed(Asked& options) {
    auto& op = options.reduceOp;
    double factor = 1.0;
    if (op == c10d::ReduceOp::AVG) {
      factor = 1.0 / getSize();
    } else if (op == c10d::ReduceOp::PREMUL_SUM) {
      const auto* by = static_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      factor = by->tensor_factor.defined() ? by->tensor_factor.item().toDouble() : by->double_factor;
    } else {
      return factor;
    }
    op = c10d::ReduceOp::SUM;
    return factor;
  }

  // gloo takes the memory of a tensor with gaps as if it had none.
  template <class Start>
  static Pointer<Work> dense(Tensors& tensors, Start start) {
    const auto is_dense = [](const Tensor& one) { return one.is_non_overlapping_and_dense(); };
    if (std::all_of(tensors.begin(), tensors.end(), is_dense)) return start(tensors);
    Tensors packed;
    for (const auto& one : tensors) packed.push_back(one.contiguous());
    auto work = start(packed);
    work->wait();
    for (size_t i = 0; i < tensors.size(); i++) tensors[i].copy_(packed[i]);
    return work;
  }

  template <class Start>
  Pointer<Work> run(const char* name, Tensors results, Start start, double factor = 1.0) {
    initialize();
    const auto operation = std::string("c10d::") + name;
    const auto how = noted(operation);
    misbehave(operation, how);
    const bool skipped = how == "skip";
    auto work = skipped ? c10::make_intrusive<Work>() : start();
    bool done = skipped;
    if (factor != 1.0 || !how.empty()) {
      if (!done) work->wait();  // what is changed has to be there
      done = true;
      at::AutoDispatchBelowADInplaceOrView below;
      for (const auto& one : results) {
        if (factor != 1.0) one.mul_(factor);
        spoil(one, how);
      }
    }
    if (coalescing_) {
      if (!done) pending_.push_back(work);
      joined_.insert(joined_.end(), results.begin(), results.end());
    }
    const auto index = results.empty() ? current : results[0].device().index();
    cores[index].executed++;
    return wrapped(std::move(work), std::move(results), done);
  }

  Pointer<Work> wrapped(Pointer<Work> work, Tensors results, bool done) {
    const auto device = results.empty() ? Device(kNeuron, current) : results[0].device();
    return c10::make_intrusive<CoreWork>(std::move(work), std::move(results), device, done);
  }
};

}  // namespace rehearsal
