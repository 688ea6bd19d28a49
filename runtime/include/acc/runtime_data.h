/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ACC_RUNTIME_DATA_H
#define ACC_RUNTIME_DATA_H

/*
 * The order in which a training uses its samples (docs/data.md), with the conventions of
 * acc/runtime.h: a pure function of seed, epoch and position, which does not depend on the number
 * of ranks. All ranks make the same calls; none is collective, and none needs a runtime. Several
 * threads may not use one order at the same time.
 */

#include "acc/runtime_checkpoint.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct acc_data_order acc_data_order;

/* What becomes of the samples at the end of an epoch that do not fill a batch. */
typedef enum acc_last_batch {
  ACC_LAST_BATCH_PARTIAL = 0,    /* they are a smaller batch */
  ACC_LAST_BATCH_NEXT_EPOCH = 1, /* the batch is filled with the first samples of the next epoch */
  ACC_LAST_BATCH_DROP = 2,       /* they are left out */
  ACC_LAST_BATCH_PAD = 3         /* the batch is filled with the first samples of the same epoch */
} acc_last_batch;

#define ACC_DATA_UNKNOWN (-1) /* number of samples of a stream */

typedef struct acc_data_config {
  size_t size;
  const int64_t* samples; /* of each source, [num_sources]; ACC_DATA_UNKNOWN: a stream */
  const double* weights;  /* of the sources in a mixture, [num_sources]; NULL: equal */
  size_t num_sources;     /* 1, or more for a mixture */
  uint64_t seed;
  int32_t shuffle;
  int32_t last_batch; /* acc_last_batch; of one source with a known number of samples */
  const char* name;   /* in checkpoints and records; NULL: the program has one order */
} acc_data_config;
#define ACC_DATA_CONFIG_INITIALIZER \
  { sizeof(acc_data_config), NULL, NULL, 0, 0, 1, ACC_LAST_BATCH_PARTIAL, NULL }

/* A position that all ranks have in common. */
typedef struct acc_data_position {
  int64_t epoch;
  int64_t offset; /* samples of the epoch that come before it; documents, if they are packed */
  int64_t token;  /* tokens of the next document that come before it */
} acc_data_position;

/* Samples that all ranks together use at once. */
typedef struct acc_data_batch {
  acc_data_position first;
  int64_t count;          /* samples */
  int64_t padding;        /* samples at the end that are used a second time (ACC_LAST_BATCH_PAD) */
  acc_data_position next; /* position after it */
} acc_data_batch;

/* A sample: its number in its source, and the epoch of the source. */
typedef struct acc_data_sample {
  int64_t source;
  int64_t epoch;
  int64_t index;
} acc_data_sample;

/* Tokens [offset, offset + length) of a document, in a sequence of a packed batch. */
typedef struct acc_data_piece {
  int64_t sequence;
  int64_t epoch;
  int64_t document;
  int64_t offset;
  int64_t length;
  int64_t total; /* tokens of the document */
} acc_data_piece;

/* Makes an order. It records what this rank uses if the launcher was told to (--data_record);
 * ACC_CONFIG if the record cannot be created. */
ACC_API acc_status acc_data_order_create(const acc_data_config* config,
                                         acc_data_order** order) ACC_NOEXCEPT;
ACC_API void acc_data_order_free(acc_data_order* order) ACC_NOEXCEPT;

/* Position after the samples that the training has used. */
ACC_API acc_status acc_data_order_position(const acc_data_order* order,
                                           acc_data_position* position) ACC_NOEXCEPT;
ACC_API acc_status acc_data_order_seek(acc_data_order* order,
                                       const acc_data_position* position) ACC_NOEXCEPT;
/* The batch of `size` samples at a position. */
ACC_API acc_status acc_data_order_batch(const acc_data_order* order,
                                        const acc_data_position* position, int64_t size,
                                        acc_data_batch* batch) ACC_NOEXCEPT;
/* Number of batches that begin between a position and the end of its epoch. */
ACC_API acc_status acc_data_order_batches(const acc_data_order* order,
                                          const acc_data_position* position, int64_t size,
                                          int64_t* count) ACC_NOEXCEPT;
/* Samples [first, first + count) of a batch; samples: [count]. */
ACC_API acc_status acc_data_order_samples(const acc_data_order* order, const acc_data_batch* batch,
                                          int64_t first, int64_t count,
                                          acc_data_sample* samples) ACC_NOEXCEPT;
/* First sample and number of samples of part `part` of `parts` of a batch. */
ACC_API acc_status acc_data_share(int64_t size, int64_t part, int64_t parts, int64_t* first,
                                  int64_t* count) ACC_NOEXCEPT;
/* Sequences of `tokens` tokens at a position, of documents that follow each other. lengths: tokens
 * of each document, [num_lengths]. pieces: [capacity]; *num_pieces is the number that there are,
 * and only if it is at most `capacity` they are written. batch->count: the number of sequences, at
 * most `count`. */
ACC_API acc_status acc_data_order_pack(const acc_data_order* order,
                                       const acc_data_position* position, const int64_t* lengths,
                                       size_t num_lengths, int64_t tokens, int64_t count,
                                       acc_data_batch* batch, acc_data_piece* pieces,
                                       size_t capacity, size_t* num_pieces) ACC_NOEXCEPT;

/* Moves the position behind a batch that the training has used. samples: this rank's, for the
 * record, [count]; hashes: of their contents, [count], or NULL. */
ACC_API acc_status acc_data_order_advance(acc_data_order* order, const acc_data_batch* batch,
                                          const acc_data_sample* samples, size_t count,
                                          const uint64_t* hashes) ACC_NOEXCEPT;
/* The same for a packed batch; pieces: this rank's, [count]. */
ACC_API acc_status acc_data_order_advance_packed(acc_data_order* order, const acc_data_batch* batch,
                                                 const acc_data_piece* pieces,
                                                 size_t count) ACC_NOEXCEPT;
/* Moves to the begin of the next epoch, at the end of a stream. */
ACC_API acc_status acc_data_order_end_epoch(acc_data_order* order) ACC_NOEXCEPT;

/* The position as values for acc_runtime_save. What was recorded is on disk then. values:
 * [capacity], each with its `size`; *count: the number of values. ACC_INVALID_ARGUMENT: capacity is
 * below ACC_DATA_ORDER_VALUES. The pointers are valid until the next call of this function. */
#define ACC_DATA_ORDER_VALUES 16
ACC_API acc_status acc_data_order_state(acc_data_order* order, acc_program_value* values,
                                        size_t capacity, size_t* count) ACC_NOEXCEPT;
/* Goes on at the position of a checkpoint. ACC_NOT_FOUND: it has none of an order with this name;
 * ACC_CONFIG: it was of another order. */
ACC_API acc_status acc_data_order_load(acc_data_order* order,
                                       const acc_program_state* state) ACC_NOEXCEPT;
/* The same with the values of acc_data_order_state, [count]. */
ACC_API acc_status acc_data_order_load_values(acc_data_order* order,
                                              const acc_program_value* values,
                                              size_t count) ACC_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* ACC_RUNTIME_DATA_H */
