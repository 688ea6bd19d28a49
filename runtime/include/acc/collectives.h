/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ACC_COLLECTIVES_H
#define ACC_COLLECTIVES_H

/*
 * Collectives on arrays in host memory, for the ranks of one host, over shared memory. The
 * conventions of acc/runtime.h hold, except for these:
 *
 *  - A group needs no runtime and no settings: the caller names its ranks and gives it a store.
 *  - Any thread may call any function of a group. Collectives run in the order of their calls,
 * which all ranks make in the same order; sends and receives are independent of it.
 *  - Asynchronous calls: with `work` NULL, a call returns when it is complete. Otherwise it returns
 *    at once and gives a handle, and the group's own thread executes the call. Until the work is
 *    done, the caller keeps inputs and outputs, and does not write to them.
 *  - timeout_ms: limit for each wait for another rank; 0 means the group's.
 *  - Results of reductions are computed in rank order and are bitwise the same on all ranks.
 *  - ACC_PEER_LOST, ACC_COLLECTIVE, ACC_TIMEOUT: a rank ended, called something else, was late; the
 * message names it. The group is then aborted on all ranks, and every later call fails.
 *  - Ranks in calls are indices in the group. A rank does not send to itself; tags are not
 * negative.
 *  - ACC_INVALID_ARGUMENT, before memory is touched: a root or peer that is no rank, sizes that do
 * not fit together or that no memory can have, results that share memory with each other or with an
 * input. An input may be the place of its own result (its rank's part of an output).
 */

#include "acc/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct acc_group acc_group;
typedef struct acc_work acc_work;

typedef enum acc_element {
  ACC_ELEMENT_FLOAT32 = 0,
  ACC_ELEMENT_BFLOAT16 = 1,
  ACC_ELEMENT_FLOAT16 = 2,
  ACC_ELEMENT_FLOAT64 = 3,
  ACC_ELEMENT_INT8 = 4,
  ACC_ELEMENT_INT16 = 5,
  ACC_ELEMENT_INT32 = 6,
  ACC_ELEMENT_INT64 = 7,
  ACC_ELEMENT_UINT8 = 8,
  ACC_ELEMENT_BOOL = 9 /* one byte, 0 or 1; the sum is "or", the product is "and" */
} acc_element;

/* 16-bit floating-point types are computed in float32 and rounded once. The average of integers is
 * rounded towards zero. The bitwise operations are for integers and booleans, the average is not
 * for booleans. */
typedef enum acc_op {
  ACC_OP_SUM = 0,
  ACC_OP_AVERAGE = 1,
  ACC_OP_PRODUCT = 2,
  ACC_OP_MIN = 3,
  ACC_OP_MAX = 4,
  ACC_OP_BITWISE_AND = 5,
  ACC_OP_BITWISE_OR = 6,
  ACC_OP_BITWISE_XOR = 7
} acc_op;

/* A key-value store that all ranks reach; used only while a group is created. Both return 0, or
 * another value if they failed. `get` waits until the key exists, and writes at most `capacity`
 * bytes of its value. */
typedef int (*acc_store_set)(void* context, const char* key, const char* value, size_t nbytes);
typedef int (*acc_store_get)(void* context, const char* key, char* value, size_t capacity,
                             size_t* nbytes);

typedef struct acc_group_config {
  size_t size;
  int32_t rank; /* index of this process in the group */
  int32_t num_ranks;
  const int32_t* ranks; /* [num_ranks]; ranks in the job, for messages; NULL: 0, 1, … */
  const char* name;     /* unique among the job's groups; begin of the store keys */
  int64_t timeout_ms;   /* for the creation, and default for calls */
  /* Secret of the job, 32 hexadecimal digits (ACC_JOB_SECRET). The ranks prove to each other that
   * they have it before they share memory. NULL: any process of the same user that reads the
   * store's keys may take a rank's place. */
  const char* secret;
  acc_store_set set;
  acc_store_get get;
  void* context; /* for set and get */
} acc_group_config;
#define ACC_GROUP_CONFIG_INITIALIZER \
  { sizeof(acc_group_config), 0, 1, NULL, "group", 1800000, NULL, NULL, NULL, NULL }

/* Makes a group of processes of this host, user, and pid and network namespace. Collective.
 * ACC_PROTOCOL: the process at the other end is not a rank of the group. */
ACC_API acc_status acc_group_create(const acc_group_config* config, acc_group** group) ACC_NOEXCEPT;
/* Frees the group; aborts it if calls are under way. No thread may be in a call of the group. In a
 * process that was forked from the one that made the group, it does nothing. */
ACC_API void acc_group_free(acc_group* group) ACC_NOEXCEPT;
/* Ends the group on all ranks: pending and later calls fail with `reason`. */
ACC_API acc_status acc_group_abort(acc_group* group, const char* reason) ACC_NOEXCEPT;
/* ACC_COLLECTIVE, with the reason, if the group is aborted or a rank has ended; else ACC_OK. */
ACC_API acc_status acc_group_check(acc_group* group) ACC_NOEXCEPT;
/* Counts a collective that the caller refused to make because of its arguments, as the collectives
 * below count themselves if they fail with ACC_INVALID_ARGUMENT. A rank that makes it then does not
 * meet the next collective of this one: unless all ranks refuse it, the next one fails on all, and
 * the message says so. */
