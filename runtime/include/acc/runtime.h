/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ACC_RUNTIME_H
#define ACC_RUNTIME_H

/*
 * The sharded-training runtime for C and for languages that call C. It has the functions of
 * acc/runtime.hpp, except Runtime::from_settings: a program sets its own settings through plugins.
 * Functions that read and write files are in acc/runtime_checkpoint.h. Conventions:
 *
 *  - Errors: every function that can fail returns acc_status; ACC_OK is 0. On failure, output
 *    arguments keep their values and acc_last_error() returns the reason. No exception leaves this
 *    interface.
 *  - Ownership: handles are opaque. The caller releases a handle with its *_free or *_end function,
 *    uses before their model and models before their runtime. Units belong to their model. Freeing
 *    NULL does nothing.
 *  - Versions: a struct with an _INITIALIZER begins with its size, which the initializer sets. A
 *    program built with an older header works with a newer library; fields that its header does not
 *    have take their defaults.
 *  - Threads: only the thread that made a runtime uses it and the handles that it made.
 *  - Ranks: all ranks make the same calls in the same order. "Collective" means that the call waits
 *    for the other ranks. It fails with ACC_PEER_LOST if one of them ended or left, and with
 *    ACC_COLLECTIVE, ACC_TIMEOUT or ACC_CONNECTION if one failed, was late or called something
 * else; afterwards every collective call fails.
 *  - Every function returns ACC_INVALID_ARGUMENT for a NULL that is not allowed, an unknown kind, a
 *    call out of order, or a handle of another model. Other codes are listed at the function.
 *  - Strings are UTF-8 and copied if they are kept. Counts are elements unless the name says bytes;
 *    arrays are row-major. "Device memory" is memory of the device of acc_runtime_device.
 */

#include "acc/base/export.hpp"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define ACC_NOEXCEPT noexcept
#else
#define ACC_NOEXCEPT
#endif

/* Result of a call. acc::Error has the same codes. */
typedef enum acc_status {
  ACC_OK = 0,
  ACC_INVALID_ARGUMENT = 1,
  ACC_CONFIG = 2,
  ACC_NOT_FOUND = 3,
  ACC_TIMEOUT = 4,
  ACC_CONNECTION = 5,
  ACC_PROTOCOL = 6,
  ACC_PROCESS = 7,
  ACC_COLLECTIVE = 8,
  ACC_DEVICE = 9,
  ACC_OUT_OF_MEMORY = 10,
  ACC_INTERNAL = 11,
  ACC_DISAGREEMENT = 12,  /* settings, models or files that differ between ranks */
  ACC_NOT_SUPPORTED = 13, /* right in itself, but not built or not possible here */
  ACC_PEER_LOST = 14      /* a rank has ended or given up (acc_checkpoint_series_rejoin) */
} acc_status;

/* --- functions of the program that the library calls ---
 *
 * A function that failed calls acc_callback_returns with the reason before it returns. The call of
 * the library then fails with ACC_PROCESS and changes nothing, and a collective call fails on the
 * other ranks too, with ACC_COLLECTIVE and the reason.
 *
 * In languages whose functions may end without a result (an exception in ctypes of Python leaves
 * the result undefined), pass acc_callback_context() as the context of the function. A call of it
 * counts as failed unless the function calls acc_callback_returns. */
/* error: the reason, copied; NULL: it did not fail. value: the result of a function that returns a
 * double with that context, else not used. The last call counts. */
ACC_API void acc_callback_returns(const char* error, double value) ACC_NOEXCEPT;
ACC_API void* acc_callback_context(void) ACC_NOEXCEPT;

/* Reason of this thread's last failure, valid until its next call; "" if nothing failed yet. */
ACC_API const char* acc_last_error(void) ACC_NOEXCEPT;
/* Rank that caused this thread's last failure; -1 if unknown. */
ACC_API int acc_last_error_rank(void) ACC_NOEXCEPT;
/* Name of a status: "ok", "config", "timeout", … A static string. */
ACC_API const char* acc_status_name(acc_status status) ACC_NOEXCEPT;
/* Exit status for a program that ends because of `status`: 0 for ACC_OK, 2 for bad input, 124 for a
 * timeout, else 1 (docs/errors.md). */
ACC_API int acc_exit_status(acc_status status) ACC_NOEXCEPT;

typedef struct acc_runtime acc_runtime;
typedef struct acc_model acc_model;
typedef struct acc_unit acc_unit;
typedef struct acc_optimizer acc_optimizer;
typedef struct acc_forward_use acc_forward_use;
typedef struct acc_backward_use acc_backward_use;
typedef struct acc_no_grad acc_no_grad;
typedef struct acc_no_sync acc_no_sync;
typedef struct acc_gradients acc_gradients; /* memory of acc_model_take_gradients */
typedef struct acc_saved_activation acc_saved_activation;

/* ---- runtime ---------------------------------------------------------------------------------*/

/* Makes a runtime from the environment variables that the launcher set (docs/environment.md);
 * without them, a job of one rank. Makes stdout line-buffered if it is a pipe, so that the launcher
 * shows lines when they are written and a signal that ends the process loses none (docs/jobs.md).
 * Collective. ACC_CONFIG: the settings contradict each other; ACC_DISAGREEMENT: they differ between
 * ranks; ACC_NOT_SUPPORTED: this library does not support one. */
ACC_API acc_status acc_runtime_from_environment(acc_runtime** runtime) ACC_NOEXCEPT;
/* Frees the runtime. Free its models, optimizers and saved activations first. */
ACC_API void acc_runtime_free(acc_runtime* runtime) ACC_NOEXCEPT;

/* ---- plugins ---------------------------------------------------------------------------------*/

/* Settings of the program, which win over the launcher's. Fields have the names of Accelerate's
 * plugins (acc/settings/fsdp_plugin.hpp and deepspeed_plugin.hpp list them); values are text, for
 * example field "sharding_strategy", value "FULL_SHARD". All ranks must set the same. */
typedef struct acc_fsdp_plugin acc_fsdp_plugin;
typedef struct acc_deepspeed_plugin acc_deepspeed_plugin;

/* Makes a plugin without values. */
ACC_API acc_status acc_fsdp_plugin_create(acc_fsdp_plugin** plugin) ACC_NOEXCEPT;
/* Frees the plugin; a runtime made with it does not need it any longer. */
ACC_API void acc_fsdp_plugin_free(acc_fsdp_plugin* plugin) ACC_NOEXCEPT;
/* Sets one field. ACC_CONFIG, with its name: an unknown field or a wrong value. */
ACC_API acc_status acc_fsdp_plugin_set(acc_fsdp_plugin* plugin, const char* field,
                                       const char* value) ACC_NOEXCEPT;
