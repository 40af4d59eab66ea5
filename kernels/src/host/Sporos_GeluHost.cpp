// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Compiled once for each instruction-set level: no Kokkos here.
#include "impl/Sporos_Gelu_Host.hpp"
#include "impl/Sporos_Gelu_Vector.hpp"

namespace Sporos::inline SPOROS_LEVEL {
namespace {

template <class T>
void forward(T const* x, T* y, std::int64_t count) {
  using C = ComputeType<T>;
  constexpr int n = lanes<C>;
  std::int64_t i = 0;
  for (; i + n <= count; i += n) store_as(y + i, gelu<C>(load_as<C>(x + i)));
  if (i < count) store_first(y + i, gelu<C>(load_first<C>(x + i, int(count - i))), int(count - i));
}

template <class T>
void backward(T const* dy, T const* x, T* dx, std::int64_t count) {
  using C = ComputeType<T>;
  constexpr int n = lanes<C>;
  std::int64_t i = 0;
  for (; i + n <= count; i += n) store_as(dx + i, load_as<C>(dy + i) * gelu_derivative<C>(load_as<C>(x + i)));
  if (int const rest = int(count - i); rest > 0)
    store_first(dx + i, load_first<C>(dy + i, rest) * gelu_derivative<C>(load_first<C>(x + i, rest)), rest);
}

template <class T>
constexpr Impl::GeluHostKernel<T> kernel{forward<T>, backward<T>};

}  // namespace

Impl::GeluHostKernels gelu_host_kernels_of_level() { return {kernel<double>, kernel<float>, kernel<bfloat16>}; }

}  // namespace Sporos::inline SPOROS_LEVEL
