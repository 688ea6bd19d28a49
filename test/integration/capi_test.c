/* SPDX-License-Identifier: Apache-2.0 */
/* capi_test FOLDER: trains y = x W through the C ABI, saves to FOLDER/checkpoint and resumes. Runs
 * with any number of ranks. Exits with 0, or prints the failed expectation. */

#include "acc/runtime_checkpoint.h"
#include "acc/runtime_data.h"
#include "capi_expect.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kRows = 12, kInputs = 3, kOutputs = 2, kSteps = 400 };

static float input(int row, int i) {
  return (float)((row * 7 + i * 5) % 11) / 11.0F - 0.4F;
}

static float true_weight(int i, int o) {
  return 0.5F * (float)(i + 1) - (float)o;
}

static void fill_weight(uint64_t stream, int64_t offset, float* out, size_t count, void* context) {
  (void)stream;
  for (size_t k = 0; k < count; ++k) {
    out[k] = *(const float*)context * (float)(offset + (int64_t)k);
  }
}

typedef struct Program {
  acc_runtime* runtime;
  acc_model* model;
  acc_unit* unit;
  acc_parameter weight, frozen;
  acc_optimizer* optimizer;
} Program;

static Program create(void) {
  static float slope = 0.01F;
  Program p;
  EXPECT_OK(acc_runtime_from_environment(&p.runtime));
  EXPECT_OK(acc_model_create(p.runtime, 3, &p.model));
  EXPECT_OK(acc_model_unit(p.model, "linear", "Linear", &p.unit));
  acc_parameter_config config = ACC_PARAMETER_CONFIG_INITIALIZER;
  config.initializer = ACC_INITIALIZER_CUSTOM;
  config.fill = fill_weight;
  config.context = &slope;
  const int64_t shape[] = {kInputs, kOutputs};
  EXPECT_OK(acc_unit_parameter(p.unit, "weight", shape, 2, &config, &p.weight));
  acc_parameter_config frozen = ACC_PARAMETER_CONFIG_INITIALIZER;
  frozen.trainable = 0;
  frozen.a = 1.0F;
  EXPECT_OK(acc_unit_parameter(p.unit, "frozen", NULL, 0, &frozen, &p.frozen));
  EXPECT(acc_model_numel(p.model) == kInputs * kOutputs + 1);
  acc_sgd_config sgd = ACC_SGD_CONFIG_INITIALIZER;
  sgd.lr = 0.4;
  sgd.momentum = 0.9;
  EXPECT_OK(acc_optimizer_sgd(p.model, &sgd, &p.optimizer));
  return p;
}

static void destroy(Program* p) {
  acc_optimizer_free(p->optimizer);
  acc_model_free(p->model);
  acc_runtime_free(p->runtime);
}

/* Returns the mean squared error of this rank's rows. Computes its gradient if `use` is given. */
static double loss(const Program* p, const float* weight, acc_backward_use* use) {
  const int rank = acc_runtime_rank(p->runtime);
  const int rows = kRows / acc_runtime_world_size(p->runtime);
  float gradient[kInputs * kOutputs] = {0};
  double sum = 0.0;
  for (int row = rank * rows; row < (rank + 1) * rows; ++row) {
    for (int o = 0; o < kOutputs; ++o) {
      float difference = 0.0F;
      for (int i = 0; i < kInputs; ++i) {
        difference += input(row, i) * (weight[i * kOutputs + o] - true_weight(i, o));
      }
      sum += (double)difference * difference / rows;
      for (int i = 0; i < kInputs; ++i) {
        gradient[i * kOutputs + o] += 2.0F * difference * input(row, i) / (float)rows;
      }
    }
  }
  if (use != NULL) {
    float* data = NULL;
    EXPECT_OK(acc_backward_grad_to_add(use, p->weight, &data));
    for (int k = 0; k < kInputs * kOutputs; ++k) {
      data[k] += gradient[k];
    }
    float beta = 0.0F;
    EXPECT_OK(acc_backward_grad(use, p->frozen, &data, &beta));
    EXPECT(data == NULL);
    /* The gradient was written before, so both parts must be added. */
    void* raw = NULL;
    void* same = NULL;
    EXPECT_OK(acc_backward_raw_grad(use, p->weight, &raw, &beta));
    EXPECT(beta == 1.0F && ((float*)raw)[0] == gradient[0]);
    EXPECT_OK(acc_backward_raw_grad_to_add(use, p->weight, &same));
    EXPECT(same == raw);
  }
  return sum;
}

