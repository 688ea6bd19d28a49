#include "data_source.hpp"

#include "batch_file.hpp"
#include "token_files.hpp"

#include <acc/base/error.hpp>

namespace train_gpt {

std::unique_ptr<DataSource> open_data(const Options& options, DataParallel parallel) {
  const std::int64_t vocab = options.model.vocab;
  if (!options.batches.empty()) {
    return std::make_unique<BatchFile>(options.batches, vocab, parallel);
  }
  if (!options.tokens.empty()) {
    return std::make_unique<TokenFiles>(std::vector{options.tokens}, TokenType::uint16, vocab,
                                        options.seq_len, options.seed, parallel);
  }
  return std::make_unique<TokenFiles>(options.data, TokenType::byte, vocab, options.seq_len,
                                      options.seed, parallel);
}

std::int64_t micro_batch_size(const Options& options, DataParallel parallel) {
  constexpr std::int64_t kDefault = 4;
  if (options.batches.empty()) {
    return options.micro_batch.value_or(kDefault);
  }
  const std::int64_t rows = read_batch_file_shape(options.batches).rows;
  const std::int64_t parts = parallel.micro_steps * parallel.world_size;
  const std::int64_t micro_batch = options.micro_batch.value_or(rows / parts);
  if (micro_batch < 1 || micro_batch * parts != rows) {
    throw acc::Error(acc::Errc::config,
                     options.batches + ": " + std::to_string(rows) + " rows a step are not " +
                         std::to_string(parallel.micro_steps) + " micro-steps x " +
                         std::to_string(parallel.world_size) + " ranks x micro-batch " +
                         std::to_string(micro_batch));
  }
  return micro_batch;
}

}  // namespace train_gpt
