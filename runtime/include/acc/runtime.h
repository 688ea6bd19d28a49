#ifndef ACC_RUNTIME_H
#define ACC_RUNTIME_H

/*
 * The sharded-training runtime for C and for whatever calls C. It is acc/runtime.hpp function by
 * function: what a call does, which calls are collective and when parameters may be touched is told
 * there. Conventions here:
 *
 *  - Every function that can fail returns acc_status; ACC_OK is 0. On failure, results are left as
 *    they were and acc_last_error() tells the reason. Nothing is thrown across this border.
 *  - Handles are opaque. What a *_free or *_end function takes is the caller's to give back, in any
 *    order that keeps a use inside its model and a model inside its runtime. Units belong to their
 *    model. Freeing NULL does nothing.
 *  - Structs begin with their size, set by their _INITIALIZER: a program built against an older
 *    header works with a newer library, whose new fields then have their defaults.
 *  - One thread uses a runtime and what it made; all ranks make the same calls in the same order.
 *  - Strings are UTF-8, copied where they are kept. Sizes count elements, fp32, row-major.
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
  ACC_INTERNAL = 11
} acc_status;

/* Reason of this thread's last failure, valid until its next call; "" before the first. */
ACC_API const char* acc_last_error(void) ACC_NOEXCEPT;
/* Rank that caused this thread's last failure, -1 where none is known. */
ACC_API int acc_last_error_rank(void) ACC_NOEXCEPT;
/* "config", "timeout", … */
ACC_API const char* acc_status_name(acc_status status) ACC_NOEXCEPT;
/* What a program should exit with: 0, 2 for bad input, 124 for a time limit, else 1. */
ACC_API int acc_exit_status(acc_status status) ACC_NOEXCEPT;

typedef struct acc_runtime acc_runtime;
typedef struct acc_model acc_model;
typedef struct acc_unit acc_unit;
typedef struct acc_optimizer acc_optimizer;
typedef struct acc_forward_use acc_forward_use;
typedef struct acc_backward_use acc_backward_use;
typedef struct acc_no_grad acc_no_grad;
typedef struct acc_program_state acc_program_state;

/* ---- runtime ---------------------------------------------------------------------------------*/

ACC_API acc_status acc_runtime_from_environment(acc_runtime** runtime) ACC_NOEXCEPT;
ACC_API void acc_runtime_free(acc_runtime* runtime) ACC_NOEXCEPT;

/* ---- plugins ---------------------------------------------------------------------------------*/

/* What a program says for itself, over what the launcher injected: fields by the names of
 * Accelerate's plugins (acc/plugins/fsdp_plugin.hpp and deepspeed_plugin.hpp list them), values as
 * text: "sharding_strategy", "FULL_SHARD". ACC_CONFIG names an unknown field or a wrong value, and
 * at the start both places of what excludes each other. A plugin may be freed once the runtime is
 * there. */
typedef struct acc_fsdp_plugin acc_fsdp_plugin;
typedef struct acc_deepspeed_plugin acc_deepspeed_plugin;

ACC_API acc_status acc_fsdp_plugin_create(acc_fsdp_plugin** plugin) ACC_NOEXCEPT;
ACC_API void acc_fsdp_plugin_free(acc_fsdp_plugin* plugin) ACC_NOEXCEPT;
ACC_API acc_status acc_fsdp_plugin_set(acc_fsdp_plugin* plugin, const char* field,
                                       const char* value) ACC_NOEXCEPT;
ACC_API acc_status acc_runtime_from_environment_with_fsdp(const acc_fsdp_plugin* plugin,
                                                          acc_runtime** runtime) ACC_NOEXCEPT;

ACC_API acc_status acc_deepspeed_plugin_create(acc_deepspeed_plugin** plugin) ACC_NOEXCEPT;
ACC_API void acc_deepspeed_plugin_free(acc_deepspeed_plugin* plugin) ACC_NOEXCEPT;
ACC_API acc_status acc_deepspeed_plugin_set(acc_deepspeed_plugin* plugin, const char* field,
                                            const char* value) ACC_NOEXCEPT;