/* Makes one step. Returns the loss before it, averaged over the ranks. */
static double train_step(const Program* p) {
  acc_forward_use* forward = NULL;
  const float* weight = NULL;
  EXPECT_OK(acc_forward_begin(p->unit, &forward));
  EXPECT_OK(acc_forward_parameter(forward, p->weight, &weight));
  const void* raw = NULL;
  EXPECT_OK(acc_forward_raw(forward, p->weight, &raw));
  EXPECT(raw == weight);
  const double local = loss(p, weight, NULL);
  EXPECT_OK(acc_forward_end(forward));

  acc_backward_use* backward = NULL;
  EXPECT_OK(acc_backward_begin(p->unit, &backward));
  EXPECT_OK(acc_backward_parameter(backward, p->weight, &weight));
  EXPECT_OK(acc_backward_raw(backward, p->weight, &raw));
  EXPECT(raw == weight);
  EXPECT(loss(p, weight, backward) == local);
  EXPECT_OK(acc_backward_end(backward));

  int is_last = 0;
  EXPECT_OK(acc_runtime_last_micro_step(p->runtime, p->model, &is_last));
  EXPECT(is_last == 1);
  acc_step_info info = ACC_STEP_INFO_INITIALIZER;
  EXPECT_OK(acc_optimizer_step(p->optimizer, &info));
  EXPECT(info.step > 0 && isfinite(info.grad_norm));
  double mean = 0.0;
  EXPECT_OK(acc_runtime_mean(p->runtime, local, &mean));
  return mean;
}

static void expect_errors(const Program* p) {
  EXPECT(acc_forward_begin(NULL, NULL) == ACC_INVALID_ARGUMENT);
  EXPECT(strstr(acc_last_error(), "is NULL") != NULL);
  EXPECT(acc_last_error_rank() == -1);
  EXPECT(acc_model_load_weights(p->model, "/no/such/file") == ACC_CONFIG);
  /* Only rank 0 reads the weights. */
  const char* reader = acc_runtime_rank(p->runtime) == 0 ? "/no/such/file" : "rank 0";
  EXPECT(strstr(acc_last_error(), reader) != NULL);
  EXPECT(acc_exit_status(ACC_CONFIG) == 2 && strcmp(acc_status_name(ACC_CONFIG), "config") == 0);
  acc_memory_report report = ACC_MEMORY_REPORT_INITIALIZER;
  report.size = 1000;
  EXPECT(acc_model_memory(p->model, &report) == ACC_INVALID_ARGUMENT);
  /* A caller whose header ends after the first field gets only that field. */
  report.size = offsetof(acc_memory_report, gradient_bytes);
  report.gradient_bytes = -7;
  EXPECT_OK(acc_model_memory(p->model, &report));
  EXPECT(report.parameter_bytes > 0 && report.gradient_bytes == -7);
}

