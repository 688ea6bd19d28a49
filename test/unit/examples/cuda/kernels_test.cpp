// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels.hpp"

#include "../random_values.hpp"
#include "cuda/batch_upload.hpp"
#include "device_array.hpp"

#include <cmath>
#include <numeric>

using namespace train_gpt;
using namespace train_gpt::cuda;

#define DTYPES float, __nv_bfloat16, __half

namespace {

using Numbers = std::vector<double>;

std::size_t index_of(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

std::vector<std::int32_t> random_ids(std::int64_t count, std::int64_t vocab, std::uint64_t seed) {
  std::vector<std::int32_t> ids;
  for (const float value : random_values(count, seed)) {
    const auto id = static_cast<std::int32_t>((value + 1.0f) / 2.0f * static_cast<float>(vocab));
    ids.push_back(std::min(id, static_cast<std::int32_t>(vocab - 1)));
  }
  return ids;
}

double gelu(double u) {
  return 0.5 * u * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (u + 0.044715 * u * u * u)));
}

}  // namespace

TEST_CASE("rows are grouped by token, tokens and rows in ascending order") {
  const std::vector<std::int32_t> ids = {3, 0, 3, 6, 0, 3};
  const GroupedRows groups = group_rows(ids, 7);
  CHECK(groups.tokens == std::vector<std::int32_t>{0, 3, 6});
  CHECK(groups.starts == std::vector<std::int32_t>{0, 2, 5, 6});
  CHECK(groups.rows == std::vector<std::int32_t>{1, 4, 0, 2, 5, 3});
}

TEST_CASE_TEMPLATE("the embedding and its gradients", T, DTYPES) {
  struct Case {
    std::int64_t batch, time, channels, vocab;
  };
  for (const Case c : {Case{1, 1, 8, 1}, Case{2, 5, 40, 7}, Case{3, 33, 264, 11}}) {
    CAPTURE(c.channels);
    const TestStream stream;
    const std::int64_t rows = c.batch * c.time;
    const auto ids = random_ids(rows, c.vocab, 1);
    const auto wte = rounded<T>(random_values(c.vocab * c.channels, 2));
    const auto wpe = rounded<T>(random_values((c.time + 1) * c.channels, 3));
    const auto dx = rounded<T>(random_values(rows * c.channels, 4));
    const DeviceArray<T> device_wte(wte), device_wpe(wpe), device_dx(dx), x(dx.size());
    const DeviceArray<T> d_wte(wte), d_wpe(wpe);  // initial values of the gradients
    BatchUpload upload(stream, rows + 3, c.vocab);
    upload.start(ids, ids);
    embedding_forward(stream, upload.inputs(), device_wte.data(), device_wpe.data(), x.data(), rows,
                      c.time, c.channels);
    embedding_backward(stream, upload.finish(ids), device_dx.data(), d_wte.data(), d_wpe.data(),
                       rows, c.time, c.channels);

    Numbers expected_x;
    Numbers expected_wte(wte.begin(), wte.end());
    Numbers expected_wpe(wpe.begin(), wpe.end());
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t channel = 0; channel < c.channels; ++channel) {
        const std::size_t token = index_of(ids[index_of(row)] * c.channels + channel);
        const std::size_t position = index_of(row % c.time * c.channels + channel);
        const double gradient = dx[index_of(row * c.channels + channel)];
        expected_x.push_back(static_cast<double>(wte[token]) + wpe[position]);
        expected_wte[token] += gradient;
        expected_wpe[position] += gradient;
      }
    }
    CHECK(worst_error<T>(x.read(), expected_x) < kTolerance<T>);
    CHECK(worst_error<T>(d_wte.read(), expected_wte) < kTolerance<T>);
    CHECK(worst_error<T>(d_wpe.read(), expected_wpe) < kTolerance<T>);
  }
}