/* acc_runtime_from_environment with the plugin's values over the launcher's. ACC_CONFIG also if the
 * two exclude each other; the message names both sources. */
ACC_API acc_status acc_runtime_from_environment_with_fsdp(const acc_fsdp_plugin* plugin,
                                                          acc_runtime** runtime) ACC_NOEXCEPT;
/* The same for a launcher in mode `mode` (none, fsdp or deepspeed) in place of the one in ACC_MODE.
 * For a program whose own calls decide how it shards: none. */
ACC_API acc_status acc_runtime_in_mode_with_fsdp(const char* mode, const acc_fsdp_plugin* plugin,
                                                 acc_runtime** runtime) ACC_NOEXCEPT;

/* The same four functions for DeepSpeed's settings. */
ACC_API acc_status acc_deepspeed_plugin_create(acc_deepspeed_plugin** plugin) ACC_NOEXCEPT;
ACC_API void acc_deepspeed_plugin_free(acc_deepspeed_plugin* plugin) ACC_NOEXCEPT;
ACC_API acc_status acc_deepspeed_plugin_set(acc_deepspeed_plugin* plugin, const char* field,
                                            const char* value) ACC_NOEXCEPT;
ACC_API acc_status acc_runtime_from_environment_with_deepspeed(const acc_deepspeed_plugin* plugin,
                                                               acc_runtime** runtime) ACC_NOEXCEPT;

/* ---- ranks -----------------------------------------------------------------------------------*/

/* Rank in the job, rank on this machine, and number of ranks; -1 for a NULL runtime. */
ACC_API int acc_runtime_rank(const acc_runtime* runtime) ACC_NOEXCEPT;
ACC_API int acc_runtime_local_rank(const acc_runtime* runtime) ACC_NOEXCEPT;
ACC_API int acc_runtime_world_size(const acc_runtime* runtime) ACC_NOEXCEPT;
/* Number of micro-steps (forward and backward of one micro-batch) per optimizer step, at least 1;
 * -1 for a NULL runtime. */
ACC_API int acc_runtime_gradient_accumulation_steps(const acc_runtime* runtime) ACC_NOEXCEPT;
/* 1 if the program should save only a block's input (acc_runtime_keep) and compute the block again
 * (acc_recompute_begin) before its backward, else 0; -1 for a NULL runtime. */
ACC_API int acc_runtime_activation_checkpointing(const acc_runtime* runtime) ACC_NOEXCEPT;

typedef enum acc_device_kind { ACC_DEVICE_CPU = 0, ACC_DEVICE_CUDA = 1 } acc_device_kind;
typedef struct acc_device_info {
  size_t size;
  int32_t kind;  /* acc_device_kind */
  int32_t index; /* index of the GPU among those visible to this process; 0 on the CPU */
  void* stream;  /* GPU: cudaStream_t on which the program must compute; CPU: NULL */
} acc_device_info;
#define ACC_DEVICE_INFO_INITIALIZER \
  { sizeof(acc_device_info), ACC_DEVICE_CPU, 0, NULL }
/* The device on which the program computes. */
ACC_API acc_status acc_runtime_device(const acc_runtime* runtime,
                                      acc_device_info* info) ACC_NOEXCEPT;

/* Writes one line for the user: strategy, groups, precision. text: [capacity] bytes; the line is
 * truncated to fit, with a final NUL. */
ACC_API acc_status acc_runtime_describe(const acc_runtime* runtime, char* text,
                                        size_t capacity) ACC_NOEXCEPT;
/* *is_last = 1 if the micro-step whose backward has just ended was the last before
 * acc_optimizer_step, else 0. */
ACC_API acc_status acc_runtime_last_micro_step(const acc_runtime* runtime, const acc_model* model,
                                               int* is_last) ACC_NOEXCEPT;
/* The mean of all ranks' values, on every rank. Collective. */
ACC_API acc_status acc_runtime_mean(acc_runtime* runtime, double value, double* mean) ACC_NOEXCEPT;
/* The values of all ranks, on every rank. values: [count], the same count on all ranks; all:
 * [world_size * count], in rank order. Collective. */
ACC_API acc_status acc_runtime_all_gather(acc_runtime* runtime, const double* values, size_t count,
                                          double* all) ACC_NOEXCEPT;
/* Returns when all ranks have called it. Collective. */
ACC_API acc_status acc_runtime_barrier(acc_runtime* runtime) ACC_NOEXCEPT;
/* Reports values of this rank to those who watch the job (docs/watching.md), by their names: loss,
 * tokens_per_s, memory.CATEGORY or names of the program. The runtime reports steps, learning rate,
 * gradient norm, times and its own memory by itself. Waits for nobody. names, values: [count]. A
 * value may be NaN or infinite. ACC_INVALID_ARGUMENT: at least one value was left out, because more
 * than 16 names or 16 memory categories, or a name of more than 31 characters, were given. Not
 * collective. */
ACC_API acc_status acc_runtime_report(acc_runtime* runtime, const char* const* names,
                                      const double* values, size_t count) ACC_NOEXCEPT;
/* Makes every later collective call of all ranks fail with `reason`, as soon as they notice. For a
 * program that cannot go on and whose peers would otherwise wait for it. Not collective. */
ACC_API acc_status acc_runtime_abort(acc_runtime* runtime, const char* reason) ACC_NOEXCEPT;

/* Saves a copy of an activation: in host memory with fsdp_activation_checkpointing_offload, else on
 * the device. data: [nbytes], device memory. The copy overlaps with computation; work that is
 * issued after the call may overwrite data. */
ACC_API acc_status acc_runtime_keep(acc_runtime* runtime, const void* data, size_t nbytes,
                                    acc_saved_activation** saved) ACC_NOEXCEPT;
/* Starts the copy back to the device, so that restore does not wait for it. */
ACC_API acc_status acc_saved_activation_prefetch(acc_saved_activation* saved) ACC_NOEXCEPT;
/* The saved values. data: [nbytes], device memory, valid for work on the device's stream until the
 * handle is freed. */
ACC_API acc_status acc_saved_activation_restore(acc_saved_activation* saved,
                                                const void** data) ACC_NOEXCEPT;
ACC_API void acc_saved_activation_free(acc_saved_activation* saved) ACC_NOEXCEPT;

/* ---- model -----------------------------------------------------------------------------------*/