static void expect_helpers(const Program* p) {
  const int world = acc_runtime_world_size(p->runtime);
  const double own[] = {acc_runtime_rank(p->runtime), 0.5};
  double all[2 * kRows];
  EXPECT_OK(acc_runtime_all_gather(p->runtime, own, 2, all));
  for (int rank = 0; rank < world; ++rank) {
    EXPECT(all[2 * rank] == rank && all[2 * rank + 1] == 0.5);
  }
  acc_device_info device = ACC_DEVICE_INFO_INITIALIZER;
  EXPECT_OK(acc_runtime_device(p->runtime, &device));
  EXPECT(device.kind == ACC_DEVICE_CPU && device.stream == NULL);
  acc_dtype dtype = ACC_BFLOAT16;
  EXPECT_OK(acc_model_compute_dtype(p->model, &dtype));
  EXPECT(dtype == ACC_FLOAT32);
  char text[8];
  EXPECT_OK(acc_runtime_describe(p->runtime, text, sizeof text));
  EXPECT(strlen(text) == sizeof text - 1);
  EXPECT_OK(acc_runtime_barrier(p->runtime));
}

/* Settings that contradict the launcher, or that no plugin knows, are errors before any
 * communication. */
static void expect_plugins(int is_alone) {
  acc_fsdp_plugin* fsdp = NULL;
  EXPECT_OK(acc_fsdp_plugin_create(&fsdp));
  EXPECT(acc_fsdp_plugin_set(fsdp, "shard_strategy", "NO_SHARD") == ACC_CONFIG);
  EXPECT(strstr(acc_last_error(), "sharding_strategy") != NULL);
  EXPECT(acc_fsdp_plugin_set(fsdp, "sharding_strategy", "ALL") == ACC_CONFIG);
  EXPECT(strstr(acc_last_error(), "HYBRID_SHARD_ZERO2") != NULL);
  EXPECT(acc_fsdp_plugin_set(fsdp, NULL, "ALL") == ACC_INVALID_ARGUMENT);
  EXPECT_OK(acc_fsdp_plugin_set(fsdp, "sharding_strategy", "NO_SHARD"));
  EXPECT_OK(acc_fsdp_plugin_set(fsdp, "dp_shard_size", "2"));
  acc_runtime* runtime = NULL;
  EXPECT(acc_runtime_from_environment_with_fsdp(fsdp, &runtime) == ACC_CONFIG);
  EXPECT(acc_runtime_in_mode_with_fsdp("deepspeed", fsdp, &runtime) == ACC_CONFIG);
  EXPECT(strstr(acc_last_error(), "Plugin contradicts ACC_MODE") != NULL);
  EXPECT(acc_runtime_in_mode_with_fsdp(NULL, fsdp, &runtime) == ACC_INVALID_ARGUMENT);
  EXPECT(runtime == NULL);
  acc_fsdp_plugin_free(fsdp);

  acc_deepspeed_plugin* deepspeed = NULL;
  EXPECT_OK(acc_deepspeed_plugin_create(&deepspeed));
  EXPECT_OK(acc_deepspeed_plugin_set(deepspeed, "zero_stage", "3"));
  EXPECT_OK(acc_deepspeed_plugin_set(deepspeed, "gradient_accumulation_steps", "4"));
  if (is_alone) {
    EXPECT_OK(acc_runtime_from_environment_with_deepspeed(deepspeed, &runtime));
    EXPECT(acc_runtime_gradient_accumulation_steps(runtime) == 4);
    char text[1000];
    EXPECT_OK(acc_runtime_describe(runtime, text, sizeof text));
    EXPECT(strstr(text, "full_shard (from deepspeed)") != NULL);
    EXPECT(strstr(text, "the program's DeepSpeedPlugin sets") != NULL);
    acc_runtime_free(runtime);
  } else {
    EXPECT(acc_runtime_from_environment_with_deepspeed(deepspeed, &runtime) == ACC_CONFIG);
    EXPECT(strstr(acc_last_error(), "DeepSpeedPlugin contradicts ACC_MODE") != NULL);
  }
  acc_deepspeed_plugin_free(deepspeed);
}

/* An order of 20 samples, without a runtime. */
static acc_data_order* create_order(uint64_t seed) {
  const int64_t samples = 20;
  acc_data_config config = ACC_DATA_CONFIG_INITIALIZER;
  config.samples = &samples;
  config.num_sources = 1;
  config.seed = seed;
  acc_data_order* order = NULL;
  EXPECT_OK(acc_data_order_create(&config, &order));
  return order;
}

