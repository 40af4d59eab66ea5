// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_ARCH_SM90_HPP
#define SPOROS_ARCH_SM90_HPP

#include "tile/Sporos_Tile_Wgmma.hpp"

// The instructions of NVIDIA Hopper (compute capability 9.0a), one function each. Device code only.
#if defined(__CUDACC__)
#include "tile/Sporos_Wgmma.hpp"

namespace Sporos::inline SPOROS_LEVEL {

/// A tensor map as the driver encodes it (CUtensorMap)
struct alignas(128) TensorMap {
  unsigned char opaque[128];
};

template <int Groups>
struct Arch::Sm90With {
  using WgmmaInstructions = Sm90With;

  /// N registers of this lane
  template <class T, int N>
  struct Registers {
    T m_value[N];
    __device__ T& operator()(int /*lane*/, int i) { return m_value[i]; }
    __device__ T operator()(int /*lane*/, int i) const { return m_value[i]; }
  };

  /// Nothing checks here that registers in flight are left alone; the emulator does.
  struct ProductToken {
    __device__ void check_joined() const {}
    template <class... Tokens>
    __device__ static void issue(Tokens&...) {}
    template <int InFlight>
    __device__ static void join() {}
  };

  __device__ static int thread() { return int(threadIdx.x + blockDim.x * threadIdx.y); }
  __device__ static int lane() { return thread() & 31; }

  template <class F>
  __device__ static void for_each_lane(F const& f) {
    f(lane());
  }
  template <class F>
  __device__ static bool any_lane(F const& f) {
    return __any_sync(~0u, f(lane()));
  }
  template <class T, int N>
  __device__ static Registers<T, N> exchange(Registers<T, N> const& x, int mask) {
    Registers<T, N> other;
    SPOROS_UNROLL
    for (int i = 0; i < N; ++i) other.m_value[i] = __shfl_xor_sync(~0u, x.m_value[i], mask);
    return other;
  }

  // ----------------------------------------------------------------------------------- scratch

  __device__ static std::uint32_t address(void const* pointer) {
    return std::uint32_t(__cvta_generic_to_shared(pointer));
  }

  template <class C>
  __device__ static C load(std::uint32_t address) {
    return *static_cast<C const*>(__cvta_shared_to_generic(address));
  }

