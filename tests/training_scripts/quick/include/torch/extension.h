// What DeepSpeed's extensions use of torch's header of this name, which takes a compiler four times as long to read.
#pragma once
#define AT_PER_OPERATOR_HEADERS
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#ifndef WITHOUT_PYTHON  // a file that registers functions; the two take as long as the four above
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>
#endif

namespace torch {
using namespace at;
constexpr auto kFloat32 = at::kFloat;
}  // namespace torch