/* Uses 12 of the samples; each of an epoch comes once. */
static acc_data_order* use_samples(void) {
  acc_data_order* order = create_order(3);
  int used[20] = {0};
  acc_data_position at = {0, 0, 0};
  while (at.epoch == 0) {
    acc_data_batch batch;
    EXPECT_OK(acc_data_order_batch(order, &at, 6, &batch));
    EXPECT(batch.count == (at.offset == 18 ? 2 : 6));
    for (int64_t rank = 0; rank < 3; ++rank) {
      acc_data_sample drawn[6];
      int64_t first = 0;
      int64_t count = 0;
      EXPECT_OK(acc_data_share(batch.count, rank, 3, &first, &count));
      EXPECT_OK(acc_data_order_samples(order, &batch, first, count, drawn));
      for (int64_t i = 0; i < count; ++i) {
        EXPECT(drawn[i].source == 0 && drawn[i].epoch == 0 && used[drawn[i].index]++ == 0);
      }
    }
    if (at.offset < 12) {
      EXPECT_OK(acc_data_order_advance(order, &batch, NULL, 0, NULL));
    }
    at = batch.next;
  }
  int64_t batches = 0;
  EXPECT_OK(acc_data_order_position(order, &at));
  EXPECT_OK(acc_data_order_batches(order, &at, 3, &batches));
  EXPECT(at.offset == 12 && batches == 3);
  int64_t lengths[20];
  for (int i = 0; i < 20; ++i) {
    lengths[i] = i + 1;
  }
  acc_data_piece pieces[40];
  size_t count = 0;
  acc_data_batch packed;
  at.offset = 0;
  EXPECT_OK(acc_data_order_pack(order, &at, lengths, 20, 30, 7, &packed, pieces, 2, &count));
  EXPECT(packed.count == 7 && packed.next.epoch == 1 && count > 20 && count < 40); /* 210 tokens */
  EXPECT_OK(acc_data_order_pack(order, &at, lengths, 20, 30, 7, &packed, pieces, 40, &count));
  int64_t tokens = 0;
  for (size_t i = 0; i < count; ++i) {
    EXPECT(pieces[i].total == pieces[i].document + 1);
    tokens += pieces[i].length;
  }
  EXPECT(tokens == 210 && pieces[count - 1].sequence == 6);
  return order;
}

/* Memory in a file: 3 pages and a part of one, without a runtime. */
static void expect_file_memory(const char* folder) {
  enum { kPage = 4096, kBytes = 3 * kPage + 100 };
  acc_file_memory_config config = ACC_FILE_MEMORY_CONFIG_INITIALIZER;
  acc_file_memory* memory = NULL;
  config.folder = folder;
  config.setting = "nvme_path";
  config.nbytes = kBytes;
  config.queue_depth = 0;
  EXPECT(acc_file_memory_create(&config, &memory) == ACC_INVALID_ARGUMENT);
  EXPECT(strstr(acc_last_error(), "aio.queue_depth is 0, expected at least 1") != NULL);
  config.queue_depth = 1;
  config.folder = "/proc";
  EXPECT(acc_file_memory_create(&config, &memory) == ACC_CONFIG);
  EXPECT(strstr(acc_last_error(), "/proc (nvme_path)") != NULL);
  config.folder = folder;
  EXPECT_OK(acc_file_memory_create(&config, &memory));
  unsigned char written[kBytes];
  unsigned char found[kBytes];
  for (size_t i = 0; i < kBytes; ++i) {
    written[i] = (unsigned char)(i * 31 / 7);
  }
  EXPECT_OK(acc_file_memory_read(memory, 0, found, kBytes));
  EXPECT(found[0] == 0 && found[kBytes - 1] == 0);
  EXPECT_OK(acc_file_memory_write(memory, 0, written, kBytes));
  EXPECT_OK(acc_file_memory_read(memory, 50, found, kPage));
  EXPECT(memcmp(found, written + 50, kPage) == 0);
  unsigned char* const pages = aligned_alloc(kPage, 2 * kPage);
  EXPECT(pages != NULL);
  EXPECT_OK(acc_file_memory_start_reading(memory, kPage, pages, kPage));
  EXPECT_OK(acc_file_memory_start_reading(memory, 3 * kPage, pages + kPage, 100));
  EXPECT_OK(acc_file_memory_wait(memory));
  EXPECT(memcmp(pages, written + kPage, kPage) == 0);
  EXPECT(memcmp(pages + kPage, written + 3 * kPage, 100) == 0);
  free(pages);
  EXPECT(acc_file_memory_read(memory, kBytes, found, 1) == ACC_INVALID_ARGUMENT);
  EXPECT(acc_file_memory_write(memory, 1, written, kBytes) == ACC_INVALID_ARGUMENT);
  EXPECT(strstr(acc_last_error(), "bytes [1, +12388) of a memory of 12388 bytes") != NULL);
  acc_file_memory_free(memory);
}

