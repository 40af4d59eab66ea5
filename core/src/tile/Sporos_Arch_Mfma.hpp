// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_ARCH_MFMA_HPP
#define SPOROS_ARCH_MFMA_HPP

#include "tile/Sporos_Pipeline_Registers.hpp"

// The instructions of AMD's data center GPUs, one function each. Device code only. gfx90a and gfx942 differ in the names of
// the instructions for bfloat16, which the compiler's builtins hide, and in what fits: every object holds both.
#if defined(__HIPCC__)
namespace Sporos::inline SPOROS_LEVEL {

struct MfmaInstructions {
  using Atom = MfmaAtom<16>;

  static constexpr int warps = 4;  // one for each SIMD of a compute unit
  static constexpr bool loads_transposed = false;
  static constexpr bool copies_asynchronously = false;

  /// N registers of this lane
  template <class T, int N>
  struct Registers {
    T m_value[N];
    __device__ T& operator()(int /*lane*/, int i) { return m_value[i]; }
    __device__ T operator()(int /*lane*/, int i) const { return m_value[i]; }
  };

  struct ProductToken {
    __device__ void check_joined() const {}
  };

  /// The hardware waits for a product where its result is needed.
  struct Products {
    template <class Product, class... Tokens>
    __device__ static void issue(Product const& product, Tokens&...) {
      product();
    }
    template <int InFlight>
    __device__ static void join() {}
  };

  __device__ static int thread() { return int(threadIdx.x + blockDim.x * threadIdx.y); }
  __device__ static int lane() { return thread() & (Atom::lanes - 1); }

  /// This lane, of which the compiler may not know that it is the same every time; see Arch::Sm80::Lanes.
  struct Lanes {
    int lane = MfmaInstructions::lane();
    __device__ Lanes() { asm volatile("" : "+v"(lane)); }
  };

  template <class F>
  __device__ static void for_each_lane(F const& f) {
    f(Lanes().lane);
  }

  template <class F>
  __device__ static bool any_lane(F const& f) {
    return __any(f(lane()));
  }

  template <int N>
  __device__ static Registers<float, N> exchange(Registers<float, N> const& x, int mask) {
    Registers<float, N> other;
    SPOROS_UNROLL
    for (int i = 0; i < N; ++i) other.m_value[i] = __shfl_xor(x.m_value[i], mask, Atom::lanes);
    return other;
  }

  /// 16 bytes of scratch
  template <class Address>
  __device__ static Registers<std::uint32_t, 4> load(Lanes lanes, Address const& address) {
    return *scratch<Chunk const>(address(lanes.lane));
  }

  /// c += a b, as cᵀ += bᵀ aᵀ, in two steps of four elements along the depth
  template <class T>
  __device__ static void mma(Registers<float, 4>& c, Registers<std::uint32_t, 4> const& a,
                             Registers<std::uint32_t, 4> const& b) {
    Accumulators sum = {c.m_value[0], c.m_value[1], c.m_value[2], c.m_value[3]};
    SPOROS_UNROLL
    for (int step = 0; step < 2; ++step)
      sum = product<T>(b.m_value[2 * step], b.m_value[2 * step + 1], a.m_value[2 * step], a.m_value[2 * step + 1], sum);
    SPOROS_UNROLL
    for (int i = 0; i < 4; ++i) c.m_value[i] = sum[i];
  }

  /// Two numbers in a register, `low` at the lower address
  template <class T>
  __device__ static std::uint32_t pack(float low, float high) {
    return T(low).bits | std::uint32_t(T(high).bits) << 16;
  }

  template <class T>
  __device__ static std::uint32_t load_pair(T const* from) {
    return *reinterpret_cast<std::uint32_t const*>(from);
  }
  template <class T>
  __device__ static void store_pair(T* to, std::uint32_t pair) {
    *reinterpret_cast<std::uint32_t*>(to) = pair;
  }
  /// Stores a pair, or one number, in scratch
  template <class T>
  __device__ static void put(T* to, std::uint32_t pair) {
    *scratch<std::uint32_t>(to) = pair;
  }
  template <class T>
  __device__ static void put(T* to, T x) {
    *scratch<typename T::Bits>(to) = x.bits;
  }
  __device__ static void add_to(float* to, float x) { *to += x; }

  __device__ static float exp2(float x) { return __builtin_amdgcn_exp2f(x); }
  __device__ static float log2(float x) { return log2f(x); }
  __device__ static float ceil(float x) { return ceilf(x); }
  __device__ static float max(float a, float b) { return fmaxf(a, b); }
  __device__ static float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }

 private:
  struct alignas(16) Chunk : Registers<std::uint32_t, 4> {};

  /// The compiler cannot see that a pointer leads to scratch, and would use slower instructions that go anywhere.
  template <class To, class T>
  __device__ static auto scratch(T* pointer) {
    return (__attribute__((address_space(3))) To*)(pointer);
  }

  using Accumulators = __attribute__((__vector_size__(4 * sizeof(float)))) float;
  using BFloat16s = __attribute__((__vector_size__(4 * sizeof(short)))) short;
  using Float16s = __attribute__((__vector_size__(4 * sizeof(_Float16)))) _Float16;

  template <class T>
  __device__ static Accumulators product(std::uint32_t a0, std::uint32_t a1, std::uint32_t b0, std::uint32_t b1,
                                         Accumulators c) {
    std::uint64_t const a = a0 | std::uint64_t(a1) << 32, b = b0 | std::uint64_t(b1) << 32;
#if defined(__gfx90a__) || defined(__gfx942__)
    if constexpr (std::is_same_v<T, bfloat16>)
      return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(BFloat16s, a),
                                                       __builtin_bit_cast(BFloat16s, b), c, 0, 0, 0);
    else
      return __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(Float16s, a), __builtin_bit_cast(Float16s, b), c,
                                                   0, 0, 0);
#else
    __builtin_trap();  // the launcher chooses this on gfx90a and gfx942 alone
    return c;
#endif
  }
};

struct Arch::Gfx90a : MfmaInstructions {
  using WarpMmaInstructions = Gfx90a;
};
struct Arch::Gfx942 : MfmaInstructions {
  using WarpMmaInstructions = Gfx942;
};

class MfmaTeam {
 public:
  static constexpr int warps = MfmaInstructions::warps;
  static constexpr int threads = MfmaInstructions::Atom::lanes * warps;

  // A whole wavefront has one index: addresses from it belong into scalar registers.
  __device__ MfmaTeam()
      : m_warp(__builtin_amdgcn_readfirstlane(MfmaInstructions::thread() / MfmaInstructions::Atom::lanes)) {}

  __device__ int warp() const { return m_warp; }
  __device__ void barrier() { __syncthreads(); }

 private:
  int m_warp;
};

template <>
class Team<Arch::Gfx90a> : public MfmaTeam {};
template <>
class Team<Arch::Gfx942> : public MfmaTeam {};

}  // namespace Sporos::inline SPOROS_LEVEL
#endif

#endif