ACC_API acc_status acc_runtime_from_environment_with_deepspeed(const acc_deepspeed_plugin* plugin,
                                                               acc_runtime** runtime) ACC_NOEXCEPT;

/* ---- ranks -----------------------------------------------------------------------------------*/

/* -1 for a NULL runtime. */
ACC_API int acc_runtime_rank(const acc_runtime* runtime) ACC_NOEXCEPT;
ACC_API int acc_runtime_local_rank(const acc_runtime* runtime) ACC_NOEXCEPT;
ACC_API int acc_runtime_world_size(const acc_runtime* runtime) ACC_NOEXCEPT;
ACC_API int acc_runtime_gradient_accumulation_steps(const acc_runtime* runtime) ACC_NOEXCEPT;

typedef enum acc_device_kind { ACC_DEVICE_CPU = 0, ACC_DEVICE_CUDA = 1 } acc_device_kind;
typedef struct acc_device_info {
  size_t size;
  int32_t kind;  /* acc_device_kind */
  int32_t index; /* of the GPU among those this process sees */
  void* stream;  /* GPU: the cudaStream_t on which the program must compute */
} acc_device_info;
#define ACC_DEVICE_INFO_INITIALIZER \
  { sizeof(acc_device_info), ACC_DEVICE_CPU, 0, NULL }
ACC_API acc_status acc_runtime_device(const acc_runtime* runtime,
                                      acc_device_info* info) ACC_NOEXCEPT;

/* One line for the user, cut to fit `capacity` bytes with the final NUL. */
ACC_API acc_status acc_runtime_describe(const acc_runtime* runtime, char* text,
                                        size_t capacity) ACC_NOEXCEPT;
ACC_API acc_status acc_runtime_last_micro_step(const acc_runtime* runtime, const acc_model* model,
                                               int* is_last) ACC_NOEXCEPT;
ACC_API acc_status acc_runtime_mean(acc_runtime* runtime, double value, double* mean) ACC_NOEXCEPT;
/* all: [world_size * count], rank-major. */
ACC_API acc_status acc_runtime_all_gather(acc_runtime* runtime, const double* values, size_t count,
                                          double* all) ACC_NOEXCEPT;
ACC_API acc_status acc_runtime_barrier(acc_runtime* runtime) ACC_NOEXCEPT;

/* ---- model -----------------------------------------------------------------------------------*/

ACC_API acc_status acc_model_create(acc_runtime* runtime, uint64_t seed,
                                    acc_model** model) ACC_NOEXCEPT;
ACC_API void acc_model_free(acc_model* model) ACC_NOEXCEPT;

ACC_API acc_status acc_model_root(acc_model* model, const char* name, const char* class_name,
                                  acc_unit** unit) ACC_NOEXCEPT;
ACC_API acc_status acc_model_unit(acc_model* model, const char* name, const char* class_name,
                                  acc_unit** unit) ACC_NOEXCEPT;

typedef enum acc_initializer_kind {
  ACC_INITIALIZER_CONSTANT = 0, /* a */
  ACC_INITIALIZER_NORMAL = 1,   /* mean 0, standard deviation a */
  ACC_INITIALIZER_UNIFORM = 2,  /* [a, b) */
  ACC_INITIALIZER_CUSTOM = 3    /* fill */
} acc_initializer_kind;

/* Fills elements [offset, offset + count) of a parameter; a pure function of its arguments. */
typedef void (*acc_fill_function)(uint64_t stream, int64_t offset, float* out, size_t count,
                                  void* context);

typedef struct acc_parameter_config {
  size_t size;
  int32_t trainable;    /* 0: frozen */
  int32_t weight_decay; /* 0: the optimizer's weight decay does not apply */
  int32_t initializer;  /* acc_initializer_kind */
  float a, b;
  acc_fill_function fill; /* and its context, for ACC_INITIALIZER_CUSTOM; both outlive the model */
  void* context;
} acc_parameter_config;
/* Trainable, decayed, zeros. */
#define ACC_PARAMETER_CONFIG_INITIALIZER \
  { sizeof(acc_parameter_config), 1, 1, ACC_INITIALIZER_CONSTANT, 0.0F, 0.0F, NULL, NULL }