static void load_order(const acc_program_state* state) {
  acc_data_order* order = create_order(3);
  acc_data_position at;
  EXPECT_OK(acc_data_order_load(order, state));
  EXPECT_OK(acc_data_order_position(order, &at));
  EXPECT(at.epoch == 0 && at.offset == 12);
  acc_data_order* other = create_order(4);
  EXPECT(acc_data_order_load(other, state) == ACC_CONFIG);
  EXPECT(acc_data_order_load_values(other, NULL, 0) == ACC_NOT_FOUND);
  const acc_data_position outside = {0, 21, 0};
  EXPECT(acc_data_order_seek(other, &outside) == ACC_INVALID_ARGUMENT);
  EXPECT_OK(acc_data_order_end_epoch(other));
  acc_data_order_free(other);
  acc_data_order_free(order);
}

static void save(const Program* p, const char* folder) {
  acc_program_value values[3 + ACC_DATA_ORDER_VALUES];
  for (size_t i = 0; i < sizeof values / sizeof *values; ++i) {
    values[i] = (acc_program_value)ACC_PROGRAM_VALUE_INITIALIZER;
  }
  values[0].name = "seen";
  values[0].integer = (int64_t)1 << 40;
  values[1].name = "rate";
  values[1].kind = ACC_VALUE_REAL;
  values[1].real = 0.1;
  values[2].name = "noise";
  values[2].kind = ACC_VALUE_BYTES;
  values[2].of_rank = 1;
  const char noise[] = {'\xff', '\0', (char)('a' + acc_runtime_rank(p->runtime))};
  values[2].bytes = noise;
  values[2].num_bytes = sizeof noise;
  acc_data_order* order = use_samples();
  size_t count = 0;
  EXPECT(acc_data_order_state(order, values + 3, 3, &count) == ACC_INVALID_ARGUMENT);
  EXPECT_OK(acc_data_order_state(order, values + 3, ACC_DATA_ORDER_VALUES, &count));
  EXPECT_OK(acc_runtime_save(p->runtime, folder, p->model, p->optimizer, values, 3 + count));
  acc_data_order_free(order);
}

