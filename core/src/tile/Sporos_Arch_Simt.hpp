// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_ARCH_SIMT_HPP
#define SPOROS_ARCH_SIMT_HPP

#include "tile/Sporos_Tile_Simt.hpp"

// The instructions of any GPU that runs CUDA or HIP, one function each. Device code only.
#if defined(__CUDACC__) || defined(__HIPCC__)
namespace Sporos::inline SPOROS_LEVEL {

struct Arch::Simt {
  using SimtInstructions = Simt;

  /// N registers of this lane
  template <class T, int N>
  struct Registers {
    T m_value[N];
    __device__ T& operator()(int /*lane*/, int i) { return m_value[i]; }
    __device__ T operator()(int /*lane*/, int i) const { return m_value[i]; }
  };

  /// A product has finished when the next instruction runs.
  struct ProductToken {
    __device__ void check_joined() const {}
    template <class... Tokens>
    __device__ static void issue(Tokens&...) {}
    template <int InFlight>
    __device__ static void join() {}
  };

  __device__ static int thread() { return int(threadIdx.x + blockDim.x * threadIdx.y); }
  __device__ static int lane() { return thread() & (SimtLayout::lanes - 1); }

  template <class F>
  __device__ static void for_each_lane(F const& f) {
    f(lane());
  }

  /// Where a wavefront has 64 lanes, they are two warps to us and give one answer.
  template <class F>
  __device__ static bool any_lane(F const& f) {
#if defined(__HIPCC__)
    return __any(f(lane()));
#else
    return __any_sync(~0u, f(lane()));
#endif
  }

  /// The registers of the lane whose number differs in the bits of `mask`, a lane of the same group
  template <class T, int N>
  __device__ static Registers<T, N> exchange(Registers<T, N> const& x, int mask) {
    Registers<T, N> other;
    SPOROS_UNROLL
    for (int i = 0; i < N; ++i) {
#if defined(__HIPCC__)
      other.m_value[i] = __shfl_xor(x.m_value[i], mask, SimtLayout::group);
#else
      other.m_value[i] = __shfl_xor_sync(~0u, x.m_value[i], mask, SimtLayout::group);
#endif
    }
    return other;
  }

  /// The registers of lane `source` of each lane's group
  template <class T, int N>
  __device__ static Registers<T, N> broadcast(Registers<T, N> const& x, int source) {
    Registers<T, N> other;
    SPOROS_UNROLL
    for (int i = 0; i < N; ++i) {
#if defined(__HIPCC__)
      other.m_value[i] = __shfl(x.m_value[i], source, SimtLayout::group);
#else
      other.m_value[i] = __shfl_sync(~0u, x.m_value[i], source, SimtLayout::group);
#endif
    }
    return other;
  }

  __device__ static float exp2(float x) { return exp2f(x); }
  __device__ static double exp2(double x) { return ::exp2(x); }
  __device__ static float log2(float x) { return log2f(x); }
  __device__ static double log2(double x) { return ::log2(x); }
  __device__ static float ceil(float x) { return ceilf(x); }
  __device__ static double ceil(double x) { return ::ceil(x); }
  __device__ static float max(float a, float b) { return fmaxf(a, b); }
  __device__ static double max(double a, double b) { return fmax(a, b); }
  __device__ static float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
  __device__ static double multiply_add(double a, double b, double c) { return fma(a, b, c); }
};

template <>
class Team<Arch::Simt> {
 public:
  static constexpr int warps = SimtLayout::warps;
  static constexpr int threads = SimtLayout::lanes * warps;

  __device__ Team() : m_warp(Arch::Simt::thread() / SimtLayout::lanes) {}
  __device__ int warp() const { return m_warp; }
  __device__ void barrier() { __syncthreads(); }

 private:
  int m_warp;
};

}  // namespace Sporos::inline SPOROS_LEVEL
#endif

#endif