  /// The address of each lane's matrix row, four matrices of 8 x 8 at once
  template <class Address>
  __device__ static Registers<std::uint32_t, 4> load_matrices(Address const& address) {
    Registers<std::uint32_t, 4> r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.m_value[0]), "=r"(r.m_value[1]), "=r"(r.m_value[2]), "=r"(r.m_value[3])
                 : "r"(address(lane()))
                 : "memory");
    return r;
  }

  template <int N, class Address>
  __device__ static void store_transposed(Registers<std::uint32_t, N> const& x, int first, Address const& address) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(address(lane())), "r"(x.m_value[first]), "r"(x.m_value[first + 1]), "r"(x.m_value[first + 2]),
                   "r"(x.m_value[first + 3])
                 : "memory");
  }

  // ----------------------------------------------------------------------------------- products

  /// From here the compiler knows nothing of the value: what depends on it is computed where it is used, not kept in
  /// registers from before a loop.
  __device__ static MatrixDescriptor opaque(MatrixDescriptor descriptor) {
    asm volatile("" : "+r"(descriptor.lower));
    return descriptor;
  }

  /// Registers may have been written, from here on, by products that the compiler does not see finishing.
  template <int N>
  __device__ static void take(Registers<float, N>& x) {
    SPOROS_UNROLL
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x.m_value[i])::"memory");
  }
  template <int N>
  __device__ static void take(Registers<std::uint32_t, N>& x) {
    SPOROS_UNROLL
    for (int i = 0; i < N; ++i) asm volatile("" : "+r"(x.m_value[i])::"memory");
  }

  /// Registers that products are about to read or add to
  template <class... Registers>
  __device__ static void begin_products(Registers&... registers) {
    (take(registers), ...);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  }

  template <int N>
  __device__ static void end_products(Registers<float, N>& result) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    take(result);
  }

  template <int InFlight>
  __device__ static void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(InFlight) : "memory");
  }

  /// d = a b for the first terms, d += a b for others
  template <class T, bool TransposedA, bool TransposedB, int N>
  __device__ static void multiply(Registers<float, N>& d, MatrixDescriptor a, MatrixDescriptor b, bool first) {
    using Instruction = Wgmma<T, 2 * N>;
    if (first)
      Instruction::template shared<TransposedA, TransposedB>(d.m_value, bits(a), bits(b));
    else
      Instruction::template add_shared<TransposedA, TransposedB>(d.m_value, bits(a), bits(b));
  }

  /// d += a b with registers first ... first + 3 of a
  template <class T, bool TransposedB, int N, int M>
  __device__ static void multiply_add(Registers<float, N>& d, Registers<std::uint32_t, M> const& a, int first,
                                      MatrixDescriptor b) {
    Wgmma<T, 2 * N>::template add_registers<TransposedB>(d.m_value, a.m_value[first], a.m_value[first + 1],
                                                         a.m_value[first + 2], a.m_value[first + 3], bits(b));
  }

  /// Registers first ... first + 3 of d += a b, 16 x 8 elements of one warp, with registers first_b and first_b + 1 of b
  template <class T, int N>
  __device__ static void multiply_add_in_warp(Registers<float, N>& d, int first, Registers<std::uint32_t, 4> const& a,
                                              Registers<std::uint32_t, 4> const& b, int first_b) {
    float* const c = d.m_value + first;
    if constexpr (std::is_same_v<T, bfloat16>)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a.m_value[0]), "r"(a.m_value[1]), "r"(a.m_value[2]), "r"(a.m_value[3]), "r"(b.m_value[first_b]),
            "r"(b.m_value[first_b + 1]));
    else
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a.m_value[0]), "r"(a.m_value[1]), "r"(a.m_value[2]), "r"(a.m_value[3]), "r"(b.m_value[first_b]),
            "r"(b.m_value[first_b + 1]));
  }

  // ----------------------------------------------------------------------------------- registers and memory

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

  /// Word w of lane l, of four neighbouring lanes, and word l of lane w change places.
  __device__ static void transpose_in_fours(Registers<std::uint32_t, 4>& words) {
    std::uint32_t(&w)[4] = words.m_value;
    exchange_half(w[0], w[1], w[2], w[3], 2);
    exchange_half(w[0], w[2], w[1], w[3], 1);
  }

  template <class T>
  __device__ static void store_four(T* to, Registers<std::uint32_t, 4> const& words, int /*lane*/) {
    *reinterpret_cast<uint4*>(to) = make_uint4(words.m_value[0], words.m_value[1], words.m_value[2], words.m_value[3]);
  }

  /// Registers first ... first + 3, to memory that other teams add to
  template <int N>
  __device__ static void add_four(float* to, Registers<float, N> const& x, int first, int /*lane*/) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.m_value[first]),
                 "f"(x.m_value[first + 1]), "f"(x.m_value[first + 2]), "f"(x.m_value[first + 3])
                 : "memory");
  }

  __device__ static float exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  __device__ static float log2(float x) { return __log2f(x); }
  __device__ static float ceil(float x) { return ceilf(x); }
  __device__ static float max(float a, float b) { return fmaxf(a, b); }
  __device__ static float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }

 private:
  __device__ static std::uint64_t bits(MatrixDescriptor descriptor) {
    return std::uint64_t(MatrixDescriptor::upper) << 32 | descriptor.lower;
  }

  /// Lanes without the bit of `mask` keep a0 and a1 and get those of the other lane in b0 and b1, lanes with it vice versa.
  __device__ static void exchange_half(std::uint32_t& a0, std::uint32_t& a1, std::uint32_t& b0, std::uint32_t& b1,
                                       int mask) {
    bool const upper = lane() & mask;
    std::uint32_t const other0 = __shfl_xor_sync(~0u, upper ? a0 : b0, mask);
    std::uint32_t const other1 = __shfl_xor_sync(~0u, upper ? a1 : b1, mask);
    (upper ? a0 : b0) = other0;
    (upper ? a1 : b1) = other1;
  }
};

/// A warp's view of the team: which warp it is, and the barriers and copies that several warps take part in.
template <int Groups>
class Team<Arch::Sm90With<Groups>> {
  using Instructions = Arch::Sm90With<Groups>;

 public:
  static constexpr int groups = Groups;                      // warpgroups that compute
  static constexpr int warps = WgmmaLayout::warps * Groups;  // their warps
  static constexpr int threads = 32 * (warps + 4);           // of the whole team
  static constexpr int loading_threads = 128;
  static constexpr int most_barriers = 40;

  // What one warpgroup of the producer and Groups of consumers may have of 64 K registers
  static constexpr int loading_registers = Groups == 2 ? 24 : 32;
  static constexpr int computing_registers = Groups == 2 ? 240 : 160;

  struct BarrierStorage {
    std::uint64_t barriers[most_barriers];
  };

  /// The address of the first of some barriers
  struct Barriers {
    std::uint32_t address;
    __device__ Barriers operator+(int i) const { return {address + 8 * unsigned(i)}; }
  };

  // The shuffle tells the compiler that a whole warp has one index.
  __device__ Team(BarrierStorage& barriers, TensorMap const* maps)
      : m_warp(__shfl_sync(~0u, Instructions::thread() / 32, 0) - 4),
        m_maps(maps),
        m_next_barrier(Instructions::address(&barriers)),
        m_exchange(new_barriers(ExchangeBuffers::count, warps)) {}