static void load(const Program* p, const char* folder) {
  acc_program_state* state = NULL;
  const acc_trained part = {p->model, p->optimizer};
  EXPECT_OK(acc_runtime_load_all(p->runtime, folder, &part, 1, &state));
  acc_program_value value = ACC_PROGRAM_VALUE_INITIALIZER;
  EXPECT_OK(acc_program_state_get(state, "seen", &value));
  EXPECT(value.kind == ACC_VALUE_INTEGER && value.integer == (int64_t)1 << 40);
  EXPECT_OK(acc_program_state_get(state, "rate", &value));
  EXPECT(value.kind == ACC_VALUE_REAL && value.real == 0.1);
  EXPECT_OK(acc_program_state_get_of_rank(state, "noise", &value));
  EXPECT(value.of_rank == 1 && value.num_bytes == 3);
  EXPECT(((const char*)value.bytes)[2] == 'a' + acc_runtime_rank(p->runtime));
  EXPECT(acc_program_state_get(state, "noise", &value) == ACC_NOT_FOUND);
  load_order(state);
  acc_program_state_free(state);
  int64_t steps = 0;
  EXPECT_OK(acc_optimizer_steps(p->optimizer, &steps));
  EXPECT(steps == kSteps);
}

typedef struct Seen {
  int tensors;
  double sum;
} Seen;

static void see(const acc_full_tensor* tensor, void* context) {
  Seen* const seen = (Seen*)context;
  EXPECT(tensor->dtype == ACC_FLOAT32);
  int64_t numel = 1;
  for (size_t d = 0; d < tensor->num_dims; ++d) {
    numel *= tensor->shape[d];
  }
  ++seen->tensors;
  for (int64_t i = 0; i < numel; ++i) {
    seen->sum += ((const float*)tensor->data)[i];
  }
}

/* Exported weights can be imported, and equal those of the state dict. */
static void expect_files(const Program* p, const char* parent) {
  Seen before = {0, 0.0};
  Seen after = {0, 0.0};
  acc_state_dict_config everywhere = ACC_STATE_DICT_CONFIG_INITIALIZER;
  everywhere.rank0_only = 0;
  EXPECT_OK(acc_model_state_dict(p->model, &everywhere, see, &before));
  EXPECT(before.tensors > 0);
  const char* const names[] = {"weights.safetensors", "weights.bin", "weights"};
  for (int i = 0; i < 3; ++i) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", parent, names[i]);
    EXPECT_OK(acc_model_export_weights(p->model, path, NULL));
    EXPECT_OK(acc_model_load_weights(p->model, path));
  }
  EXPECT_OK(acc_model_state_dict(p->model, NULL, see, &after));
  EXPECT(acc_runtime_rank(p->runtime) == 0
             ? after.tensors == before.tensors && after.sum == before.sum
             : after.tensors == 0);
}

static void expect_save_beside(const Program* p, const char* parent) {
  char folder[4096];
  snprintf(folder, sizeof folder, "%s/beside", parent);
  int32_t flag = -1;
  const acc_status saved =
      acc_runtime_save_async(p->runtime, folder, p->model, p->optimizer, NULL, 0, 0, &flag);
  if (saved == ACC_NOT_SUPPORTED) { /* FULL_STATE_DICT */
    return;
  }
  EXPECT(saved == ACC_OK && flag == 1);
  EXPECT_OK(acc_runtime_wait_save(p->runtime));
  EXPECT_OK(acc_runtime_saving(p->runtime, &flag));
  EXPECT(flag == 0);
  EXPECT_OK(acc_runtime_save_async(p->runtime, folder, p->model, p->optimizer, NULL, 0, 1, &flag));
  EXPECT(flag == 1);
  EXPECT_OK(acc_runtime_load(p->runtime, folder, p->model, p->optimizer, NULL));
  snprintf(folder, sizeof folder, "%s/beside/acc_checkpoint.json/x", parent);
  EXPECT_OK(acc_runtime_save_async(p->runtime, folder, p->model, p->optimizer, NULL, 0, 0, NULL));
  EXPECT(acc_runtime_wait_save(p->runtime) == ACC_CONFIG);
  EXPECT(strstr(acc_last_error(), "acc_checkpoint.json") != NULL);
}