/* Type of elements. Parameters and gradients have one of the first three; buffers have any. */
typedef enum acc_dtype {
  ACC_FLOAT32 = 0,
  ACC_BFLOAT16 = 1,
  ACC_FLOAT16 = 2,
  ACC_FLOAT64 = 3,
  /* 4 is not used */
  ACC_UINT8 = 5,
  ACC_BOOL = 6, /* one byte, 0 or 1 */
  ACC_INT8 = 7,
  ACC_INT16 = 8,
  ACC_UINT16 = 9,
  ACC_INT32 = 10,
  ACC_UINT32 = 11,
  ACC_INT64 = 12,
  ACC_UINT64 = 13,
  ACC_COMPLEX32 = 14, /* two float16 */
  ACC_COMPLEX64 = 15,
  ACC_COMPLEX128 = 16,
  ACC_FLOAT8_E4M3FN = 17,
  ACC_FLOAT8_E5M2 = 18,
  ACC_FLOAT8_E4M3FNUZ = 19,
  ACC_FLOAT8_E5M2FNUZ = 20,
  ACC_FLOAT8_E8M0FNU = 21
} acc_dtype;

typedef struct acc_model_config {
  size_t size;
  uint64_t seed; /* of the initialisers, whose values do not depend on the number of ranks */
  int32_t dtype; /* acc_dtype in which the program loads its weights. Without mixed precision,
                    weights and optimizer state are kept in it; with it, master weights are fp32 */
  int32_t bfloat16_on_cpu; /* 0: on a CPU, 16-bit weights and their gradients are fp32 for the
                              program; 1: bfloat16 weights and gradients stay bfloat16 */
  int32_t unused_units; /* 0: acc_optimizer_step fails if a unit with trained parameters had, since
                           the last step, a forward use without a backward use, or a micro-step
                           whose backward uses asked for no gradient; 1: such gradients count as
                           zero */
  int32_t float16_on_cpu;    /* as bfloat16_on_cpu, for float16 */
  int32_t units_as_declared; /* 1: each declared unit is sharded by itself, whatever the wrap
                                policy says (acc_runtime_wrap has applied it) */
  int32_t float32_buffers;   /* dtype of buffers that are declared without one. 0: that in which
                                weights are gathered; 1: fp32 */
  int32_t autograd; /* 1: backwards are those of an automatic differentiation: a forward use may
                       have no backward use or several, acc_recompute_begin may come without a
                       forward use, and a step only needs one gradient of each unit that had a
                       forward use since the last step */
  int32_t by_rows;  /* 1: each parameter is sharded by itself and by rows, as FSDP 2 does: of N
                       ranks, rank r has chunk r of torch.chunk(parameter, N). The program updates
                       the shards itself (acc_model_shards, acc_model_take_gradients,
                       acc_model_publish), and micro-steps have no limit */
} acc_model_config;
/* Seed 0, fp32, strict use of units, the launcher's wrap policy. */
#define ACC_MODEL_CONFIG_INITIALIZER \
  { sizeof(acc_model_config), 0, ACC_FLOAT32, 0, 0, 0, 0, 0, 0, 0 }

/* Makes an empty model whose weights are loaded in fp32. Not collective. */
ACC_API acc_status acc_model_create(acc_runtime* runtime, uint64_t seed,
                                    acc_model** model) ACC_NOEXCEPT;
/* Makes an empty model. config: NULL for the initializer's values. ACC_INVALID_ARGUMENT: weights
 * cannot have this dtype; ACC_NOT_SUPPORTED: the settings ask for fp8 without config->fp8. */
ACC_API acc_status acc_model_create_with(acc_runtime* runtime, const acc_model_config* config,
                                         acc_model** model) ACC_NOEXCEPT;
/* Frees the model and its units, after the collectives that it issued. */
ACC_API void acc_model_free(acc_model* model) ACC_NOEXCEPT;

/* A module of a program that has its own tree of modules. */
typedef struct acc_module {
  size_t size;
  const char* name; /* full dotted name; "" for the root */
  const char* class_name;
  const char* const* parameters; /* [num_parameters] full names of its own parameters, without those
                                    of its submodules; a tied one has the same name everywhere */
  const int64_t* numels;         /* [num_parameters] their elements */
  size_t num_parameters;
  int32_t is_candidate; /* 1: the program would declare it as a unit where the policy leaves the
                           choice to the program */
} acc_module;
#define ACC_MODULE_INITIALIZER \
  { sizeof(acc_module), NULL, NULL, NULL, NULL, 0, 0 }
/* Applies fsdp_auto_wrap_policy to the modules of a program: chosen[i] = 1 if it makes module i a
 * unit, else 0. The program then declares these units in a model with units_as_declared. modules:
 * [count], parents before their children; chosen: [count]. The root, which takes the rest, is never
 * chosen. Not collective. ACC_CONFIG: a class of fsdp_transformer_layer_cls_to_wrap that no module
 * has. */
ACC_API acc_status acc_runtime_wrap(const acc_runtime* runtime, const acc_module* modules,
                                    size_t count, int32_t* chosen) ACC_NOEXCEPT;

/* Declares a unit: parameters that are gathered and freed together. Uses of the root may contain
 * uses of other units; there is at most one root. class_name: the name by which
 * fsdp_transformer_layer_cls_to_wrap selects the unit. All units, parameters and buffers are
 * declared before the first use, acc_model_load_weights or optimizer; afterwards the functions
 * return ACC_INVALID_ARGUMENT. That first use is collective, and fails with ACC_DISAGREEMENT on
 * every rank if the ranks declared different models. */
ACC_API acc_status acc_model_root(acc_model* model, const char* name, const char* class_name,
                                  acc_unit** unit) ACC_NOEXCEPT;
ACC_API acc_status acc_model_unit(acc_model* model, const char* name, const char* class_name,
                                  acc_unit** unit) ACC_NOEXCEPT;

typedef enum acc_initializer_kind {
  ACC_INITIALIZER_CONSTANT = 0, /* value a */
  ACC_INITIALIZER_NORMAL = 1,   /* mean 0, standard deviation a */
  ACC_INITIALIZER_UNIFORM = 2,  /* uniform in [a, b) */
  ACC_INITIALIZER_CUSTOM = 3,   /* fill, whose values may differ between ranks */
  ACC_INITIALIZER_PURE = 4,     /* fill, a function of its arguments only, the same on all ranks */
  ACC_INITIALIZER_PURE_ONCE = 5 /* as _PURE, but called only while the model is initialised */
} acc_initializer_kind;

