// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Attention on your shapes: time, rate, and the errors of sampled rows against double precision, of ours and of plain attention
// in the same type.
//
//   attention --heads 16 --kv-heads 4 --sequence 4096 --head-dim 128 --causal --dtype bfloat16 --backward

#include <CLI/CLI.hpp>
#include <Kokkos_Core.hpp>
#include <Sporos_FlashAttention.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <random>
#include <string>
#include <utility>
#include <vector>

using Space = Kokkos::DefaultExecutionSpace;

struct Options {
  int batch = 1, heads = 16, kv_heads = 0, sequence = 2048, head_dim = 128, rows = 64;
  bool causal = false, backward = false, repeatable = false;
  std::string dtype = "bfloat16";
  double seconds = 1;
};

/// Seconds of one call. Calls run back to back, twice as many each time, until they last for `least`.
template <class Call>
double seconds_of(Space const& space, double least, Call const& call) {
  for (long calls = 1;; calls *= 2) {
    space.fence();
    Kokkos::Timer const timer;
    for (long i = 0; i < calls; ++i) call();
    space.fence();
    if (double const seconds = timer.seconds(); seconds >= least) return seconds / double(calls);
  }
}

/// The row of O and that of dQ of query i as their definitions say, computed in C, with P, dS and results rounded to Storage; for
/// the heads and the batch that the pointers stand for. Rows are `width` long, those of k and v lie `stride` apart.
template <class C, class Storage, class T>
std::pair<std::vector<double>, std::vector<double>> plain_rows(T const* q, T const* d_o, T const* k, T const* v,
                                                               int keys, int width, int stride) {
  auto const number = [](T x) { return C(float(x)); };
  auto const rounded = [](C x) { return C(Storage(x)); };
  auto const dot = [&](T const* a, T const* b) {
    C sum = 0;
    for (int d = 0; d < width; ++d) sum += number(a[d]) * number(b[d]);
    return sum;
  };
  C const scale = 1 / std::sqrt(C(width));
  std::vector<C> p(keys), d_p(keys), o(width), dq(width);
  C highest = -INFINITY, sum = 0, delta = 0;
  for (int j = 0; j < keys; ++j) highest = std::max(highest, p[j] = scale * dot(q, k + std::size_t(j) * stride));
  for (C& x : p) sum += x = std::exp(x - highest);
  for (int j = 0; j < keys; ++j) delta += (p[j] /= sum) * (d_p[j] = dot(d_o, v + std::size_t(j) * stride));
  for (int j = 0; j < keys; ++j)
    for (int d = 0; d < width; ++d) {
      o[d] += rounded(p[j]) * number(v[std::size_t(j) * stride + d]);
      dq[d] += rounded(p[j] * (d_p[j] - delta)) * number(k[std::size_t(j) * stride + d]);
    }
  for (C& x : o) x = rounded(x);
  for (C& x : dq) x = rounded(scale * x);
  return {{o.begin(), o.end()}, {dq.begin(), dq.end()}};
}