static void expect_series(const Program* p, const char* parent) {
  char folder[4096];
  char path[4096];
  snprintf(folder, sizeof folder, "%s/series", parent);
  acc_checkpoint_series_config config = ACC_CHECKPOINT_SERIES_CONFIG_INITIALIZER;
  config.total_limit = 1;
  acc_checkpoint_series* series = NULL;
  EXPECT_OK(acc_checkpoint_series_create(p->runtime, folder, &config, &series));
  for (int i = 0; i < 2; ++i) {
    EXPECT_OK(acc_checkpoint_series_save(series, p->model, p->optimizer, NULL, 0));
  }
  EXPECT_OK(acc_checkpoint_series_newest(series, path, sizeof path));
  EXPECT(strstr(path, "series/checkpoint_") != NULL);
  EXPECT(acc_checkpoint_series_newest(series, path, 3) == ACC_INVALID_ARGUMENT);
  EXPECT_OK(acc_runtime_load(p->runtime, path, p->model, p->optimizer, NULL));
  char from[4096];
  int32_t due = 1;
  EXPECT_OK(acc_checkpoint_series_is_memory_due(series, p->optimizer, &due));
  EXPECT(due == 0); /* without memory_checkpoint_every */
  EXPECT_OK(acc_checkpoint_series_keep_in_memory(series, p->model, p->optimizer, NULL, 0, &due));
  EXPECT(due == 0);
  EXPECT_OK(acc_checkpoint_series_resume(series, p->model, p->optimizer, NULL, from, sizeof from));
  EXPECT(acc_checkpoint_series_rejoin(series, p->model, p->optimizer, NULL, from, sizeof from) ==
         ACC_NOT_SUPPORTED); /* this launcher replaces no ranks */
  EXPECT_OK(acc_checkpoint_series_can_rejoin(series, ACC_PEER_LOST, &due));
  EXPECT(due == 0);
  EXPECT(strcmp(from, path) == 0);
  acc_checkpoint_series_free(series);
  expect_save_beside(p, parent);
}

static void expect_membership(void) {
  acc_membership* membership = NULL;
  acc_meeting meeting = ACC_MEETING_INITIALIZER;
  int32_t state = -1;
  EXPECT(acc_membership_open("/dev/null", &membership) == ACC_CONFIG);
  const char* page = getenv("ACC_MEMBERSHIP");
  if (page == NULL) {
    return; /* of a job with one worker */
  }
  EXPECT_OK(acc_membership_open(page, &membership));
  EXPECT(acc_membership_enter(membership, 0, NULL) == ACC_INVALID_ARGUMENT); /* and enters none */
  EXPECT(acc_membership_state(membership, 0, &state) == ACC_INVALID_ARGUMENT);
  EXPECT_OK(acc_membership_enter(membership, 0, &meeting));
  EXPECT(meeting.num_machines == 0);
  EXPECT_OK(acc_membership_state(membership, 0, &state));
  EXPECT(state == ACC_EPOCH_GOES_ON);
  EXPECT_OK(acc_membership_joined(membership, 0));
  EXPECT(acc_membership_enter(membership, 0, &meeting) == ACC_TIMEOUT); /* no other epoch */
  acc_membership_free(membership);
}

int main(int argc, char** argv) {
  EXPECT(argc == 2);
  char folder[4096];
  snprintf(folder, sizeof folder, "%s/saved", argv[1]);

  Program p = create();
  expect_helpers(&p);
  const double first = train_step(&p);
  for (int step = 1; step < kSteps; ++step) {
    train_step(&p);
  }
  expect_errors(&p);
  save(&p, folder);
  const double last = train_step(&p);
  EXPECT(first > 0.1 && last < 1e-6 * first);
  const double next = train_step(&p);

  /* Resumed in the same process: the two losses are bitwise equal. */
  load(&p, folder);
  EXPECT(train_step(&p) == last);
  EXPECT(train_step(&p) == next);
  expect_files(&p, argv[1]);
  expect_file_memory(argv[1]);
  expect_series(&p, argv[1]);
  expect_membership();
  const int is_alone = acc_runtime_world_size(p.runtime) == 1;
  destroy(&p);
  expect_plugins(is_alone);
  return 0;
}