TEST_CASE_TEMPLATE("layer norm and its gradients", T, DTYPES) {
  struct Case {
    std::int64_t rows, channels;
    bool accumulate;
  };
  for (const Case c : {Case{1, 8, true}, Case{3, 40, false}, Case{530, 264, true}}) {
    CAPTURE(c.channels);
    const TestStream stream;
    const std::int64_t C = c.channels;
    const auto x = rounded<T>(random_values(c.rows * C, 1, 3.0));
    const auto gamma = rounded<T>(random_values(C, 2));
    const auto beta = rounded<T>(random_values(C, 3));
    const auto dz = rounded<T>(random_values(c.rows * C, 4));
    const auto dx = rounded<T>(random_values(c.rows * C, 5));
    const DeviceArray<T> device_x(x), device_gamma(gamma), device_beta(beta), device_dz(dz);
    const DeviceArray<T> z(x.size()), device_dx(dx), dgamma(gamma), dbeta(beta);
    const DeviceArray<float> mean(index_of(c.rows)), rstd(index_of(c.rows));
    const DeviceArray<float> scratch(index_of(layernorm_scratch(C)));
    const cuda::RowStats stats{mean.data(), rstd.data()};
    layernorm_forward(stream, device_x.data(), device_gamma.data(), device_beta.data(), 1e-5f,
                      z.data(), stats, c.rows, C);
    layernorm_backward(stream, device_x.data(), device_gamma.data(), stats, device_dz.data(),
                       device_dx.data(), c.accumulate, dgamma.data(), dbeta.data(), scratch.data(),
                       c.rows, C);

    Numbers expected_z, expected_dx;
    Numbers expected_dgamma(gamma.begin(), gamma.end()), expected_dbeta(beta.begin(), beta.end());
    for (std::int64_t row = 0; row < c.rows; ++row) {
      const float* values = x.data() + row * C;
      const double m = std::accumulate(values, values + C, 0.0) / static_cast<double>(C);
      double variance = 0.0;
      for (std::int64_t i = 0; i < C; ++i) {
        variance += (values[i] - m) * (values[i] - m) / static_cast<double>(C);
      }
      const double inverse = 1.0 / std::sqrt(variance + 1e-5);
      double sum = 0.0, sum_with_xhat = 0.0;
      for (std::int64_t i = 0; i < C; ++i) {
        const double xhat = (values[i] - m) * inverse;
        const double gradient = dz[index_of(row * C + i)];
        expected_z.push_back(xhat * gamma[index_of(i)] + beta[index_of(i)]);
        expected_dgamma[index_of(i)] += gradient * xhat;
        expected_dbeta[index_of(i)] += gradient;
        sum += gradient * gamma[index_of(i)] / static_cast<double>(C);
        sum_with_xhat += gradient * gamma[index_of(i)] * xhat / static_cast<double>(C);
      }
      for (std::int64_t i = 0; i < C; ++i) {
        const double xhat = (values[i] - m) * inverse;
        const std::size_t at = index_of(row * C + i);
        const double d_xhat = static_cast<double>(dz[at]) * gamma[index_of(i)];
        expected_dx.push_back((c.accumulate ? static_cast<double>(dx[at]) : 0.0) +
                              (d_xhat - sum - xhat * sum_with_xhat) * inverse);
      }
    }
    CHECK(worst_error<T>(z.read(), expected_z) < kTolerance<T>);
    CHECK(worst_error<T>(device_dx.read(), expected_dx) < kTolerance<T>);
    CHECK(worst_error<T>(dgamma.read(), expected_dgamma, 5.0) < kTolerance<T>);
    CHECK(worst_error<T>(dbeta.read(), expected_dbeta, 5.0) < kTolerance<T>);
  }
}