ACC_API acc_status acc_group_refuse(acc_group* group) ACC_NOEXCEPT;
/* Returns when all ranks have called it. */
ACC_API acc_status acc_group_barrier(acc_group* group, int64_t timeout_ms,
                                     acc_work** work) ACC_NOEXCEPT;
/* In place. data: [numel]. */
ACC_API acc_status acc_group_all_reduce(acc_group* group, void* data, size_t numel, int32_t element,
                                        int32_t op, int64_t timeout_ms,
                                        acc_work** work) ACC_NOEXCEPT;
/* In place on the root; the other ranks keep their data. data: [numel]. */
ACC_API acc_status acc_group_reduce(acc_group* group, void* data, size_t numel, int32_t element,
                                    int32_t op, int32_t root, int64_t timeout_ms,
                                    acc_work** work) ACC_NOEXCEPT;
/* ins: [num_ranks] pointers to [numel]; out: [numel], the result of all ranks' ins[own rank]. */
ACC_API acc_status acc_group_reduce_scatter(acc_group* group, const void* const* ins, void* out,
                                            size_t numel, int32_t element, int32_t op,
                                            int64_t timeout_ms, acc_work** work) ACC_NOEXCEPT;
/* data: [nbytes], read on the root, written elsewhere. */
ACC_API acc_status acc_group_broadcast(acc_group* group, void* data, size_t nbytes, int32_t root,
                                       int64_t timeout_ms, acc_work** work) ACC_NOEXCEPT;
/* outs: [num_ranks] pointers; outs[r] receives the out_nbytes[r] bytes of rank r's `in`.
 * out_nbytes: [num_ranks], the same on all ranks; in_nbytes: out_nbytes[own rank]. */
ACC_API acc_status acc_group_all_gather(acc_group* group, const void* in, size_t in_nbytes,
                                        void* const* outs, const size_t* out_nbytes,
                                        int64_t timeout_ms, acc_work** work) ACC_NOEXCEPT;
/* outs: [num_ranks] pointers to [nbytes] on the root; ignored elsewhere. */
ACC_API acc_status acc_group_gather(acc_group* group, const void* in, void* const* outs,
                                    size_t nbytes, int32_t root, int64_t timeout_ms,
                                    acc_work** work) ACC_NOEXCEPT;
/* ins: [num_ranks] pointers to [nbytes] on the root; ignored elsewhere. */
ACC_API acc_status acc_group_scatter(acc_group* group, const void* const* ins, void* out,
                                     size_t nbytes, int32_t root, int64_t timeout_ms,
                                     acc_work** work) ACC_NOEXCEPT;
/* Sends in_nbytes[r] bytes of ins[r] to each rank r, and receives out_nbytes[r] bytes in outs[r].
 * ACC_COLLECTIVE also if the sizes of a sender and a receiver differ. */
ACC_API acc_status acc_group_all_to_all(acc_group* group, const void* const* ins,
                                        const size_t* in_nbytes, void* const* outs,
                                        const size_t* out_nbytes, int64_t timeout_ms,
                                        acc_work** work) ACC_NOEXCEPT;

/* Sends a message to rank `to`. Complete when the message has been copied, which may be before the
 * receiver asks for it. Messages with the same tag between two ranks keep their order. */
ACC_API acc_status acc_group_send(acc_group* group, const void* data, size_t nbytes, int32_t to,
                                  int32_t tag, int64_t timeout_ms, acc_work** work) ACC_NOEXCEPT;
/* Receives the next message with this tag from rank `from`; -1: from any rank. source: with `work`
 * NULL, receives the sender's rank; may be NULL. ACC_COLLECTIVE also if the message has another
 * size. */
ACC_API acc_status acc_group_receive(acc_group* group, void* data, size_t nbytes, int32_t from,
                                     int32_t tag, int64_t timeout_ms, int32_t* source,
                                     acc_work** work) ACC_NOEXCEPT;

/* Waits until the call is complete. Fails if the call failed. timeout_ms 0: no limit besides the
 * call's own. ACC_TIMEOUT aborts the group. */
ACC_API acc_status acc_work_wait(acc_work* work, int64_t timeout_ms) ACC_NOEXCEPT;
/* 1 if the call is complete or has failed, else 0; -1 for NULL. */
ACC_API int acc_work_done(const acc_work* work) ACC_NOEXCEPT;
/* Rank that sent the message of a completed receive; -1 for other calls. */
ACC_API int acc_work_source(const acc_work* work) ACC_NOEXCEPT;
/* Frees the handle, not later than its group. The call goes on. */
ACC_API void acc_work_free(acc_work* work) ACC_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
