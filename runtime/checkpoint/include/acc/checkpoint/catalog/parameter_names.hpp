// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/catalog/catalog.hpp"

#include <map>
#include <string>

/// Names of the parameters of an optimizer. torch's own optimizers number them, group after group,
/// in the order in which the program has passed them. That order is not the order of the weights in
/// a file: safetensors files are sorted, and state dicts have buffers and frozen parameters too.
namespace acc::checkpoint {

/// Names the states that a file has only numbered, if the checkpoint itself tells the names: by
/// torch's param_names, or because the shape of each state (or its shape and dtype) is that of one
/// weight only and of no other state. Otherwise the states are marked (StoredTensor::number_only)
/// and TrainingState::names_unknown says why. To be called after weights and optimizer were read;
/// makes a new index. Throws Error(config) if names and numbers do not fit together.
void name_parameters(Catalog& catalog, TrainingState& training);

/// Gives names to the states that the function above has marked. names: number -> name. States of
/// other numbers stay marked.
void name_parameters(Catalog& catalog, TrainingState& training,
                     const std::map<std::string, std::string>& names);

/// Returns number -> shape of the marked states. A number whose state has no tensors, or tensors of
/// different shapes, is not in it. Steps do not count.
std::map<std::string, Shape> shapes_by_number(const Catalog& catalog);

}  // namespace acc::checkpoint