TEST_CASE_TEMPLATE("cross entropy, its gradient in place, and the padding", T, DTYPES) {
  struct Case {
    std::int64_t rows, vocab, stride;
  };
  for (const Case c : {Case{1, 1, 8}, Case{5, 250, 256}, Case{3, 8200, 8200},
                       Case{2, 60000, 60000}}) {  // the last one does not fit in shared memory
    CAPTURE(c.vocab);
    const TestStream stream;
    const auto logits = rounded<T>(random_values(c.rows * c.stride, 1, 8.0));
    const auto targets = random_ids(c.rows, c.vocab, 2);
    const float scale = 1.0f / static_cast<float>(c.rows);
    const DeviceArray<T> device_logits(logits);
    const DeviceArray<float> losses(index_of(c.rows));
    const auto device_targets = device_integers(targets);
    const DeviceArray<double> total(std::vector<float>{2.0f});
    cross_entropy(stream, device_logits.data(), device_targets.data(), scale, losses.data(), c.rows,
                  c.vocab, c.stride);
    add_losses(stream, losses.data(), c.rows, 0.5, total.data());

    Numbers expected, expected_losses;
    for (std::int64_t row = 0; row < c.rows; ++row) {
      const float* values = logits.data() + row * c.stride;
      double sum = 0.0;
      for (std::int64_t v = 0; v < c.vocab; ++v) {
        sum += std::exp(static_cast<double>(values[v]));
      }
      const std::int32_t target = targets[index_of(row)];
      expected_losses.push_back(std::log(sum) - values[target]);
      for (std::int64_t v = 0; v < c.stride; ++v) {
        const double p = v < c.vocab ? std::exp(static_cast<double>(values[v])) / sum : 0.0;
        expected.push_back((p - (v == target ? 1.0 : 0.0)) * scale);
      }
    }
    CHECK(worst_error<T>(device_logits.read(), expected, scale) < kTolerance<T>);
    CHECK(worst_error<float>(losses.read(), expected_losses) < 3e-6);
    const double sum = std::accumulate(expected_losses.begin(), expected_losses.end(), 0.0);
    CHECK(total.read().front() == doctest::Approx(2.0 + 0.5 * sum).epsilon(1e-6));
  }
}

TEST_CASE_TEMPLATE("gelu, its gradient and conversion, element by element", T, DTYPES) {
  for (const std::int64_t count : {8, 2048, 5000}) {
    CAPTURE(count);
    const TestStream stream;
    const auto u = rounded<T>(random_values(count, 1, 6.0));
    const auto dh = rounded<T>(random_values(count, 2));
    const DeviceArray<T> device_u(u), h(u.size()), device_dh(dh);
    const DeviceArray<float> wide(u.size());
    gelu_forward(stream, device_u.data(), h.data(), count);
    gelu_backward(stream, device_u.data(), device_dh.data(), count);
    widen(stream, device_u.data(), wide.data(), count);
    Numbers expected_h, expected_du;
    for (std::size_t i = 0; i < u.size(); ++i) {
      const double step = 1e-5;
      const double slope = (gelu(u[i] + step) - gelu(u[i] - step)) / (2.0 * step);
      expected_h.push_back(gelu(u[i]));
      expected_du.push_back(dh[i] * slope);
    }
    CHECK(worst_error<T>(h.read(), expected_h) < kTolerance<T>);
    CHECK(worst_error<T>(device_dh.read(), expected_du) < kTolerance<T>);
    CHECK(wide.read() == u);
  }
}

TEST_CASE_TEMPLATE("column sums overwrite or accumulate", T, DTYPES) {
  for (const std::int64_t rows : {1, 9, 1100}) {
    for (const float beta : {0.0f, 1.0f}) {
      CAPTURE(rows);
      CAPTURE(beta);
      const TestStream stream;
      const std::int64_t channels = 264;
      const auto x = rounded<T>(random_values(rows * channels, 1));
      const auto before = rounded<T>(random_values(channels, 2));
      const DeviceArray<T> device_x(x);
      const DeviceArray<T> sums =
          beta == 0.0f ? DeviceArray<T>(before.size()) : DeviceArray<T>(before);
      const DeviceArray<float> scratch(index_of(column_sums_scratch(channels)));
      column_sums(stream, device_x.data(), sums.data(), beta, scratch.data(), rows, channels);
      Numbers expected(index_of(channels));
      for (std::size_t i = 0; i < x.size(); ++i) {
        expected[i % index_of(channels)] += x[i];
      }
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] += beta * before[i];
      }
      CHECK(worst_error<T>(sums.read(), expected, 5.0) < kTolerance<T>);
    }
  }
}
