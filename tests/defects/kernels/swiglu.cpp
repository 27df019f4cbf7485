// SwiGLU on raw memory, right or with one fault: what a kernel that is handed pointers can do wrong.

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <torch/library.h>

namespace {

enum Fault {
  kNone,
  kIgnoresStrides,   // reads memory in order, whatever the strides are
  kSkipsLastBlock,   // leaves the rows behind the last whole block of 128 as they were allocated
  kAddsToOutput,     // accumulates into memory that nobody cleared
  kScalesGradient,   // writes to the gradient that it is given
  kReadsHalves,      // takes bfloat16 for float16
};

constexpr int64_t kRows = 128;

template <typename T>
float value(const T* from, int64_t at, Fault fault) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    if (fault == kReadsHalves) {
      return static_cast<float>(reinterpret_cast<const c10::Half*>(from)[at]);
    }
  }
  return static_cast<float>(from[at]);
}

at::Tensor laid_out(const at::Tensor& given, Fault fault) {
  return fault == kIgnoresStrides ? given : given.contiguous();
}

int64_t written(const at::Tensor& given, Fault fault) {
  const int64_t rows = fault == kSkipsLastBlock ? given.size(0) / kRows * kRows : given.size(0);
  return rows * given.size(1);
}

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

at::Tensor forward(const at::Tensor& gate, const at::Tensor& up, int64_t number) {
  const auto fault = static_cast<Fault>(number);
  const auto left = laid_out(gate, fault), right = laid_out(up, fault);
  auto out = at::empty(gate.sizes(), gate.options());
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, gate.scalar_type(), "swiglu", [&] {
    const auto* a = static_cast<const scalar_t*>(left.const_data_ptr());
    const auto* b = static_cast<const scalar_t*>(right.const_data_ptr());
    auto* to = static_cast<scalar_t*>(out.mutable_data_ptr());
    for (int64_t at = 0; at < written(gate, fault); ++at) {
      const float x = value(a, at, fault);
      const float made = x * sigmoid(x) * value(b, at, fault);
      to[at] = static_cast<scalar_t>(fault == kAddsToOutput ? to[at] + made : made);
    }
  });
  return out;
}

std::tuple<at::Tensor, at::Tensor> backward(
    const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up, int64_t number) {
  const auto fault = static_cast<Fault>(number);
  const auto above = laid_out(grad, fault), left = laid_out(gate, fault);
  const auto right = laid_out(up, fault);
  auto of_gate = at::empty(gate.sizes(), gate.options());
  auto of_up = at::empty(up.sizes(), up.options());
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, gate.scalar_type(), "swiglu_backward", [&] {
    auto* g = static_cast<scalar_t*>(above.mutable_data_ptr());
    const auto* a = static_cast<const scalar_t*>(left.const_data_ptr());
    const auto* b = static_cast<const scalar_t*>(right.const_data_ptr());
    auto* to_gate = static_cast<scalar_t*>(of_gate.mutable_data_ptr());
    auto* to_up = static_cast<scalar_t*>(of_up.mutable_data_ptr());
    for (int64_t at = 0; at < gate.numel(); ++at) {
      const float x = value(a, at, fault), s = sigmoid(x), slope = s * (1.0f + x * (1.0f - s));
      const float up_here = value(b, at, fault), grad_here = value(g, at, fault);
      to_gate[at] = static_cast<scalar_t>(grad_here * up_here * slope);
      to_up[at] = static_cast<scalar_t>(grad_here * x * s);
      if (fault == kScalesGradient) {
        g[at] = static_cast<scalar_t>(0.5f * grad_here);
      }
    }
  });
  return {of_gate, of_up};
}

}  // namespace

TORCH_LIBRARY(defects_cpp, library) {
  library.def("forward(Tensor gate, Tensor up, int fault) -> Tensor", &forward);
  library.def(
      "backward(Tensor grad, Tensor gate, Tensor up, int fault) -> (Tensor, Tensor)", &backward);
}