/* Fills elements [offset, offset + count) of a parameter or buffer into out: [count]. `stream`
 * differs per parameter and seed. A pure function is called on each rank for the elements that the
 * rank keeps; nothing is sent. A custom function is called on rank 0 only, for all ranks, with
 * fsdp_sync_module_states; without it, on each rank for the elements that the rank keeps. */
typedef void (*acc_fill_function)(uint64_t stream, int64_t offset, float* out, size_t count,
                                  void* context);

typedef struct acc_parameter_config {
  size_t size;
  int32_t trainable;    /* 0: frozen */
  int32_t weight_decay; /* 0: the optimizer's weight decay does not apply */
  int32_t initializer;  /* acc_initializer_kind */
  float a, b;
  acc_fill_function fill; /* for ACC_INITIALIZER_CUSTOM, _PURE and _PURE_ONCE; outlives the model */
  void* context;          /* passed to fill; outlives the model */
  int32_t buffer_dtype;   /* acc_dtype of a buffer; negative: acc_model_buffer_dtype */
  int32_t own_dtypes;     /* 1, in a model with acc_model_config.by_rows: the parameter has the
                             dtypes below, and the program sets its initial values */
  int32_t stored_dtype;   /* acc_dtype of its shards */
  int32_t computed_dtype; /* acc_dtype of its gathered weights, and of its gradients as written */
  int32_t reduced_dtype;  /* acc_dtype of its gradients as they are sent */
} acc_parameter_config;
/* Trainable, with weight decay, filled with zeros. */
#define ACC_PARAMETER_CONFIG_INITIALIZER                                                         \
  {                                                                                              \
    sizeof(acc_parameter_config), 1, 1, ACC_INITIALIZER_CONSTANT, 0.0F, 0.0F, NULL, NULL, -1, 0, \
        0, 0, 0                                                                                  \
  }

/* Handle of a parameter. Only the unit that registered it accepts it. */
typedef struct acc_parameter {
  int32_t index;
  int32_t unit; /* number of its unit; unique in the process */
} acc_parameter;

/* Registers a parameter. Its full name is "<unit>.<name>" ("<name>" if the unit's name is empty).
 * shape: [num_dims], outermost first, each at least 1; num_dims 0: a scalar. config: NULL for the
 * initializer's values. */
ACC_API acc_status acc_unit_parameter(acc_unit* unit, const char* name, const int64_t* shape,
                                      size_t num_dims, const acc_parameter_config* config,
                                      acc_parameter* parameter) ACC_NOEXCEPT;
/* Gives a parameter of this unit a second full name (a tied weight). Files contain it under both
 * names; it is stored, reduced and counted once. */
ACC_API acc_status acc_unit_tie(acc_unit* unit, const char* alias_full_name,
                                acc_parameter parameter) ACC_NOEXCEPT;

/* Handle of a buffer; like acc_parameter. */
typedef struct acc_buffer {
  int32_t index;
  int32_t unit;
} acc_buffer;

/* Registers values that are neither trained nor sharded. Every rank holds the whole buffer; with
 * fsdp_sync_module_states all ranks begin with rank 0's values. Arguments as acc_unit_parameter,
 * but sizes may be 0; of config only the initializer and buffer_dtype, which memory and files keep,
 * are used. The first use of the model returns ACC_INVALID_ARGUMENT if the dtype cannot hold a
 * value of the initializer. */
ACC_API acc_status acc_unit_buffer(acc_unit* unit, const char* name, const int64_t* shape,
                                   size_t num_dims, const acc_parameter_config* config,
                                   acc_buffer* buffer) ACC_NOEXCEPT;
/* Gives a buffer a second full name. Files contain it under both names. */
ACC_API acc_status acc_unit_tie_buffer(acc_unit* unit, const char* alias_full_name,
                                       acc_buffer buffer) ACC_NOEXCEPT;
/* The buffer's values, which the program may read and write. data: [shape] in its dtype, device
 * memory. The first call for a model is collective. */
ACC_API acc_status acc_unit_buffer_data(acc_unit* unit, acc_buffer buffer,
                                        void** data) ACC_NOEXCEPT;

/* Gives rank 0's values to all ranks, as those of a buffer are shared at the beginning: with
 * fsdp_sync_module_states, and unless `name`, their full name, lies in a module of
 * fsdp_ignored_modules. For values that the program holds itself and that are in no file. data:
 * [nbytes], device memory; acc_checkpoint_series_rejoin gives rank 0's values again, in the same
 * memory. Collective. */
ACC_API acc_status acc_model_share(acc_model* model, const char* name, void* data,
                                   size_t nbytes) ACC_NOEXCEPT;

/* *keeps = 1 if the addresses that uses of the unit return for its parameters never change and
 * their memory always holds these parameters, so that the program may keep views of it between
 * uses; else 0. Collective if it is the first use of the model. */
ACC_API acc_status acc_unit_keeps_addresses(const acc_unit* unit, int* keeps) ACC_NOEXCEPT;

/* Dtype of parameters and gradients as the program sees them, and so of the elements behind all raw
 * pointers below; and dtype of buffers that are declared without one. */
ACC_API acc_status acc_model_compute_dtype(const acc_model* model, acc_dtype* dtype) ACC_NOEXCEPT;
ACC_API acc_status acc_model_buffer_dtype(const acc_model* model, acc_dtype* dtype) ACC_NOEXCEPT;
/* Elements of all parameters; tied ones count once. -1 for a NULL model. */
ACC_API int64_t acc_model_numel(const acc_model* model) ACC_NOEXCEPT;