  /// Of those that compute; the producer's are -4 ... -1
  __device__ int warp() const { return m_warp; }
  __device__ int group() const { return m_warp / WgmmaLayout::warps; }
  __device__ bool loads() const { return m_warp < 0; }

  // Without tensor maps all warps of the producer copy, else only its first.
  __device__ bool has_maps() const { return m_maps != nullptr; }
  __device__ int loading_warps() const { return has_maps() ? 1 : 4; }
  __device__ bool is_first_loading_warp() const { return m_warp == -4; }
  __device__ int loading_thread(int) const { return Instructions::thread(); }

  /// All barriers are there, seen by everybody.
  __device__ void start() const {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
  }

  __device__ void give_registers() const {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(loading_registers));
  }
  __device__ void take_registers() const {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(computing_registers));
  }

  // ----------------------------------------------------------------------------------- barriers

  /// Phases of which end with so many arrivals. Before start(), in all threads alike
  __device__ Barriers new_barriers(int count, int arrivals) {
    Barriers const first{m_next_barrier};
    m_next_barrier += 8 * unsigned(count);
    if (Instructions::thread() == 0)
      for (int i = 0; i < count; ++i)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"((first + i).address), "r"(arrivals) : "memory");
    return first;
  }

  /// Until the phase of this parity is complete
  __device__ void wait(Barriers barrier, int parity) const {
    asm volatile(
        "{ .reg .pred p;\n"
        "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@p bra DONE;\n"
        "bra AGAIN;\n"
        "DONE: }" ::"r"(barrier.address),
        "r"(parity)
        : "memory");
  }

  /// One arrival of this warp, after all its lanes
  __device__ void arrive(Barriers barrier) const {
    __syncwarp();
    if (Instructions::lane() == 0) arrive_alone(barrier);
  }
  __device__ void arrive_alone(Barriers barrier) const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier.address) : "memory");
  }
  /// ... and the phase is not complete before so many bytes have come
  __device__ void arrive_and_expect(Barriers barrier, int bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier.address), "r"(bytes)
                 : "memory");
  }

  template <class F>
  __device__ void for_one_lane(F const& f) const {
    if (Instructions::lane() == 0) f();
  }

  // ----------------------------------------------------------------------------------- copies

  /// The box that the map was made with, from a row and a column of a head on; zeros where it reaches beyond the tensor
  template <class T>
  __device__ void copy_box(std::uint32_t to, TensorPlace const& place, int column, int row, Barriers full,
                           bool once) const {
    // Cache policies as createpolicy makes them: evict first, evict last
    std::uint64_t const policy = once ? 0x12f0000000000000 : 0x14f0000000000000;
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
        "l"(m_maps + (place.map - 1)), "r"(full.address), "r"(column), "r"(row), "r"(place.head), "r"(place.batch),
        "l"(policy)
        : "memory");
  }

  __device__ void copy_bytes(std::uint32_t to, void const* from, int bytes, Barriers full) const {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(full.address)
                 : "memory");
  }

  /// 16 bytes, or zeros
  __device__ void copy_chunk(std::uint32_t to, void const* from, bool real) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0) : "memory");
  }

  /// Up to eight elements, and zeros
  template <class T>
  __device__ void copy_elements(std::uint32_t to, T const* from, int real) const {
    SPOROS_NO_UNROLL
    for (int i = 0; i < 8; ++i) {
      std::uint16_t const value = i < real ? from[i].bits : std::uint16_t(0);
      asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + 2 * unsigned(i)), "h"(value) : "memory");
    }
  }

  /// One arrival of this warp once its lanes' copies are there, for products to read
  __device__ void arrive_after_copies(Barriers full) const {
    asm volatile("cp.async.wait_all;" ::: "memory");
    fence_for_products();
    arrive(full);
  }

  // ----------------------------------------------------------------------------------- factors handed to each other

  /// Once everybody has written the last one: the number of a buffer that nobody reads
  __device__ int begin_exchange() {
    wait_exchange();
    m_before = m_last.stage;
    m_last.advance();
    return m_last.stage;
  }
  __device__ void end_exchange() const {
    fence_for_products();
    arrive(m_exchange + m_last.stage);
  }
  __device__ void wait_exchange() const { wait(m_exchange + m_last.stage, m_last.parity); }
  __device__ int exchange_before() const { return m_before; }
  __device__ int exchange_last() const { return m_last.stage; }

 private:
  /// What this thread stored, products read through another path ("asynchronous proxy").
  __device__ void fence_for_products() const { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

  int m_warp;
  TensorMap const* m_maps;
  std::uint32_t m_next_barrier;
  Barriers m_exchange;
  RingPlace<ExchangeBuffers::count> m_last{ExchangeBuffers::count - 1,
                                           1};  // a barrier's phase before its first is over
  int m_before = ExchangeBuffers::count - 1;
};

}  // namespace Sporos::inline SPOROS_LEVEL
#endif

#endif