typedef struct acc_parameter {
  int32_t index;
} acc_parameter;

/* shape: [num_dims], outermost first. config: NULL for the initializer's values. */
ACC_API acc_status acc_unit_parameter(acc_unit* unit, const char* name, const int64_t* shape,
                                      size_t num_dims, const acc_parameter_config* config,
                                      acc_parameter* parameter) ACC_NOEXCEPT;
ACC_API acc_status acc_unit_tie(acc_unit* unit, const char* alias_full_name,
                                acc_parameter parameter) ACC_NOEXCEPT;

ACC_API acc_status acc_model_load_safetensors(acc_model* model, const char* path) ACC_NOEXCEPT;
ACC_API acc_status acc_model_export_safetensors(acc_model* model, const char* path) ACC_NOEXCEPT;
typedef enum acc_dtype { ACC_FLOAT32 = 0, ACC_BFLOAT16 = 1, ACC_FLOAT16 = 2 } acc_dtype;
/* What parameters and gradients are for the program; all raw pointers below are to it. */
ACC_API acc_status acc_model_compute_dtype(const acc_model* model, acc_dtype* dtype) ACC_NOEXCEPT;
/* Elements of all parameters, -1 for a NULL model. */
ACC_API int64_t acc_model_numel(const acc_model* model) ACC_NOEXCEPT;

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
} acc_memory_report;
#define ACC_MEMORY_REPORT_INITIALIZER \
  { sizeof(acc_memory_report), 0, 0, 0, 0, 0, 0, 0, 0 }
ACC_API acc_status acc_model_memory(const acc_model* model, acc_memory_report* report) ACC_NOEXCEPT;

typedef struct acc_traffic_report {
  size_t size;
  int64_t gathered_elements;
  int64_t gathered_elements_moved;
  int64_t gather_calls;
  int64_t reduced_elements;
  int64_t reduce_calls;
  int64_t all_reduced_elements;
  int64_t all_reduce_calls;
} acc_traffic_report;
#define ACC_TRAFFIC_REPORT_INITIALIZER \
  { sizeof(acc_traffic_report), 0, 0, 0, 0, 0, 0, 0 }
ACC_API acc_status acc_model_traffic(const acc_model* model,
                                     acc_traffic_report* report) ACC_NOEXCEPT;
ACC_API acc_status acc_model_reset_traffic(acc_model* model) ACC_NOEXCEPT;

/* ---- uses ------------------------------------------------------------------------------------*/

/* A use must be ended; `end` frees the handle, also where it fails. */
ACC_API acc_status acc_forward_begin(acc_unit* unit, acc_forward_use** use) ACC_NOEXCEPT;
ACC_API acc_status acc_forward_parameter(const acc_forward_use* use, acc_parameter parameter,
                                         const float** data) ACC_NOEXCEPT;
/* In the model's compute dtype, memory of the runtime's device. */
ACC_API acc_status acc_forward_raw(const acc_forward_use* use, acc_parameter parameter,
                                   const void** data) ACC_NOEXCEPT;
ACC_API acc_status acc_forward_end(acc_forward_use* use) ACC_NOEXCEPT;

ACC_API acc_status acc_backward_begin(acc_unit* unit, acc_backward_use** use) ACC_NOEXCEPT;
ACC_API acc_status acc_backward_parameter(const acc_backward_use* use, acc_parameter parameter,
                                          const float** data) ACC_NOEXCEPT;
/* Compute data = beta * data + gradient. data is NULL for a frozen parameter. Ask once per write.
 */
ACC_API acc_status acc_backward_grad(acc_backward_use* use, acc_parameter parameter, float** data,
                                     float* beta) ACC_NOEXCEPT;
/* Always to be added to. */
ACC_API acc_status acc_backward_grad_to_add(acc_backward_use* use, acc_parameter parameter,
                                            float** data) ACC_NOEXCEPT;
/* The same in the model's compute dtype, memory of the runtime's device. */
ACC_API acc_status acc_backward_raw(const acc_backward_use* use, acc_parameter parameter,
                                    const void** data) ACC_NOEXCEPT;