/* Bytes that this rank holds for the model. acc/runtime/reports.hpp describes the fields. */
typedef struct acc_memory_report {
  size_t size;
  int64_t parameter_bytes;
  int64_t gradient_bytes;
  int64_t optimizer_bytes;
  int64_t gathered_bytes;
  int64_t gradient_buffer_bytes;
  int64_t device_bytes;
  int64_t device_peak_bytes;
  int64_t pinned_bytes;
  int64_t buffer_bytes;
  int64_t snapshot_bytes;
  int64_t nvme_bytes;
  int64_t nvme_buffer_bytes;
} acc_memory_report;
#define ACC_MEMORY_REPORT_INITIALIZER \
  { sizeof(acc_memory_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
ACC_API acc_status acc_model_memory(const acc_model* model, acc_memory_report* report) ACC_NOEXCEPT;

/* Elements that this rank passed to collectives since the last reset. acc/runtime/reports.hpp
 * describes the fields. */
typedef struct acc_traffic_report {
  size_t size;
  int64_t gathered_elements;
  int64_t gathered_elements_moved;
  int64_t gather_calls;
  int64_t reduced_elements;
  int64_t reduce_calls;
  int64_t all_reduced_elements;
  int64_t all_reduce_calls;
  int64_t secondary_elements;
  int64_t gathered_bytes_sent;
  int64_t reduced_bytes_sent;
} acc_traffic_report;
#define ACC_TRAFFIC_REPORT_INITIALIZER \
  { sizeof(acc_traffic_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
ACC_API acc_status acc_model_traffic(const acc_model* model,
                                     acc_traffic_report* report) ACC_NOEXCEPT;
ACC_API acc_status acc_model_reset_traffic(acc_model* model) ACC_NOEXCEPT;

/* ---- uses ------------------------------------------------------------------------------------*/

/* A use is the scope of a unit's forward or backward, in which the unit's full parameters are
 * available. Each use must be ended; `end` releases the handle, also if it fails. Calls with one of
 * the last 64 handles that this thread ended return ACC_INVALID_ARGUMENT; older handles are freed
 * and must not be used. Begin and end are collective.
 *
 * A micro-step begins with the first forward after a backward. Begin returns ACC_INVALID_ARGUMENT
 * for more micro-steps than gradient_accumulation_steps, and for a backward or recomputation
 * without its forward. */
ACC_API acc_status acc_forward_begin(acc_unit* unit, acc_forward_use** use) ACC_NOEXCEPT;
/* Begins a forward that is computed again for the backward that follows (activation checkpointing).
 * It needs no separate backward use, and the parameters that it gathers stay gathered for that
 * backward. Ended by acc_forward_end. */
ACC_API acc_status acc_recompute_begin(acc_unit* unit, acc_forward_use** use) ACC_NOEXCEPT;
/* The full parameter. data: [shape], fp32, read-only, valid until the use ends.
 * ACC_INVALID_ARGUMENT if the compute dtype is not fp32. */
ACC_API acc_status acc_forward_parameter(const acc_forward_use* use, acc_parameter parameter,
                                         const float** data) ACC_NOEXCEPT;
/* The same in the model's compute dtype, device memory. */
ACC_API acc_status acc_forward_raw(const acc_forward_use* use, acc_parameter parameter,
                                   const void** data) ACC_NOEXCEPT;
ACC_API acc_status acc_forward_end(acc_forward_use* use) ACC_NOEXCEPT;
/* Begins a backward use; and the full parameter in it, as acc_forward_parameter gives it. */
ACC_API acc_status acc_backward_begin(acc_unit* unit, acc_backward_use** use) ACC_NOEXCEPT;
ACC_API acc_status acc_backward_parameter(const acc_backward_use* use, acc_parameter parameter,
                                          const float** data) ACC_NOEXCEPT;
/* Memory for the parameter's gradient: the program computes data = beta * data + gradient. data:
 * [shape], fp32, undefined content if beta is 0; NULL for a frozen parameter. Each call counts as
 * one write, so call it once per write. */
ACC_API acc_status acc_backward_grad(acc_backward_use* use, acc_parameter parameter, float** data,
                                     float* beta) ACC_NOEXCEPT;
/* The same memory, filled with zeros if nothing was written to it in this micro-step: the program
 * always adds. */
ACC_API acc_status acc_backward_grad_to_add(acc_backward_use* use, acc_parameter parameter,
                                            float** data) ACC_NOEXCEPT;
/* The three functions above in the model's compute dtype, device memory. */
ACC_API acc_status acc_backward_raw(const acc_backward_use* use, acc_parameter parameter,
                                    const void** data) ACC_NOEXCEPT;
ACC_API acc_status acc_backward_raw_grad(acc_backward_use* use, acc_parameter parameter,
                                         void** data, float* beta) ACC_NOEXCEPT;
ACC_API acc_status acc_backward_raw_grad_to_add(acc_backward_use* use, acc_parameter parameter,
                                                void** data) ACC_NOEXCEPT;
ACC_API acc_status acc_backward_end(acc_backward_use* use) ACC_NOEXCEPT;

/* While the handle lives, forward uses expect no backward (evaluation). End it before the model. */
ACC_API acc_status acc_no_grad_begin(acc_model* model, acc_no_grad** scope) ACC_NOEXCEPT;
ACC_API void acc_no_grad_end(acc_no_grad* scope) ACC_NOEXCEPT;
/* While the handle lives, micro-steps that end are not reduced: each rank accumulates their whole
 * gradients, and the next micro-step outside, or the step, reduces all of them at once (FSDP's
 * no_sync). */
ACC_API acc_status acc_no_sync_begin(acc_model* model, acc_no_sync** scope) ACC_NOEXCEPT;
ACC_API void acc_no_sync_end(acc_no_sync* scope) ACC_NOEXCEPT;
/* Drops the gradients of all backward uses since the last step, after the reductions under way: all
 * ranks call it at the same place. ACC_INVALID_ARGUMENT inside a use. */
ACC_API acc_status acc_model_zero_grad(acc_model* model) ACC_NOEXCEPT;
/* Tells the library that backward uses write no gradient of a trained parameter for a while (0). A
 * parameter without a gradient in any backward use since the last step is left as it is: a function
 * of acc_optimizer_program gets no gradient of it, and acc_optimizer_step fails with the library's
 * own rules, except SGD without momentum and weight decay. ACC_INVALID_ARGUMENT for 1 if the
 * parameter was declared frozen, except with acc_model_config.by_rows: all ranks make the same
 * calls then. */
ACC_API acc_status acc_unit_set_requires_grad(acc_unit* unit, acc_parameter parameter,
                                              int requires_grad) ACC_NOEXCEPT;
/* held: 1 keeps the gradients of this unit's backwards whole on each rank, as acc_no_sync_begin
 * does, also over acc_model_take_gradients, until it is 0. All ranks make the same calls. */
ACC_API acc_status acc_unit_hold_gradients(acc_unit* unit, int held) ACC_NOEXCEPT;

/* ---- optimizer -------------------------------------------------------------------------------*/

/* AdamW with the rule and defaults of torch.optim.AdamW (decoupled weight decay). */
typedef struct acc_adamw_config {
  size_t size;
  double lr, beta1, beta2, eps, weight_decay;
} acc_adamw_config;
#define ACC_ADAMW_CONFIG_INITIALIZER \
  { sizeof(acc_adamw_config), 1e-3, 0.9, 0.999, 1e-8, 1e-2 }

/* SGD with the rule and defaults of torch.optim.SGD. */
typedef struct acc_sgd_config {
  size_t size;
  double lr, momentum, weight_decay;
  int32_t nesterov;
} acc_sgd_config;
#define ACC_SGD_CONFIG_INITIALIZER \
  { sizeof(acc_sgd_config), 1e-3, 0.0, 0.0, 0 }

/* Parameters of an optimizer with separate settings. All elements of an array of groups have the
 * same `size`. */
typedef struct acc_parameter_group {
  size_t size;
  const char* name;
  const char* const* parameters; /* [num_parameters] full names; a final * matches any ending */
  size_t num_parameters;
  double lr;            /* negative: the optimizer's */
  double weight_decay;  /* negative: the optimizer's */
  int32_t element_wise; /* 1: matrices are updated as the other parameters are. For rules that
                           update matrices as a whole (Muon) */
} acc_parameter_group;
#define ACC_PARAMETER_GROUP_INITIALIZER \
  { sizeof(acc_parameter_group), NULL, NULL, 0, -1.0, -1.0, 0 }

/* Makes the model's optimizer; there is one at a time. After this call the model accepts no further
 * declarations. config: NULL for the initializer's values. Collective. ACC_INVALID_ARGUMENT: the
 * model already has an optimizer, or a rate or a coefficient is out of its range. ACC_DISAGREEMENT
 * on every rank, with rank, setting and both values: the ranks make different optimizers. */
ACC_API acc_status acc_optimizer_adamw(acc_model* model, const acc_adamw_config* config,
                                       acc_optimizer** optimizer) ACC_NOEXCEPT;
ACC_API acc_status acc_optimizer_sgd(acc_model* model, const acc_sgd_config* config,
                                     acc_optimizer** optimizer) ACC_NOEXCEPT;
/* The same with parameter groups, groups: [num_groups]. ACC_INVALID_ARGUMENT also if a group's
 * name matches no parameter or two groups name the same parameter. */
ACC_API acc_status acc_optimizer_adamw_groups(acc_model* model, const acc_adamw_config* config,
                                              const acc_parameter_group* groups, size_t num_groups,
                                              acc_optimizer** optimizer) ACC_NOEXCEPT;
ACC_API acc_status acc_optimizer_sgd_groups(acc_model* model, const acc_sgd_config* config,
                                            const acc_parameter_group* groups, size_t num_groups,
                                            acc_optimizer** optimizer) ACC_NOEXCEPT;
/* Any of the library's optimizers by name ("adamw"; docs/sharding.md, "Optimizers"). names, values:
 * [num_coefficients] of its coefficients; the others have their defaults; booleans are 0 or 1.
 * ACC_INVALID_ARGUMENT also for an unknown name of the optimizer or of a coefficient. */
ACC_API acc_status acc_optimizer_named(acc_model* model, const char* name, const char* const* names,
                                       const double* values, size_t num_coefficients,
                                       const acc_parameter_group* groups, size_t num_groups,
                                       acc_optimizer** optimizer) ACC_NOEXCEPT;
/* This rank's part of a trained parameter, a range of its elements in row-major order. */
typedef struct acc_parameter_shard {
  size_t size;
  const char* name;
  int64_t offset;         /* number of its first element in the parameter */
  int64_t numel;          /* 0: this rank has none of the parameter */
  int32_t weight_decay;   /* 0: the parameter was declared without weight decay */
  int32_t dtype;          /* of the weights */
  int32_t in_host_memory; /* 0: in memory of the device */
  void* weights;          /* master weights, [numel]; the same memory in every step */
  float* gradient; /* [numel]; null outside of a step, and of a parameter that the step leaves
                      as it is (acc_unit_set_requires_grad) */
  int32_t gives_gradient; /* 1: `kept` of acc_model_take_gradients owns the gradient's memory */
  float* const* states;   /* [num_states] of acc_optimizer_program_states, each [numel] */
  size_t num_states;
} acc_parameter_shard;

/* Gets the shards of all trained parameters. Not 0: it failed. Must not use the runtime. */
typedef int (*acc_shards_function)(const acc_parameter_shard* shards, size_t num_shards,
                                   void* context);

/* Makes an optimizer whose update rule is the program's: acc_optimizer_step calls `update`, which
 * changes the weights by the gradients, the mean over ranks and micro-steps, unscaled and clipped.
 * If it fails, the step fails with ACC_PROCESS, and on the other ranks with ACC_COLLECTIVE.
 * Learning rates and state of the rule are the program's. update, context: outlive the optimizer.
 */
ACC_API acc_status acc_optimizer_program(acc_model* model, acc_shards_function update,
                                         void* context, acc_optimizer** optimizer) ACC_NOEXCEPT;
/* The same with values that the library keeps for each element of a parameter: float32, from 0, in
 * the memory of the weights, sharded as they are, and in checkpoints. states: [num_states] names.
 */
ACC_API acc_status acc_optimizer_program_states(acc_model* model, acc_shards_function update,
                                                void* context, const char* const* states,
                                                size_t num_states,
                                                acc_optimizer** optimizer) ACC_NOEXCEPT;
/* A matrix on the one rank that owns it, in host memory. */
typedef struct acc_owned_matrix {
  size_t size;
  const char* name;
  int64_t rows;
  int64_t columns;
  int64_t step; /* number of the step, from 1 */
  double lr;
  double weight_decay;  /* 0 also if the parameter was declared without */
  float* values;        /* [rows][columns]: the gradient, mean over ranks and micro-steps, unscaled
                           and clipped */
  float* const* states; /* [num_states], from 0 */
  size_t num_states;
} acc_owned_matrix;

/* Replaces `values` by the update: the weights become (1 - lr * weight_decay) * weights - lr *
 * values. Not 0: it failed. Must not use the runtime. */
typedef int (*acc_matrix_function)(const acc_owned_matrix* matrix, void* context);

/* Shape of a value that the library keeps of a matrix [rows, columns] */
enum {
  ACC_MATRIX_STATE_WHOLE = 0,   /* [rows, columns] */
  ACC_MATRIX_STATE_ROWS = 1,    /* [rows] */
  ACC_MATRIX_STATE_COLUMNS = 2, /* [columns] */
  ACC_MATRIX_STATE_ROWS_BY_ROWS = 3,
  ACC_MATRIX_STATE_COLUMNS_BY_COLUMNS = 4
};

/* Makes an optimizer with a rule of the program for parameters with two dimensions; the rule
 * `others` ("adamw", "adam" or "lion") with the coefficients `names`, `values`, as in
 * acc_optimizer_named, updates the other ones, and gives the matrices their rate and decay. states,
 * shapes: [num_states] names and shapes of values that the library keeps of each matrix; they are
 * in checkpoints. update, context: outlive the optimizer. */
ACC_API acc_status acc_optimizer_matrices(acc_model* model, acc_matrix_function update,
                                          void* context, const char* const* states,
                                          const int* shapes, size_t num_states, const char* others,
                                          const char* const* names, const double* values,
                                          size_t num_coefficients,
                                          const acc_parameter_group* groups, size_t num_groups,
                                          acc_optimizer** optimizer) ACC_NOEXCEPT;
/* Sets what all ranks must have in common in the program's rule: a line "name=value" per setting.
 * The next steps compare it. ACC_INVALID_ARGUMENT: the rule is not the program's. */
ACC_API acc_status acc_optimizer_set_rule_settings(acc_optimizer* optimizer,
                                                   const char* settings) ACC_NOEXCEPT;
/* Calls `visit` with the shards that `update` gets, without gradients. */
ACC_API acc_status acc_optimizer_shards(const acc_optimizer* optimizer, acc_shards_function visit,
                                        void* context) ACC_NOEXCEPT;
/* For a program that updates shards itself, with acc_model_config.by_rows and without an
 * acc_optimizer. acc_model_shards passes this rank's parts of all parameters, also of frozen ones.
 * The memory stays the same; a rank changes it only between acc_model_take_gradients after its last
 * backward, or acc_runtime_barrier after its last use, and acc_model_publish. Collective at the
 * first use of the model. */
ACC_API acc_status acc_model_shards(acc_model* model, acc_shards_function visit,
                                    void* context) ACC_NOEXCEPT;
/* Ends the backwards since the last call: passes this rank's parts of the trained parameters with
 * their gradients, the mean over ranks of the sum over micro-steps, and drops the gradients.
 * *kept, if not NULL, owns the memory of those with gives_gradient, which the program may use until
 * acc_gradients_free; that of others is valid in `visit`. Collective. ACC_INVALID_ARGUMENT inside a
 * use, or if the ranks used units in different orders. */
ACC_API acc_status acc_model_take_gradients(acc_model* model, acc_shards_function visit,
                                            void* context, acc_gradients** kept) ACC_NOEXCEPT;
ACC_API void acc_gradients_free(acc_gradients* gradients) ACC_NOEXCEPT;
/* Makes the values of all shards those that the next use of the model sees. Collective.
 * ACC_INVALID_ARGUMENT inside a use. */
ACC_API acc_status acc_model_publish(acc_model* model) ACC_NOEXCEPT;
/* Makes the optimizer and the schedule of the launcher's configuration (`optimizer` and `scheduler`
 * of a DeepSpeed file). ACC_CONFIG if it chooses no optimizer, ACC_NOT_SUPPORTED if this library
 * does not have it. */
ACC_API acc_status acc_optimizer_from_settings(acc_model* model,
                                               acc_optimizer** optimizer) ACC_NOEXCEPT;
/* Frees the optimizer; free it before its model. */
ACC_API void acc_optimizer_free(acc_optimizer* optimizer) ACC_NOEXCEPT;

typedef struct acc_step_info {
  size_t size;
  int64_t step;            /* number of steps made so far */
  double grad_norm;        /* global L2 norm before clipping */
  double clip_coefficient; /* factor of clipping to a norm; 1: not clipped */
  double lr;               /* learning rate of this step, of parameters outside all groups */
  double loss_scale;       /* factor by which the gradients had been multiplied */
  int32_t skipped;         /* 1: a gradient was not finite: no update, `step` is unchanged */
  int64_t skipped_steps;   /* number of skipped steps so far, including this one */
  int64_t tiles;           /* number of pieces in which shards were updated (sub_group_size) */
} acc_step_info;
#define ACC_STEP_INFO_INITIALIZER \
  { sizeof(acc_step_info), 0, 0.0, 1.0, 0.0, 1.0, 0, 0, 0 }
/* Makes one optimizer step: waits for the reductions, takes the mean over ranks and micro-steps,
 * clips, updates, and drops the gradients. info: NULL, or receives the result, for which the call
 * may have to wait for the GPU. Collective. ACC_INVALID_ARGUMENT,
 * with unit and rank, if this rank left out a backward or its gradients
 * (acc_model_config.unused_units); the other ranks then return ACC_COLLECTIVE with the same text.
 * ACC_COLLECTIVE also if a gradient is not finite and the NaN policy is "raise". ACC_DISAGREEMENT
 * on every rank, with rank, setting and both values, if the ranks' optimizers differ: in a learning
 * rate, clipping, or the number of steps made. */
ACC_API acc_status acc_optimizer_step(acc_optimizer* optimizer, acc_step_info* info) ACC_NOEXCEPT;
/* Factor by which the program multiplies the gradient of its loss before the backward; 1 without
 * fp16. May change in every step. */
ACC_API acc_status acc_optimizer_loss_scale(const acc_optimizer* optimizer,
                                            double* loss_scale) ACC_NOEXCEPT;
/* Number of steps made, including those before a loaded checkpoint; without skipped steps. */
ACC_API acc_status acc_optimizer_steps(const acc_optimizer* optimizer, int64_t* steps) ACC_NOEXCEPT;

/* Learning rate of the parameters that no group names; with a schedule, that of the next step.
 * set_lr ends their schedule. ACC_INVALID_ARGUMENT: the rate is negative or not finite. */
ACC_API acc_status acc_optimizer_set_lr(acc_optimizer* optimizer, double lr) ACC_NOEXCEPT;
ACC_API acc_status acc_optimizer_lr(const acc_optimizer* optimizer, double* lr) ACC_NOEXCEPT;
/* The same for a group. ACC_NOT_FOUND: no group has that name. */
ACC_API acc_status acc_optimizer_set_group_lr(acc_optimizer* optimizer, const char* group,
                                              double lr) ACC_NOEXCEPT;
ACC_API acc_status acc_optimizer_group_lr(const acc_optimizer* optimizer, const char* group,
                                          double* lr) ACC_NOEXCEPT;

typedef enum acc_lr_schedule_kind {
  /* Schedules of transformers: base times a factor that rises linearly from 0 to 1 within
   * warmup_steps and then … */
  ACC_LR_CONSTANT = 0, /* … stays 1 */
  ACC_LR_LINEAR = 1,   /* … falls linearly to 0 at total_steps */
  ACC_LR_COSINE = 2,   /* … follows `cycles` periods of a cosine until total_steps */
  /* Schedules of DeepSpeed; steps 0 and 1 both have the rate at which the warm-up begins */
  ACC_LR_WARMUP = 3,       /* WarmupLR: rises from min_lr to max_lr, then stays */
  ACC_LR_WARMUP_DECAY = 4, /* WarmupDecayLR: rises, then falls to min_lr at total_steps */
  ACC_LR_WARMUP_COSINE =
      5,            /* WarmupCosineLR: base times a ratio that rises from warmup_min_ratio to
                       1, then falls along half a cosine to cos_min_ratio at total_steps */
  ACC_LR_CUSTOM = 6 /* the program's function */
} acc_lr_schedule_kind;

/* Returns the learning rate of a step. step: number of steps made so far; base: learning rate with
 * which the optimizer or the group was made. Must be a pure function of its arguments. Called once
 * per step and group. A result that is negative or not finite fails the step with
 * ACC_INVALID_ARGUMENT. */
typedef double (*acc_lr_function)(int64_t step, double base, void* context);

typedef struct acc_lr_schedule_config {
  size_t size;
  int32_t kind;          /* acc_lr_schedule_kind */
  int32_t linear_warmup; /* DeepSpeed: 1: rises with the step; 0: with the step's logarithm */
  int64_t warmup_steps;  /* negative: the default, 0 or, for DeepSpeed's schedules, 1000 */
  int64_t total_steps;   /* including the warm-up */
  double cycles;         /* periods of the cosine; 0.5 ends at 0 */
  double min_lr, max_lr; /* negative max_lr: base, or 0.001 for WarmupDecayLR */
  double warmup_min_ratio, cos_min_ratio;
  acc_lr_function function; /* for ACC_LR_CUSTOM; outlives the optimizer */
  void* context;            /* passed to function; outlives the optimizer */
} acc_lr_schedule_config;
/* A constant rate without warm-up; the other fields have the defaults of each kind. */
#define ACC_LR_SCHEDULE_CONFIG_INITIALIZER                                                        \
  {                                                                                               \
    sizeof(acc_lr_schedule_config), ACC_LR_CONSTANT, 0, -1, 0, 0.5, 0.0, -1.0, 0.0, 0.0001, NULL, \
        NULL                                                                                      \
  }
/* Makes every later step take its learning rates from the schedule; skipped steps do not count.
 * ACC_INVALID_ARGUMENT: a number of steps that the schedule does not allow. */
ACC_API acc_status acc_optimizer_set_schedule(acc_optimizer* optimizer,
                                              const acc_lr_schedule_config* config) ACC_NOEXCEPT;

/* Any of the library's schedules by name ("polynomial"; docs/sharding.md, "Schedules"). names,
 * values: [num_values]; the others have their defaults; booleans are 0 or 1. ACC_INVALID_ARGUMENT
 * also for an unknown or missing name of a value. */
ACC_API acc_status acc_optimizer_set_named_schedule(acc_optimizer* optimizer, const char* name,
                                                    const char* const* names, const double* values,
                                                    size_t num_values) ACC_NOEXCEPT;

/* Norm to which gradients are clipped; 0: no clipping. The default is the launcher's
 * gradient_clipping. */
ACC_API acc_status acc_optimizer_set_clip_norm(acc_optimizer* optimizer,
                                               double max_norm) ACC_NOEXCEPT;
ACC_API acc_status acc_optimizer_clip_norm(const acc_optimizer* optimizer,
                                           double* max_norm) ACC_NOEXCEPT;
/* Limit to which each element of the mean gradient is clipped, [-max_value, max_value]; 0: no
 * clipping. Values are clipped before the norm. */
ACC_API acc_status acc_optimizer_set_clip_value(acc_optimizer* optimizer,
                                                double max_value) ACC_NOEXCEPT;
ACC_API acc_status acc_optimizer_clip_value(const acc_optimizer* optimizer,
                                            double* max_value) ACC_NOEXCEPT;

/* ---- memory in a file ------------------------------------------------------------------------*/

/* Memory in a file without a name, for states that a program's own optimizer keeps on NVMe
 * (docs/sharding.md, "Offload to NVMe"). It needs no runtime, and one thread uses it. Addresses are
 * offsets in bytes. After a transfer has failed, this and all later calls return ACC_DEVICE. */
typedef struct acc_file_memory acc_file_memory;

typedef struct acc_file_memory_config {
  size_t size;
  const char* folder;  /* on the disk */
  const char* setting; /* the key that names it, for messages */
  size_t nbytes;       /* of the memory */
  /* DeepSpeed's block aio, and the number of buffers of block_size * queue_depth bytes. */
  int64_t block_size;
  int32_t queue_depth, intra_op_parallelism, single_submit, overlap_events, buffer_count;
} acc_file_memory_config;
#define ACC_FILE_MEMORY_CONFIG_INITIALIZER \
  { sizeof(acc_file_memory_config), NULL, NULL, 0, 1048576, 8, 1, 0, 1, 4 }

/* Allocates the memory on the disk, filled with zeros. ACC_CONFIG: no file can be made in the
 * folder, or the disk has less room than the memory needs. */
ACC_API acc_status acc_file_memory_create(const acc_file_memory_config* config,
                                          acc_file_memory** memory) ACC_NOEXCEPT;
ACC_API void acc_file_memory_free(acc_file_memory* memory) ACC_NOEXCEPT;
/* Reads [offset, offset + nbytes) into `to`. ACC_INVALID_ARGUMENT: outside of the memory. */
ACC_API acc_status acc_file_memory_read(acc_file_memory* memory, size_t offset, void* to,
                                        size_t nbytes) ACC_NOEXCEPT;
/* Starts to read; `to` is valid after acc_file_memory_wait, which waits for all such reads, and, if
 * there are none, for all writes, of which it returns the error. offset and `to` are multiples of
 * 4096, and `to` has room for whole pages of 4096 bytes. */
ACC_API acc_status acc_file_memory_start_reading(acc_file_memory* memory, size_t offset, void* to,
                                                 size_t nbytes) ACC_NOEXCEPT;
ACC_API acc_status acc_file_memory_wait(acc_file_memory* memory) ACC_NOEXCEPT;
/* Takes the bytes over, and may write them after the call. Later reads see them. */
ACC_API acc_status acc_file_memory_write(acc_file_memory* memory, size_t offset, const void* from,
                                         size_t nbytes) ACC_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* ACC_RUNTIME_H */