template <class T>
void run(Options const& c) {
  using Tensor = Kokkos::View<T****, Kokkos::LayoutRight, Space>;
  Space const space;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  auto const tensor = [&](char const* name, int heads) { return Tensor(name, c.batch, c.sequence, heads, c.head_dim); };
  auto const random_tensor = [&](char const* name, int heads) {
    Tensor const x = tensor(name, heads);
    auto const host = Kokkos::create_mirror_view(x);
    for (std::size_t i = 0; i < host.size(); ++i) host.data()[i] = T(normal(random));
    Kokkos::deep_copy(x, host);
    return x;
  };
  Tensor const q = random_tensor("q", c.heads), k = random_tensor("k", c.kv_heads), v = random_tensor("v", c.kv_heads);
  Tensor const d_o = random_tensor("d_o", c.heads), o = tensor("o", c.heads), dq = tensor("dq", c.heads);
  Tensor const dk = tensor("dk", c.kv_heads), dv = tensor("dv", c.kv_heads);
  Kokkos::View<float***, Kokkos::LayoutRight, Space> const lse("lse", c.batch, c.heads, c.sequence);
  Sporos::Workspace<Space> workspace(space);
  Sporos::FlashAttentionOptions options;
  options.causal = c.causal ? Sporos::CausalMask::top_left : Sporos::CausalMask::none;
  options.repeatable = c.repeatable;

  auto const mirror = [](Tensor const& x) { return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), x); };
  auto const host_q = mirror(q), host_k = mirror(k), host_v = mirror(v), host_d_o = mirror(d_o);
  double const forward_flops = (c.causal ? 2.0 : 4.0) * c.batch * c.heads * c.sequence * c.sequence * c.head_dim;
  auto const report = [&](char const* pass, bool gradient, double flops, double seconds, Tensor const& result) {
    auto const host = mirror(result);
    double error = 0, plain_error = 0;
    for (int n = 0; n < c.rows; ++n) {
      std::size_t const b = random() % c.batch, h = random() % c.heads, i = random() % c.sequence;
      std::size_t const h_kv = h / (c.heads / c.kv_heads);
      auto const rows = [&]<class C, class Storage>(C, Storage) {
        auto const [plain_o, plain_dq] = plain_rows<C, Storage>(
            &host_q(b, i, h, 0), &host_d_o(b, i, h, 0), &host_k(b, 0, h_kv, 0), &host_v(b, 0, h_kv, 0),
            c.causal ? int(i) + 1 : c.sequence, c.head_dim, c.kv_heads * c.head_dim);
        return gradient ? plain_dq : plain_o;
      };
      auto const exact = rows(double(), double()), plain = rows(float(), T());
      for (int d = 0; d < c.head_dim; ++d) {
        double const difference = std::abs(double(float(host(b, i, h, d))) - exact[d]);
        error = difference <= error || std::isnan(error) ? error : difference;  // NaN is the largest of all
        plain_error = std::max(plain_error, std::abs(plain[d] - exact[d]));
      }
    }
    std::printf("%-8s %12.6f ms %9.3f TFLOP/s   largest error in %d rows of %s %.2e, of plain attention %.2e\n", pass,
                seconds * 1e3, flops / seconds / 1e12, c.rows, gradient ? "dQ" : "O", error, plain_error);
  };

  double const forward =
      seconds_of(space, c.seconds, [&] { Sporos::flash_attention_forward(space, q, k, v, options, o, lse); });
  report("forward", false, forward_flops, forward, o);
  if (!c.backward) return;
  double const backward = seconds_of(space, c.seconds, [&] {
    Sporos::flash_attention_backward(space, q, k, v, o, lse, d_o, options, dq, dk, dv, workspace);
  });
  report("backward", true, 2.5 * forward_flops, backward, dq);
}

int main(int argc, char** argv) {
  Kokkos::ScopeGuard const kokkos(argc, argv);
  Options c;
  CLI::App app("Flash attention on your shapes: time, rate, and error of sampled rows against double precision");
  app.option_defaults()->always_capture_default();
  app.add_option("--batch", c.batch)->check(CLI::PositiveNumber);
  app.add_option("--heads", c.heads)->check(CLI::PositiveNumber);
  app.add_option("--kv-heads", c.kv_heads, "0: as many as heads")->check(CLI::NonNegativeNumber);
  app.add_option("--sequence", c.sequence)->check(CLI::PositiveNumber);
  app.add_option("--head-dim", c.head_dim)->check(CLI::PositiveNumber);
  app.add_option("--dtype", c.dtype)->check(CLI::IsMember({"bfloat16", "float16", "float32"}));
  app.add_flag("--causal", c.causal, "query i sees keys up to i");
  app.add_flag("--backward", c.backward, "the gradients, too");
  app.add_flag("--repeatable", c.repeatable, "gradients with the same bits in every run");
  app.add_option("--seconds", c.seconds, "each pass is repeated for at least so long")->check(CLI::PositiveNumber);
  app.add_option("--rows", c.rows, "rows of O and dQ that are compared")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  try {
    c.dtype == "float32" ? run<float>(c) : c.dtype == "float16" ? run<Sporos::float16>(c) : run<Sporos::bfloat16>(c);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "attention: %s\n", error.what());
    return 2;
  }
}