ACC_API acc_status acc_backward_raw_grad(acc_backward_use* use, acc_parameter parameter,
                                         void** data, float* beta) ACC_NOEXCEPT;
ACC_API acc_status acc_backward_raw_grad_to_add(acc_backward_use* use, acc_parameter parameter,
                                                void** data) ACC_NOEXCEPT;
ACC_API acc_status acc_backward_end(acc_backward_use* use) ACC_NOEXCEPT;

/* While the handle lives, forward uses expect no backward. */
ACC_API acc_status acc_no_grad_begin(acc_model* model, acc_no_grad** scope) ACC_NOEXCEPT;
ACC_API void acc_no_grad_end(acc_no_grad* scope) ACC_NOEXCEPT;

/* ---- optimizer -------------------------------------------------------------------------------*/

typedef struct acc_adamw_config {
  size_t size;
  double lr, beta1, beta2, eps, weight_decay;
} acc_adamw_config;
#define ACC_ADAMW_CONFIG_INITIALIZER \
  { sizeof(acc_adamw_config), 1e-3, 0.9, 0.999, 1e-8, 1e-2 }

typedef struct acc_sgd_config {
  size_t size;
  double lr, momentum, weight_decay;
  int32_t nesterov;
} acc_sgd_config;
#define ACC_SGD_CONFIG_INITIALIZER \
  { sizeof(acc_sgd_config), 1e-3, 0.0, 0.0, 0 }

/* config: NULL for the initializer's values. */
ACC_API acc_status acc_optimizer_adamw(acc_model* model, const acc_adamw_config* config,
                                       acc_optimizer** optimizer) ACC_NOEXCEPT;
ACC_API acc_status acc_optimizer_sgd(acc_model* model, const acc_sgd_config* config,
                                     acc_optimizer** optimizer) ACC_NOEXCEPT;
ACC_API void acc_optimizer_free(acc_optimizer* optimizer) ACC_NOEXCEPT;

typedef struct acc_step_info {
  size_t size;
  int64_t step;
  double grad_norm;
  double clip_coefficient;
} acc_step_info;
#define ACC_STEP_INFO_INITIALIZER \
  { sizeof(acc_step_info), 0, 0.0, 1.0 }
/* info: may be NULL. */
ACC_API acc_status acc_optimizer_step(acc_optimizer* optimizer, acc_step_info* info) ACC_NOEXCEPT;
ACC_API acc_status acc_optimizer_set_lr(acc_optimizer* optimizer, double lr) ACC_NOEXCEPT;
ACC_API acc_status acc_optimizer_lr(const acc_optimizer* optimizer, double* lr) ACC_NOEXCEPT;
ACC_API acc_status acc_optimizer_set_clip_norm(acc_optimizer* optimizer,
                                               double max_norm) ACC_NOEXCEPT;
ACC_API acc_status acc_optimizer_clip_norm(const acc_optimizer* optimizer,
                                           double* max_norm) ACC_NOEXCEPT;

/* ---- checkpoints -----------------------------------------------------------------------------*/

typedef struct acc_program_value {
  const char* name;
  int64_t value;
} acc_program_value;

/* values: [count] numbers of the program's own that travel with the checkpoint. */
ACC_API acc_status acc_runtime_save(acc_runtime* runtime, const char* directory,
                                    const acc_model* model, const acc_optimizer* optimizer,
                                    const acc_program_value* values, size_t count) ACC_NOEXCEPT;
/* state: may be NULL; else to be freed. */
ACC_API acc_status acc_runtime_load(acc_runtime* runtime, const char* directory, acc_model* model,
                                    acc_optimizer* optimizer,
                                    acc_program_state** state) ACC_NOEXCEPT;
/* ACC_NOT_FOUND where the checkpoint has no value of that name. */
ACC_API acc_status acc_program_state_get(const acc_program_state* state, const char* name,
                                         int64_t* value) ACC_NOEXCEPT;
ACC_API void acc_program_state_free(acc_program_state* state) ACC_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* ACC_RUNTIME_H */
