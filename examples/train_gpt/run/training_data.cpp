// SPDX-License-Identifier: Apache-2.0
#include "run/training_data.hpp"

#include "data/batch_file.hpp"
#include "data/token_files.hpp"

#include <acc/base/error.hpp>

#include <string>
#include <vector>

namespace train_gpt {
namespace {

std::int64_t rows_of_batch_file(const Options& options, DataParallel parallel) {
  const std::int64_t rows = read_batch_file_shape(options.batches).rows;
  if (options.micro_batch && *options.micro_batch * parallel.parts() != rows) {
    throw acc::Error(acc::Errc::config, options.batches + ": " + std::to_string(rows) +
                                            " rows per step are not " + to_string(parallel) +
                                            " x micro-batch " +
                                            std::to_string(*options.micro_batch));
  }
  return rows;
}

}  // namespace

std::unique_ptr<DataSource> open_data(const Options& options, DataParallel parallel) {
  const std::int64_t vocab = options.model.vocab;
  if (!options.batches.empty()) {
    return std::make_unique<BatchFile>(options.batches, vocab);
  }
  if (!options.tokens.empty()) {
    return std::make_unique<TokenFiles>(std::vector{options.tokens}, TokenType::uint16, vocab,
                                        options.seq_len, options.seed, parallel);
  }
  return std::make_unique<TokenFiles>(options.data, TokenType::byte, vocab, options.seq_len,
                                      options.seed, parallel);
}

std::optional<acc::DataOrder> data_order(const acc::Runtime& runtime, const Options& options,
                                         const DataSource* data) {
  if (!options.once_per_epoch || data == nullptr) {
    return std::nullopt;
  }
  // All batches have the same size, so that ranks have equal shares: the last one of an epoch is
  // filled with windows of the next.
  return acc::DataOrder(runtime, {.sources = {{.samples = (data->tokens() - 1) / options.seq_len}},
                                  .seed = options.seed,
                                  .last_batch = acc::LastBatch::next_epoch});
}

GlobalBatch global_batch(const Options& options, DataParallel parallel) {
  constexpr std::int64_t kMicroBatch = 4;
  if (!options.batches.empty()) {
    return {rows_of_batch_file(options, parallel), parallel};
  }
  const std::int64_t micro_batch = options.micro_batch.value_or(kMicroBatch);
  return {options.global_batch.value_or(micro_batch * parallel.parts()), parallel};
}

}  // namespace train_gpt
