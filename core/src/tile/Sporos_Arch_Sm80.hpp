// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_ARCH_SM80_HPP
#define SPOROS_ARCH_SM80_HPP

#include "tile/Sporos_Pipeline_AsyncCopy.hpp"

// The instructions of NVIDIA GPUs from Ampere on, one function each. Device code only.
#if defined(__CUDACC__)
namespace Sporos::inline SPOROS_LEVEL {

struct Arch::Sm80 {
  using WarpMmaInstructions = Sm80;
  using Atom = MmaSyncAtom;

  static constexpr int warps = 4;
  static constexpr bool loads_transposed = true;
  static constexpr bool copies_asynchronously = true;
  static constexpr int most_left_registers = 32;  // of 255, with accumulators of 64 to 128

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

  /// mma.sync leaves nothing in flight that the hardware does not look after.
  struct Products {
    template <class Product, class... Tokens>
    __device__ static void issue(Product const& product, Tokens&...) {
      product();
    }
    template <int InFlight>
    __device__ static void join() {}
  };

  __device__ static int thread() { return int(threadIdx.x + blockDim.x * threadIdx.y); }
  __device__ static int lane() { return thread() & 31; }  // not % 32: the compiler must see that it is not negative

  /// This lane. The compiler may not know that it is the same every time: it would keep what follows from it, addresses and
  /// the places of all elements, in registers over whole loops.
  struct Lanes {
    int lane = Sm80::lane();
    __device__ Lanes() { asm volatile("" : "+r"(lane)); }
  };

  template <class F>
  __device__ static void for_each_lane(F const& f) {
    f(Lanes().lane);
  }

  template <class F>
  __device__ static bool any_lane(F const& f) {
    return __any_sync(~0u, f(lane()));
  }

  template <int N>
  __device__ static Registers<float, N> exchange(Registers<float, N> const& x, int mask) {
    Registers<float, N> other;
    SPOROS_UNROLL
    for (int i = 0; i < N; ++i) other.m_value[i] = __shfl_xor_sync(~0u, x.m_value[i], mask);
    return other;
  }

  template <class Address>
  __device__ static Registers<std::uint32_t, 4> load(Lanes lanes, Address const& address) {
    Registers<std::uint32_t, 4> r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.m_value[0]), "=r"(r.m_value[1]), "=r"(r.m_value[2]), "=r"(r.m_value[3])
                 : "r"(shared(address(lanes.lane)))
                 : "memory");
    return r;
  }

  template <class Address>
  __device__ static Registers<std::uint32_t, 4> load_transposed(Lanes lanes, Address const& address) {
    Registers<std::uint32_t, 4> r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.m_value[0]), "=r"(r.m_value[1]), "=r"(r.m_value[2]), "=r"(r.m_value[3])
                 : "r"(shared(address(lanes.lane)))
                 : "memory");
    return r;
  }

  /// c += a b
  template <class T>
  __device__ static void mma(Registers<float, 8>& c, Registers<std::uint32_t, 4> const& a,
                             Registers<std::uint32_t, 4> const& b) {
    mma_m16n8k16<T>(&c.m_value[0], a, &b.m_value[0]);
    mma_m16n8k16<T>(&c.m_value[4], a, &b.m_value[2]);
  }

  /// Two numbers in a register, `low` at the lower address
  template <class T>
  __device__ static std::uint32_t pack(float low, float high) {
    std::uint32_t pair;
    if constexpr (std::is_same_v<T, bfloat16>)
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }

  template <class T>
  __device__ static std::uint32_t load_pair(T const* from) {
    return *reinterpret_cast<std::uint32_t const*>(from);
  }
  template <class T>
  __device__ static void store_pair(T* to, std::uint32_t pair) {
    *reinterpret_cast<std::uint32_t*>(to) = pair;
  }

  /// Stores a pair in scratch
  template <class T>
  __device__ static void put(T* to, std::uint32_t pair) {
    asm volatile("st.shared.b32 [%0], %1;" : : "r"(shared(to)), "r"(pair) : "memory");
  }

  /// *to += x, for which nobody waits. One thread's additions to an address take place in their order.
  __device__ static void add_to(float* to, float x) { atomicAdd(to, x); }

  __device__ static std::uint32_t shared(void const* pointer) {
    return std::uint32_t(__cvta_generic_to_shared(pointer));
  }

  __device__ static float exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  __device__ static float log2(float x) { return log2f(x); }
  __device__ static float ceil(float x) { return ceilf(x); }
  __device__ static float max(float a, float b) { return fmaxf(a, b); }
  __device__ static float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }

 private:
  // Volatile, so that products stay where they are: put off to where their results are used, they would hold their factors.
  template <class T>
  __device__ static void mma_m16n8k16(float* c, Registers<std::uint32_t, 4> const& a, std::uint32_t const* b) {
    if constexpr (std::is_same_v<T, bfloat16>)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a.m_value[0]), "r"(a.m_value[1]), "r"(a.m_value[2]), "r"(a.m_value[3]), "r"(b[0]), "r"(b[1]));
    else
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a.m_value[0]), "r"(a.m_value[1]), "r"(a.m_value[2]), "r"(a.m_value[3]), "r"(b[0]), "r"(b[1]));
  }
};

template <>
class Team<Arch::Sm80> {
 public:
  static constexpr int warps = Arch::Sm80::warps;
  static constexpr int threads = 32 * warps;

  // The shuffle tells the compiler that a whole warp has one index: addresses from it are computed once, not per lane.
  __device__ Team() : m_warp(__shfl_sync(~0u, Arch::Sm80::thread() / 32, 0)) {}

  __device__ int warp() const { return m_warp; }
  __device__ void barrier() { __syncthreads(); }

  /// 16 bytes; zeros if not real
  template <class T>
  __device__ void copy_async(T* to, T const* from, bool real) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"  // a source of 0 bytes is filled up with zeros
                 :
                 : "r"(Arch::Sm80::shared(to)), "l"(from), "r"(real ? 16 : 0)
                 : "memory");
  }

  /// Closes a group of copies; returns its number
  __device__ int commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
    return m_groups.close();
  }

  /// The instruction wants a constant. To wait for more than one has to does no harm.
  __device__ void wait_copies(int group) {
    int const younger = m_groups.younger_than(group);
    if (younger >= 3)
      asm volatile("cp.async.wait_group 3;" ::: "memory");
    else if (younger == 2)
      asm volatile("cp.async.wait_group 2;" ::: "memory");
    else if (younger == 1)
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    else
      asm volatile("cp.async.wait_group 0;" ::: "memory");
  }

 private:
  int m_warp;
  CopyGroups m_groups;
};

struct Arch::Sm80SmallScratch : Arch::Sm80 {};

template <>
class Team<Arch::Sm80SmallScratch> : public Team<Arch::Sm80> {};

}  // namespace Sporos::inline SPOROS_LEVEL
#endif

#endif
