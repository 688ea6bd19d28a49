#include "data_source.hpp"

#include "batch_file.hpp"
#include "token_files.hpp"

namespace train_gpt {

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

}  // namespace train_gpt
