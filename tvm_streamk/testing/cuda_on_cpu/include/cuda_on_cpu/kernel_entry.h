// SPDX-License-Identifier: Apache-2.0
// Makes a kernel callable by name with a list of untyped arguments.
#pragma once

#include <type_traits>
#include <utility>

#include "runtime_interface.h"

namespace cuda_on_cpu {

template <typename Parameter>
inline Parameter argument_as(const Argument& argument) {
  if constexpr (std::is_pointer_v<Parameter>) {
    return static_cast<Parameter>(argument.pointer);
  } else if constexpr (std::is_integral_v<Parameter>) {
    return static_cast<Parameter>(argument.integer);
  } else {
    return static_cast<Parameter>(argument.real);
  }
}

template <typename... Parameters, size_t... index>
inline void call_kernel(void (*kernel)(Parameters...), const Argument* arguments,
                        std::index_sequence<index...>) {
  kernel(argument_as<std::remove_cv_t<Parameters>>(arguments[index])...);
}

template <typename... Parameters>
inline void call_kernel(void (*kernel)(Parameters...), const Argument* arguments) {
  call_kernel(kernel, arguments, std::index_sequence_for<Parameters...>{});
}

template <typename... Parameters>
constexpr unsigned parameter_count(void (*)(Parameters...)) {
  return sizeof...(Parameters);
}

}  // namespace cuda_on_cpu

#define CUDA_ON_CPU_KERNEL(kernel)                                                           \
  static cuda_on_cpu::KernelEntry kernel##_entry = {                                          \
      #kernel,                                                                                \
      [](const cuda_on_cpu::Argument* arguments) { cuda_on_cpu::call_kernel(kernel, arguments); }, \
      cuda_on_cpu::parameter_count(kernel), nullptr};                                         \
  static const bool kernel##_is_registered =                                                  \
      (cuda_on_cpu::register_kernel(&kernel##_entry), true);
